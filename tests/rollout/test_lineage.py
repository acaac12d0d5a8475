"""Lineage: a file that goes on from another one, where the real program copied nothing (oracle §8)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import message_text, spelled
from refold.core.thread import Thread, same_state
from refold.errors import RolloutCorrupt, RolloutNotFound
from refold.rollout.lineage import Base, active_lines, base_of, find_base
from refold.session.memory import read_thread

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
ROLLOUTS = ORACLE / "rollouts"


def placed(folder: Path, **names: str) -> list[Path]:
    """Recorded files under names of our own, in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(ROLLOUTS / f"{one}.jsonl", folder / f"{name}.jsonl")) for one, name in names.items()]


def texts(thread: Thread) -> list[str]:
    return [message_text(e.item) for e in thread.history if e.item.get("role") in ("user", "assistant")]


def request(scenario: str, run: int, exchange: int = -1) -> list[Any]:
    """What the real program sent, without its instructions and without what was said last."""
    recorded = json.loads((ORACLE / "scenarios" / f"{scenario}.json").read_text())
    return recorded["runs"][run]["exchanges"][exchange]["input"][1:-1]


def rows(items: list[Any]) -> list[tuple[Any, str]]:
    return [(item.get("role") or item["type"], message_text(item)) for item in items]


# --- a fork ----------------------------------------------------------------------------------------------------------


def test_a_fork_begins_with_what_its_parent_held_at_that_line(tmp_path: Path) -> None:
    parent, child = placed(tmp_path, i_resume_fork_parent="a", i_resume_fork_child="b")
    thread, whole = read_thread(child), read_thread(parent)
    assert thread.id == "#46" and whole.id == "#1"
    said = texts(thread)
    assert said[-2:] == ["forked message", "forked"] and "original again" not in said
    assert "original again" in texts(whole)
    assert thread.window.number == 1 and thread.world == whole.world
    inherited = [e for e in thread.history if message_text(e.item) not in ("forked message", "forked")]
    assert {e.address.partition(":")[0] for e in inherited} == {"#1"}, "where their records stand"
    assert {e.address.partition(":")[0] for e in thread.history[-2:]} == {"#46"}
    assert [e.address for e in inherited] == [e.address for e in whole.history[: len(inherited)]]


def test_a_fork_is_sent_what_the_real_program_sent(tmp_path: Path) -> None:
    _, child = placed(tmp_path, i_resume_fork_parent="a", i_resume_fork_child="b")
    (run,) = [
        number
        for number, one in enumerate(json.loads((ORACLE / "scenarios" / "i_resume_fork.json").read_text())["runs"])
        if one["args"][0] == "fork"
    ]
    history = read_thread(child).history
    said = [message_text(e.item) for e in history].index("forked message")
    assert rows([spelled(e.item) for e in history[:said]]) == rows(request("i_resume_fork", run))


def test_the_base_of_a_fork_is_found_by_its_identity_whatever_its_name(tmp_path: Path) -> None:
    parent, child = placed(tmp_path, i_resume_fork_parent="z-renamed", i_resume_fork_child="a")
    assert find_base(child, Base("#1", 68)) == parent


def test_the_base_of_a_fork_is_found_in_the_same_home_archived_or_not(tmp_path: Path) -> None:
    (child,) = placed(
        tmp_path / "sessions" / "2026" / "02" / "01", i_resume_fork_child="rollout-2026-02-01T00-00-00-#46"
    )
    (parent,) = placed(tmp_path / "archived_sessions", i_resume_fork_parent="rollout-2026-01-01T00-00-00-#1")
    assert find_base(child, Base("#1", 68)) == parent
    assert texts(read_thread(child))[-1] == "forked"


def test_a_fork_without_its_parent_names_what_is_missing(tmp_path: Path) -> None:
    (child,) = placed(tmp_path, i_resume_fork_child="b")
    with pytest.raises(RolloutNotFound, match=r"b\.jsonl goes on from line 67 of the session #1.*put it into"):
        read_thread(child)


def test_a_fork_that_was_compacted_needs_its_parent_no_more(tmp_path: Path) -> None:
    (child,) = placed(tmp_path, i_resume_fork_child="b")
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "all of it"}]}
    told = {"message": "", "replacement_history": [item], "window_number": 2, "window_id": "w2"}
    with child.open("a") as file:
        file.write(json.dumps({"timestamp": "", "ordinal": 80, "type": "compacted", "payload": told}) + "\n")
    alone = read_thread(child)
    assert texts(alone) == ["all of it"]
    placed(tmp_path, i_resume_fork_parent="a")
    assert texts(read_thread(child)) == ["all of it"]


