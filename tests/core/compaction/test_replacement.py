"""What takes the history's place: what people typed, fresh context, the summary; within a budget, without images."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.compaction.replacement import (
    RETAINED_USER_TOKENS,
    cut_in_three,
    rebuild_from_summary,
    retained_user_messages,
    summarised,
)
from refold.core.fragments import KIND_ENVIRONMENT, KIND_TYPED, SUMMARY_MARK, origin_of, stored_message
from refold.core.history import Entry, entry
from refold.core.items import PASSTHROUGH, Item, message, message_texts
from refold.core.truncate import tokens_for

CONTEXT = [
    message("developer", ["<permissions instructions>x</permissions instructions>"], id="msg_c1"),
    message("user", ["<environment_context>x</environment_context>"], id="msg_c2"),
]
PNG = {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}


def typed(text: str, number: int = 0) -> Item:
    return stored_message("user", [(KIND_TYPED, text)], id=f"msg_{number}", turn_id="t1")


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items, 1)]


def kept(*texts: str, budget: int = RETAINED_USER_TOKENS) -> list[list[str]]:
    """The texts of each message that is kept."""
    history = entries(*(typed(text, number) for number, text in enumerate(texts)))
    return [message_texts(item) for item, _ in retained_user_messages(history, budget)]


def assembled(*items: Item, context: list[Item] | None = None) -> list[str]:
    """Ids of the items that take the history's place."""
    found = summarised(
        entries(*items), CONTEXT if context is None else context, "so far", summary_id="msg_sum", turn_id="t1"
    )
    return [item["id"] for item in found.items]


# --- order --------------------------------------------------------------------------------------------------


def test_fresh_context_stands_before_the_newest_user_message_and_the_summary_last() -> None:
    history = [typed("a", 1), message("assistant", ["x"]), typed("b", 2), typed("c", 3)]
    assert assembled(*history) == ["msg_1", "msg_2", "msg_c1", "msg_c2", "msg_3", "msg_sum"]


def test_with_one_user_message_the_context_comes_first() -> None:
    assert assembled(typed("a", 1)) == ["msg_c1", "msg_c2", "msg_1", "msg_sum"]


def test_without_a_user_message_context_and_summary_stand_alone() -> None:
    assert assembled(message("assistant", ["x"])) == ["msg_c1", "msg_c2", "msg_sum"]
    assert assembled(typed("a", 1), context=[]) == ["msg_1", "msg_sum"]


def test_the_replacement_knows_what_it_replaces_and_where_each_item_comes_from() -> None:
    history = entries(typed("a", 1), message("assistant", ["x"]), typed("b", 2))
    found = summarised(history, CONTEXT, "so far", summary_id="msg_sum", turn_id="t1")
    assert len(found.base) == 3
    assert found.addresses == ("T:1", "", "", "T:3", "")
    assert found.items[0] is history[0].item, "what fits is kept as it is"


def test_the_summary_is_the_prefix_a_newline_and_the_reply() -> None:
    found = summarised([], [], "so far", summary_id="msg_sum", turn_id="t1")
    (summary,) = found.items
    assert (summary["role"], message_texts(summary)) == ("user", [SUMMARY_MARK + "so far"])
    assert summary[PASSTHROUGH] == {"turn_id": "t1", "content_item_kinds": ["compaction.summary"]}
    assert (found.message, origin_of(summary)) == (SUMMARY_MARK + "so far", "summary")


# --- what is kept -------------------------------------------------------------------------------------------


def test_only_what_people_typed_is_kept() -> None:
    history = [
        *CONTEXT,
        stored_message("user", [(KIND_ENVIRONMENT, "moved")], id="msg_e", turn_id="t1"),
        typed("goal", 1),
        message("user", [SUMMARY_MARK + "an older summary"], id="msg_old"),
        message("user", ["<turn_aborted>\nx\n</turn_aborted>"], id="msg_abort"),
        message("user", ["# AGENTS.md instructions for /w"], id="msg_agents"),
        message("assistant", ["x"], id="msg_a"),
        {"type": "reasoning", "id": "rs_1"},
        {"type": "function_call", "id": "fc_1", "call_id": "c"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "x"},
        message("user", [" "], id="msg_blank"),
    ]
    assert assembled(*history, context=[]) == ["msg_1", "msg_blank", "msg_sum"]


def test_compacting_again_keeps_the_same_messages_and_one_summary() -> None:
    first = summarised(entries(typed("a", 1), typed("b", 2)), CONTEXT, "one", summary_id="msg_s1", turn_id="t1")
    second = summarised(entries(*first.items), CONTEXT, "two", summary_id="msg_s2", turn_id="t2")
    assert [item["id"] for item in second.items] == ["msg_1", "msg_c1", "msg_c2", "msg_2", "msg_s2"]
    third = summarised(entries(*second.items), CONTEXT, "two", summary_id="msg_s2", turn_id="t2")
    assert third.items == second.items


# --- the budget of 20,000 tokens (recorded) -----------------------------------------------------------------


