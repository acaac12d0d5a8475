"""Holdings: sessions are put away, brought back and deleted, and nothing goes that others cannot do without."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import message
from refold.errors import RolloutError, RolloutLocked, RolloutNotFound
from refold.rollout import Catalogue, holdings
from refold.rollout.disk import Disk
from refold.session.memory import Memory, read_thread

DAY = 86_400  # seconds


def place_of(home: Path, thread_id: str, *, archived: bool = False) -> Path:
    folder = home / "archived_sessions" if archived else home / "sessions" / "2026" / "03" / "04"
    return folder / f"rollout-2026-03-04T05-06-07-{thread_id}.jsonl"


def put(home: Path, thread_id: str, *, days: float = 0, archived: bool = False, **meta: Any) -> Path:
    """A session's file, last written so many days ago."""
    path = place_of(home, thread_id, archived=archived)
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = {"id": thread_id, "timestamp": "2026-03-04T05:06:07Z", "cwd": "/w", "history_mode": "paginated", **meta}
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"said in {thread_id}"}]}
    bodies = [("session_meta", identity), ("response_item", said)]
    first = meta.get("history_base", {}).get("end_ordinal_exclusive", 0)
    lines = [
        {"timestamp": "", "ordinal": first + at, "type": kind, "payload": p} for at, (kind, p) in enumerate(bodies)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    then = time.time() - days * DAY
    os.utime(path, (then, then))
    return path


def base(thread_id: str) -> dict[str, Any]:
    return {"thread_id": thread_id, "end_ordinal_exclusive": 2, "end_byte_offset": 0}


def ids(going: list[holdings.Going]) -> list[str]:
    return sorted(one.id for one in going)


# --- children --------------------------------------------------------------------------------------------------------


def test_children_are_those_that_came_from_a_session_and_say_whether_they_need_its_file(tmp_path: Path) -> None:
    put(tmp_path, "p")
    fork = put(tmp_path, "fork", forked_from_id="p")
    reference = put(tmp_path, "ref", archived=True, forked_from_id="p", history_base=base("p"))
    put(tmp_path, "grandchild", history_base=base("ref"))
    put(tmp_path, "other")
    (tmp_path / "sessions" / "rollout-2026-03-04T05-06-07-bad.jsonl").write_text("not json\n")
    found = sorted(holdings.children_of(tmp_path, "p"), key=lambda one: one.id)
    assert found == [holdings.Child("fork", fork, False), holdings.Child("ref", reference, True)]
    assert holdings.children_of(tmp_path, "other") == []


def test_a_file_of_the_same_session_is_no_child(tmp_path: Path) -> None:
    put(tmp_path, "p")
    again = put(tmp_path, "p_2", history_base=base("p"))
    again.write_text(again.read_text().replace('"id": "p_2"', '"id": "p"'))
    assert holdings.children_of(tmp_path, "p") == []
    assert len(holdings.rollouts_of(tmp_path, "p")) == 2


# --- putting away ----------------------------------------------------------------------------------------------------


def test_an_archived_session_is_found_as_before_and_comes_back_to_its_day(tmp_path: Path) -> None:
    path = put(tmp_path, "one", days=3)
    data, when = path.read_bytes(), path.stat().st_mtime
    moved = holdings.archive(tmp_path, path)
    assert moved == place_of(tmp_path, "one", archived=True)
    assert (moved.read_bytes(), moved.stat().st_mtime) == (data, when)
    assert not path.exists() and not (tmp_path / "sessions" / "2026").exists(), "a day without sessions goes"
    assert Catalogue(tmp_path).find("one") == (moved, True)
    assert holdings.archive(tmp_path, moved) is None
    assert holdings.unarchive(tmp_path, moved) == path
    assert path.read_bytes() == data
    assert holdings.unarchive(tmp_path, path) is None


def test_a_child_resolves_whichever_of_the_two_is_archived(tmp_path: Path) -> None:
    parent = put(tmp_path, "p")
    child = put(tmp_path, "c", forked_from_id="p", history_base=base("p"))
    before = [e.item for e in read_thread(child).history]
    assert len(before) == 2
    away = holdings.archive(tmp_path, parent)
    assert away is not None
    assert [e.item for e in read_thread(child).history] == before
    moved = holdings.archive(tmp_path, child)
    assert moved is not None
    assert [e.item for e in read_thread(moved).history] == before
    holdings.unarchive(tmp_path, away)
    assert [e.item for e in read_thread(moved).history] == before


def test_what_belongs_to_a_session_is_moved_with_it(tmp_path: Path) -> None:
    path = put(tmp_path, "one")
    blobs = path.with_suffix(".blobs")
    blobs.mkdir()
    (blobs / "ab").write_text("a long text")
    moved = holdings.archive(tmp_path, path)
    assert moved is not None
    assert (moved.with_suffix(".blobs") / "ab").read_text() == "a long text"
    assert not blobs.exists()


def test_what_a_repair_kept_of_a_session_goes_with_it(tmp_path: Path) -> None:
    path = put(tmp_path, "one[1]")
    other = put(tmp_path, "one[1]2")
    kept = [path.with_name(path.name + end) for end in (".damaged", ".damaged2")]
    for one in (*kept, other.with_name(other.name + ".damaged")):
        one.write_text("said in one[1]")
    moved = holdings.archive(tmp_path, path)
    assert moved is not None and not any(one.exists() for one in kept)
    assert sorted(one.name for one in moved.parent.iterdir()) == [moved.name, *(one.name for one in kept)]
    [going] = holdings.deletion(tmp_path, ["one[1]"])
    holdings.delete(tmp_path, going)
    assert not any(moved.parent.iterdir()) and len(list(other.parent.iterdir())) == 2


def test_a_name_that_is_taken_stops_it(tmp_path: Path) -> None:
    path = put(tmp_path, "one")
    other = put(tmp_path, "one", archived=True)
    before = (path.read_bytes(), other.read_bytes())
    with pytest.raises(RolloutError, match="is there already"):
        holdings.archive(tmp_path, path)
    assert (path.read_bytes(), other.read_bytes()) == before


def test_a_file_of_another_home_is_left_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "foreign", "one")
    [going] = holdings.deletion(tmp_path / "foreign", ["one"])
    for act in (
        lambda: holdings.archive(tmp_path / "home", path),
        lambda: holdings.delete(tmp_path / "home", going),
    ):
        with pytest.raises(RolloutError, match="is not in refold's home"):
            act()
    assert path.exists()


