"""EDGE, disk: rollouts. A Store holds one session's log: it appends under a lease and reads lines back.

Public names: Store (protocol), MemoryStore, FileStore, read_lines, Catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from refold.core.records import Line, Record
from refold.rollout.catalogue import Catalogue, Summary
from refold.rollout.file_store import FileStore
from refold.rollout.memory_store import MemoryStore
from refold.rollout.reader import read_lines

__all__ = ["Catalogue", "FileStore", "MemoryStore", "Store", "Summary", "read_lines"]


class Store(Protocol):
    """One session's log.

    `append` writes the records as one piece, hands them to the operating system, and returns each one's ordinal; it
    raises RolloutError with nothing acknowledged when it cannot. `sync` asks the disk too. `lines` reads from the
    start.
    """

    @property
    def path(self) -> Path | None: ...

    def append(self, records: Sequence[Record], *, turn_id: str | None, timestamp: str) -> list[int]: ...

    def lines(self) -> Iterator[Line]: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...
