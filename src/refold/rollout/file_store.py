"""File store: one session's `.jsonl`, in the real program's layout (spec §8.1): records in as lines with ordinals.

How the lines get to the disk, and what becomes of them when it takes none: keeping.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from refold.core.lines import encode
from refold.core.records import Line, Record, SessionStarted
from refold.errors import RolloutError, RolloutLocked
from refold.rollout.blobs import BlobWriter
from refold.rollout.compressed import COMPRESSED, plain_beside
from refold.rollout.disk import Disk
from refold.rollout.ends import line_count, newest_ordinal
from refold.rollout.keeping import Keeping
from refold.rollout.reader import Reading, is_zstd, keeps_blobs, read_lines
from refold.rollout.waiting import Behind, LogFact


def new_path(home: Path, thread_id: str, now: datetime) -> Path:
    """Where a new session's file goes: a folder per day, local time in the name; never computed for an existing one."""
    day = home / "sessions" / now.strftime("%Y/%m/%d")
    return day / f"rollout-{now.strftime('%Y-%m-%dT%H-%M-%S')}-{thread_id}.jsonl"


class FileStore:
    """Mutable: it counts ordinals, and holds the file with its lock.

    `disk` and `rescue` (folders for what can never be written, in this order) are for tests.
    """

    def __init__(
        self, path: Path, thread_id: str, *, disk: Disk | None = None, rescue: tuple[Path, ...] | None = None
    ) -> None:
        self.thread_id = thread_id
        self._keeping = Keeping(path, thread_id, disk, rescue)
        self._next = 0  # the next line's ordinal, or its line number in a file without ordinals
        self._numbered = True
        self._blobs: BlobWriter | None = None  # of a session whose long texts lie beside its file

    @classmethod
    def create(cls, home: Path, thread_id: str, now: datetime) -> FileStore:
        """A store for a new session; nothing is written before the first append."""
        return cls(new_path(home, thread_id, now), thread_id)

    @classmethod
    def reopen(
        cls,
        path: Path,
        thread_id: str,
        next_ordinal: int,
        *,
        disk: Disk | None = None,
        rescue: tuple[Path, ...] | None = None,
    ) -> FileStore:
        """Continue an existing file that was read up to `next_ordinal`; a compressed one beside it, plain.

        Raises RolloutLocked when another process writes it, or wrote it after it was read; RolloutError otherwise.
        """
        read, was_there = path, False
        if path.suffix == COMPRESSED:
            path, was_there = plain_beside(path, disk or Disk())
        elif is_zstd(path):
            raise RolloutError(f"{path} is compressed but not named {COMPRESSED}; rename it to go on, or fork it")
        store = cls(path, thread_id, disk=disk, rescue=rescue)
        fd = store._keeping.open().fd
        try:
            newest = newest_ordinal(fd)
            store._numbered = newest is not None
            store._next = next_ordinal if newest is not None else line_count(fd) + 1
            if was_there and next_ordinal != (store._next if newest is None else newest + 1):
                raise RolloutError(f"{path}, which counts, does not hold what {read.name} holds; go on with that one")
            if newest is not None and newest >= next_ordinal:
                raise RolloutLocked(f"{path.name} was written by another process while it was read; try again")
            store._blobs = BlobWriter(path) if keeps_blobs(path) else None
        except BaseException:
            store.close()
            raise
        return store

    @property
    def path(self) -> Path:
        """Where the log is now."""
        return self._keeping.path

    @property
    def behind(self) -> Behind | None:
        """What is not safe on the disk yet, and why; None when everything is."""
        return self._keeping.behind

    @property
    def has_facts(self) -> bool:
        """Whether something happened to the file that nobody took yet."""
        return bool(self._keeping.facts) or self._keeping.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether the lines so far cannot be read back, so that only `begin_anew` lets the log go on."""
        return self._keeping.is_lost

    def take_facts(self) -> list[LogFact]:
        """What happened to the file since this was asked last."""
        facts = list(self._keeping.facts)
        self._keeping.facts.clear()
        return facts

    def append(self, records: Sequence[Record], *, turn_id: str | None, timestamp: str) -> list[int]:
        ordinals: list[int] = []
        pieces: list[bytes] = []
        following = self._next
        self._blobs = self._blobs or (BlobWriter.beginning(records, self.path) if following == 0 else None)
        dump = self._blobs.beside(self.path) if self._blobs else None
        for record in records:
            ordinal = following if self._numbered else None
            data, own, count = encode(
                record, thread_id=self.thread_id, turn_id=turn_id, timestamp=timestamp, ordinal=ordinal, dump=dump
            )
            pieces.append(data)
            ordinals.append(following + own)
            following += count
        self._keeping.put(b"".join(pieces), len(records), following - self._next)
        self._next = following
        return ordinals

    def begin_anew(self, meta: SessionStarted, ordinal: int) -> None:
        """After a loss: another file begins with the session's identity, then comes what waits.

        The caller appends a checkpoint that is sufficient alone, at once: that writes all of it.
        """
        data, _, _ = encode(meta, thread_id=self.thread_id, turn_id=None, timestamp=meta.timestamp, ordinal=ordinal)
        if not self._numbered:
            self._keeping.waiting.number(self._next - self._keeping.waiting.lines)
        self._numbered = True
        self._keeping.begin_anew(data)

    def lines(self) -> Iterator[Line]:
        yield from read_lines(self.path)
        number, reading = self._next - self._keeping.waiting.lines, Reading(self.path)
        for raw in self._keeping.waiting.raw_lines():
            line = reading.decode(raw, number)
            number += 1
            if line is not None:
                yield line

    def sync(self) -> None:
        """Write what waits, and ask the disk to keep everything. What it does not take goes on waiting (`behind`)."""
        self._keeping.sync(first=self._blobs.sync if self._blobs else None)

    def close(self) -> None:
        """Release the file and its lock. Raises RolloutUnwritten when not everything is on the disk, even now."""
        if self._blobs is not None:
            self._blobs.follow(self.path)
        self._keeping.close()