def test_a_session_that_is_open_stays_and_its_writer_is_named(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model="gpt-5.5") as memory:
        memory.add(message("user", ["hi"]))
        path = memory.path
        assert path is not None
        for act in (
            lambda: holdings.archive(tmp_path, path),
            lambda: holdings.delete(tmp_path, holdings.deletion(tmp_path, [memory.id])[0]),
        ):
            with pytest.raises(RolloutLocked, match=f"is being written by process {os.getpid()}") as caught:
                act()
            assert caught.value.owner == os.getpid()
        assert holdings.prunable(tmp_path, time.time() + DAY)[1].keys() == {memory.id}
        memory.add(message("user", ["still here"]))
    assert holdings.archive(tmp_path, path) is not None


@pytest.mark.parametrize("make", [Path.write_text, None], ids=["file", "folder"])
def test_another_file_system_gets_a_whole_copy(tmp_path: Path, make: Callable[..., Any] | None) -> None:
    path, target = tmp_path / "one", tmp_path / "two"
    if make is None:
        path.mkdir()
        (path / "inside").write_text("what it says")
    else:
        path.write_text("what it says")
    os.utime(path, (1_000, 1_000))
    holdings.move_by_copy(path, target, Disk())
    assert (target / "inside" if make is None else target).read_text() == "what it says"
    assert target.stat().st_mtime == 1_000
    assert list(tmp_path.iterdir()) == [target], "the old one is gone, and nothing is left half made"


def test_a_copy_that_fails_leaves_the_old_one_and_nothing_half_made(tmp_path: Path) -> None:
    class Full(Disk):
        def sync(self, fd: int) -> None:
            raise OSError(28, "No space left on device")

    path = tmp_path / "one"
    path.write_text("what it says")
    with pytest.raises(OSError, match="No space"):
        holdings.move_by_copy(path, tmp_path / "two", Full())
    assert [one.name for one in tmp_path.iterdir()] == ["one"]


# --- deleting --------------------------------------------------------------------------------------------------------


