"""Rescue: a file elsewhere for what a log could not take until its session was closed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from refold.rollout.disk import Disk


def places() -> tuple[Path, ...]:
    """Where it may go: the first folder that takes it."""
    return (Path(tempfile.gettempdir()), Path.home())


def rescued(thread_id: str, fill: Callable[[int], None], folders: tuple[Path, ...], disk: Disk) -> Path | None:
    """The file that `fill` wrote into its descriptor, on the disk; None where no folder takes it."""
    for folder in folders:
        path = folder / f"refold-rescued-{thread_id}-{os.urandom(4).hex()}.jsonl"
        try:
            fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        except OSError:
            continue
        try:
            fill(fd)
            disk.sync(fd)
        except OSError:
            path.unlink(missing_ok=True)
        else:
            return path
        finally:
            os.close(fd)
    return None
