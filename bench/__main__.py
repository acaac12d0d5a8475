"""Runs the benchmarks and prints their table."""

from __future__ import annotations

import compileall
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import refold
from refold.core.profile import Profile
from refold.session.memory import Memory
from refold.testing import Reply, ResponsesServer, call_reply, text_reply, usage

ROUNDS = 5  # of each; the median counts
USAGE = usage(100, 10)


class Row:
    """One figure: refold's, the bare loop's, and the budget of design.md §9 that it is held against."""

    def __init__(self, what: str, ours: float, bare: float | None, unit: str, budget: str) -> None:
        self.what, self.ours, self.bare, self.unit, self.budget = what, ours, bare, unit, budget

    def __str__(self) -> str:
        bare = f"{self.bare:.1f}" if self.bare is not None else "–"
        ratio = f"{self.ours / self.bare:.2f} ×" if self.bare else "–"
        return f"| {self.what} | {self.ours:.1f} {self.unit} | {bare} | {ratio} | {self.budget} |"


def python(*words: str) -> list[str]:
    return [sys.executable, *words]


def timed(command: list[str]) -> float:
    """Milliseconds of one process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(ROUNDS))


def peak_mib(command: list[str]) -> float:
    """Peak resident memory of one process, in MiB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    return used.ru_maxrss / 1024


def looping(name: str, arguments: dict[str, Any], count: int) -> Callable[[Any], Reply]:
    """A script of `count` calls and an answer, for every process anew: it counts by what the request holds."""

    def reply(request: Any) -> Reply:
        done = request.body.count(b'"function_call_output"')
        return call_reply(name, arguments, usage=USAGE) if done < count else text_reply("done", usage=USAGE)

    return reply


class Gaps:
    """A script that notes when each request comes; the median time between two is what an iteration costs."""

    def __init__(self, script: Callable[[Any], Reply]) -> None:
        self._script = script
        self._arrivals: list[float] = []

    def __call__(self, request: Any) -> Reply:
        self._arrivals.append(time.perf_counter())
        return self._script(request)

    def of(self, command: list[str]) -> float:
        """Milliseconds between two requests of one process."""
        self._arrivals.clear()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return statistics.median(b - a for a, b in itertools.pairwise(self._arrivals)) * 1000


# --- benches -------------------------------------------------------------------------------------------------------


def start_up() -> Iterator[Row]:
    command = str(Path(sys.executable).with_name("refold"))
    yield Row("`refold --version`", median(lambda: timed([command, "--version"])), None, "ms", "≤ 80 ms")


def first_request() -> Iterator[Row]:
    arrivals: list[float] = []

    def arrived(request: Any) -> Reply:
        arrivals.append(time.perf_counter())
        return text_reply("done", usage=USAGE)

    def until_arrival(command: list[str]) -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return (arrivals[-1] - began) * 1000

    with ResponsesServer(arrived, log=False) as server, tempfile.TemporaryDirectory() as home:
        ours = median(lambda: until_arrival(python("-m", "bench.ours", server.url, home)))
        bare = median(lambda: until_arrival(python("-m", "bench.bare", server.url)))
        memory = peak_mib(python("-m", "bench.ours", server.url, home))
        bare_memory = peak_mib(python("-m", "bench.bare", server.url))
    yield Row("start to first request", ours, bare, "ms", "≤ 1.5 × bare")
    yield Row("peak memory, one turn", memory, bare_memory, "MiB", "≤ 50 MiB")


def iterations() -> Iterator[Row]:
    """From one request's arrival to the next one's, inside one turn."""
    for name, arguments, budget in (("nop", {}, "≤ 3 ms"), ("exec_command", {"cmd": "true"}, "≤ 6 ms")):
        what = "without a process" if name == "nop" else "with `exec_command true`"
        for count in (50, 200):
            gaps = Gaps(looping(name, arguments, count))
            with ResponsesServer(gaps, log=False) as server, tempfile.TemporaryDirectory() as home:
                ours = gaps.of(python("-m", "bench.ours", server.url, home))
                bare = gaps.of(python("-m", "bench.bare", server.url))
            yield Row(f"iteration {what}, {count} calls", ours, bare, "ms", budget)


