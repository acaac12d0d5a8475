"""Chat: what sitting down at it costs: until the prompt is there, memory while it waits, a long session opened.

Measured at a real terminal (a PTY), from the start of the process; the lowest of the rounds.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.measure import ROUNDS
from refold.core.items import message
from refold.core.profile import Profile
from refold.session.memory import Memory
from refold.testing import ResponsesServer

TABLE = "| what | figure | budget |\n| --- | ---: | --- |"
MODEL = "bench"
PROMPT, READY = "›".encode(), b"idle"
ITEMS = 10_000
SECONDS = 30  # that nothing here needs
MOST_FIRST_PAINT, MOST_IDLE = 400, 50  # ms, MiB
WATCHED_SECONDS = 2.0


class Sitting(msgspec.Struct, frozen=True):
    """One chat: milliseconds until the prompt was there and until a session was; MiB; processor ms while idle."""

    prompt: float
    ready: float
    resident: float
    idle: float
    sent: int  # bytes that it wrote while idle


def rows() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name, ResponsesServer(lambda _: "an answer", log=False) as server:
        place = Path(name)
        _configure(place, server.url)
        new = [_sit(place) for _ in range(ROUNDS)]
        talked = _sit(place, says="hello")
        size = _long_session(place) / 1e6
        long = [_sit(place, "--last") for _ in range(ROUNDS)]
    yield _row("start of the process to the prompt", min(one.prompt for one in new), "ms", MOST_FIRST_PAINT)
    yield _row("start of the process to an open session", min(one.ready for one in new), "ms")
    yield _row("resident memory, nothing said", min(one.resident for one in new), "MiB", MOST_IDLE)
    yield _row("resident memory, idle after a turn", talked.resident, "MiB", MOST_IDLE)
    yield _row(f"processor time in {WATCHED_SECONDS:g} s of idleness", talked.idle, "ms")
    yield _row("bytes drawn meanwhile", talked.sent, "bytes")
    what = f"a session of {ITEMS:,} items ({size:.1f} MB)"
    yield _row(f"{what}: to the prompt", min(one.prompt for one in long), "ms", MOST_FIRST_PAINT)
    yield _row(f"{what}: to its last turns", min(one.ready for one in long), "ms")
    yield _row(f"{what}: resident memory", min(one.resident for one in long), "MiB")


def _row(what: str, figure: float, unit: str, most: float | None = None) -> str:
    budget = "" if most is None else f"≤ {most} {unit}{'' if figure <= most else ' **missed**'}"
    return f"| {what} | {figure:,.{0 if figure >= 100 or figure == int(figure) else 1}f} {unit} | {budget} |"


def _configure(place: Path, url: str) -> None:
    catalogue = {"models": [{"slug": MODEL, "context_window": 100_000_000}]}
    (place / "models.json").write_text(json.dumps(catalogue))
    (place / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "x"\nmodel_catalog_json = "{place}/models.json"\n'
        f'[model_providers.x]\nname = "scripted"\nbase_url = "{url}"\n'
    )


def _long_session(place: Path) -> int:
    """Bytes of the file."""
    with Memory.open(place, model=Profile(slug=MODEL)) as memory:
        memory.add([message(("user", "assistant")[n % 2], [f"{n} " + "word " * 4]) for n in range(ITEMS)])
        assert memory.path is not None
        return memory.path.stat().st_size


def _sit(place: Path, *words: str, says: str = "") -> Sitting:
    environ = {**os.environ, "REFOLD_HOME": str(place), "TERM": "xterm-256color", "NO_PROXY": "127.0.0.1"}
    began = time.perf_counter()
    process, terminal = pty.fork()
    if not process:
        os.execve(sys.executable, [sys.executable, "-m", "refold", "chat", *words], environ)
    try:
        prompt = _seen(terminal, PROMPT) - began
        ready = _seen(terminal, READY) - began
        if says:
            os.write(terminal, says.encode() + b"\r")
            _seen(terminal, b"answer")
        _drained(terminal, 1.0)
        before = _processor(process)
        sent = _drained(terminal, WATCHED_SECONDS)
        return Sitting(prompt * 1000, ready * 1000, _resident(process), _processor(process) - before, sent)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def _seen(terminal: int, text: bytes) -> float:
    """When it was printed."""
    seen, end = b"", time.perf_counter() + SECONDS
    while text not in seen:
        assert select.select([terminal], [], [], max(0, end - time.perf_counter()))[0], f"no {text!r} in {seen!r}"
        seen += os.read(terminal, 65_536)
    return time.perf_counter()


def _drained(terminal: int, seconds: float) -> int:
    """Bytes that came within so many seconds."""
    count, end = 0, time.perf_counter() + seconds
    while select.select([terminal], [], [], max(0, end - time.perf_counter()))[0]:
        count += len(os.read(terminal, 65_536))
    return count


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _processor(process: int) -> float:
    """Milliseconds of processor time so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    print(TABLE)
    for row in rows():
        print(row, flush=True)
