"""A file read from its newest checkpoint on folds to the same thread as the whole file."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from refold.core.records import Line
from refold.core.thread import Thread, same_state
from refold.errors import CompactionFailed, RolloutCorrupt
from refold.rollout.backward import tail_of
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread
from refold.session.session import Session

sys.path.insert(0, str(Path(__file__).parent))
from random_sessions import FULL, PACE, PROFILE, Compact, Heard, Play, Say, Steer, perform, plays

from refold.core.config import Config
from refold.testing import text_reply

DATA = Path(__file__).parents[1] / "data"
BLOCKS = (64, 1 << 20)  # bytes: every line lies across some, and none does


def fixed(examples: int) -> settings:
    """The same examples every time, however slow the machine is."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=slow)


def assert_same(path: Path) -> bool:
    """The two readings agree; whether the shorter one was shorter."""
    whole = list(read_lines(path))
    full = Thread.replay(whole)
    shorter = False
    for block in BLOCKS:
        tail = tail_of(path, block=block)
        short = Thread.replay(tail.lines)
        assert same_state(short, full)
        assert max((line.ordinal for line in whole if is_record(line)), default=-1) < short.next_ordinal
        assert short.next_ordinal <= full.next_ordinal
        assert tail.is_whole or short.meta_ordinal == full.meta_ordinal
        shorter = not tail.is_whole
    return shorter


def is_record(line: Line) -> bool:
    return type(line.record).__name__ != "LineDamaged"


# --- our own files ---------------------------------------------------------------------------------------------------

TWICE = Play(
    (
        (
            Say("one", (text_reply("1", usage=FULL, pace=PACE),)),
            Steer("and this"),
            Say("two", (text_reply("2", usage=FULL, pace=PACE),)),
            Compact(),
            Steer("later"),
        ),
        (Say("three"),),
    )
)


