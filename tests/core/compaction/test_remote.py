"""What a provider that compacts is sent, and what stays beside its item (spec §6.1, §6.4)."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.compaction.endpoint import replacement, settle
from refold.core.compaction.remote import TRIGGER, TRIMMED, outputs_over, request, retained
from refold.core.history import Entry, entry
from refold.core.items import Item, message, message_text, message_texts, user_message
from refold.core.profile import Profile
from refold.errors import CompactionFailed

PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
PICTURE_TOKENS = 1_849  # 7,373 bytes, and the beginning of its address
LABEL, LABEL_END = '<image name=[Image #1] path="a.png">', "</image>"
SEALED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v"}
PROFILE = Profile(slug="m", context_window=None)


def notice(text: str = "Image 1 of 1 was resized.") -> Item:
    return message("developer", [f"<image_resize_notice>\n{text}\n</image_resize_notice>"])


def output(call_id: str, text: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def call(call_id: str) -> Item:
    return {"type": "function_call", "name": "f", "arguments": "{}", "call_id": call_id}


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"t:{number}") for number, item in enumerate(items)]


def said(*parts: str | dict[str, Any]) -> Item:
    return {
        **user_message(""),
        "content": [{"type": "input_text", "text": p} if isinstance(p, str) else p for p in parts],
    }


def shown(parts: list[dict[str, Any]]) -> list[str]:
    return [str(part.get("text", part["type"])) for part in parts]


# --- left out ------------------------------------------------------------------------------------------------------


def test_outputs_at_the_end_lose_their_text_newest_first_until_the_rest_fits() -> None:
    history = entries(user_message("go"), call("a"), call("b"), output("a", "x" * 4_000), output("b", "y" * 4_000))
    whole = sum(e.tokens for e in history)
    assert outputs_over(history, None, whole) == 0
    assert outputs_over(history, None, whole - 1) == 1
    assert outputs_over(history, None, 10) == 2
    sent = request(history, PROFILE, base_instructions=None, tools=(), left_out=1)
    assert [e.item.get("output", "")[:6] for e in sent.entries][3:5] == ["xxxxxx", TRIMMED[:6]]
    assert sent.entries[-1].item == TRIGGER
    assert history[-1].item["output"][0] == "y", "the history keeps it"


def test_what_is_no_output_ends_the_search() -> None:
    history = entries(call("a"), output("a", "x" * 4_000), message("assistant", ["done"]))
    assert outputs_over(history, None, 10) == 0


def test_notice_on_the_images_of_an_output_goes_with_its_text() -> None:
    long = notice("n" * 400)
    history = entries(call("a"), call("b"), output("a", "x" * 4_000), output("b", "y" * 4_000), long)
    whole = sum(e.tokens for e in history)
    assert outputs_over(history, None, whole - 1_050) == 2, "the notice counts as what is spared"
    sent = request(history, PROFILE, base_instructions=None, tools=(), left_out=2)
    kinds = [e.item["type"] for e in sent.entries]
    assert kinds == [*["function_call"] * 2, *["function_call_output"] * 2, "compaction_trigger"]
    assert outputs_over(entries(message("assistant", ["x"]), long), None, 1) == 0


# --- kept ----------------------------------------------------------------------------------------------------------


def test_notice_stays_with_the_message_that_it_follows_and_counts() -> None:
    history = entries(said(PICTURE, "look"), notice(), message("assistant", ["ok"]), notice("another"))
    kept = [message_text(item) or item["role"] for item, _ in retained(history)]
    assert kept == ["look", message_text(notice())]
    assert [address for _, address in retained(history)] == ["t:0", "t:1"]
    texts = entries(user_message("a" * 400), notice("n" * 400))
    assert len(retained(texts, 100 + texts[1].tokens)) == 2
    cut = retained(texts, 99 + texts[1].tokens)
    assert "tokens truncated" in message_text(cut[0][0]) and cut[1][0] == texts[1].item
    assert retained(texts, texts[1].tokens) == [], "no room for anything but the notice"


def test_pictures_count_and_one_that_does_not_fit_ends_the_search() -> None:
    history = entries(user_message("older"), said(LABEL, PICTURE, LABEL_END, "look at this"))
    whole = PICTURE_TOKENS + 9 + 2 + 3
    assert len(retained(history, whole)) == 1
    assert len(retained(history, whole + 2)) == 2
    ((last, _),) = retained(history, whole - 1)
    assert shown(last["content"]) == ["look at this"], (
        "a picture goes with its labels, and nothing older comes after it"
    )


def test_of_a_message_with_pictures_the_later_parts_stay() -> None:
    history = entries(said("first " * 100, LABEL, PICTURE, LABEL_END, "last"))
    ((kept, _),) = retained(history, PICTURE_TOKENS + 9 + 2 + 1 + 10)
    texts = message_texts(kept)
    assert "tokens truncated" in texts[0] and texts[1:] == [LABEL, LABEL_END, "last"]


def test_of_a_message_of_texts_the_earlier_parts_stay() -> None:
    ((kept, _),) = retained(entries(said("one!", "two! " * 100, "three")), 20)
    texts = message_texts(kept)
    assert texts[0] == "one!" and "tokens truncated" in texts[1] and len(texts) == 2


# --- the endpoint's answer -----------------------------------------------------------------------------------------


def test_messages_that_came_back_twice_have_each_its_own_address() -> None:
    sent = entries(user_message("go on"), message("assistant", ["ok"]), user_message("go on"))
    kept = settle([user_message("go on"), user_message("go on"), SEALED], sent)
    assert [address for _, address in kept] == ["t:0", "t:2", ""]


def test_fresh_context_stands_before_the_newest_message_or_else_before_the_compaction() -> None:
    context = [message("developer", ["rules"])]

    def order(*items: Item) -> list[str]:
        built = replacement((), context, settle(list(items), ()))
        return [str(item.get("role") or item["type"]) for item in built.items]

    assert order(user_message("a"), user_message("b"), SEALED) == ["user", "developer", "user", "compaction"]
    assert order(SEALED, user_message("b")) == ["compaction", "developer", "user"]
    assert order(message("assistant", ["x"]), SEALED) == ["assistant", "developer", "compaction"]


@pytest.mark.parametrize("items", [[], [user_message("a")], [{"type": "function_call", "call_id": "c"}]])
def test_answer_that_stands_for_nothing_is_an_error_that_says_what_came(items: list[Item]) -> None:
    kinds = ", ".join(item["type"] for item in items) or "nothing"
    with pytest.raises(CompactionFailed, match=f"answered with {kinds}; expected a compaction item"):
        settle(items, ())
