"""S26: a fork that repeats its parent's records is itself, and nothing in it is doubled (check 2)."""

from __future__ import annotations

from pathlib import Path

from refold.core.items import message_text
from refold.core.thread import Thread
from refold.rollout import read_lines

CASE = Path(__file__).parent.parent / "data" / "cases" / "S26-fork-identity"


def test_the_childs_history_is_its_parents_and_its_own_once() -> None:
    child = Thread.replay(read_lines(CASE / "child.jsonl"))
    assert [message_text(e.item) for e in child.history] == [
        "Design the cache.",
        "Use an LRU map.",
        "Now make it thread-safe.",
        "Add a lock.",
    ]
    assert [e.item["role"] for e in child.history] == ["user", "assistant", "user", "assistant"]


def test_the_child_knows_itself_and_its_parent() -> None:
    child, parent = (Thread.replay(read_lines(CASE / f"{name}.jsonl")) for name in ("child", "parent"))
    assert child.meta is not None
    assert (child.id, child.meta.cwd) == ("019c2000-0000-7000-8000-000000000402", "/srv/beta")
    assert child.meta.forked_from == parent.id == "019c2000-0000-7000-8000-00000000001a"
    assert {e.address.rpartition(":")[0] for e in child.history} == {child.id}
