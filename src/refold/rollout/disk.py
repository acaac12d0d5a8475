"""Disk: the calls to the operating system that may fail while a log is written, in one place for a test to replace."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Disk:
    """The real one. A test passes a subclass. Every call raises OSError."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor that no child process inherits; a new file is for its owner only."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def lock(self, fd: int) -> None:
        """An exclusive lock, or BlockingIOError at once."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """How many of the bytes were taken."""
        return os.write(fd, data)

    def write_all(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(fd, rest) :]

    def cut(self, fd: int, size: int) -> None:
        """The file ends there."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """The file's data, and what is needed to read it again, are on the disk."""
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        """The folder's names are on the disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
