"""Catalogue: what a list of 10,000 sessions and a search in them cost, beside reading the first lines of every file.

`python -m bench.catalogue` prints the table. Each figure comes from processes of its own: from the call to its answer,
with the modules that it needs, without Python's start; *whole* is a whole process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.core import TABLE, Figure

ROUNDS = 7
SESSIONS = 10_000
A_DAY = 30  # sessions in a folder
CALLS = 4  # of a tool in each session
LONG_AGO = 1_600_000_000  # seconds since 1970; a folder that changed a moment ago is listed again
MOST_LISTED = 100  # ms
WORD, RARE, SHORT = "billing", 'invoice 4321 "was wrong"', "zq"

ASK = """
import sys, time
from pathlib import Path
from refold.rollout.catalogue import Catalogue, run_through
catalogue = Catalogue(Path(sys.argv[1]), indexed=True)
what, words = sys.argv[2:]
began = time.perf_counter()
if what == "list":
    assert len(catalogue.sessions()) == %d
elif what == "find":
    assert catalogue.find(words)[0].exists()
else:
    assert len(run_through(catalogue.searching(words, limit=20)).found) == int(what)
print((time.perf_counter() - began) * 1000)
"""
HEADS = """
import json, sys, time
from pathlib import Path
began = time.perf_counter()
found = []
for path in Path(sys.argv[1], "sessions").rglob("rollout-*.jsonl"):
    about, text = path.stat(), ""
    with path.open() as file:
        meta = json.loads(next(file))["payload"]
        for line in file:
            payload = json.loads(line)["payload"]
            if payload.get("role") == "user":
                text = payload["content"][0]["text"]
                break
    found.append((meta["timestamp"], meta["id"], meta["cwd"], text, about.st_mtime, about.st_size))
found.sort(reverse=True)
assert len(found) == %d
print((time.perf_counter() - began) * 1000)
"""


def rows() -> Iterator[object]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        files = write(home)
        peer = ("first lines of every file, with json", min(_timed(HEADS % SESSIONS, str(home)) for _ in range(3)))
        yield Figure(f"first list of {SESSIONS:,} sessions: all files read", "ms", _asked(home, "list"), *peer)
        _asked(home, "list")
        yield Figure("list, nothing changed", "ms", _quickest(home, "list"), *peer, most=MOST_LISTED)
        yield Figure("the same, whole `refold sessions`", "ms", min(_whole(home) for _ in range(ROUNDS)))
        yield Figure(
            "list, one session appended to", "ms", min(_after_append(home, files) for _ in range(ROUNDS)), *peer
        )
        yield Figure("find by the beginning of an id", "ms", _quickest(home, "find", _id(4321)[:8]))
        yield Figure("first search: all texts indexed", "ms", _asked(home, "1", RARE))
        yield Figure("search for a rare phrase", "ms", _quickest(home, "1", RARE))
        yield Figure("search for a word of every session", "ms", _quickest(home, "20", WORD))
        yield Figure("search for two letters", "ms", _quickest(home, "0", SHORT))
        yield Figure("size of the index, texts included", "MB", (home / "index.sqlite").stat().st_size / 1e6)


def _quickest(home: Path, what: str, words: str = "") -> float:
    return min(_asked(home, what, words) for _ in range(ROUNDS))


def _asked(home: Path, what: str, words: str = "") -> float:
    return _timed(ASK % SESSIONS, str(home), what, words)


def _timed(program: str, *words: str) -> float:
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _whole(home: Path) -> float:
    command = [sys.executable, "-m", "refold", "sessions", "--limit", "50"]
    environ = {**os.environ, "REFOLD_HOME": str(home), "CODEX_HOME": str(home / "none")}
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    return (time.perf_counter() - began) * 1000


def _after_append(home: Path, files: list[Path]) -> float:
    with files[len(files) // 2].open("ab") as file:
        file.write(_line(99, "response_item", _said("user", "and one more thing")))
    return _asked(home, "list")


# --- the files -------------------------------------------------------------------------------------------------------


def write(home: Path) -> list[Path]:
    """Sessions of about 20 lines, as either program writes them."""
    files: list[Path] = []
    for number in range(SESSIONS):
        day = number // A_DAY
        folder = home / f"sessions/{2024 + day // 336}/{1 + day // 28 % 12:02}/{1 + day % 28:02}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rollout-{folder.parts[-3]}-{folder.parts[-2]}-{folder.parts[-1]}T04-00-00-{_id(number)}.jsonl"
        path.write_bytes(b"".join(_lines(number, f"{folder.parts[-3]}-{folder.parts[-2]}-{folder.parts[-1]}")))
        files.append(path)
    for path in {parent for file in files for parent in file.parents if home in parent.parents}:
        os.utime(path, (LONG_AGO, LONG_AGO))
    return files


def _id(number: int) -> str:
    return f"{0x1900000 + number:08x}-0000-7000-8000-{number:012}"


def _lines(number: int, day: str) -> Iterator[bytes]:
    meta = {"id": _id(number), "timestamp": f"{day}T04:00:00.000Z", "cwd": f"/srv/p{number % 40}"}
    yield _line(0, "session_meta", {**meta, "git": {"branch": "main"}, "model_provider": "openai"})
    yield _line(1, "event_msg", {"type": "task_started", "turn_id": "t", "model_context_window": 258_400})
    yield _line(2, "turn_context", {"turn_id": "t", "model": "gpt-5.5", "cwd": "/srv"})
    yield _line(3, "response_item", _said("user", f"Fix failing test number {number} of the billing service; say why"))
    for call in range(CALLS):
        at = 4 + 3 * call
        asked = {"name": "exec_command", "arguments": json.dumps({"cmd": f"pytest -k case_{number}_{call}"})}
        output = f"line {call} of the output of {number}: ok, 42 ms elapsed\n" * 10
        used = {"input_tokens": 900, "output_tokens": 100, "total_tokens": 1_000 * (call + 1)}
        yield _line(at, "response_item", {"type": "function_call", "call_id": f"c{call}", **asked})
        yield _line(at + 1, "response_item", {"type": "function_call_output", "call_id": f"c{call}", "output": output})
        info = {"total_token_usage": used, "last_token_usage": used, "model_context_window": 258_400}
        yield _line(at + 2, "event_msg", {"type": "token_count", "info": info})
    yield _line(17, "response_item", _said("assistant", f"Fixed: the rounding in invoice {number} was wrong"))
    yield _line(18, "event_msg", {"type": "task_complete", "turn_id": "t"})


def _said(role: str, text: str) -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _line(ordinal: int, kind: str, payload: dict[str, Any]) -> bytes:
    line = {"timestamp": "2026-11-30T11:32:20.810Z", "ordinal": ordinal, "type": kind, "payload": payload}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


if __name__ == "__main__":
    print(TABLE)
    for row in rows():
        print(row, flush=True)
