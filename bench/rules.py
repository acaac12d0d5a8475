"""Rules: what looking at the surroundings costs before a turn in which nothing changed.

`python -m bench.rules` prints the table.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench.core import TABLE, Figure
from refold.core.config import Config
from refold.core.permissions import WorkspaceWrite
from refold.observe import Surroundings, Watch, observe
from refold.session.approved import Approval, remember
from refold.session.rules import permitted

ROUNDS = 50
FOLDERS = 2_000
DEPTH = 20  # of the working directory below the project's root; every second folder on the way has rules
BUDGET = 20  # ms
LONG_AGO = 1_600_000_000  # seconds since 1970
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def rows() -> Iterator[object]:
    with tempfile.TemporaryDirectory() as folder:
        where = _project(Path(folder).resolve())
        first, again = _looked(where)
    yield Figure(f"observe a project of {FOLDERS:,} folders for the first time", "ms", first)
    yield Figure("observe it when nothing changed", "ms", again, most=BUDGET)


def _project(root: Path) -> Surroundings:
    """A wide and deep project with rules on the way down, and approvals."""
    work, home = root / "project", root / "home"
    (work / ".git").mkdir(parents=True)
    for number in range(FOLDERS - DEPTH):
        (work / f"wide{number % 50}" / f"folder{number}").mkdir(parents=True)
    for number in range(DEPTH):
        if number % 2 == 0:
            _written(work / "AGENTS.md", f"Rule of level {number}.\n" * 40)
        work = work / f"level{number}"
        work.mkdir()
    home.mkdir()
    _written(home / "AGENTS.md", "Be brief.\n")
    remember(home, *(Approval(words=("make", str(n)), program="/usr/bin/make", workspace=str(work)) for n in range(50)))
    os.utime(home / "approved.json", (LONG_AGO, LONG_AGO))
    return Surroundings(cwd=str(work), home=str(home), sandbox_mode="workspace-write", approval_policy="on-request")


def _written(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))


def _looked(where: Surroundings) -> tuple[float, float]:
    """Milliseconds of the first look, and of the quickest of the later ones."""
    watch, config = Watch(), Config(sandbox_workspace_write=WorkspaceWrite())
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        observe(permitted(where, config, watch), NOON, watch)
        times.append((time.perf_counter() - began) * 1_000)
    return times[0], min(times[1:])


if __name__ == "__main__":
    print(TABLE)
    for row in rows():
        print(row, flush=True)
