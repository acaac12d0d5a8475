"""Pairing: every call answered once, every output with its call, no medium that the model cannot take."""

from __future__ import annotations

import copy
import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.history import Entry, entry
from refold.core.items import OUTPUT_TYPE_OF, Item, answers, is_call, is_output, message
from refold.core.pairing import View, for_prompt, view_of

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


ALL = ("text", "image", "audio")
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
    answered = for_prompt(entries(USER, the_call, ANSWER), ALL)
    assert items(answered) == [USER, the_call, answer, ANSWER]
    assert list(answered[2].item) == list(answer)


def test_the_made_up_id_is_the_same_in_every_prompt() -> None:
    namespace = uuid.UUID("90d38d3e-6a5b-4d52-bfe2-2f1e634bfac4")
    (_, answer) = for_prompt(entries(call("c", id="fc_019c")), ALL)
    assert answer.item["id"] == f"fco_{uuid.uuid5(namespace, 'fco:fc_019c')}"
    assert for_prompt(entries(call("c", id="fc_019c")), ALL)[1].item == answer.item


def test_what_is_made_up_stands_where_its_call_does() -> None:
    (the_call, answer) = for_prompt(entries(call("c")), ALL)
    assert (answer.address, answer.turn_id, answer.origin) == (the_call.address, the_call.turn_id, "tool")


def test_an_output_anywhere_answers_its_call() -> None:
    history = entries(call("a"), call("b"), USER, output("b"), output("a"))
    assert view_of(history, ALL).unanswered == []
    assert for_prompt(history, ALL) == history


def test_an_output_of_another_kind_answers_nothing() -> None:
    history = entries(call("c"), output("c", kind="custom_tool_call_output"))
    assert view_of(history, ALL).unanswered == [history[0]]
    assert items(for_prompt(history, ["text"])) == [call("c"), output("c", "aborted")]


@pytest.mark.parametrize("call_id", [None, "", 5, ["c"]])
def test_a_call_without_a_text_for_its_id_asks_for_no_output(call_id: Any) -> None:
    assert items(for_prompt(entries(call(call_id)), ["text"])) == [call(call_id)]


@pytest.mark.parametrize("orphan", [output("c"), output("c", kind="custom_tool_call_output"), output(None)])
def test_an_output_without_its_call_is_dropped(orphan: Item) -> None:
    assert items(for_prompt(entries(USER, orphan, ANSWER), ALL)) == [USER, ANSWER]


def test_an_output_before_its_call_is_sent_behind_it() -> None:
    view = view_of(entries(output("c"), ANSWER, call("c")), ALL)
    assert items(view.sendable()) == [ANSWER, call("c"), output("c")]
    assert [(odd.address, odd.call_id) for odd in view.oddities] == [("T:0", "c")]
    assert view.orphans == []


def test_an_output_of_an_earlier_turn_answers_no_later_call() -> None:
    view = view_of(entries(output("c", "stale"), USER, call("c"), output("c", "real")), ALL)
    assert items(view.sendable()) == [USER, call("c"), output("c", "real")]
    assert [e.address for e in view.orphans] == ["T:0"]


def test_a_call_is_given_up_when_the_user_goes_on_and_an_output_may_still_come() -> None:
    history = entries(call("a"), USER, ANSWER)
    view = view_of(history, ALL)
    assert items(view.sendable()) == [call("a"), output("a", "aborted"), USER, ANSWER]
    assert view.unanswered == [history[0]]
    view.take(*entries(output("a", "late")))
    assert items(view.sendable()) == [call("a"), USER, ANSWER, output("a", "late")]
    assert view.unanswered == []
    assert view.tokens == sum(e.tokens for e in view.sendable())


# --- ids that come again ------------------------------------------------------------------------------------


def test_an_id_that_was_used_before_gets_another_that_stays_the_same() -> None:
    history = entries(call("t:0"), output("t:0", "r1"), USER, call("t:0"), output("t:0", "r2"))
    sent = items(for_prompt(history, ALL))
    first, again = sent[0]["call_id"], sent[3]["call_id"]
    assert first == "t:0" != again
    assert (sent[1]["call_id"], sent[1]["output"]) == (first, "r1")
    assert (sent[4]["call_id"], sent[4]["output"]) == (again, "r2")
    assert items(for_prompt(history, ALL)) == sent
    assert [e.item["call_id"] for e in history if "call_id" in e.item] == ["t:0"] * 4, "the history keeps its ids"


def test_what_was_sent_may_be_recorded_again() -> None:
    """A host adds the input of its prompt to a memory: call ids and item ids come a second time."""
    history = entries(call("a", id="fc_1"), USER)
    for _ in range(3):
        sent = for_prompt(history, ALL)
        history += entries(*items(sent))
        again = items(for_prompt(history, ALL))
        ids = [item["id"] for item in again if "id" in item]
        assert len(ids) == len(set(ids))
        assert len({item["call_id"] for item in again if is_call(item)}) == sum(map(is_call, again))


def test_an_output_under_the_id_that_its_call_was_sent_under_answers_it() -> None:
    history = entries(call("a"), output("a", "1"), call("a"))
    (second,) = [item["call_id"] for item in items(for_prompt(history, ALL))[2:3]]
    view = view_of([*history, *entries(output(second, "2"))], ALL)
    assert [item.get("output") for item in items(view.sendable())] == [None, "1", None, "2"]
    assert view.unanswered == []


def test_an_output_of_another_kind_is_told_as_such() -> None:
    view = view_of(entries(call("a"), output("a", kind="custom_tool_call_output")), ALL)
    assert ["another kind" in odd.what for odd in view.oddities] == [True]


