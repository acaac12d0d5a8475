"""Log file: a rollout that is open to be appended to: its lock, where its lines end, and whether it is still there.

Rule 1: a piece is one write, so a line is never torn by two writers.
Rule 2: nothing that stands in the file is ever changed; what a failed write left of a piece is taken back.
Rule 3: a file that is not ours any more is not written to, and a lock that others have is waited for by nobody.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Literal, TypeAlias

from refold.errors import RolloutLocked
from refold.rollout.compressed import COPY_BLOCK, aside_of, give_name
from refold.rollout.disk import Disk
from refold.rollout.ends import ends_torn
from refold.rollout.owner import owner_of

WITHOUT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)  # a file system that knows no sync has kept what it can
DEAD = (errno.EIO, errno.ESTALE, errno.EBADF, errno.ENODEV, errno.ENXIO)  # opening the file anew may help

HIDDEN = (".nfs", ".fuse_hidden")  # how these file systems call a deleted file until it is closed

# here: as it was left. grown: somebody else wrote into it. moved: it has another name. gone: deleted.
# taken: another file has its name. cut: lines that were written are missing.
State: TypeAlias = Literal["here", "grown", "moved", "gone", "taken", "cut"]


class LinesLost(OSError):
    """Lines that were written cannot be read back."""


class LogFile:
    """Mutable: it holds the descriptor with its lock, and where its lines end."""

    def __init__(self, path: Path, fd: int, disk: Disk) -> None:
        self.path = path
        self.fd = fd
        self.unlocked: str | None = None  # why the file system gave no lock
        self._disk = disk
        self._lock()
        self._identify()
        self.end = self._synced = os.fstat(fd).st_size
        self._doubtful = True  # whether the last line may lack its end: not after a write of ours
        self._left = False  # whether a failed write left lines that could not be taken back
        self._unsure = False  # whether a sync failed since the last one that did not

    @classmethod
    def opened(cls, path: Path, disk: Disk, *, new: bool = False) -> LogFile:
        """Raises OSError; RolloutLocked when another process writes it."""
        return cls(path, disk.open(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if new else 0)), disk)

    def _lock(self) -> None:
        try:
            self._disk.lock(self.fd)
        except BlockingIOError:
            owner, who = owner_of(self.fd)
            self.close()
            text = f"{self.path.name} is being written by {who}; fork it to go on beside, or show it meanwhile"
            raise RolloutLocked(text, owner=owner) from None
        except OSError as error:  # NFS without its lock service, say: better to go on than to refuse all work there
            self.unlocked = error.strerror or str(error)

    def _identify(self) -> None:
        about = os.fstat(self.fd)
        self._device, self._inode = about.st_dev, about.st_ino

    # --- looking -----------------------------------------------------------------------------------------------

    def is_as_left(self) -> bool:
        """Whether the open file surely is as it was left; cheap, and blind to another name that it may have by now."""
        try:
            about = os.fstat(self.fd)
        except OSError:
            return False
        return about.st_size == self.end and about.st_nlink == 1

    def state(self) -> State:
        """What has become of the file since it was last written here."""
        try:
            about = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return "moved" if self._has_a_name() else "gone"
        except OSError:  # its folder cannot be looked into; the file may take lines all the same
            return "here"
        if not self._is_ours(about) and (about.st_ino, about.st_size) != (self._inode, self.end):
            return "taken"  # the same file on another device is a disk that was away
        if about.st_size == self.end or (self._left and about.st_size > self.end):
            return "here"
        return "grown" if about.st_size > self.end else "cut"

    def own_name(self) -> Path | None:
        """What the file is called now, where the system tells."""
        with contextlib.suppress(OSError):
            path = Path(f"/proc/self/fd/{self.fd}").readlink()
            if self._is_ours(path.stat()):
                return path
        return None

    def _is_ours(self, about: os.stat_result) -> bool:
        return (about.st_ino, about.st_dev) == (self._inode, self._device)

    def _has_a_name(self) -> bool:
        """Whether a file that is not where it was still has a name that outlives this process."""
        try:
            if os.fstat(self.fd).st_nlink == 0:
                return False
        except OSError:  # a descriptor of something that is not there any more
            return False
        name = self.own_name()
        return name is None or not name.name.startswith(HIDDEN)

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Append a piece as one write. Raises OSError with nothing of it in the file, if that can be taken back."""
        left = 0
        if self._left:
            left, data = self._after_what_is_left(data)
        elif self._doubtful and ends_torn(self.fd):
            data = b"\n" + data  # close the half line that a crash left, so that ours stands alone
        written = 0
        try:
            while written < len(data):  # one write, save where the system takes less (a signal, more than 2 GiB)
                written += self._disk.write(self.fd, data[written:] if written else data)
        except OSError:
            self._doubtful = True
            self._take_back()
            raise
        self._doubtful = self._left = False
        self.end += left + len(data)

    def accept(self) -> None:
        """What somebody else wrote meanwhile stays, and what comes next stands behind it."""
        self.end = os.fstat(self.fd).st_size
        self._doubtful = True

    def sync(self) -> None:
        """Ask the disk to keep what was written. Raises OSError when it says that it cannot."""
        try:
            if self._unsure:
                self._write_again()
            self._disk.sync(self.fd)
        except OSError as error:
            if error.errno not in WITHOUT_SYNC:
                self._unsure = True
                raise
        self._synced, self._unsure = self.end, False

    def _write_again(self) -> None:
        """The same bytes at the same place: a system that failed to keep a page may call it kept from then on."""
        fd = self._disk.open(self.path, os.O_RDWR)  # not to append: where it writes is said
        try:
            if not self._is_ours(os.fstat(fd)):
                return
            for place in range(self._synced, self.end, COPY_BLOCK):
                os.pwrite(fd, self._disk.read(self.fd, min(COPY_BLOCK, self.end - place), place), place)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Release the file and its lock."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # --- mending -----------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Open the same file anew: the descriptor is dead (a disk was away). Raises OSError, RolloutLocked."""
        fd = self._disk.open(self.path, os.O_RDWR | os.O_APPEND)
        about = os.fstat(fd)
        if (about.st_ino, about.st_size) != (self._inode, self.end):
            os.close(fd)
            return
        os.close(self.fd)  # with its lock, which the new one needs
        self.fd = fd
        self._lock()
        self._identify()

    def copied(self, path: Path) -> LogFile | None:
        """All lines in a new file, open, whole from the moment it has this name; None where another file has it.

        Raises LinesLost when they cannot be read back, OSError.
        """
        if path.exists():
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = aside_of(path)
        copy = LogFile.opened(aside, self._disk, new=True)
        try:
            self.copy_to(copy.fd)
            copy.sync()
            copy.path = path
            copy.end = copy._synced = self.end
            if give_name(aside, path):
                return copy
        except BaseException:
            copy.close()
            raise
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()
        copy.close()
        return None

    def copy_to(self, fd: int) -> None:
        """Append all lines that were written to another file. Raises LinesLost, OSError."""
        for place in range(0, self.end, COPY_BLOCK):
            try:
                block = self._disk.read(self.fd, min(COPY_BLOCK, self.end - place), place)
            except OSError as error:
                raise LinesLost(*error.args) from None
            if len(block) < min(COPY_BLOCK, self.end - place):
                raise LinesLost(errno.EIO, "lines that were written are missing")
            self._disk.write_all(fd, block)

    def _take_back(self) -> None:
        """An unacknowledged half line is not part of the log."""
        self._left = True
        if self.unlocked:
            return  # a line that somebody else wrote just now would go with it
        with contextlib.suppress(OSError):
            self._disk.cut(self.fd, self.end)
            self._left = False

    def _after_what_is_left(self, data: bytes) -> tuple[int, bytes]:
        """How many bytes a failed write left, and what of the piece is still to be written. Raises OSError."""
        self._take_back()
        if not self._left:
            return 0, data
        left = self._disk.read(self.fd, os.fstat(self.fd).st_size - self.end, self.end)
        return len(left), data[len(left) :] if data.startswith(left) else b"\n" + data
