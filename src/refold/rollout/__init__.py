"""EDGE, disk: rollouts. A Store holds one session's log: it appends under a lease and reads lines back.

Public names: Store (protocol), MemoryStore, FileStore, read_lines, Catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from refold.core.records import Line, Record, SessionStarted
from refold.rollout.catalogue import Catalogue, Summary
from refold.rollout.file_store import FileStore
from refold.rollout.memory_store import MemoryStore
from refold.rollout.reader import read_lines
from refold.rollout.waiting import Behind, LogFact

__all__ = ["Catalogue", "FileStore", "MemoryStore", "Store", "Summary", "read_lines"]


class Store(Protocol):
    """One session's log.

    `append` writes the records as one piece, hands them to the operating system, and returns each one's ordinal. When
    it takes none, they wait in memory in their order (`behind`) and are tried again with each `append` and `sync`; a
    log that never had a file, or has too much waiting, raises RolloutError with nothing acknowledged. `sync` asks the
    disk too, and raises nothing. `lines` reads from the start, with what waits. `close` raises RolloutUnwritten when
    not all is on the disk even then. `take_facts` gives what happened to the file since; after a loss of its lines
    (`is_lost`) `begin_anew` and a checkpoint let the log go on.
    """

    @property
    def path(self) -> Path | None: ...

    def append(self, records: Sequence[Record], *, turn_id: str | None, timestamp: str) -> list[int]: ...

    def lines(self) -> Iterator[Line]: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...

    @property
    def behind(self) -> Behind | None: ...

    @property
    def has_facts(self) -> bool: ...

    @property
    def is_lost(self) -> bool: ...

    def take_facts(self) -> list[LogFact]: ...

    def begin_anew(self, meta: SessionStarted, ordinal: int) -> None: ...