def long_history() -> Iterator[Row]:
    """10,000 items (5 MB): between two requests of a turn, from the last byte of an answer to the next request."""
    gaps = Gaps(looping("nop", {}, 5_000 + 20))
    with ResponsesServer(gaps, log=False) as server, tempfile.TemporaryDirectory() as folder:
        home, plain = Path(folder) / "home", Path(folder) / "history.json"
        items = _long_items()
        plain.write_text(json.dumps(items))
        with Memory.open(home, model=Profile(slug="bench")) as memory:
            memory.add(items)
            session_id = memory.id
        ours = gaps.of(python("-m", "bench.ours", server.url, str(home), session_id))
        bare = gaps.of(python("-m", "bench.bare", server.url, str(plain)))
    yield Row("request to request at 10,000 items (5 MB)", ours, bare, "ms", "≤ half of bare, ≤ 20 ms")


def _long_items() -> list[Any]:
    items: list[Any] = []
    for number in range(5_000):
        call_id = f"call_{number}"
        items.append(
            {"type": "function_call", "name": "nop", "arguments": json.dumps({"n": number}), "call_id": call_id}
        )
        items.append({"type": "function_call_output", "call_id": call_id, "output": f"line {number} " * 60})
    return items


def resume() -> Iterator[Row]:
    """20,000 items: from process start to first request; and what the log costs per line."""
    arrivals: list[float] = []

    def arrived(request: Any) -> Reply:
        arrivals.append(time.perf_counter())
        return text_reply("done", usage=USAGE)

    items = [
        item
        for number in range(10_000)
        for item in (
            {"type": "message", "role": "user", "content": f"question {number}"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {number}"}]},
        )
    ]
    with ResponsesServer(arrived, log=False) as server, tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "history.json"
        plain.write_text(json.dumps(items))
        with Memory.open(folder, model=Profile(slug="bench")) as memory:
            memory.add(items[:2])
            began = time.perf_counter()
            for item in items[2:]:
                memory.add(item)
            append = (time.perf_counter() - began) / len(items) * 1e6
            session_id = memory.id
        results: list[float] = []
        for command in (
            python("-m", "bench.ours", server.url, folder, session_id),
            python("-m", "bench.bare", server.url, str(plain)),
        ):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            results.append((arrivals[-1] - began) * 1000)
    yield Row("resume of 20,000 items: start to first request", results[0], results[1], "ms", "≤ 400 ms")
    yield Row("record one item (append, fold, publish)", append, None, "µs", "")


BENCHES = {bench.__name__: bench for bench in (start_up, first_request, iterations, long_history, resume)}


PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
HEAD = """# Performance

Made by `make bench ARGS=--write`: refold beside a bare agent loop (`bench/bare.py`: httpx2, a list, everything encoded
anew for each request, nothing stored) on the same scripted provider, in one run. The ratios count; the absolute numbers
say more about the machine ({machine}) and what else it was doing. Budgets are those of the design.

"""
TABLE = "| what | refold | bare loop | ratio | budget |\n| --- | ---: | ---: | ---: | --- |"
NOTES = """
- *start to first request*: from the start of the process to the arrival of its first request.
- *iteration*: from the arrival of one request to the arrival of the next, inside one turn; refold also writes its log,
  limits outputs and knows the rules in force meanwhile. Command iterations run `bash -lc true` on both sides.
- *request to request at 10,000 items*: the same in a session with a 5 MB history.
- *resume of 20,000 items*: refold reads and folds its log; the bare loop reads one JSON list.
"""


def main(words: list[str]) -> None:
    names = [word for word in words if word != "--write"]
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"no bench named {unknown[0]}; there are: {', '.join(BENCHES)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed refold is compiled, so the measured one must be
    compileall.compile_dir(str(Path(refold.__file__).parent), quiet=2)
    os.environ["HOME"] = tempfile.mkdtemp()  # a login shell must not read somebody's profile in every iteration
    print(TABLE)
    rows: list[str] = []
    for name in names or BENCHES:
        for row in BENCHES[name]():
            rows.append(str(row))
            print(row, flush=True)
    if "--write" in words:
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        PAGE.write_text(HEAD.format(machine=machine) + TABLE + "\n" + "\n".join(rows) + "\n" + NOTES, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
