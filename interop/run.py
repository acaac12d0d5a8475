"""Run: installs the real program, makes every check, prints the table; exit code 0 only if all of them hold."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time

from interop.checks import Field, Result, checks
from interop.judge import judged
from interop.real import PLACE, NotInstalled, install

WIDTH = 66  # of the names


def main() -> int:
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
    numbers = itertools.count(1)
    judging = judged(lambda: Field(sessions / f"judged-{next(numbers)}"))
    for result in itertools.chain(checks(sessions), judging):
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
    sys.exit(main())
