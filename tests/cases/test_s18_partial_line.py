"""S18: half a record at the end, or glued to its retry, costs that record alone (the reading part)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from refold.core.records import ItemRecorded, Line, LineDamaged
from refold.core.thread import Thread
from refold.rollout import Catalogue, read_lines

CASE = Path(__file__).parent.parent / "data" / "cases" / "S18-partial-line"
FILES = ["tail_cut.jsonl", "glued.jsonl"]
ID = "019c2000-0000-7000-8000-000000000012"


def lines(name: str) -> list[Line]:
    return list(read_lines(CASE / name))


@pytest.mark.parametrize("name", FILES)
def test_everything_but_the_broken_line_is_read(name: str) -> None:
    thread = Thread.replay(lines(name))
    assert thread.meta is not None
    assert (thread.id, thread.meta.cwd) == (ID, "/srv/demo")
    assert [e.item["type"] for e in thread.history] == ["message", "function_call", "function_call_output"]


@pytest.mark.parametrize("name", FILES)
def test_one_warning_names_the_line_and_the_byte_at_which_it_begins(name: str) -> None:
    begins = (CASE / name).read_bytes().index(b'{"timestamp":"2026-02-03T04:00:07')
    warned = [line for line in lines(name) if line.warning]
    assert [line.ordinal for line in warned] == [8]
    assert isinstance(warned[0].record, LineDamaged)
    assert str(warned[0].warning).startswith(f"line 8, byte {begins}: not JSON: ")


def test_the_line_behind_the_glued_one_is_read() -> None:
    thread = Thread.replay(lines("glued.jsonl"))
    assert len(lines("glued.jsonl")) == 9
    assert thread.open_turn is None, "line 9 ends the turn"
    items = [line.record for line in lines("glued.jsonl") if isinstance(line.record, ItemRecorded)]
    assert len(items) == 3, "the record inside line 8 is not guessed at, so it cannot appear twice"


@pytest.mark.parametrize("name", FILES)
def test_reading_changes_neither_bytes_nor_time(name: str) -> None:
    before = (CASE / name).read_bytes(), (CASE / name).stat().st_mtime_ns
    lines(name)
    assert ((CASE / name).read_bytes(), (CASE / name).stat().st_mtime_ns) == before


def test_the_session_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "2026" / "02" / "03"
    folder.mkdir(parents=True)
    shutil.copy(CASE / "tail_cut.jsonl", folder / f"rollout-2026-02-03T04-00-00-{ID}.jsonl")
    (found,) = Catalogue(tmp_path).sessions()
    assert (found.id, found.cwd, found.first_text, found.problem) == (
        ID,
        "/srv/demo",
        "Count the rows in data.csv.",
        None,
    )
