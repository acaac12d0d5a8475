"""S27: a list reads the heads of files, a resume what is active, whatever stands before it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import message, message_text
from refold.errors import RolloutCorrupt
from refold.rollout import Catalogue, read_lines
from refold.rollout.reader import MAX_FIRST_LINE_BYTES
from refold.session.memory import read_thread

MB = 1 << 20
SESSIONS = 6
READ_OF_ONE = 256 * 1024  # bytes that a list may read of each file
EXTRA = 8 * 1024  # that a file is read ahead


def line(seconds: int, kind: str, payload: Any) -> str:
    stamp = f"2026-02-03T04:{seconds // 60 % 60:02}:{seconds % 60:02}.000Z"
    return json.dumps({"timestamp": stamp, "type": kind, "payload": payload}) + "\n"


def written(home: Path, number: int, size: int) -> Path:
    """A session of about so many bytes, most of them in checkpoints that newer ones replaced."""
    folder = home / "sessions" / "2026" / "02" / "03"
    folder.mkdir(parents=True, exist_ok=True)
    thread_id = f"019c2000-0000-7000-8000-0000000{number:05}"
    path = folder / f"rollout-2026-02-03T04-00-{number:02}-{thread_id}.jsonl"
    meta = {"id": thread_id, "timestamp": f"2026-02-03T04:00:{number:02}.000Z", "cwd": "/srv/demo"}
    with path.open("w") as file:
        file.write(line(0, "session_meta", meta) + line(1, "response_item", message("user", [f"start {number}"])))
        at = 2
        while file.tell() < size:
            kept = [message("user", [f"kept {at} " + "k" * 200_000]), message("user", [f"summary {at}"])]
            file.write(line(at, "response_item", message("assistant", ["working " + "w" * 50_000])))
            file.write(line(at + 1, "compacted", {"message": f"summary {at}", "replacement_history": kept}))
            at += 2
        file.write(line(at, "response_item", message("user", ["last question"])))
        file.write(line(at + 1, "response_item", message("assistant", ["last answer"])))
    return path


def bytes_read() -> int:
    """What this process has read of files so far."""
    told = Path("/proc/self/io").read_text()
    return int(next(row.split()[1] for row in told.splitlines() if row.startswith("rchar")))


def peak_of(path: Path) -> int:
    """The most memory that a resume holds at once."""
    tracemalloc.start()
    try:
        read_thread(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_list_reads_little_of_each_file(tmp_path: Path) -> None:
    for number in range(SESSIONS):
        written(tmp_path, number, (16 if number == 0 else 2) * MB)
    Catalogue(tmp_path).sessions()  # what is imported on the way is not counted
    before = bytes_read()
    found = Catalogue(tmp_path).sessions()
    assert bytes_read() - before <= SESSIONS * (READ_OF_ONE + EXTRA)
    assert [one.first_text for one in found] == [f"start {number}" for number in reversed(range(SESSIONS))]
    assert {one.cwd for one in found} == {"/srv/demo"}


def test_a_first_line_longer_than_that_is_listed_too(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 0)
    meta = {"id": "T", "timestamp": "2026-02-03T04:00:00.000Z", "cwd": "/srv/demo", "instructions": "x" * MB}
    rest = path.read_text().splitlines(keepends=True)[1:]
    path.write_text("".join([line(0, "session_meta", meta), *rest]))
    [found] = Catalogue(tmp_path).sessions()
    assert (found.cwd, found.problem) == ("/srv/demo", None)


def test_a_resume_holds_the_last_checkpoint_and_what_follows(tmp_path: Path) -> None:
    history = read_thread(written(tmp_path, 0, 8 * MB)).history
    assert [message_text(e.item)[:6] for e in history] == ["kept 6", "summar", "last q", "last a"]
    assert len(history) == 4


def test_what_a_resume_holds_does_not_grow_with_the_file(tmp_path: Path) -> None:
    small, large = written(tmp_path, 0, 4 * MB), written(tmp_path, 1, 32 * MB)
    read_thread(small)
    peaks = [peak_of(path) for path in (small, large)]
    assert max(peaks) < 16 * MB and abs(peaks[0] - peaks[1]) < MB


def test_a_line_beyond_the_maximum_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    with path.open("wb") as file:
        file.truncate(MAX_FIRST_LINE_BYTES + 1)  # a hole: it takes no room
    with pytest.raises(RolloutCorrupt, match=r"line 1, at byte 0, is longer than 16,777,216 bytes"):
        list(read_lines(path, head=1))