def test_many_calls_that_nobody_answered_cost_no_more_than_many_that_were() -> None:
    """Counted, not timed: how often an entry of the view is looked at."""
    looks = 0

    class Counted(list[Entry]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looks
            looks += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
            return super().__getitem__(index)

    view = View(ALL)
    view.entries = Counted()
    for number in range(300):
        for e in entries(call(f"c{number}"), USER):
            view.take(e)
    for number in range(300):
        view.take(*entries(output(f"c{number}", "late")))
    assert looks <= 300 * 6
    assert len(view.sendable()) == 900


def test_a_second_output_is_not_sent() -> None:
    view = view_of(entries(call("a"), output("a", "r"), output("a", "again")), ALL)
    assert items(view.sendable()) == [call("a"), output("a", "r")]
    assert [odd.address for odd in view.oddities] == ["T:2"]


def test_outputs_answer_calls_of_one_id_in_order() -> None:
    sent = items(for_prompt(entries(call("a"), call("a"), output("a", "1"), output("a", "2")), ALL))
    assert [item.get("output") for item in sent] == [None, None, "1", "2"]
    assert sent[2]["call_id"] == sent[0]["call_id"] != sent[1]["call_id"] == sent[3]["call_id"]


def test_an_output_goes_to_the_call_of_its_own_turn() -> None:
    sent = items(for_prompt(entries(call("a"), USER, call("a"), output("a", "2")), ALL))
    assert [item.get("output") for item in sent] == [None, "aborted", None, None, "2"]


@pytest.mark.parametrize("made", [{"execution": "server", "call_id": "s"}, {"call_id": None}, {}])
def test_a_tool_search_of_the_server_needs_no_call(made: dict[str, Any]) -> None:
    history = entries({"type": "tool_search_output", "tools": [], **made})
    assert for_prompt(history, ALL) == history


def test_a_tool_search_of_ours_needs_its_call() -> None:
    assert for_prompt(entries({"type": "tool_search_output", "execution": "client", "call_id": "s"}), ALL) == []


# --- media --------------------------------------------------------------------------------------------------

IMAGE = {"type": "input_image", "image_url": PNG}
AUDIO = {"type": "input_audio", "audio_url": "data:audio/wav;base64,QQ"}
TEXT = {"type": "input_text", "text": "look"}


def test_a_medium_that_the_model_cannot_take_becomes_a_text_in_its_place() -> None:
    history = entries({**USER, "content": [TEXT, IMAGE, AUDIO]}, call("c"), output("c", [IMAGE, "stray"]))  # type: ignore[arg-type]
    seen = items(for_prompt(history, ["text"]))
    assert seen[0]["content"] == [
        TEXT,
        {"type": "input_text", "text": NO_IMAGE},
        {"type": "input_text", "text": NO_AUDIO},
    ]
    assert seen[2]["output"] == [{"type": "input_text", "text": NO_IMAGE}, "stray"]
    assert items(for_prompt(history, ["text", "image"]))[0]["content"][:2] == [TEXT, IMAGE]


def test_a_generated_image_loses_its_picture() -> None:
    generated = {"type": "image_generation_call", "id": "ig_1", "result": "QUJD", "revised_prompt": "a cat"}
    assert items(for_prompt(entries(generated), ["text"])) == [{**generated, "result": ""}]


def test_what_holds_no_medium_is_shared() -> None:
    history = entries(USER, {**USER, "content": "plain"}, {**USER, "content": None}, call("c"), output("c"))
    assert for_prompt(history, ["text"]) == history
    everything = entries({**USER, "content": [IMAGE]})
    assert for_prompt(everything, ["text", "image", "audio"]) == everything


def test_an_entry_that_lost_a_medium_is_measured_again() -> None:
    (before,) = entries({**USER, "content": [IMAGE]})
    (after,) = for_prompt([before], ["text"])
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
            assert sum(answers(other, item) for other in sent) == 1, "each call has one output"
        if is_output(item) and item["type"] != "tool_search_output":
            assert any(answers(item, other) for other in sent), "an output without a call"
    for medium in {"image", "audio"} - set(modalities):
        assert f"input_{medium}" not in str(sent)

    ids = Counter(item["call_id"] for item in sent if is_call(item))
    assert not [call_id for call_id, times in ids.items() if times > 1], "a call id is used once"


@settings(deadline=None)
@given(st.lists(ANY_ITEM, max_size=10))
def test_what_was_recorded_goes_out_once_or_is_told_as_odd(raw: list[Item]) -> None:
    history = entries(*raw)
    view = view_of(history, ALL)
    told = {odd.address for odd in view.oddities} | {e.address for e in view.orphans}
    sent = Counter((e.address, e.item["type"]) for e in view.sendable())
    assert all(times == 1 for times in sent.values())
    assert all((e.address, e.item["type"]) in sent or e.address in told for e in history)


@settings(deadline=None)
@given(st.lists(ANY_ITEM, max_size=12), MODALITIES, st.lists(st.booleans(), min_size=12, max_size=12))
def test_read_in_pieces_or_at_once_the_view_is_the_same(
    raw: list[Item], modalities: tuple[str, ...], looked: list[bool]
) -> None:
    history, view = entries(*raw), View(modalities)
    for e, look in zip(history, looked, strict=False):
        view.take(e)
        if look:
            view.sendable()
    assert items(view.sendable()) == items(for_prompt(history, modalities))
    assert view.sendable_tokens == sum(e.tokens for e in view.sendable())
    assert view.sendable() == view.sendable(), "the same entries, so that their bytes are kept"


def test_a_given_up_call_costs_nothing_more() -> None:
    view = view_of(entries(call("a"), USER), ALL)
    before = list(view.sendable())
    view.take(*entries(ANSWER))
    assert view.sendable()[:3] == before
    assert view.sendable() is view.entries, "nothing is copied"
