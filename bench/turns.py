"""Turns: what a whole process costs: start, first request, iterations, long histories, resume."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.measure import BARE, OURS, ROUNDS, Arrivals, Budget, Row, lowest, timed
from bench.peers import Bare, History, Peer, Refold
from refold.core.permissions import WorkspaceWrite
from refold.core.profile import Profile
from refold.core.records import ItemRecorded
from refold.session.memory import Memory
from refold.tools.sandbox import argv_in, sandbox_of, sandbox_works

GAP_ROUNDS = 9  # a gap is short, and what the machine does besides is much of it


def start_up() -> Iterator[Row]:
    command = str(Path(sys.executable).with_name("refold"))
    quickest = min(timed([command, "--version"]) for _ in range(ROUNDS))
    yield Row("`refold --version`", "ms", {OURS: quickest}, Budget(80))


def first_request() -> Iterator[Row]:
    arrivals = Arrivals()
    with arrivals.server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = lowest(lambda peer: arrivals.first(peer, folder))
        peak = lowest(lambda peer: arrivals.peak(peer, folder), rounds=1)
    yield Row("start to first request", "ms", first, Budget(times_bare=1.5))
    yield Row("peak memory of one turn", "MiB", peak, Budget(50))


def iterations() -> Iterator[Row]:
    kinds = (
        ("nop", {}, "without a process", Budget(3, or_times=(BARE, 3))),
        ("exec_command", {"cmd": "true"}, "with `exec_command true`", Budget(6, or_times=(BARE, 2.5))),
    )
    for name, arguments, what, most in kinds:
        for calls in (1, 50, 200):
            gaps = _gaps(name, arguments, calls)
            budget = most if calls > 1 else Budget()  # the first one also warms up
            yield Row(f"iteration {what}, {calls} call{'s' if calls > 1 else ''}", "ms", gaps, budget)
    login, plain = (min(timed(["/bin/bash", flag, "true"]) for _ in range(20)) for flag in ("-lc", "-c"))
    yield Row("of which the process alone: `bash -c true`, bare `bash -lc true`", "ms", {OURS: plain, BARE: login})


def guarded() -> Iterator[Row]:
    """The same with permissions and hooks on; the bare loop has none."""
    peers = (Refold(guarded=True), Bare())
    yield Row(
        "iteration without a process, permissions and hooks on, 50 calls", "ms", _gaps("nop", {}, 50, peers), Budget(3)
    )
    if not sandbox_works():
        return
    gaps = _gaps("exec_command", {"cmd": "true"}, 50, peers)
    alone = min(_walls() for _ in range(GAP_ROUNDS))
    yield Row("iteration with `true` in the sandbox, hooks on, 50 calls", "ms", gaps, Budget(round(2 * alone, 1)))
    yield Row("of which the process alone, with the same walls", "ms", {OURS: alone})


def _walls() -> float:
    """Milliseconds of one command inside the walls that a session builds: the median of fifty, as an iteration is."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        sandbox = sandbox_of("workspace-write", WorkspaceWrite(), folder, os.environ, (home,))
        assert sandbox is not None
        return statistics.median(timed(argv_in(sandbox, ["/bin/bash", "-c", "true"], folder)) for _ in range(50))


def _gaps(name: str, arguments: dict[str, Any], calls: int, among: Sequence[Peer] | None = None) -> dict[str, float]:
    arrivals = Arrivals(name, arguments, calls)
    with arrivals.server, tempfile.TemporaryDirectory() as folder:
        return lowest(lambda peer: arrivals.gap(peer, Path(folder)), rounds=GAP_ROUNDS, among=among)


def long_history() -> Iterator[Row]:
    """10,000 items, 5 MB, in calls and outputs of some 900 bytes."""
    items: list[Any] = []
    for number in range(5_000):
        call_id = f"call_{number}"
        call = {"type": "function_call", "name": "nop", "arguments": json.dumps({"n": number}), "call_id": call_id}
        items += [call, {"type": "function_call_output", "call_id": call_id, "output": f"line {number} " * 60}]
    many, few = Arrivals(calls=20), Arrivals(calls=2)
    with tempfile.TemporaryDirectory() as name, many.server, few.server:
        folder = Path(name)
        history = _history(items, folder)
        gaps = lowest(lambda peer: (few if peer.slow else many).gap(peer, folder, history))
    yield Row("request to request at 10,000 items (5 MB)", "ms", gaps, Budget(20, 0.5))


def resume() -> Iterator[Row]:
    """20,000 short messages: refold and Codex read a log, the others a JSON list."""
    items: list[Any] = []
    for number in range(10_000):
        items.append({"type": "message", "role": "user", "content": f"question {number}"})
        answer = [{"type": "output_text", "text": f"answer {number}"}]
        items.append({"type": "message", "role": "assistant", "content": answer})
    arrivals = Arrivals()
    with tempfile.TemporaryDirectory() as name, arrivals.server:
        folder = Path(name)
        history = _history(items, folder)
        first = lowest(lambda peer: arrivals.first(peer, folder, history))
    yield Row("resume of 20,000 items: start to first request", "ms", first, Budget(400, or_times=("Codex", 0.7)))


def record() -> Iterator[Row]:
    """What one item costs a host that adds it: append, fold, publish."""
    items = [{"type": "message", "role": "user", "content": f"question {number}"} for number in range(5_000)]

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder, Memory.open(folder, model=Profile(slug="bench")) as memory:
            memory.add(items[0])
            began = time.perf_counter()
            for item in items:
                memory.add(item)
            return (time.perf_counter() - began) / len(items) * 1e6

    yield Row("record one item: two lines, folded and told", "µs", {OURS: min(once() for _ in range(ROUNDS))})
    yield Row("of which appending, per line", "µs", {OURS: min(_append() for _ in range(ROUNDS))}, Budget(10))


def _append() -> float:
    """Microseconds that one line costs: encoded, and written before the next one is."""
    records = [ItemRecorded({"type": "message", "role": "user", "content": f"question {n}"}) for n in range(5_000)]
    with tempfile.TemporaryDirectory() as folder, Memory.open(folder, model=Profile(slug="bench")) as memory:
        memory.record(records[0])
        assert memory.path is not None
        before = _lines(memory.path)
        began = time.perf_counter()
        for one in records:
            memory.store.append([one], turn_id=None, timestamp="2026-11-30T00:00:00.000Z")
        return (time.perf_counter() - began) / (_lines(memory.path) - before) * 1e6


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _history(items: list[Any], folder: Path) -> History:
    home, plain = folder / "home", folder / "history.json"
    plain.write_text(json.dumps(items))
    with Memory.open(home, model=Profile(slug="bench")) as memory:
        memory.add(items)
        assert memory.path is not None
        return History(home, memory.id, memory.path, plain)
