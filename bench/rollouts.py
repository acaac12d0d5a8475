"""Rollouts: how long a resume reads, and how much memory it takes, beside a plain fold of the whole file.

`python -m bench.rollouts` prints the table. Each figure comes from processes of their own: from the start of
the reading to the thread, imports not counted; peak memory is what such a process needs in all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.core import TABLE, Figure

ROUNDS = 5
MEGABYTE = 1_000_000
SIZES = (10, 200)  # MB
SCAN_MS = 400  # of 200 MB: half a gigabyte a second
KEPT = 900_000  # bytes of the history that a late checkpoint holds
AFTER = 200  # lines behind it
MOST_MS, MOST_MIB = 150, 60
TEXT = 'a line that a command printed: path/to/a/file.py:42: "quoted", and then some more words of it\n' * 12

READ = """
import sys, time
from pathlib import Path
from refold.core.thread import Thread
from refold.rollout.reader import read_lines
from refold.session.collector import without_collector
from refold.session.memory import read_thread

path = Path(sys.argv[2])
began = time.perf_counter()
if sys.argv[1] == "tail":
    thread = read_thread(path)
elif sys.argv[1] == "search":
    from refold.rollout.backward import _Search

    with path.open("rb") as file:
        assert _Search(file, path, None, 1 << 20)._newest() is None
elif sys.argv[1] == "read":
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
elif sys.argv[1] == "whole":
    with without_collector():
        thread = Thread.replay(read_lines(path, skim=True))
taken = time.perf_counter() - began
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # of this program alone
print(taken * 1000, int(peak.split()[1]) / 1024)
"""


class Kind(msgspec.Struct, frozen=True):
    """A file to be measured: who wrote its checkpoint, if it has one."""

    name: str
    checkpoint: str  # "ours", "theirs", "none"


KINDS = (
    Kind("a late checkpoint", "ours"),
    Kind("a late checkpoint of the real program (before 2026-09)", "theirs"),
    Kind("no checkpoint", "none"),
)


def rows() -> Iterator[object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollout.jsonl"
        for size in SIZES:
            for kind in KINDS:
                write(path, size * MEGABYTE, kind.checkpoint)
                yield from _figures(path, f"{size} MB, {kind.name}", bounded=kind.checkpoint == "ours")
                if kind.checkpoint == "none" and size == SIZES[-1]:
                    searched, read = quickest(path, "search"), quickest(path, "read")
                    what = f"search {size} MB for a checkpoint, from the end"
                    yield Figure(what, "ms", searched[0], "read them", read[0], most=SCAN_MS)
                path.unlink()


def _figures(path: Path, what: str, *, bounded: bool) -> Iterator[Figure]:
    ours, whole = quickest(path, "tail"), quickest(path, "whole")
    most = (MOST_MS, MOST_MIB) if bounded else (None, None)
    yield Figure(f"from file to thread: {what}", "ms", ours[0], "all of it folded", whole[0], most=most[0])
    yield Figure(f"peak memory: {what}", "MiB", ours[1], "all of it folded", whole[1], most=most[1])


def quickest(path: Path, way: str) -> tuple[float, float]:
    """Milliseconds of the quickest round, and the least MiB that one needed."""
    rounds = [_read(path, way) for _ in range(ROUNDS)]
    return min(ms for ms, _ in rounds), min(mib for _, mib in rounds)


def _read(path: Path, way: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", READ, way, str(path)], capture_output=True, text=True, check=True)
    ms, mib = done.stdout.split()
    return float(ms), float(mib)


# --- the files -------------------------------------------------------------------------------------------------------


def write(path: Path, size: int, checkpoint: str) -> None:
    """A session of about so many bytes, as either program writes one; its checkpoint stands near the end."""
    ordinal = 0
    with path.open("wb") as file:
        for body in _bodies(size, checkpoint):
            stamp = {"timestamp": "2026-11-30T11:32:20.810Z", "ordinal": ordinal}
            raw = json.dumps({**stamp, **body}, separators=(",", ":")).encode() + b"\n"
            file.write(raw)
            ordinal += 1


def _bodies(size: int, checkpoint: str) -> Iterator[dict[str, Any]]:
    meta = {"id": "t", "timestamp": "2026-11-30T11:32:20.810Z", "cwd": "/w", "history_mode": "paginated"}
    yield _line("session_meta", {**meta, "base_instructions": {"text": TEXT * 10}})
    rounds = size // (len(TEXT) + 900)
    for number in range(rounds):
        if number % 20 == 0:
            yield _event("task_started", turn_id=f"turn {number}", model_context_window=258_400)
            yield _line("turn_context", {"turn_id": f"turn {number}", "model": "m", "cwd": "/w"})
            yield _line("response_item", _said(f"request {number}"))
        yield from _round(number)
    if checkpoint != "none":
        yield _line("compacted", _checkpoint(rounds, ours=checkpoint == "ours"))
        for number in range(rounds, rounds + AFTER // 4):
            yield from _round(number)


def _round(number: int) -> Iterator[dict[str, Any]]:
    call = {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"true"}', "call_id": f"c{number}"}
    used = {"input_tokens": 1_000, "output_tokens": 10, "total_tokens": 1_010}
    yield _line("response_item", call)
    yield _event("item_completed", item={"type": "CommandExecution", "id": f"c{number}", "status": "completed"})
    yield _line("response_item", {"type": "function_call_output", "call_id": f"c{number}", "output": TEXT})
    yield _event(
        "token_count", info={"total_token_usage": used, "last_token_usage": used, "model_context_window": 258_400}
    )


def _checkpoint(turns: int, *, ours: bool) -> dict[str, Any]:
    history = [_said(TEXT) for _ in range(KEPT // len(TEXT))]
    window = {"window_number": 1, "window_id": "w1", "first_window_id": "w0", "previous_window_id": "w0"}
    told = {"message": "what was done", "replacement_history": history, **window}
    facts = {"method": "local", "steers": {}, "carried": {"thread": "t", "turns": turns}}
    return {**told, "refold": facts} if ours else told


def _line(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "payload": payload}


def _event(kind: str, **told: Any) -> dict[str, Any]:
    return _line("event_msg", {"type": kind, **told})


def _said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


if __name__ == "__main__":
    print(TABLE)
    for row in rows():
        print(row, flush=True)