def lengths(*texts: str) -> list[list[int | str]]:
    return [[part if part.startswith("…") else len(part) for part in parts] for parts in kept(*texts)]


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([79_999], [[79_999]]),
        ([80_000], [[80_000]]),
        ([80_001], [[40_000, "…1 tokens truncated…", 40_000]]),
        ([50_000, 50_000], [[15_000, "…5000 tokens truncated…", 15_000], [50_000]]),
        ([100, 80_000], [[80_000]]),
        ([30_000, 30_000, 30_000], [[10_000, "…2500 tokens truncated…", 10_000], [30_000], [30_000]]),
        ([5, 90_000, 79_996], [[2, "…22499 tokens truncated…", 2], [79_996]]),
    ],
)
def test_the_newest_messages_are_kept_within_the_budget(sizes: list[int], found: list[list[int | str]]) -> None:
    assert lengths(*("x" * size for size in sizes)) == found


def test_a_rest_of_one_token_keeps_two_bytes_at_each_end() -> None:
    long = "MS" + "x" * 2_996 + "br"  # 3,000 bytes
    assert kept(long, "y" * 79_996) == [["MS", "…749 tokens truncated…", "br"], ["y" * 79_996]]


def test_a_character_is_never_split() -> None:
    ((head, marker, tail),) = kept("漢" * 30_000)
    assert (len(head.encode()), len(tail.encode())) == (39_999, 39_999)
    assert marker == "…2500 tokens truncated…"


def test_what_was_cut_is_a_message_of_three_parts_and_keeps_its_id() -> None:
    ((item, address),) = retained_user_messages(entries(typed("x" * 80_001, 7)))
    assert (item["id"], item["role"], address) == ("msg_7", "user", "T:1")
    assert [part["type"] for part in item["content"]] == ["input_text"] * 3
    assert item[PASSTHROUGH] == {"turn_id": "t1", "content_item_kinds": ["user.text"] * 3}


def test_nothing_is_kept_without_a_budget() -> None:
    assert kept("a", budget=0) == []
    assert kept("a" * 9, "b" * 4, budget=1) == [["b" * 4]]


@settings(deadline=None)
@given(st.lists(st.text(max_size=60), max_size=6), st.integers(0, 30))
def test_any_messages_are_kept_newest_first_and_only_the_oldest_kept_is_cut(texts: list[str], budget: int) -> None:
    found = kept(*texts, budget=budget)
    newest = texts[len(texts) - len(found) :]
    costs = [tokens_for(len(text.encode())) for text in newest]
    assert found[1:] == [[text] for text in newest[1:]]
    assert sum(costs[1:]) <= budget
    if found and sum(costs) > budget:
        assert found[0] == cut_in_three(newest[0], budget - sum(costs[1:]))


@settings(deadline=None)
@given(st.text(min_size=1, max_size=80), st.integers(0, 19))
def test_a_text_is_cut_to_two_ends_around_a_marker(text: str, tokens: int) -> None:
    size = len(text.encode())
    if tokens_for(size) <= tokens:
        return
    parts = cut_in_three(text, tokens)
    marker = f"…{tokens_for(size - 4 * tokens)} tokens truncated…"
    place = parts.index(marker)
    head, tail = "".join(parts[:place]), "".join(parts[place + 1 :])
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len((head + tail).encode()) <= 4 * tokens
    assert len(head.encode()) <= 2 * tokens
    assert all(parts)


# --- images -------------------------------------------------------------------------------------------------


def labelled(*texts: str) -> Item:
    parts = [{"type": "input_text", "text": text} for text in texts]
    parts.insert(1, PNG)
    return {**typed("", 1), "content": parts}


def test_an_image_and_the_labels_around_it_become_a_short_text() -> None:
    item = labelled('<image name=[Image #1] path="p.png">', "</image>", "look at this")
    ((found, _),) = retained_user_messages(entries(item))
    assert message_texts(found) == ["[image left out]", "look at this"]
    assert found["id"] == "msg_1"
    assert len(item["content"]) == 4, "the history keeps it"


def test_what_is_left_of_a_message_with_an_image_is_all_that_counts() -> None:
    label = '<image name=[Image #1] path="' + "x" * 40_000 + '">'
    item = labelled(label, "</image>", "a" * 39_000, "b" * 40_000)
    ((found, _),) = retained_user_messages(entries(item))
    assert message_texts(found) == ["[image left out]", "a" * 39_000, "b" * 40_000]


def test_what_only_looks_like_a_label_is_what_somebody_typed() -> None:
    item = labelled("<image> or <img>", "<image src='x'>")
    ((found, _),) = retained_user_messages(entries(item))
    assert message_texts(found) == ["<image> or <img>", "[image left out]", "<image src='x'>"]


def test_a_label_without_an_image_is_what_somebody_typed() -> None:
    item = typed("<image>")
    assert retained_user_messages(entries(item)) == [(item, "T:1")]


# --- checkpoints of 2025 ------------------------------------------------------------------------------------


def test_a_checkpoint_that_holds_only_its_summary_keeps_what_people_typed() -> None:
    history = entries(typed("a", 1), message("assistant", ["x"]), typed("b", 2))
    assert rebuild_from_summary(history, "bare summary") == [
        typed("a", 1),
        typed("b", 2),
        message("user", ["bare summary"]),
    ]
    assert rebuild_from_summary([], "") == [message("user", ["(no summary available)"])]
