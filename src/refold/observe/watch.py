"""Watch: what files and folders held when they were last read; what did not change since costs a look at its inode.

Rule 1: a file is the same if its times of change, size and inode are.
Rule 2: one that was changed just before it was read is read again the next time: within a tick of a file system's clock
        it may change twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")
SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system in use (FAT) ticks every two seconds


class Unread(str):
    """Why something could not be read: that may be over the next time, though nothing changed."""


class Watch:
    """Mutable: it lives as long as its session."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Hashable], tuple[tuple[int, ...], Any]] = {}

    def seen(self, path: str, kind: Hashable, make: Callable[[os.stat_result], T]) -> T | None:
        """What `make` gives for a path, made anew only when the path changed; None where nothing is there.

        `kind` tells apart what is made of one path; `make` gets the stat of what a link leads to. It should not raise:
        what it raises passes through. Raises OSError when the path cannot be looked at, other than for being missing.
        """
        found = self.look(path)
        return None if found is None else self.made(path, found, kind, make)

    def look(self, path: str) -> os.stat_result | None:
        """The stat of what is there, links followed; None where nothing is."""
        try:
            return os.stat(path)  # noqa: PTH116 - before each turn, for every file, so cheaply
        except (FileNotFoundError, NotADirectoryError):
            return None

    def made(self, path: str, found: os.stat_result, kind: Hashable, make: Callable[[os.stat_result], T]) -> T:
        """As `seen`, for a path whose stat is known."""
        now = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)
        key = (path, kind)
        if key in self._known and self._known[key][0] == now:
            return cast("T", self._known[key][1])
        began = time.time_ns()
        value = make(found)
        if found.st_mtime_ns < began - SETTLED_NS and not isinstance(value, Unread):
            self._known[key] = (now, value)
        else:
            self._known.pop(key, None)
        return value