def test_deleting_tells_what_goes_and_frees_it(tmp_path: Path) -> None:
    path, other = put(tmp_path, "one"), put(tmp_path, "two")
    packed = path.with_name(path.name + ".zst")
    packed.write_bytes(b"older")
    blobs = path.with_suffix(".blobs")
    blobs.mkdir()
    (blobs / "ab").write_text("12345")
    [going] = holdings.deletion(tmp_path, ["one"])
    assert set(going.files) == {path, packed, blobs}
    assert going.size == path.stat().st_size + 10
    assert holdings.delete(tmp_path, going) == going.size
    assert sorted(one.name for one in other.parent.iterdir()) == [other.name]


def test_a_parent_whose_file_is_needed_goes_only_with_those_that_need_it(tmp_path: Path) -> None:
    put(tmp_path, "p")
    put(tmp_path, "ref", forked_from_id="p", history_base=base("p"))
    put(tmp_path, "deeper", history_base=base("ref"))
    put(tmp_path, "fork", forked_from_id="p")
    with pytest.raises(RolloutError, match=r"p: the session ref goes on from its file.*--with-children"):
        holdings.deletion(tmp_path, ["p"])
    going = holdings.deletion(tmp_path, ["p"], with_children=True)
    assert [one.id for one in going] == ["p", "ref", "deeper"]
    assert [child.id for child in going[0].children] == ["fork"], "a fork that holds all itself stays, and is told"
    for one in going:
        holdings.delete(tmp_path, one)
    assert [head.id for head in holdings.heads(tmp_path)] == ["fork"]


def test_a_parent_may_go_when_its_children_are_named_too(tmp_path: Path) -> None:
    put(tmp_path, "p")
    put(tmp_path, "ref", history_base=base("p"))
    assert ids(holdings.deletion(tmp_path, ["p", "ref"])) == ["p", "ref"]


def test_a_session_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RolloutNotFound, match="no session 'gone'"):
        holdings.deletion(tmp_path, ["gone"])


# --- pruning ---------------------------------------------------------------------------------------------------------


def test_old_sessions_may_go_and_those_that_young_ones_need_stay(tmp_path: Path) -> None:
    put(tmp_path, "old", days=40)
    put(tmp_path, "young", days=1)
    put(tmp_path, "needed", days=50)
    put(tmp_path, "between", days=45, history_base=base("needed"))
    put(tmp_path, "needs", days=2, history_base=base("between"))
    put(tmp_path, "pair", days=60)
    put(tmp_path, "pair child", days=50, history_base=base("pair"))
    put(tmp_path, "away", days=70, archived=True)
    going, stays = holdings.prunable(tmp_path, time.time() - 30 * DAY)
    assert ids(going) == ["away", "old", "pair", "pair child"]
    assert stays == {
        "between": "the session needs goes on from its file",
        "needed": "the session between goes on from its file",
    }
    going, stays = holdings.prunable(tmp_path, time.time() - 30 * DAY, only_archived=True)
    assert (ids(going), stays) == (["away"], {})


# --- names -----------------------------------------------------------------------------------------------------------


def test_the_newest_name_counts_and_damage_is_passed_over(tmp_path: Path) -> None:
    assert holdings.names_in(tmp_path) == {}
    holdings.note_name(tmp_path, "a", "first", "2026-03-04T05:06:07.000Z")
    with (tmp_path / "session_index.jsonl").open("ab") as file:
        file.write(b"{torn\n[1]\n")
    holdings.note_name(tmp_path, "a", "second", "2026-03-04T05:06:08.000Z")
    holdings.note_name(tmp_path, "b", "other", "2026-03-04T05:06:09.000Z")
    assert holdings.names_in(tmp_path) == {"a": "second", "b": "other"}
    assert (tmp_path / "session_index.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_deleted_session_is_not_in_the_list_of_names_any_more(tmp_path: Path) -> None:
    holdings.forget_names(tmp_path, ["a"])
    for thread_id, name in (("a", "first"), ("b", "other"), ("a", "second")):
        holdings.note_name(tmp_path, thread_id, name, "2026-03-04T05:06:07.000Z")
    with (tmp_path / "session_index.jsonl").open("ab") as file:
        file.write(b"{torn\n")
    holdings.forget_names(tmp_path, ["a"])
    assert holdings.names_in(tmp_path) == {"b": "other"}
    told = (tmp_path / "session_index.jsonl").read_bytes()
    assert b"first" not in told and told.endswith(b"{torn\n")
