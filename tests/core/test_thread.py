"""A thread is the fold of its records: live, replayed, and from a checkpoint alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refold.core.fragments import KIND_ENVIRONMENT, KIND_SUMMARY, KIND_TYPED, SUMMARY_MARK, stored_message
from refold.core.items import Item, message
from refold.core.jsonio import dump
from refold.core.lines import decode
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
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
from refold.core.thread import Thread, same_state
from refold.core.usage import Usage
from refold.core.wire import Identity, Wire
from refold.rollout import MemoryStore

META = SessionStarted(thread_id="T", timestamp="", cwd="/w", base_instructions="x" * 40, window_id="w0")
PROFILE = Profile(slug="m", input_modalities=("text",))
STAMP = "2026-02-03T04:00:00.000Z"


def typed(text: str) -> ItemRecorded:
    return ItemRecorded(message("user", [text]))


def answered(text: str) -> ItemRecorded:
    return ItemRecorded(message("assistant", [text]))


def ended(turn_id: str) -> TurnEnded:
    return TurnEnded(turn_id=turn_id, outcome="completed")


def counted(tokens: int, *, total: int = 0) -> UsageCounted:
    last = Usage(input_tokens=tokens - 1, output_tokens=1, total_tokens=tokens)
    return UsageCounted(last, Usage(total_tokens=total or tokens))


def lines(records: Sequence[Record]) -> list[Line]:
    return [Line(ordinal, record) for ordinal, record in enumerate(records)]


def replayed(*records: Record) -> Thread:
    return Thread.replay(lines([META, *records]))


def texts(thread: Thread) -> list[str]:
    return [str(e.item["content"][0]["text"]) for e in thread.history]


# --- one record at a time -----------------------------------------------------------------------------------


def test_an_item_enters_with_its_address_its_turn_and_its_origin() -> None:
    thread = replayed(TurnStarted("t1"), typed("hi"), answered("ho"))
    assert [(e.address, e.turn_id, e.origin) for e in thread.history] == [
        ("T:2", "t1", "typed"),
        ("T:3", "t1", "model"),
    ]
    assert thread.next_ordinal == 4
    assert thread.open_turn == "t1"


def test_an_item_that_says_its_turn_is_believed() -> None:
    item = stored_message("user", [(KIND_TYPED, "hi")], id="msg_1", turn_id="t0")
    assert replayed(TurnStarted("t1"), ItemRecorded(item)).history[0].turn_id == "t0"


@pytest.mark.parametrize(
    "record",
    [
        ItemRecorded({"type": "quantum_call", "call_id": "q"}),
        ItemRecorded({"type": "message", "role": "system", "content": "x"}),
        ItemRecorded({"type": ["message"]}),
        LineKept("response_item", {"type": "ghost_snapshot"}),
        LineKept("token_usage_record", {}),
        EventKept({"type": "item_completed"}),
        LineDamaged("not JSON"),
    ],
)
def test_what_is_only_kept_changes_nothing_but_the_next_ordinal(record: Record) -> None:
    before, after = replayed(typed("hi")), replayed(typed("hi"), record)
    assert same_state(before, after)
    assert after.next_ordinal == before.next_ordinal + 1


def test_the_first_session_record_is_the_threads_own() -> None:
    parent = SessionStarted(thread_id="PARENT", timestamp="", cwd="/other", base_instructions="p")
    thread = replayed(parent, typed("hi"))
    assert (thread.id, thread.base_instructions) == ("T", "x" * 40)
    assert thread.window == Window(0, "w0", "w0")


def test_turns_are_counted_and_closed() -> None:
    thread = replayed(TurnStarted("t1"), ended("t1"), TurnStarted("t2"), ended("t2"))
    assert (thread.turns, thread.open_turn) == (2, None)


def test_usage_is_what_the_newest_record_says() -> None:
    thread = replayed(counted(100), counted(150, total=250))
    assert thread.last_usage == counted(150).last
    assert thread.total_usage == Usage(total_tokens=250)


def test_the_windows_prefix_is_its_first_response() -> None:
    assert replayed(counted(100), counted(150)).window_prefix == 100
    estimated = UsageCounted(Usage(total_tokens=30), Usage())
    assert replayed(counted(100), Compacted(message="", history=()), estimated).window_prefix is None
    assert replayed(counted(100), Compacted(message="", history=()), estimated, counted(90)).window_prefix == 90


def test_the_cost_of_an_attempt_counts_and_nothing_else_of_it() -> None:
    attempt = CompactionAttempted(method="local", outcome="completed", usage=Usage(5, 0, 0, 1, 0, 6))
    thread = replayed(typed("hi"), counted(100), attempt, CompactionAttempted(method="local", outcome="it broke"))
    assert thread.total_usage == Usage(5, 0, 0, 1, 0, 106)
    assert thread.last_usage == counted(100).last
    assert texts(thread) == ["hi"]


def test_the_world_is_a_snapshot_and_patches_on_it() -> None:
    first = WorldObserved(True, {"a": {"x": 1, "y": 2}, "b": 1})
    assert replayed(first).world == {"a": {"x": 1, "y": 2}, "b": 1}
    assert replayed(first, WorldObserved(False, {"a": {"x": None}, "c": 3})).world == {"a": {"y": 2}, "b": 1, "c": 3}
    assert replayed(first, WorldObserved(True, {"b": 2})).world == {"b": 2}


def test_a_patch_without_a_snapshot_is_ignored() -> None:
    assert replayed(WorldObserved(False, {"a": 1})).world is None
    checkpoint = Compacted(message="", history=())
    assert replayed(WorldObserved(True, {"a": 1}), checkpoint, WorldObserved(False, {"b": 1})).world is None


def test_a_steer_waits_until_its_item_is_recorded() -> None:
    first, second = SteerQueued("msg_1", "also this"), SteerQueued("msg_2", "and that")
    assert replayed(first, second).steers == {"msg_1": "also this", "msg_2": "and that"}
    delivered = ItemRecorded(message("user", ["also this"], id="msg_1"))
    assert replayed(first, second, delivered).steers == {"msg_2": "and that"}


def test_a_steer_outlives_a_checkpoint() -> None:
    thread = replayed(SteerQueued("msg_1", "also this"), Compacted(message="", history=()))
    assert thread.steers == {"msg_1": "also this"}


# --- checkpoints --------------------------------------------------------------------------------------------

KEPT = stored_message("user", [(KIND_TYPED, "goal")], id="msg_1", turn_id="t1")
CONTEXT = stored_message("user", [(KIND_ENVIRONMENT, "<environment_context>")], id="msg_2", turn_id="t1")
SUMMARY = stored_message("user", [(KIND_SUMMARY, SUMMARY_MARK + "so far")], id="msg_3", turn_id="t1")
CHECKPOINT = Compacted(
    message=SUMMARY_MARK + "so far",
    history=(CONTEXT, KEPT, SUMMARY),
    window=Window(1, "w1", "w0", "w0"),
    addresses=("", "T:2", ""),
    world={"environments": {"cwd": "/w"}},
    settings={"turn_id": "t1", "model": "m"},
    facts={"method": "local"},
)
BEFORE: list[Record] = [
    TurnStarted("t1"),
    ItemRecorded(KEPT),
    WorldObserved(True, {"old": True}),
    SettingsApplied({"turn_id": "t0"}),
    answered("working"),
    counted(900),
]


def test_a_checkpoint_replaces_the_history() -> None:
    thread = replayed(*BEFORE, CHECKPOINT)
    assert [e.item for e in thread.history] == [CONTEXT, KEPT, SUMMARY]
    assert [e.origin for e in thread.history] == ["injected", "typed", "summary"]
    assert thread.window == Window(1, "w1", "w0", "w0")
    assert (thread.world, thread.settings) == (CHECKPOINT.world, CHECKPOINT.settings)
    assert (thread.compactions, thread.open_turn) == (1, "t1")


def test_what_a_checkpoint_kept_keeps_its_address_and_what_it_made_stands_at_the_checkpoint() -> None:
    assert [e.address for e in replayed(*BEFORE, CHECKPOINT).history] == ["T:7", "T:2", "T:7"]


def test_after_a_checkpoint_the_context_is_estimated() -> None:
    thread = replayed(*BEFORE, CHECKPOINT)
    assert thread.last_usage == Usage(total_tokens=10 + sum(e.tokens for e in thread.history))
    assert thread.total_usage == Usage(total_tokens=900)


def test_a_checkpoint_is_sufficient_alone() -> None:
    full = replayed(*BEFORE, CHECKPOINT)
    alone = Thread.replay([Line(0, META), Line(7, CHECKPOINT)])
    for name in ("id", "base_instructions", "window", "window_prefix", "last_usage", "world", "settings"):
        assert getattr(alone, name) == getattr(full, name), name
    assert [(e.item, e.origin, e.address, e.turn_id, e.tokens) for e in alone.history] == [
        (e.item, e.origin, e.address, e.turn_id, e.tokens) for e in full.history
    ]
    assert alone.next_ordinal == full.next_ordinal


def test_the_lines_behind_a_checkpoint_repeat_it_and_add_nothing() -> None:
    repeated: list[Record] = [WorldObserved(True, CHECKPOINT.world or {}), SettingsApplied(CHECKPOINT.settings or {})]
    assert same_state(replayed(*BEFORE, CHECKPOINT), replayed(*BEFORE, CHECKPOINT, *repeated))


def test_a_checkpoint_of_the_real_program_gets_its_world_from_the_line_behind_it() -> None:
    foreign = Compacted(message="", history=(KEPT,), window=Window(3, "w3", "w0", "w2"))
    assert replayed(*BEFORE, foreign).world is None
    thread = replayed(*BEFORE, foreign, WorldObserved(True, {"a": 1}))
    assert (thread.world, thread.settings, thread.window.number) == ({"a": 1}, {"turn_id": "t0"}, 3)
    assert [e.address for e in thread.history] == ["T:7"]


def test_addresses_that_do_not_fit_the_history_are_not_believed() -> None:
    thread = replayed(Compacted(message="", history=(KEPT, SUMMARY), addresses=("T:1",)))
    assert [e.address for e in thread.history] == ["T:1", "T:1"]


def test_unknown_items_of_a_checkpoint_do_not_enter() -> None:
    assert texts(replayed(Compacted(message="", history=(KEPT, {"type": "quantum_call"})))) == ["goal"]


def test_a_checkpoint_of_2025_keeps_what_people_typed_and_its_summary() -> None:
    before: list[Record] = [typed("first"), answered("done"), ItemRecorded(CONTEXT), typed("second")]
    thread = replayed(*before, Compacted(message="the summary", history=None))
    assert texts(thread) == ["first", "second", "the summary"]
    assert {e.address for e in thread.history} == {"T:5"}
    assert thread.window.number == 1
    assert texts(replayed(*before, Compacted(message="", history=None)))[-1] == "(no summary available)"


def test_the_beginning_of_a_fork_is_no_compaction() -> None:
    thread = replayed(Compacted(message="", history=(KEPT,), facts={"method": "fork"}))
    assert (thread.compactions, texts(thread)) == (0, ["goal"])


# --- rollbacks (files of the real program) ------------------------------------------------------------------

ONE: list[Record] = [
    TurnStarted("t1"),
    typed("first"),
    SettingsApplied({"turn_id": "t1"}),
    answered("1 done"),
    ended("t1"),
]
TWO: list[Record] = [
    TurnStarted("t2"),
    typed("second"),
    WorldObserved(True, {"turn": 2}),
    SettingsApplied({"turn_id": "t2"}),
    Compacted(message="", history=(KEPT, SUMMARY)),
    answered("2 done"),
    ended("t2"),
]
MANUAL: list[Record] = [TurnStarted("t3"), Compacted(message="", history=(KEPT, SUMMARY)), ended("t3")]


def test_a_rollback_undoes_its_turn_with_the_checkpoint_in_it() -> None:
    thread = replayed(*ONE, *TWO, RolledBack(1))
    assert texts(thread) == ["first", "1 done"]
    assert (thread.settings, thread.world, thread.compactions) == ({"turn_id": "t1"}, None, 0)


def test_a_checkpoint_before_the_undone_turn_counts() -> None:
    thread = replayed(*TWO, *ONE, RolledBack(1))
    assert texts(thread) == ["goal", SUMMARY_MARK + "so far", "2 done"]
    assert thread.settings == {"turn_id": "t2"}


def test_turns_after_a_rollback_count() -> None:
    assert texts(replayed(*ONE, *TWO, RolledBack(1), TurnStarted("t3"), typed("third"))) == [
        "first",
        "1 done",
        "third",
    ]


def test_rollbacks_add_up() -> None:
    assert same_state(replayed(*ONE, *TWO, RolledBack(1), RolledBack(1)), replayed(*ONE, *TWO, RolledBack(2)))
    assert replayed(*ONE, *TWO, RolledBack(2)).history == []


def test_a_turn_that_only_compacted_is_undone_with_the_one_before_it() -> None:
    thread = replayed(*ONE, *MANUAL, RolledBack(1))
    assert (thread.history, thread.settings, thread.compactions) == ([], None, 0)


@pytest.mark.parametrize("turns", [0, -1])
def test_a_rollback_of_nothing_changes_nothing(turns: int) -> None:
    assert texts(replayed(*ONE, *TWO, RolledBack(turns))) == texts(replayed(*ONE, *TWO))


def test_a_rollback_of_more_turns_than_there_are_undoes_them_all() -> None:
    thread = replayed(*ONE, *TWO, RolledBack(99))
    assert (thread.history, thread.settings) == ([], None)


# --- live == replayed ---------------------------------------------------------------------------------------

WORDS = st.text(st.characters(), max_size=12)  # also halves of surrogate pairs, which a terminal can send
IDS = st.sampled_from(["1", "2", "3"])


def calls(call_id: str, text: str) -> list[Item]:
    call = {"type": "function_call", "id": f"fc_{call_id}", "name": "look", "arguments": text, "call_id": call_id}
    return [call, {"type": "function_call_output", "id": f"fco_{call_id}", "call_id": call_id, "output": text}]


ITEMS: st.SearchStrategy[Item] = (
    st.builds(lambda text: stored_message("user", [(KIND_TYPED, text)], id="msg_u", turn_id=None), WORDS)
    | st.builds(lambda text: message("user", [text, text]), WORDS)
    | st.builds(lambda text: message("assistant", [text], id="msg_a"), WORDS)
    | st.builds(lambda text: message("developer", [text]), WORDS)
    | st.builds(lambda call_id, text, which: calls(call_id, text)[which], IDS, WORDS, st.integers(0, 1))
    | st.builds(lambda text: {"type": "custom_tool_call", "name": "edit", "input": text, "call_id": "c"}, WORDS)
    | st.builds(lambda text: {"type": "tool_search_call", "call_id": "s", "arguments": {"query": text}}, WORDS)
    | st.builds(lambda text: {"type": "quantum_call", "x": text}, WORDS)
)
NUMBERS = st.integers(0, 10**6)
USAGES = st.builds(Usage, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
SNAPSHOTS = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xy"), st.text()), max_size=3)


def compacted(history: list[Item], world: dict[str, Any] | None, number: int) -> Compacted:
    window = Window(number, f"w{number}", "w0", None)
    places = tuple("" if place % 2 else f"T:{place}" for place in range(len(history)))
    return Compacted(
        message="m", history=tuple(history), window=window, addresses=places, world=world, facts={"method": "local"}
    )


RECORDS: st.SearchStrategy[Record] = (
    st.builds(ItemRecorded, ITEMS)
    | st.builds(TurnStarted, IDS)
    | st.builds(ended, IDS)
    | st.builds(UsageCounted, USAGES, USAGES)
    | st.builds(WorldObserved, st.booleans(), SNAPSHOTS)
    | st.builds(SettingsApplied, st.fixed_dictionaries({"turn_id": IDS}))
    | st.builds(SteerQueued, st.sampled_from(["msg_u", "msg_s"]), st.text(max_size=9))
    | st.builds(lambda usage: CompactionAttempted(method="local", outcome="completed", usage=usage), USAGES)
    | st.builds(compacted, st.lists(ITEMS, max_size=4), st.none() | SNAPSHOTS, st.integers(1, 9))
    | st.builds(lambda text: Compacted(message=text, history=None), st.text(max_size=9))
)


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=20))
@example([ItemRecorded(message("user", ["\ud800"]))])
def test_a_live_thread_is_the_one_that_its_log_gives(records: list[Record]) -> None:
    live, store = Thread(), MemoryStore("T")
    for record in (META, *map(well_formed, records)):  # as a session does before it appends
        (ordinal,) = store.append([record], turn_id=live.open_turn, timestamp=STAMP)
        live.apply(record, ordinal)
    assert same_state(live, Thread.replay(store.lines()))


# --- any line -----------------------------------------------------------------------------------------------

ODD = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([]) | st.just({}) | st.just([{}])
FIELDS = st.sampled_from(
    ["type", "role", "content", "output", "id", "call_id", "arguments", "message", "state", "full"]
)
NAMES = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "local_shell_call"])
OBJECTS = st.dictionaries(FIELDS, ODD | NAMES, max_size=6)
LINE_TYPES = st.sampled_from(["response_item", "event_msg", "compacted", "turn_context", "world_state", "message"])


@settings(deadline=None)
@given(st.lists(st.tuples(LINE_TYPES, OBJECTS, st.lists(OBJECTS, max_size=2)), max_size=6))
def test_no_line_keeps_a_thread_from_being_read_and_prompted(rows: list[tuple[str, Item, list[Item]]]) -> None:
    log = [Line(0, META)]
    for number, (kind, payload, history) in enumerate(rows, 1):
        body = {**payload, "replacement_history": history} if kind == "compacted" else payload
        line = decode(dump({"type": kind, "payload": body}), number)
        assert line is not None
        log.append(line)
    thread = Thread.replay([*log, Line(99, RolledBack(1))])
    prompt = prompt_from(Thread.replay(log).history, PROFILE, base_instructions=thread.base_instructions)
    assert Wire(Provider(), PROFILE).request(prompt, Identity(thread_id="T")).body().decode("utf-8", "strict")
