"""File store: one session's `.jsonl`, appended to under an exclusive lock, in the real program's layout (spec §8.1).

Rule 1: a file appears with its first records, whole.
Rule 2: a batch is one write, so a line is never torn by two writers.
Rule 3: nothing that stands in the file is ever changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from refold.core.lines import decode, encode, has_ordinal
from refold.core.records import Line, LineDamaged, Record
from refold.errors import RolloutError, RolloutLocked
from refold.rollout.reader import damage, is_zstd, open_rollout, read_lines

COMPRESSED = ".zst"
WITHOUT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)  # a file system that knows no sync has kept what it can
TAIL_BLOCK = 64 * 1024
COPY_BLOCK = 1024 * 1024


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
        self._doubtful = True  # whether the file's last line may lack its end: not after a write of ours

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
        store._numbered = newest is not None
        store._next = next_ordinal if newest is not None else _line_count(fd) + 1
        if newest is not None and newest >= next_ordinal:
            store.close()
            raise RolloutLocked(f"{path.name} was written by another process while it was read; try again")
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
        """Ask the disk to keep what was appended. Raises RolloutError when it says that it cannot."""
        if self._fd is not None:
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                if error.errno not in WITHOUT_SYNC:
                    raise RolloutError(f"{self._path} cannot be kept: {error.strerror}") from None

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
            return self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        return self._fd

    def _open(self, flags: int) -> int:
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
        return fd

    def _write(self, data: bytes) -> None:
        fd = self._descriptor()
        if self._doubtful and _ends_torn(fd):
            data = b"\n" + data  # close the half line that a crash left, so that ours stands alone
        written = 0
        try:
            while written < len(data):  # one write, save where the system takes less (a signal, more than 2 GiB)
                written += os.write(fd, data[written:] if written else data)
            self._doubtful = False
        except OSError as error:
            self._doubtful = True
            with contextlib.suppress(OSError):
                os.ftruncate(fd, os.fstat(fd).st_size - written)  # an unacknowledged half line is not part of the log
                if self._next == 0:  # nor is a new file without a line a session
                    self.close()
                    self._path.unlink()
            raise RolloutError(f"{self._path} cannot be written: {error.strerror}") from None


def _ends_torn(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _newest_ordinal(fd: int) -> int | None:
    """The ordinal of the newest line that is a record; None when that carries none."""
    for raw in _lines_backwards(fd):
        line = decode(raw, 0)
        if line is not None and not isinstance(line.record, LineDamaged):
            return line.ordinal if has_ordinal(raw) else None
    return None


def _lines_backwards(fd: int) -> Iterator[bytes]:
    """The lines that are whole, newest first."""
    pieces: list[bytes] = []  # of the line whose start is still to be found, last piece first
    whole = False  # what stands after the last line end is not a line
    start = os.fstat(fd).st_size
    while start > 0:
        step = min(TAIL_BLOCK, start)
        start -= step
        first, *later = os.pread(fd, step, start).split(b"\n")
        for part in reversed(later):
            if whole:
                yield b"".join([part, *reversed(pieces)])
            whole, pieces = True, []
        pieces.append(first)
    if whole:
        yield b"".join(reversed(pieces))


def _line_count(fd: int) -> int:
    """How many lines a file has, a torn last one included."""
    count = offset = 0
    while block := os.pread(fd, COPY_BLOCK, offset):
        count += block.count(b"\n")
        offset += len(block)
    return count + _ends_torn(fd)


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
    """The plain file beside a compressed one: written aside, then given its name, so that it is whole or absent."""
    plain = path.with_suffix("")
    if plain.exists():
        return plain
    aside = plain.with_name(f"{plain.name}.{os.getpid()}.part")
    try:
        with open_rollout(path) as source, aside.open("wb") as target:
            aside.chmod(0o600)
            shutil.copyfileobj(source, target, COPY_BLOCK)
            target.flush()
            os.fsync(target.fileno())
        _give_name(aside, plain)
    except OSError as error:
        raise RolloutError(f"{plain} cannot be written: {error.strerror}") from None
    except Exception as error:
        raise damage(path, error, 0) or error from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return plain


def _give_name(aside: Path, plain: Path) -> None:
    """Let a finished file appear; one that is there already may have been gone on with, and stays."""
    try:
        os.link(aside, plain)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        aside.rename(plain)
