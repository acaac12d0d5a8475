"""Owner: who holds the lock of a file, where the system tells (Linux: /proc/locks); and holding it for a while."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from refold.errors import RolloutError, RolloutLocked, RolloutNotFound

COMMAND_CHARS = 60  # of a command line: enough to know it again
UNKNOWN = "another process"


@contextlib.contextmanager
def held(path: Path) -> Generator[None]:
    """A file that nobody else who asks for the lock writes meanwhile.

    Raises RolloutLocked, saying who does; RolloutNotFound; RolloutError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise RolloutNotFound(f"no such file: {path}") from None
    except OSError as error:
        raise RolloutError(f"{path} cannot be read: {error.strerror}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner, who = owner_of(fd)
            text = f"{path.name} is being written by {who}: it stays as it is until that has ended"
            raise RolloutLocked(text, owner=owner) from None
        except OSError:  # a file system without locks: nobody can be asked
            pass
        yield
    finally:
        os.close(fd)


def owner_of(fd: int) -> tuple[int | None, str]:
    """The process that holds the lock on an open file, and how to name it."""
    pid = _holder(fd)
    if pid is None:
        return None, UNKNOWN
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return pid, f"what process {pid} left running when it ended"
    command = " ".join(b" ".join(words).decode("utf-8", "replace").split())
    shown = command if len(command) <= COMMAND_CHARS else f"{command[:COMMAND_CHARS]}…"
    return pid, f"process {pid} ({shown})" if shown else f"process {pid}"


def _holder(fd: int) -> int | None:
    stat = os.fstat(fd)
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        table = Path("/proc/locks").read_text()
    except OSError:
        return None
    for row in table.splitlines():
        words = row.split()
        if "FLOCK" in words and place in words and "->" not in words:
            return int(words[4]) if int(words[4]) > 0 else None  # 0 or -1: it lives in another container
    return None