@fixed(60)
@example(TWICE, [400, 300, 200, 100], [])
@example(TWICE, [], [None, 1, None])
@given(plays, st.lists(st.integers(0, 400), max_size=4), st.lists(st.sampled_from([None, 1, 2]), max_size=3))
def test_a_session_of_ours_is_the_same_from_its_newest_checkpoint(
    play: Play, places: list[int], undos: list[int | None]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = perform(play, folder)
        assert same_state(read_thread(played.path), played.live)
        shorter = assert_same(played.path)
        assert shorter or play is not TWICE
        undone(played.path, undos)
        assert_same(played.path)
        fork(played.path, folder)
        ends = played.line_ends
        for place in places:
            end = ends[place % len(ends)]
            for size in (end, end - place % 7 - 1):
                cut = folder / "cut.jsonl"
                cut.write_bytes(played.data[:size])
                assert_same(cut)


def undone(path: Path, undos: list[int | None]) -> None:
    for turns in undos:
        with Memory.reopen(path, PROFILE, Config(), Clock()) as memory:
            try:
                memory.undo(turns)
            except CompactionFailed:
                continue
            assert same_state(read_thread(path), memory.thread)


def fork(path: Path, folder: Path) -> None:
    child = Session.fork(path, model=Heard(), cwd=folder, home=folder / "forks", config=Config())
    with child.memory as memory:
        assert memory.path is not None
        assert same_state(read_thread(memory.path), memory.thread)
        assert_same(memory.path)


def test_what_a_checkpoint_of_ours_carries_is_enough(tmp_path: Path) -> None:
    played = perform(TWICE, tmp_path)
    tail = tail_of(played.path)
    assert tail.is_alone
    lines = list(read_lines(played.path))
    (first,) = [line for line in tail.lines if line.ordinal < played.live.checkpoint]  # type: ignore[operator]
    assert first.ordinal == 0 and len(tail.lines) < len(lines) / 2
    thread = Thread.replay(tail.lines)
    assert same_state(thread, played.live)
    assert thread.known and thread.sent > 3 and thread.turns == 4 and thread.total_usage.total_tokens


# --- everybody's files -----------------------------------------------------------------------------------------------


def line(kind: str, payload: Any, **beside: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00.000Z", "type": kind, "payload": payload, **beside}


def event(kind: str, **told: Any) -> dict[str, Any]:
    return line("event_msg", {"type": kind, **told})


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def usage(size: int) -> dict[str, int]:
    return {"input_tokens": size, "output_tokens": size // 2, "total_tokens": size + size // 2}


WINDOW = {"window_id": "w0"}
META = line("session_meta", {"id": "t", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w", "context_window": WINDOW})
THEIRS = {**META, "payload": {**META["payload"], "originator": "codex_exec", "history_mode": "paginated"}}
SEALED = {"type": "compaction", "encrypted_content": "Zm9v"}
CARRIED = {"thread": "t", "turns": 7, "compactions": 3, "known": ["k9"], "sent": 4, "used": usage(90)}

items = st.sampled_from(
    [said("one"), said("two"), said("three", "assistant"), said('"type":"compacted" thread_rolled_back'), SEALED]
)
histories = st.one_of(st.none(), st.lists(items, max_size=3))
ours = st.sampled_from(
    [
        None,
        {},
        {"method": "fork"},
        {"method": "local", "pins": [{"address": "a", "text": "a"}], "dropped_rules": []},
        {"method": "local", "steers": {}, "pins": [{"address": "b", "text": "b"}], "carried": CARRIED},
        {"method": "remote", "shadow": "what was", "provider": "p", "steers": {"m2": "still"}},
        {"method": "local", "steers": {}, "carried": CARRIED},
        {"method": "undo", "waits": True, "steers": {}, "carried": {**CARRIED, "settings": {"model": "c"}}},
        {"method": "local", "carried": {**CARRIED, "thread": "other"}},
        {"method": "local", "carried": {"turns": "many"}},
    ]
)


def checkpoint(history: Any, window: int | None, own: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"message": "what was done"}
    told |= {} if history is None else {"replacement_history": history}
    told |= {} if window is None else {"window_number": window, "window_id": f"w{window}"}
    return line("compacted", told | ({} if own is None else {"refold": own}))


def account(turn: str, thread_id: str, used: int) -> dict[str, Any]:
    """What the real program's newer checkpoints say beside the history."""
    spent = {"turn_token_usage": usage(3), "thread_token_usage": usage(used)}
    record = {"thread_id": thread_id, "turn_id": "b", **spent}
    return {"resume_metadata": {"last_started_turn_id": turn}, "latest_token_usage_record": record}


def newer(history: Any, window: int | None, told: dict[str, Any]) -> dict[str, Any]:
    found = checkpoint(history, window, None)
    return {**found, "payload": found["payload"] | told}


turn_ids = st.sampled_from(["a", "b", "c"])
accounts = st.builds(account, turn_ids, st.sampled_from(["t", "t", "t", "other"]), st.integers(5, 99))
newest = st.builds(newer, histories, st.sampled_from([1, 1, 5, None]), accounts)
checkpoints = st.one_of(st.builds(checkpoint, histories, st.sampled_from([None, 1, 5]), ours), newest)
kept = st.sampled_from(["pinned", "unpinned", "rule_dropped"])
others = st.one_of(
    st.builds(lambda item: line("response_item", item), items),
    st.builds(lambda item: line("response_item", item), items),
    st.builds(lambda turn: event("task_started", turn_id=turn, model_context_window=100), turn_ids),
    st.builds(lambda turn: event("turn_started", turn_id=turn), turn_ids),
    st.builds(lambda turn: event("task_complete", turn_id=turn), turn_ids),
    st.builds(lambda turn: event("turn_aborted", turn_id=turn), turn_ids),
    st.builds(
        lambda last, total: event(
            "token_count", info={"last_token_usage": usage(last), "total_token_usage": usage(total)}
        ),
        st.sampled_from([0, 10, 20]),
        st.integers(0, 99),
    ),
    st.builds(lambda full, at: line("world_state", {"full": full, "state": {"s": at}}), st.booleans(), st.integers()),
    st.builds(lambda model: line("turn_context", {"model": model}), turn_ids),
    st.builds(lambda digest: line("refold", {"kind": "known", "hash": digest, "value": "compacted"}), turn_ids),
    st.builds(lambda text: line("refold", {"kind": "steer_queued", "item_id": "m1", "text": text}), turn_ids),
    st.just(line("response_item", {**said("delivered"), "id": "m1"})),
    st.builds(lambda name: line("refold", {"kind": "named", "name": name}), turn_ids),
    st.builds(lambda of: event("thread_name_updated", thread_id=of, thread_name=f"of {of}"), st.sampled_from("tu")),
    st.builds(lambda kind, at: line("refold", {"kind": kind, "address": at, "text": at}), kept, turn_ids),
    st.just(
        line(
            "refold",
            {
                "kind": "request_sent",
                "request": "turn",
                "spelling": "s",
                "tools": "t",
                "sha256": "",
                "size": 1,
                "items": 1,
            },
        )
    ),
    st.just(
        line(
            "refold",
            {"kind": "compaction_attempted", "method": "local", "outcome": "completed", "usage": usage(5)},
        )
    ),
    st.just(event("item_completed", item={"type": "compacted"})),
    st.just({**META, "payload": {**META["payload"], "id": "ancestor"}}),
    st.just(line("of_tomorrow", ["thread_rolled_back"])),
)
rollbacks = st.builds(lambda turns: event("thread_rolled_back", num_turns=turns), st.integers(0, 3))
damage = st.sampled_from(
    [b"", b"  \r", b'{"timestamp":"","type":"event_msg","payload":{"type":"task_st', b"\xff\xfe", b"[]"]
)

logs = st.lists(st.one_of(others, others, others, others, checkpoints, checkpoints, damage, rollbacks), max_size=30)
calm = st.lists(st.one_of(others, others, others, checkpoints, damage), max_size=30)
spellings = st.fixed_dictionaries(
    {
        "numbered": st.booleans(),
        "spaced": st.booleans(),
        "end": st.sampled_from([b"\n", b"\r\n"]),
        "whole": st.booleans(),
    }
)


def begun(meta: Any, log: list[Any]) -> list[Any]:
    return [meta, *log]


PLAIN = {"numbered": False, "spaced": False, "end": b"\n", "whole": True}


def spelled(log: list[Any], *, numbered: bool, spaced: bool, end: bytes, whole: bool) -> bytes:
    """A log as the bytes of a file; damage is bytes already."""
    separators = (", ", ": ") if spaced else (",", ":")
    lines: list[bytes] = []
    for number, one in enumerate(log):
        if isinstance(one, dict) and numbered:
            one = {"timestamp": one["timestamp"], "ordinal": number, **one}
        lines.append(one if isinstance(one, bytes) else json.dumps(one, separators=separators).encode())
    data = end.join(lines) + end
    return data if whole else data[:-9]


@fixed(800)
@example([META, checkpoint([said("one")], 1, None), event("thread_rolled_back", num_turns=1)], PLAIN)
@given(
    st.one_of(logs, calm, *(st.builds(begun, st.just(meta), log) for meta in (META, THEIRS) for log in (logs, calm))),
    spellings,
)
def test_any_file_is_the_same_from_its_newest_checkpoint(log: list[Any], spelling: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rollout.jsonl"
        path.write_bytes(spelled(log, **spelling))
        assert_same(path)


def test_what_the_real_programs_newer_checkpoints_carry_is_enough(tmp_path: Path) -> None:
    before = [
        event("task_started", turn_id="a"),
        line("turn_context", {"model": "a"}),
        line("response_item", said("1")),
    ]
    found = newer([said("two")], 4, account("b", "t", 90))
    behind = [line("turn_context", {"model": "b"}), event("task_complete", turn_id="b")]
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(spelled([THEIRS, *before, found, *behind], numbered=True, spaced=False, end=b"\n", whole=True))
    assert assert_same(path)
    tail = tail_of(path)
    assert tail.is_alone and [one.ordinal for one in tail.lines] == [0, 4, 5, 6]
    thread = Thread.replay(tail.lines)
    assert (thread.compactions, thread.total_usage.total_tokens, thread.used_before_turn.input_tokens) == (4, 135, 87)
    path.write_bytes(spelled([THEIRS, *before, found], numbered=True, spaced=False, end=b"\n", whole=True))
    assert assert_same(path) and not tail_of(path).is_alone  # the settings stand before it


def test_an_ordinal_that_is_no_number_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    log = [META, line("response_item", said("one")), checkpoint([said("two")], 1, None), event("task_started")]
    data = spelled([*log, line("response_item", said("three"))], numbered=True, spaced=False, end=b"\n", whole=True)
    path.write_bytes(data.replace(b'"ordinal":4', b'"ordinal":true'))
    assert assert_same(path)


def test_a_byte_order_mark_does_not_hide_the_session(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    log = [META, line("response_item", said("one")), checkpoint([said("two")], 1, None), event("task_started")]
    path.write_bytes(b"\xef\xbb\xbf" + spelled(log, numbered=True, spaced=False, end=b"\n", whole=True))
    assert assert_same(path)


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.jsonl*")), ids=lambda path: path.name)
def test_every_recorded_file_is_the_same_from_its_newest_checkpoint(path: Path) -> None:
    try:
        list(read_lines(path))
    except RolloutCorrupt:
        with pytest.raises(RolloutCorrupt):
            tail_of(path)
    else:
        assert_same(path)
