"""Memory store: a log that lives as long as its process; encoded like a file, so that both behave alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from refold.core.lines import decode, encode
from refold.core.records import Line, Record, SessionStarted
from refold.rollout.waiting import Behind, LogFact


class MemoryStore:
    """Mutable: it is the log. `raw` is what a file would hold."""

    path: Path | None = None
    behind: Behind | None = None  # nothing here can fail
    has_facts = is_lost = False

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.raw: list[bytes] = []
        self._next = 0

    def append(self, records: Sequence[Record], *, turn_id: str | None, timestamp: str) -> list[int]:
        ordinals: list[int] = []
        pieces: list[bytes] = []
        following = self._next
        for record in records:
            data, own, count = encode(
                record, thread_id=self.thread_id, turn_id=turn_id, timestamp=timestamp, ordinal=following
            )
            pieces.append(data)
            ordinals.append(following + own)
            following += count
        self.raw += pieces
        self._next = following
        return ordinals

    def lines(self) -> Iterator[Line]:
        number = 0
        for data in self.raw:
            for raw in data.splitlines():
                number += 1
                line = decode(raw, number)
                if line is not None:
                    yield line

    def sync(self) -> None:
        """Nothing to do: nothing outlives the process."""

    def close(self) -> None:
        """Nothing to release."""

    def take_facts(self) -> list[LogFact]:
        return []

    def begin_anew(self, meta: SessionStarted, ordinal: int) -> None:
        """Nothing is ever lost."""