def test_a_parent_that_goes_on_changes_nothing_for_its_fork(tmp_path: Path) -> None:
    parent, child = placed(tmp_path, i_resume_fork_parent="a", i_resume_fork_child="b")
    before = read_thread(child)
    with parent.open("a") as file:
        for ordinal in range(88, 400):
            file.write(json.dumps({"timestamp": "", "ordinal": ordinal, "type": "event_msg", "payload": {}}) + "\n")
        file.write("torn")
    assert same_state(read_thread(child), before)


# --- a revert --------------------------------------------------------------------------------------------------------


def test_a_reverted_thread_goes_on_from_the_line_before_the_turn(tmp_path: Path) -> None:
    base, after = placed(tmp_path, t_revert_base="rollout-1-#1", t_revert_after="rollout-2-#1_x")
    thread = read_thread(after)
    said = ["user message 1", "answer 1", "user message 4", "after", "after resume", "resumed"]
    assert texts(thread)[1:] == said
    assert thread.id == "#1" and [int(e.address.split(":")[1]) for e in thread.history] == sorted(
        int(e.address.split(":")[1]) for e in thread.history
    )
    assert thread.turns == 3 and read_thread(base).turns == 3
    assert thread.next_ordinal == 35
    resumed = [message_text(e.item) for e in thread.history].index("after resume")
    assert rows([spelled(e.item) for e in thread.history[:resumed]]) == rows(request("t_revert", 1))


def test_of_several_files_of_a_thread_the_one_that_ends_where_it_was_told_is_the_base(tmp_path: Path) -> None:
    first, second = placed(tmp_path, t_revert_base="rollout-1-#1", t_revert_after="rollout-2-#1_x")
    third = tmp_path / "rollout-3-#1_y.jsonl"
    shutil.copy(second, third)
    lines = first.read_bytes().splitlines(keepends=True)
    assert find_base(third, Base("#1", 20, len(b"".join(lines[:20])))) == first
    lines = second.read_bytes().splitlines(keepends=True)
    assert find_base(third, Base("#1", 20, len(b"".join(lines[:6])))) == second
    assert find_base(third, Base("#1", 20, 1)) == second, "a stale hint: the newest one before it"
    assert find_base(third, Base("#1", 9, 1)) == first, "the only one that begins before that line"


def test_a_revert_of_a_revert_follows_both(tmp_path: Path) -> None:
    _, second = placed(tmp_path, t_revert_base="rollout-1-#1", t_revert_after="rollout-2-#1_x")
    meta = json.loads(second.read_text().splitlines()[0])
    meta["ordinal"] = 25
    meta["payload"]["history_base"] = {"thread_id": "#1", "end_ordinal_exclusive": 25, "end_byte_offset": 0}
    third = tmp_path / "rollout-3-#1_y.jsonl"
    third.write_text(json.dumps(meta) + "\n")
    assert texts(read_thread(third)) == texts(read_thread(second))[:-2]


# --- what is no lineage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [None, {}, "x", {"thread_id": "#1"}, {"thread_id": "#1", "end_ordinal_exclusive": 0}])
def test_a_base_that_says_nothing_is_none(base: Any, tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    meta = {"id": "t", "timestamp": "", "cwd": "/w", **({} if base is None else {"history_base": base})}
    path.write_text(json.dumps({"timestamp": "", "ordinal": 0, "type": "session_meta", "payload": meta}) + "\n")
    (line,) = active_lines(path)
    assert base_of(line.record) is None  # type: ignore[arg-type]


def test_files_that_go_on_from_each_other_are_named(tmp_path: Path) -> None:
    def file(name: str, thread: str, base: str) -> Path:
        meta = {
            "id": thread,
            "timestamp": "",
            "cwd": "",
            "history_base": {"thread_id": base, "end_ordinal_exclusive": 9},
        }
        item = {"type": "message", "role": "user", "content": "hi"}
        lines = [("session_meta", meta), ("response_item", item)]
        path = tmp_path / f"rollout-2026-01-01T00-00-00-{name}.jsonl"
        told = [{"timestamp": "", "ordinal": n, "type": kind, "payload": one} for n, (kind, one) in enumerate(lines)]
        path.write_text("".join(json.dumps(line) + "\n" for line in told))
        return path

    one = file("T1", "T1", "T2")
    file("T2", "T2", "T1")
    with pytest.raises(RolloutCorrupt, match="in a circle"):
        read_thread(one)
