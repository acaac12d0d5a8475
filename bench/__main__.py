"""Runs the benchmarks and prints their table; `--write` makes docs/performance.md of it."""

from __future__ import annotations

import compileall
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from interop.real import PLACE

import refold
from bench import turns
from bench.measure import TABLE, Row, peers
from bench.peers import PEERS

BENCHES: dict[str, Callable[[], Iterator[Row]]] = {
    bench.__name__: bench
    for bench in (
        turns.start_up,
        turns.first_request,
        turns.iterations,
        turns.long_history,
        turns.resume,
        turns.record,
    )
}

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
HEAD = """# Performance

Made by `make bench ARGS=--write`: refold beside a bare agent loop (`bench/bare.py`: httpx2, a list, everything encoded
anew for each request, nothing stored), the real program and the OpenAI Agents SDK (`bench/sdk.py`) where `make peers`
put them, on the same scripted provider, in one run. The ratios count; the absolute numbers say more about the machine
({machine}) and what else it was doing. Each number is the lowest of
the rounds, in which the peers take turns. Budgets are those of the design.

"""
NOTES = """
- *start to first request*: from the start of the process to the arrival of its first request.
- *iteration*: from the arrival of one request to the arrival of the next, inside one turn; refold also writes its log,
  limits outputs and knows the rules in force meanwhile. `nop` is a tool that does nothing; the real program has none
  and answers that the call is not supported. Commands run in `bash -lc`; where that alone takes most of the 6 ms of
  the budget, the row says how much is left.
- *request to request at 10,000 items*: the same in a session with a 5 MB history.
- *resume of 20,000 items*: refold and the real program read the same log; the others read one JSON list.
"""


def main(words: list[str]) -> None:
    names = [word for word in words if word != "--write"]
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"no bench named {unknown[0]}; there are: {', '.join(BENCHES)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed refold is compiled, so the measured one must be
    compileall.compile_dir(str(Path(refold.__file__).parent), quiet=2)
    os.environ["HOME"] = tempfile.mkdtemp()  # a login shell must not read somebody's profile in every iteration
    tempfile.tempdir = str(PLACE)  # the real program does not work from the system's temporary folder
    PLACE.mkdir(parents=True, exist_ok=True)
    for peer in PEERS:
        if peer not in peers():
            print(f"{peer.name} is not installed (make peers)", file=sys.stderr)
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
