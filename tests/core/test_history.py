"""Passes over a history: what is cut, what is dropped with its other half, what a rollback takes; pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.fragments import KIND_ENVIRONMENT, SUMMARY_MARK, stored_message
from refold.core.history import (
    Entry,
    cut_output,
    drop_oldest,
    drop_user_turns,
    entry,
    last_assistant_text,
)
from refold.core.items import OUTPUT_TYPE_OF, Item, message, message_text
from refold.core.pairing import for_prompt
from refold.core.tokens import measure
from refold.core.truncate import Budget

PNG = "data:image/png;base64,QUJD"
NO_IMAGE = "image content omitted because you do not support image input"
NO_AUDIO = "audio content omitted because you do not support audio input"


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}", "t1") for number, item in enumerate(items)]


def items(found: list[Entry]) -> list[Item]:
    return [e.item for e in found]


def call(call_id: Any, kind: str = "function_call", **fields: Any) -> Item:
    return {"type": kind, "name": "look", "call_id": call_id, **fields}


def output(call_id: Any, text: str = "seen", kind: str = "function_call_output", **fields: Any) -> Item:
    return {"type": kind, "call_id": call_id, "output": text, **fields}


USER, ANSWER = message("user", ["hi"]), message("assistant", ["ho"])


TEXT = {"type": "input_text", "text": "look"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}
CALL_KINDS = sorted(OUTPUT_TYPE_OF)
CALL_IDS = st.sampled_from(["a", "b", "c", None])
MEDIA = st.lists(st.sampled_from([TEXT, IMAGE]), max_size=3)
ANY_ITEM: st.SearchStrategy[Item] = (
    st.builds(call, CALL_IDS, st.sampled_from(CALL_KINDS), id=st.sampled_from(["fc_1", "fc_2", None]))
    | st.builds(output, CALL_IDS, st.just("x") | MEDIA, st.sampled_from(sorted(set(OUTPUT_TYPE_OF.values()))))  # type: ignore[arg-type]
    | MEDIA.map(lambda parts: {**USER, "content": parts})
    | st.sampled_from([USER, ANSWER, {"type": "reasoning", "encrypted_content": "x"}])
)


# --- dropping -----------------------------------------------------------------------------------------------


def test_the_oldest_goes_with_its_other_half() -> None:
    history = entries(call("a"), call("b"), output("b"), output("a"), USER)
    assert items(drop_oldest(history)) == [call("b"), output("b"), USER]
    assert items(drop_oldest(entries(output("a"), USER, call("a")))) == [USER]


def test_only_one_other_half_goes() -> None:
    history = entries(call("a"), output("a", "1"), call("a"), output("a", "2"))
    assert items(drop_oldest(history)) == [call("a"), output("a", "2")]


def test_the_oldest_goes_alone_where_it_is_no_half() -> None:
    assert items(drop_oldest(entries(USER, call("a"), output("a")))) == [call("a"), output("a")]
    assert items(drop_oldest(entries(call(None), output(None), USER))) == [USER]
    assert drop_oldest([]) == []


@settings(deadline=None)
@given(st.lists(ANY_ITEM, max_size=10))
def test_dropping_ends_and_never_leaves_a_half_that_had_its_other(raw: list[Item]) -> None:
    rest = for_prompt(entries(*raw), ("text", "image", "audio"))
    for _ in range(len(rest) + 1):
        rest = drop_oldest(rest)
    assert rest == []


CONTEXT = stored_message("user", [(KIND_ENVIRONMENT, "<environment_context>")], id="msg_c", turn_id=None)
RULES = message("developer", ["<permissions instructions>x</permissions instructions>"])
OWN_RULES = message("developer", ["Be terse."])
SUMMARY = message("user", [SUMMARY_MARK + "so far"])
SECOND, THIRD = message("user", ["second"]), message("user", ["third"])
HISTORY = entries(RULES, CONTEXT, USER, ANSWER, RULES, CONTEXT, SECOND, ANSWER, OWN_RULES, THIRD, ANSWER)


@pytest.mark.parametrize(
    ("turns", "left"),
    [
        (-1, 11),
        (0, 11),
        (1, 9),  # developer instructions that are no context stay
        (2, 4),  # the context that was injected for the turn goes with it
        (3, 2),  # what stands before the first turn stays
        (9, 2),
    ],
)
def test_turns_are_dropped_from_the_end_with_their_context(turns: int, left: int) -> None:
    assert drop_user_turns(HISTORY, turns) == HISTORY[:left]


def test_a_summary_and_another_agent_count_as_turns() -> None:
    history = entries(USER, SUMMARY, {"type": "agent_message", "content": []}, ANSWER)
    assert items(drop_user_turns(history, 1)) == [USER, SUMMARY]
    assert items(drop_user_turns(history, 2)) == [USER]


def test_a_history_in_which_nobody_spoke_has_no_turn_to_drop() -> None:
    history = entries(RULES, CONTEXT, ANSWER)
    assert drop_user_turns(history, 1) == history


# --- texts --------------------------------------------------------------------------------------------------


def test_the_last_answer_that_is_not_blank_is_found() -> None:
    blank = message("assistant", [" \n"])
    assert last_assistant_text([ANSWER, message("assistant", ["a", "b"]), blank, USER]) == "ab"
    assert last_assistant_text([USER, blank]) == ""


def test_an_output_is_cut_to_its_budget_and_a_short_one_is_shared() -> None:
    budget = Budget("tokens", 2)
    long = output("c", "0123456789abcdef")
    assert cut_output(long, budget) == output("c", "0123…2 tokens truncated…cdef")
    assert cut_output(output("c", "short"), budget) == output("c", "short")
    short = output("c", "short", id="fco_1")
    assert cut_output(short, budget) is short
    parts = output("c", [{"type": "input_text", "text": "0123456789abcdef"}, IMAGE])  # type: ignore[arg-type]
    assert message_text(cut_output(parts, budget)) == "0123…2 tokens truncated…cdef"
    assert cut_output(parts, budget)["output"][1] == IMAGE


@pytest.mark.parametrize("item", [USER, {"type": "tool_search_output", "call_id": "c", "tools": ["x" * 99]}])
def test_nothing_else_is_cut(item: Item) -> None:
    assert cut_output(item, Budget("tokens", 1)) is item


def test_half_a_surrogate_pair_is_mended_as_an_item_enters() -> None:
    broken = output("c", "a\ud83db")
    (mended,) = entries(broken)
    assert mended.item == output("c", "a\ufffdb")
    assert measure(mended.item).text == len("c") + len("a\ufffdb".encode())
    assert mended.tokens == measure(mended.item).tokens
    assert broken["output"] == "a\ud83db"
