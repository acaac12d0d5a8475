"""Passes over a history: every call answered, no orphan, nothing that the model cannot take; pure and idempotent."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.fragments import KIND_ENVIRONMENT, SUMMARY_MARK, stored_message
from refold.core.history import (
    Entry,
    answer_calls,
    cut_output,
    drop_oldest,
    drop_orphans,
    drop_user_turns,
    entry,
    for_prompt,
    last_assistant_text,
    strip_modalities,
    unanswered,
)
from refold.core.items import OUTPUT_TYPE_OF, Item, answers, is_call, is_output, message, message_text
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


# --- pairing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("the_call", "answer"),
    [
        (
            call("c", id="fc_1"),
            {
                "type": "function_call_output",
                "id": "fco_d08ee114-ed5d-5706-8dbd-16ccacd40aa4",
                "call_id": "c",
                "output": "aborted",
            },
        ),
        (
            call("c", "local_shell_call", id="lsh_1"),
            {
                "type": "function_call_output",
                "id": "fco_37093384-5cd0-5813-8a86-723bfcccbbb2",
                "call_id": "c",
                "output": "aborted",
            },
        ),
        (
            call("c", "custom_tool_call", id="ctc_1"),
            {
                "type": "custom_tool_call_output",
                "id": "ctco_ffd2c872-81a7-5a00-b6f6-884096d1f522",
                "call_id": "c",
                "output": "aborted",
            },
        ),
        (
            call("c", "tool_search_call", id="tsc_1"),
            {
                "type": "tool_search_output",
                "id": "tso_f380c6b3-5815-5031-91ee-dd1c77f963ee",
                "call_id": "c",
                "status": "completed",
                "execution": "client",
                "tools": [],
            },
        ),
        (call("c"), {"type": "function_call_output", "call_id": "c", "output": "aborted"}),
    ],
)
def test_an_unanswered_call_is_answered_right_behind_it(the_call: Item, answer: Item) -> None:
    answered = answer_calls(entries(USER, the_call, ANSWER))
    assert items(answered) == [USER, the_call, answer, ANSWER]
    assert list(answered[2].item) == list(answer)


def test_the_made_up_id_is_the_same_in_every_prompt() -> None:
    namespace = uuid.UUID("90d38d3e-6a5b-4d52-bfe2-2f1e634bfac4")
    (_, answer) = answer_calls(entries(call("c", id="fc_019c")))
    assert answer.item["id"] == f"fco_{uuid.uuid5(namespace, 'fco:fc_019c')}"
    assert answer_calls(entries(call("c", id="fc_019c")))[1].item == answer.item


def test_what_is_made_up_stands_where_its_call_does() -> None:
    (the_call, answer) = answer_calls(entries(call("c")))
    assert (answer.address, answer.turn_id, answer.origin) == (the_call.address, the_call.turn_id, "tool")


def test_an_output_anywhere_answers_its_call() -> None:
    history = entries(call("a"), call("b"), USER, output("b"), output("a"))
    assert unanswered(history) == []
    assert answer_calls(history) == history


def test_an_output_of_another_kind_answers_nothing() -> None:
    history = entries(call("c"), output("c", kind="custom_tool_call_output"))
    assert unanswered(history) == [history[0]]
    assert items(for_prompt(history, ["text"])) == [call("c"), output("c", "aborted")]


@pytest.mark.parametrize("call_id", [None, "", 5, ["c"]])
def test_a_call_without_a_text_for_its_id_asks_for_no_output(call_id: Any) -> None:
    assert items(for_prompt(entries(call(call_id)), ["text"])) == [call(call_id)]


@pytest.mark.parametrize("orphan", [output("c"), output("c", kind="custom_tool_call_output"), output(None)])
def test_an_output_without_its_call_is_dropped(orphan: Item) -> None:
    assert items(drop_orphans(entries(USER, orphan, ANSWER))) == [USER, ANSWER]


def test_an_output_may_stand_before_its_call() -> None:
    history = entries(output("c"), call("c"))
    assert drop_orphans(history) == history


@pytest.mark.parametrize("made", [{"execution": "server", "call_id": "s"}, {"call_id": None}, {}])
def test_a_tool_search_of_the_server_needs_no_call(made: dict[str, Any]) -> None:
    history = entries({"type": "tool_search_output", "tools": [], **made})
    assert drop_orphans(history) == history


def test_a_tool_search_of_ours_needs_its_call() -> None:
    assert drop_orphans(entries({"type": "tool_search_output", "execution": "client", "call_id": "s"})) == []


# --- media --------------------------------------------------------------------------------------------------

IMAGE = {"type": "input_image", "image_url": PNG}
AUDIO = {"type": "input_audio", "audio_url": "data:audio/wav;base64,QQ"}
TEXT = {"type": "input_text", "text": "look"}


def test_a_medium_that_the_model_cannot_take_becomes_a_text_in_its_place() -> None:
    history = entries({**USER, "content": [TEXT, IMAGE, AUDIO]}, output("c", [IMAGE, "stray"]))  # type: ignore[arg-type]
    seen = items(strip_modalities(history, ["text"]))
    assert seen[0]["content"] == [
        TEXT,
        {"type": "input_text", "text": NO_IMAGE},
        {"type": "input_text", "text": NO_AUDIO},
    ]
    assert seen[1]["output"] == [{"type": "input_text", "text": NO_IMAGE}, "stray"]
    assert items(strip_modalities(history, ["text", "image"]))[0]["content"][:2] == [TEXT, IMAGE]


def test_a_generated_image_loses_its_picture() -> None:
    generated = {"type": "image_generation_call", "id": "ig_1", "result": "QUJD", "revised_prompt": "a cat"}
    assert items(strip_modalities(entries(generated), ["text"])) == [{**generated, "result": ""}]


def test_what_holds_no_medium_is_shared() -> None:
    history = entries(USER, {**USER, "content": "plain"}, {**USER, "content": None}, output("c"))
    assert strip_modalities(history, ["text"]) == history
    everything = entries({**USER, "content": [IMAGE]})
    assert strip_modalities(everything, ["text", "image", "audio"]) == everything


def test_an_entry_that_lost_a_medium_is_measured_again() -> None:
    (before,) = entries({**USER, "content": [IMAGE]})
    (after,) = strip_modalities([before], ["text"])
    assert before.tokens > 1800
    assert after.tokens == -(-len(NO_IMAGE) // 4)
    assert (after.address, after.turn_id) == (before.address, before.turn_id)


# --- all passes over any history ----------------------------------------------------------------------------

CALL_KINDS = sorted(OUTPUT_TYPE_OF)
CALL_IDS = st.sampled_from(["a", "b", "c", None])
MEDIA = st.lists(st.sampled_from([TEXT, IMAGE, AUDIO]), max_size=3)
ANY_ITEM: st.SearchStrategy[Item] = (
    st.builds(call, CALL_IDS, st.sampled_from(CALL_KINDS), id=st.sampled_from(["fc_1", "fc_2", None]))
    | st.builds(output, CALL_IDS, st.just("x") | MEDIA, st.sampled_from(sorted(set(OUTPUT_TYPE_OF.values()))))  # type: ignore[arg-type]
    | MEDIA.map(lambda parts: {**USER, "content": parts})
    | st.sampled_from([USER, ANSWER, {"type": "reasoning", "encrypted_content": "x"}])
)
MODALITIES = st.sampled_from([("text",), ("text", "image"), ("text", "image", "audio")])


@settings(deadline=None)
@given(st.lists(ANY_ITEM, max_size=10), MODALITIES)
def test_any_history_becomes_one_that_a_model_may_be_sent(raw: list[Item], modalities: tuple[str, ...]) -> None:
    history, before = entries(*raw), copy.deepcopy(raw)
    prompt = for_prompt(history, modalities)
    sent = items(prompt)

    assert items(history) == before, "the history is not changed"
    assert items(for_prompt(prompt, modalities)) == sent, "a prompt needs no repair"
    assert items(for_prompt(history, modalities)) == sent, "the same prompt every time"
    for item in sent:
        if is_call(item):
            assert any(answers(other, item) for other in sent), "a call without an output"
        if is_output(item) and item["type"] != "tool_search_output":
            assert any(answers(item, other) for other in sent), "an output without a call"
    for medium in {"image", "audio"} - set(modalities):
        assert f"input_{medium}" not in str(sent)


@settings(deadline=None)
@given(st.lists(ANY_ITEM, max_size=10))
def test_what_needs_no_repair_stays_the_same_entry_in_the_same_order(raw: list[Item]) -> None:
    history = entries(*raw)
    prompt = for_prompt(history, ("text", "image", "audio"))
    kept = [e for e in prompt if any(e is other for other in history)]
    assert kept == drop_orphans(history)


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
    assert mended.sizes.text == len("c") + len("a\ufffdb".encode())
    assert broken["output"] == "a\ud83db"
