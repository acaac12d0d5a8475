"""Every record becomes lines and comes back; what a line says that nobody knows is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.items import HISTORY_TYPES, PASSTHROUGH, message
from refold.core.lines import decode, encode, has_ordinal
from refold.core.records import (
    Compacted,
    CompactionAttempted,
    EventKept,
    ItemRecorded,
    Line,
    LineDamaged,
    LineKept,
    Record,
    RolledBack,
    SessionStarted,
    SettingsApplied,
    SteerQueued,
    TurnEnded,
    TurnStarted,
    UsageCounted,
    Window,
    WorldObserved,
    well_formed,
)
from refold.core.usage import Usage
from refold.rollout import MemoryStore

STAMP = "2026-02-03T04:00:00.000Z"
USAGE = Usage(10, 4, 1, 5, 2, 15)
TYPED = {**message("user", ["hi"], id="msg_u"), PASSTHROUGH: {"content_item_kinds": ["user.text"]}}
CONTEXT = {**TYPED, PASSTHROUGH: {"content_item_kinds": ["environments.environment_context"]}}
ANSWER = message("assistant", ["a", "b"], id="msg_a")
CALL = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": "{}", "call_id": "call_1"}
OUTPUT = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "seen"}


def written(record: Record, ordinal: int | None = 7) -> list[dict[str, Any]]:
    """The lines of a record, as JSON."""
    data, _, count = encode(record, thread_id="thread", turn_id="turn", timestamp=STAMP, ordinal=ordinal)
    lines = [json.loads(line) for line in data.decode("utf-8", "strict").split("\n")[:-1]]
    assert len(lines) == count
    return lines


def read_back(record: Record, ordinal: int | None = 7) -> Line:
    """A record after its own line was written and read."""
    data, own, _ = encode(record, thread_id="thread", turn_id="turn", timestamp=STAMP, ordinal=ordinal)
    line = decode(data.splitlines()[own], own + 1)
    assert line is not None
    assert line.warning is None
    return line


def decoded(value: Any) -> Record:
    line = decode(json.dumps(value).encode(), 1)
    assert line is not None
    return line.record


# --- record → line → record ---------------------------------------------------------------------------------

ROUND: list[Record] = [
    TurnStarted("turn", 5, 258_400),
    TurnStarted("turn"),
    TurnEnded(turn_id="turn", outcome="completed", last_message="done", started_at=1, completed_at=2, duration_ms=9),
    TurnEnded(turn_id="turn", outcome="failed", error="no room"),
    TurnEnded(turn_id="turn", outcome="failed"),
    TurnEnded(turn_id=None, outcome="interrupted", completed_at=4),
    ItemRecorded(TYPED),
    ItemRecorded(ANSWER),
    ItemRecorded(CALL),
    ItemRecorded(OUTPUT, 12_000, {"client_authored": False, "fallback_token_limit_override": 12_000}),
    ItemRecorded({"type": "quantum_call", "payload": [1, 2]}),
    ItemRecorded({**ANSWER, "phase": "final_answer", "new": {"deep": [None]}}, None, {"history_sequence": 3}),
    UsageCounted(USAGE, USAGE + USAGE, 100),
    UsageCounted(Usage(), Usage()),
    WorldObserved(True, {"environments": {"cwd": "/w"}}),
    WorldObserved(False, {"agents_md": {"text": None}}),
    SettingsApplied({"turn_id": "turn", "cwd": "/w", "new_knob": {"a": 1}}),
    Compacted(message="", history=None),
    Compacted(message="kept", history=(TYPED, ANSWER), payload={"latest_token_usage_record": None, "retained": [1]}),
    Compacted(
        message="m",
        history=(TYPED,),
        window=Window(2, "w2", "w0", "w1"),
        addresses=("thread:4",),
        world={"agents_md": {}},
        settings={"model": "m"},
        facts={"method": "local", "tokens_before": 5},
        response_id="resp_1",
    ),
    RolledBack(2),
    SteerQueued("msg_s", "also this"),
    CompactionAttempted(method="local", outcome="completed", dropped=2, usage=USAGE, response_id="resp_1"),
    CompactionAttempted(method="local", outcome="it broke"),
    EventKept({"type": "brand_new_event", "x": [1, {"y": None}]}),
    LineKept("security_risk_score", {"score": 0.1}),
    LineKept("refold", {"kind": "from_a_newer_refold", "x": 1}),
    LineKept("response_item", {"type": "ghost_snapshot", "commit": "abc"}),
]


@pytest.mark.parametrize("record", ROUND, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("ordinal", [7, None])
def test_a_record_comes_back_as_it_was(record: Record, ordinal: int | None) -> None:
    assert read_back(record, ordinal).record == record


def test_the_session_comes_back_with_what_only_its_line_said() -> None:
    record = SessionStarted(
        thread_id="019c",
        timestamp=STAMP,
        cwd="/w",
        provider="mine",
        base_instructions="Be terse.",
        window_id="w0",
        forked_from="019b",
        history_mode="paginated",
        payload={"cli_version": "1.0", "new_key": {"a": 1}},
    )
    once = read_back(record).record
    assert isinstance(once, SessionStarted)
    for name in ("thread_id", "timestamp", "cwd", "provider", "base_instructions", "window_id", "forked_from"):
        assert getattr(once, name) == getattr(record, name)
    assert once.payload.items() >= record.payload.items()
    assert read_back(once).record == once


def test_a_session_without_base_instructions_has_none_after_its_line() -> None:
    once = read_back(SessionStarted(thread_id="019c", timestamp=STAMP, cwd="/w")).record
    assert isinstance(once, SessionStarted)
    assert (once.base_instructions, once.window_id, once.forked_from) == (None, None, None)


def test_a_recorded_limit_is_written_where_the_real_program_keeps_it() -> None:
    (line,) = written(ItemRecorded(OUTPUT, 12_000))
    assert line["metadata"] == {"client_authored": False, "fallback_token_limit_override": 12_000}
    record = read_back(ItemRecorded(OUTPUT, 12_000)).record
    assert isinstance(record, ItemRecorded)
    assert record.limit == 12_000
    assert written(record) == [line]


def test_damage_is_noted_in_a_line_of_its_own() -> None:
    (line,) = written(LineDamaged("not JSON: x"))
    assert (line["type"], line["payload"]) == ("refold", {"kind": "line_damaged", "why": "not JSON: x"})


def test_a_line_has_the_real_programs_key_order() -> None:
    assert list(written(ItemRecorded(OUTPUT, 5))[0]) == ["timestamp", "ordinal", "type", "payload", "metadata"]
    assert list(written(ItemRecorded(OUTPUT), None)[0]) == ["timestamp", "type", "payload"]


def test_a_record_that_is_none_of_ours_has_no_line() -> None:
    with pytest.raises(TypeError, match="no line for Usage"):
        encode(Usage(), thread_id="t", turn_id=None, timestamp=STAMP, ordinal=0)  # type: ignore[arg-type]


def test_a_line_knows_its_time_and_its_ordinal() -> None:
    line = read_back(ItemRecorded(CALL), 41)
    assert (line.timestamp, line.ordinal) == (STAMP, 41)
    assert read_back(ItemRecorded(CALL), None).ordinal == 1


@pytest.mark.parametrize("ordinal", [True, "7", None, 7.0])
def test_an_ordinal_that_is_no_whole_number_gives_way_to_the_line_number(ordinal: Any) -> None:
    line = decode(json.dumps({"type": "x", "ordinal": ordinal, "payload": {}}).encode(), 9)
    assert line is not None
    assert line.ordinal == 9


# --- mirrors: what was said stands a second time for the real program's views -------------------------------


def test_what_a_person_said_is_mirrored_after_it_and_an_answer_before_it() -> None:
    own, mirror = written(ItemRecorded(TYPED))
    assert [own["ordinal"], mirror["ordinal"]] == [7, 8]
    assert mirror["payload"] == {
        "type": "item_completed",
        "thread_id": "thread",
        "turn_id": "turn",
        "item": {
            "type": "UserMessage",
            "id": "msg_u",
            "content": [{"type": "text", "text": "hi", "text_elements": []}],
        },
    }
    mirror, own = written(ItemRecorded(ANSWER))
    assert own["payload"] == ANSWER
    content = [{"type": "Text", "text": "ab"}]
    assert mirror["payload"]["item"] == {"type": "AgentMessage", "id": "msg_a", "content": content}


@pytest.mark.parametrize("item", [CONTEXT, CALL, OUTPUT, message("developer", ["x"]), {"type": "reasoning"}])
def test_nothing_else_is_mirrored(item: dict[str, Any]) -> None:
    assert len(written(ItemRecorded(item))) == 1


def test_ordinals_count_every_line_and_each_record_knows_its_own() -> None:
    store = MemoryStore("thread")
    records: list[Record] = [TurnStarted("turn"), ItemRecorded(TYPED), ItemRecorded(ANSWER), ItemRecorded(CALL)]
    ordinals = store.append(records, turn_id="turn", timestamp=STAMP)
    assert ordinals == [0, 1, 4, 5]
    lines = list(store.lines())
    assert [line.ordinal for line in lines] == [0, 1, 2, 3, 4, 5]
    for record, ordinal in zip(records, ordinals, strict=True):
        assert lines[ordinal].record == record
    assert [type(lines[n].record) for n in (2, 3)] == [EventKept, EventKept]


# --- what is not known is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        {"type": "token_usage_record", "payload": {"usage": {"input_tokens": 9}}},
        {"type": "event_msg", "payload": {"type": "token_count", "info": {"last_token_usage": "much"}}},
        {"type": "event_msg", "payload": {"type": "token_count", "info": None, "rate_limits": {}}},
        {"type": "session_meta", "payload": {"cwd": "/w"}},
        {"type": "session_meta", "payload": {"id": 5}},
        {"type": "world_state", "payload": {"full": True, "state": 5}},
        {"type": "compacted", "payload": {"refold": {"addresses": 5}}},
        {"type": "refold", "payload": {"kind": "steer_queued"}},
        {"type": "refold", "payload": {"kind": "compaction_attempted", "method": 5}},
        {"type": "event_msg", "payload": {"type": None}},
        {"type": "event_msg", "payload": {}},
    ],
)
def test_a_line_in_an_unknown_shape_is_kept_whole_and_written_again(line: dict[str, Any]) -> None:
    record = decoded(line)
    assert isinstance(record, (LineKept, EventKept))
    assert record.payload == line["payload"]
    (again,) = written(record)
    assert {key: again[key] for key in line} == line


@pytest.mark.parametrize("line", [{"record_type": "state"}, {"type": []}, {"type": {}, "payload": []}, {"type": 5}, {}])
def test_a_line_without_an_envelope_that_nobody_knows_is_kept_whole(line: dict[str, Any]) -> None:
    record = decoded(line)
    assert isinstance(record, LineKept)
    assert record.payload == line


def test_a_number_without_bounds_is_none() -> None:
    line = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": float("inf")}}
    assert decoded(line) == RolledBack(0)


def test_a_checkpoint_whose_own_facts_are_odd_still_counts() -> None:
    refold = {"world": 5, "turn_context": [], "addresses": None, "method": "local"}
    record = decoded({"type": "compacted", "payload": {"message": "", "replacement_history": [], "refold": refold}})
    assert record == Compacted(message="", history=(), facts={"method": "local"})


def test_ghost_snapshots_are_no_items() -> None:
    history = [{"type": "ghost_snapshot"}, TYPED, "stray"]
    record = decoded({"type": "compacted", "payload": {"message": "", "replacement_history": history}})
    assert isinstance(record, Compacted)
    assert record.history == (TYPED,)
    assert isinstance(decoded({"type": "response_item", "payload": {"type": "ghost_snapshot"}}), LineKept)


@pytest.mark.parametrize("started", ["task_started", "turn_started"])
@pytest.mark.parametrize("ended", ["task_complete", "turn_complete"])
def test_both_names_of_a_turns_ends_are_read(started: str, ended: str) -> None:
    assert isinstance(decoded({"type": "event_msg", "payload": {"type": started}}), TurnStarted)
    record = decoded({"type": "event_msg", "payload": {"type": ended, "turn_id": "t", "error": {"message": "m"}}})
    assert record == TurnEnded(turn_id="t", outcome="failed", error="m")


def test_a_window_id_that_is_a_number_is_read() -> None:
    record = decoded({"type": "compacted", "payload": {"message": "", "window_number": 1, "window_id": 1}})
    assert isinstance(record, Compacted)
    assert record.window == Window(1, "1")


# --- the first generation: lines without an envelope (2025-08) ----------------------------------------------


@pytest.mark.parametrize("kind", sorted(HISTORY_TYPES))
def test_a_bare_item_is_an_item(kind: str) -> None:
    assert decoded({"type": kind, "x": 1, "id": None}) == ItemRecorded({"type": kind, "x": 1})


@pytest.mark.parametrize("extra", [{}, {"type": "session_meta"}])
def test_bare_metadata_begins_the_session(extra: dict[str, str]) -> None:
    record = decoded({**extra, "id": "c6f1", "timestamp": "2025-08-25T17:44:03.000Z", "instructions": "Be terse."})
    assert isinstance(record, SessionStarted)
    assert (record.thread_id, record.timestamp) == ("c6f1", "2025-08-25T17:44:03.000Z")
    assert record.base_instructions == "Be terse."


# --- bytes --------------------------------------------------------------------------------------------------

GOOD = json.dumps({"timestamp": STAMP, "type": "response_item", "payload": CALL}).encode()


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b" \t\r\n"])
def test_the_line_end_does_not_matter(end: bytes) -> None:
    line = decode(GOOD + end, 1)
    assert line is not None
    assert (line.record, line.warning) == (ItemRecorded(CALL), None)


@pytest.mark.parametrize("raw", [b"", b"\n", b"\r\n", b" \t \n"])
def test_a_blank_line_is_no_line(raw: bytes) -> None:
    assert decode(raw, 1) is None


@pytest.mark.parametrize("raw", [GOOD[:70], GOOD[:70] + GOOD, b"\x00\x93\xff\x00", b"nonsense", b"[" * 50_000])
def test_what_is_not_json_is_a_record_with_a_warning(raw: bytes) -> None:
    line = decode(raw, 8)
    assert line is not None
    assert isinstance(line.record, LineDamaged)
    assert line.ordinal == 8
    assert line.warning
    assert "\n" not in line.warning
    assert line.warning.startswith("not JSON: ")


@pytest.mark.parametrize("raw", [b"5", b"null", b"[{}]", b'"text"'])
def test_json_that_is_no_object_is_damage(raw: bytes) -> None:
    line = decode(raw, 1)
    assert line is not None
    assert line.record == LineDamaged("not a JSON object")
    assert line.warning == "not a JSON object"


def test_a_byte_order_mark_is_left_to_the_reader_of_the_file() -> None:
    line = decode(b"\xef\xbb\xbf" + GOOD, 1)
    assert line is not None
    assert isinstance(line.record, LineDamaged)


def test_bytes_that_are_not_utf8_are_replaced_with_a_warning() -> None:
    line = decode(GOOD.replace(b"look", b"l\xff\xfek"), 1)
    assert line is not None
    assert line.record == ItemRecorded({**CALL, "name": "l\ufffd\ufffdk"})
    assert line.warning == "bytes that are not UTF-8 were replaced"


def test_half_a_surrogate_pair_is_replaced_on_the_way_in_and_refused_on_the_way_out() -> None:
    line = decode(GOOD.replace(b"look", rb"l\ud83dk"), 1)
    assert line is not None
    assert line.record == ItemRecorded({**CALL, "name": "l\ufffdk"})
    assert line.warning == "half surrogate pairs were replaced"
    broken = ItemRecorded({**CALL, "name": "l\ud83dk"})
    with pytest.raises(UnicodeEncodeError):
        read_back(broken)
    assert read_back(well_formed(broken)).record == line.record


def test_a_file_with_ordinals_is_known_by_one_line() -> None:
    assert has_ordinal(b'{"ordinal":3,"type":"x"}\r\n')
    assert not has_ordinal(GOOD)
    assert not has_ordinal(b'{"ordinal":3,"ty')
    assert not has_ordinal(b"5")


# --- anything -----------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(sorted(HISTORY_TYPES)) | VALUES


@settings(deadline=None)
@given(st.dictionaries(st.text() | st.sampled_from(["id", "role", "content"]), VALUES, max_size=6), KINDS)
def test_any_item_comes_back_with_every_field(fields: dict[str, Any], kind: Any) -> None:
    item = {**fields, "type": kind}
    if kind != "ghost_snapshot":
        assert read_back(ItemRecorded(item)).record == ItemRecorded(item)


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional={"type": KINDS, "payload": VALUES, "id": VALUES, "timestamp": VALUES}))
def test_any_json_object_is_a_record_that_can_be_written_and_read_again(line: dict[str, Any]) -> None:
    record = decoded(line)
    again = read_back(record).record
    assert read_back(again).record == again


KNOWN_KEYS = [
    "type",
    "kind",
    "id",
    "session_id",
    "info",
    "error",
    "num_turns",
    "refold",
    "message",
    "state",
    "full",
    "replacement_history",
    "window_number",
    "window_id",
    "base_instructions",
    "turn_id",
    "item_id",
    "text",
    "last_token_usage",
    "context_window",
]
KNOWN_KINDS = ["task_started", "task_complete", "token_count", "steer_queued", "thread_rolled_back"]


@settings(deadline=None)
@given(
    st.sampled_from(["event_msg", "session_meta", "compacted", "turn_context", "world_state", "refold"]),
    st.dictionaries(
        st.sampled_from(KNOWN_KEYS),
        st.sampled_from(KNOWN_KINDS) | VALUES,
        max_size=8,
    ),
)
def test_a_known_line_with_any_values_never_raises(kind: str, payload: dict[str, Any]) -> None:
    assert decode(json.dumps({"type": kind, "payload": payload}).encode(), 1) is not None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_line_or_blank(raw: bytes) -> None:
    line = decode(raw, 3)
    assert line is None or isinstance(line, Line)
