"""File store: one session's `.jsonl`, appended to under an exclusive lock, in the real program's layout (spec §8.1).

Rule 1: a file appears with its first records, whole.
Rule 2: a batch is one write, so a line is never torn by two writers.
Rule 3: nothing that stands in the file is ever changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from refold.core.lines import encode, has_ordinal
from refold.core.records import Line, Record
from refold.errors import RolloutError, RolloutLocked
from refold.rollout.reader import open_rollout, read_lines

COMPRESSED = ".zst"
TAIL_BLOCK = 64 * 1024


def new_path(home: Path, thread_id: str, now: datetime) -> Path:
    """Where a new session's file goes: a folder per day, local time in the name; never computed for an existing one."""
    day = home / "sessions" / now.strftime("%Y/%m/%d")
    return day / f"rollout-{now.strftime('%Y-%m-%dT%H-%M-%S')}-{thread_id}.jsonl"


class FileStore:
    """Mutable: it holds the file's descriptor and its lock, and counts ordinals."""

    def __init__(self, path: Path, thread_id: str) -> None:
        self._path = path
        self.thread_id = thread_id
        self._fd: int | None = None
        self._next = 0  # the next line's ordinal, or its line number in a file without ordinals
        self._numbered = True

    @classmethod
    def create(cls, home: Path, thread_id: str, now: datetime) -> FileStore:
        """A store for a new session; nothing is written before the first append."""
        return cls(new_path(home, thread_id, now), thread_id)

    @classmethod
    def reopen(cls, path: Path, thread_id: str, next_ordinal: int) -> FileStore:
        """Continue an existing file that was read up to `next_ordinal`; a compressed one beside it, plain.

        Raises RolloutLocked when another process writes it, or wrote it after it was read; RolloutError otherwise.
        """
        if path.suffix == COMPRESSED:
            path = _decompressed(path)
        elif is_zstd(path):
            raise RolloutError(f"{path} is compressed but not named {COMPRESSED}; rename it to go on, or fork it")
        store = cls(path, thread_id)
        fd = store._open(os.O_RDWR | os.O_APPEND)
        newest = _newest_ordinal(fd)
        if newest is None:
            store._numbered, following = False, _line_count(fd) + 1
        else:
            following = newest + 1
        if following > next_ordinal and newest is not None:
            store.close()
            raise RolloutLocked(f"{path.name} was written by another process meanwhile; try again")
        store._next = max(following, next_ordinal)
        return store

    @property
    def path(self) -> Path:
        return self._path

    def append(self, records: Sequence[Record], *, turn_id: str | None, timestamp: str) -> list[int]:
        ordinals: list[int] = []
        pieces: list[bytes] = []
        following = self._next
        for record in records:
            ordinal = following if self._numbered else None
            data, own, count = encode(
                record, thread_id=self.thread_id, turn_id=turn_id, timestamp=timestamp, ordinal=ordinal
            )
            pieces.append(data)
            ordinals.append(following + own)
            following += count
        self._write(b"".join(pieces))
        self._next = following
        return ordinals

    def lines(self) -> Iterator[Line]:
        return read_lines(self._path)

    def sync(self) -> None:
        """Ask the disk to keep what was appended."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # a file system without fsync has kept what it can
                os.fdatasync(self._fd)

    def close(self) -> None:
        """Release the file and its lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _descriptor(self) -> int:
        if self._fd is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RolloutError(f"{self._path.parent} cannot be made: {error.strerror}") from None
            self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        assert self._fd is not None
        return self._fd

    def _open(self, flags: int) -> None:
        try:
            fd = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RolloutError(f"{self._path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _lock_owner(fd)
            os.close(fd)
            who = f"process {owner}" if owner else "another process"
            raise RolloutLocked(
                f"{self._path.name} is being written by {who}; fork it to go on beside", owner=owner
            ) from None
        self._fd = fd

    def _write(self, data: bytes) -> None:
        fd = self._descriptor()
        if _ends_torn(fd):
            data = b"\n" + data  # close the half line that a crash left, so that ours stands alone
        before = os.fstat(fd).st_size
        try:
            while data:  # one write, save where the system takes less (a signal, more than 2 GiB)
                data = data[os.write(fd, data) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, before)  # an unacknowledged half line is not part of the log
            raise RolloutError(f"{self._path} cannot be written: {error.strerror}") from None


def _ends_torn(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _last_line_has_ordinal(fd: int) -> bool | None:
    """Whether the newest whole line carries an ordinal; None when there is no whole line."""
    size = os.fstat(fd).st_size
    block = b""
    start = size
    while start > 0:
        step = min(TAIL_BLOCK, start)
        start -= step
        block = os.pread(fd, step, start) + block
        lines = block.split(b"\n")
        for raw in reversed(lines[:-1] if start == 0 else lines[1:-1]):
            if raw.strip():
                return has_ordinal(raw)
    return None


def _lock_owner(fd: int) -> int | None:
    """The process that holds the lock, where the system tells (/proc/locks)."""
    stat = os.fstat(fd)
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        table = Path("/proc/locks").read_text()
    except OSError:
        return None
    for row in table.splitlines():
        words = row.split()
        if "FLOCK" in words and place in words and "->" not in words:
            return int(words[4])
    return None


def _decompressed(path: Path) -> Path:
    """The plain file beside a compressed one: written aside, then renamed, so that it is whole or absent."""
    plain = path.with_suffix("")
    if plain.exists():
        return plain
    aside = plain.with_name(plain.name + ".part")
    try:
        with open_rollout(path) as source, aside.open("wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
        aside.rename(plain)
    except OSError as error:
        raise RolloutError(f"{plain} cannot be written: {error.strerror}") from None
    return plain
