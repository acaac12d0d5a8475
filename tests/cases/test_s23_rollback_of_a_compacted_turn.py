"""S23: undoing a turn that was compacted in its middle brings back what was before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.core.items import message_text
from refold.core.records import Line, RolledBack
from refold.core.thread import Thread
from refold.rollout import read_lines

CASE = Path(__file__).parent.parent / "data" / "cases" / "S23-rollback-of-a-compacted-turn"


def lines(name: str) -> list[Line]:
    return list(read_lines(CASE / name))


def texts(thread: Thread) -> list[str]:
    return [message_text(e.item) for e in thread.history]


@pytest.mark.parametrize(
    ("name", "history", "turn"),
    [
        ("rollout.jsonl", ["first goal", "first done"], "t1"),
        ("live_then_more.jsonl", ["first goal", "first done", "third goal", "third done"], "t3"),
    ],
)
def test_nothing_of_the_undone_turn_is_left(name: str, history: list[str], turn: str) -> None:
    thread = Thread.replay(lines(name))
    assert texts(thread) == history
    assert (thread.settings or {})["turn_id"] == turn
    assert thread.compactions == 0


def test_undoing_no_turn_changes_nothing() -> None:
    before = [line for line in lines("rollout.jsonl") if not isinstance(line.record, RolledBack)]
    assert texts(Thread.replay([*before, Line(99, RolledBack(0))])) == texts(Thread.replay(before))
    assert "second done, tests pass" in texts(Thread.replay(before))
