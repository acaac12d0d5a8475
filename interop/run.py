"""Run: installs the real program, makes every check, prints the table; exit code 0 only if all of them hold.

`python -m interop.run PART …` makes only these parts: see PARTS.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from interop.checks import Field, Result, checks
from interop.gateway import through_gateway
from interop.judge import judged
from interop.real import PLACE, NotInstalled, install

WIDTH = 66  # of the names


def _judging(folder: Path) -> Iterator[Result]:
    numbers = itertools.count(1)
    return judged(lambda: Field(folder / f"judged-{next(numbers)}"))


PARTS: dict[str, Callable[[Path], Iterator[Result]]] = {
    "sessions": checks,
    "judge": _judging,
    "gateway": through_gateway,
}


def main(wanted: list[str]) -> int:
    if not set(wanted) <= PARTS.keys():
        print(f"make interop: the parts are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    os.environ.pop("TZ", None)  # the real program does not look at it
    try:
        version = install()
    except NotInstalled as error:
        print(f"make interop: {error}", file=sys.stderr)
        return 1
    sessions = PLACE / "sessions"
    shutil.rmtree(sessions, ignore_errors=True)
    print(f"{version} and refold, in {sessions}\n", flush=True)
    began, results = time.monotonic(), []
    parts = [make for name, make in PARTS.items() if name in (wanted or PARTS)]
    for result in itertools.chain.from_iterable(make(sessions) for make in parts):
        results.append(result)
        if result.problem is not None:
            print(f"FAIL {result.name}\n    {result.problem.replace(chr(10), chr(10) + '    ')}\n", flush=True)
    print(_table(results))
    failed = sum(result.problem is not None for result in results)
    print(f"\n{len(results) - failed} of {len(results)} checks hold, in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _table(results: list[Result]) -> str:
    rows = [f"{one.name:{WIDTH}} {'pass' if one.problem is None else 'FAIL'}  {one.note}" for one in results]
    return "\n".join(row.rstrip() for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
