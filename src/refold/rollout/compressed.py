"""Compressed: the plain file beside a compressed rollout, which is never written to (spec §8.5)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from refold.errors import RolloutError
from refold.rollout.disk import Disk
from refold.rollout.reader import damage, open_rollout

COMPRESSED = ".zst"
COPY_BLOCK = 1024 * 1024
PART = ".part"  # of a file that is being made: nobody reads these


def plain_beside(path: Path, disk: Disk) -> tuple[Path, bool]:
    """The plain file of a compressed one, and whether it was there before: that one stays as it is.

    A new one is written aside, synced, then given its name, so that it is whole or absent whatever is killed when.
    Raises RolloutError, RolloutCorrupt (a broken compressed file).
    """
    plain = path.with_suffix("")
    if plain.exists():
        return plain, True
    _sweep(plain)
    aside = aside_of(plain)
    try:
        with open_rollout(path) as source, aside.open("xb") as target:
            with contextlib.suppress(OSError):  # where there are no locks, nobody sweeps either
                fcntl.flock(target.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside.chmod(0o600)
            shutil.copyfileobj(source, target, COPY_BLOCK)
            target.flush()
            disk.sync(target.fileno())
        made = give_name(aside, plain)
        disk.sync_folder(plain.parent)
    except RolloutError:
        raise
    except OSError as error:
        raise RolloutError(f"{plain} cannot be written: {error.strerror}") from None
    except Exception as error:
        raise damage(path, error, 0) or error from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return plain, not made


def differs(plain: Path) -> str:
    """What is odd about a compressed copy that stands beside a plain file, or nothing. The plain one counts."""
    packed = plain.with_name(plain.name + COMPRESSED)
    try:
        ours, its = plain.stat(), packed.stat()
    except OSError:
        return ""
    if its.st_size > ours.st_size:
        return f"{packed} is larger than {plain.name}, which counts: refold show {packed} tells what it holds"
    if its.st_mtime > ours.st_mtime:
        return f"{packed} is newer than {plain.name}, which counts: refold show {packed} tells what it holds"
    return ""


def aside_of(path: Path) -> Path:
    """Where a file is made before it gets its name."""
    return path.with_name(f"{path.name}.{os.urandom(4).hex()}{PART}")


def give_name(aside: Path, path: Path) -> bool:
    """Let a finished file appear. False: one is there already, may have been gone on with, and stays."""
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        aside.rename(path)
    return True


def _sweep(plain: Path) -> None:
    """Remove what processes left that were killed while they made this file: nobody holds it any more."""
    for left in plain.parent.glob(f"{plain.name}.*{PART}"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
