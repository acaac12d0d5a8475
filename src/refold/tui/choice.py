"""Choice: sessions as rows of a list that a person filters and picks from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from refold.tui.cells import cells, fitted

if TYPE_CHECKING:
    from refold.rollout.catalogue import Summary

FOLDER_CELLS = 24
NARROW = 70  # cells; a narrower row has no folder and no year


def newest_first(found: Sequence[Summary]) -> list[Summary]:
    """By when they were written last."""
    return sorted(found, key=lambda one: one.modified, reverse=True)


def fitting(found: Sequence[Summary], words: str) -> list[Summary]:
    """Those that hold every word, in any case: in their id, folder, first words or time."""
    wanted = words.lower().split()
    return [one for one in found if all(word in _searched(one) for word in wanted)]


def row(one: Summary, width: int, zone: tzinfo | None = None) -> str:
    """Time, folder, first words."""
    from refold.views.shown import one_line

    folder = one_line(shown_folder(one.cwd))
    folder = "…" + folder[-FOLDER_CELLS + 1 :] if cells(folder) > FOLDER_CELLS else folder
    text = one_line(one.first_text) or (f"[{one_line(one.problem)}]" if one.problem else "nothing said yet")
    gap = " " * max(0, FOLDER_CELLS - cells(folder))
    when = _when(one.modified, zone)
    if width < NARROW:  # the first words tell sessions apart, the folder seldom does
        return fitted(f"{when[5:]}  {text}", width)
    return fitted(f"{when}  {folder}{gap}  {text}", width)


def _when(time: datetime, zone: tzinfo | None) -> str:
    return time.astimezone(zone).strftime("%Y-%m-%d %H:%M")


def shown_folder(cwd: str) -> str:
    """The folder, with `~` for the home."""
    home = str(Path.home())
    return "~" + cwd[len(home) :] if cwd == home or cwd.startswith(home + "/") else cwd


def _searched(one: Summary) -> str:
    return f"{one.id} {one.cwd} {one.first_text} {_when(one.modified, None)}".lower()
