"""S19: a file that an editor saved with a byte order mark and CRLF is read like any other (the reading part)."""

from __future__ import annotations

from pathlib import Path

from refold.core.thread import Thread
from refold.rollout import Catalogue, read_lines

CASE = Path(__file__).parent.parent / "data" / "cases" / "S19-bom-and-crlf"
MARKED, CLEAN = sorted((CASE / "sessions").rglob("*.jsonl"))
BOM = b"\xef\xbb\xbf"


def test_the_input_is_what_it_should_be() -> None:
    assert MARKED.read_bytes().startswith(BOM)
    assert b"\r\n" in MARKED.read_bytes()
    assert b"\r\n" not in CLEAN.read_bytes()


def test_both_sessions_are_listed_each_with_its_own_id_and_cwd() -> None:
    found = Catalogue(CASE).sessions()
    assert {one.id for one in found} == {
        "019c2000-0000-7000-8000-000000000013",
        "019c2000-0000-7000-8000-0000000003fb",
    }
    assert all(one.cwd and one.problem is None for one in found)
    assert len({one.id[-12:] in one.path.name for one in found}) == 1


def test_the_marked_file_says_what_it_would_say_without_mark_and_carriage_returns(tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(MARKED.read_bytes().removeprefix(BOM).replace(b"\r\n", b"\n"))
    lines = list(read_lines(MARKED))
    assert lines == list(read_lines(plain))
    assert not [line for line in lines if line.warning]
    history = Thread.replay(lines).history
    assert len(history) == 2
    assert "\ufeff" not in str([e.item for e in history])
    assert "\\r" not in str([e.item for e in history])


def test_only_a_mark_at_the_very_start_is_removed(tmp_path: Path) -> None:
    line = '{"type":"response_item","payload":{"type":"message","role":"user","content":"\ufeffhi"}}\n'
    path = tmp_path / "marked.jsonl"
    path.write_bytes(BOM + (line + line).encode())
    assert [e.item["content"] for e in Thread.replay(read_lines(path)).history] == ["\ufeffhi", "\ufeffhi"]


def test_a_blank_line_is_skipped_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "blank.jsonl"
    path.write_bytes(CLEAN.read_bytes().replace(b"\n", b"\n\n \t\r\n", 1))
    assert [line.record for line in read_lines(path)] == [line.record for line in read_lines(CLEAN)]
    assert not [line for line in read_lines(path) if line.warning]


def test_mixed_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(MARKED.read_bytes() + CLEAN.read_bytes())
    assert len(list(read_lines(path))) == len(list(read_lines(MARKED))) + len(list(read_lines(CLEAN)))


def test_reading_leaves_the_file_as_it_is() -> None:
    before = MARKED.read_bytes(), MARKED.stat().st_mtime_ns
    Thread.replay(read_lines(MARKED))
    assert (MARKED.read_bytes(), MARKED.stat().st_mtime_ns) == before
