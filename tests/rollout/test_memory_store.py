"""Memory store: it holds the lines that a file would hold, and behaves like one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from refold.core.items import message
from refold.core.records import Compacted, ItemRecorded, Record, SessionStarted, SteerQueued, TurnEnded, TurnStarted
from refold.core.thread import Thread, same_state
from refold.rollout import FileStore, MemoryStore

NOW = "2026-01-01T00:00:00.000Z"
RECORDS: tuple[Record, ...] = (
    SessionStarted(thread_id="thread", timestamp=NOW, cwd="/w", window_id="w"),
    TurnStarted("turn"),
    ItemRecorded(message("user", ["hello\r\nthere \u2028"], id="msg_1")),
    SteerQueued("msg_2", "and this"),
    ItemRecorded(message("assistant", ["hi"], id="msg_3")),
    Compacted(message="so far", history=(message("user", ["so far"], id="msg_4"),)),
    TurnEnded(turn_id="turn", outcome="completed"),
)


def both(folder: Path) -> tuple[MemoryStore, FileStore]:
    return MemoryStore("thread"), FileStore.create(folder, "thread", datetime.now(UTC))


def test_lines_and_ordinals_are_those_of_a_file(tmp_path):
    memory, file = both(tmp_path)
    for batch in (RECORDS[:3], RECORDS[3:4], RECORDS[4:]):
        assert memory.append(batch, turn_id="turn", timestamp=NOW) == file.append(batch, turn_id="turn", timestamp=NOW)
    file.close()
    assert b"".join(memory.raw) == file.path.read_bytes()
    assert list(memory.lines()) == list(file.lines())


def test_thread_folds_the_same_from_both(tmp_path):
    memory, file = both(tmp_path)
    for store in (memory, file):
        store.append(RECORDS, turn_id="turn", timestamp=NOW)
    file.close()
    assert same_state(Thread.replay(memory.lines()), Thread.replay(file.lines()))
    assert Thread.replay(memory.lines()).next_ordinal == len(file.path.read_bytes().splitlines())


def test_it_has_no_path_and_needs_no_closing():
    store = MemoryStore("thread")
    assert store.path is None
    store.sync()
    store.close()
    assert store.append(RECORDS[:1], turn_id=None, timestamp="t") == [0]
