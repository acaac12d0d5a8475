"""Keeping: one log on its disk, through whatever becomes of its file (docs/decisions/0020).

Rule 1: a file appears with its first lines, whole; where that fails nothing is acknowledged, and nothing is left.
Rule 2: from then on what was put is in the file, or waits in memory in its order.
Rule 3: whatever becomes of the file is a fact that is told, and nothing is written into what is not ours any more.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from refold.errors import RolloutError, RolloutLocked, RolloutUnwritten
from refold.rollout.compressed import differs
from refold.rollout.disk import Disk
from refold.rollout.log_file import DEAD, LinesLost, LogFile
from refold.rollout.waiting import MAX_FACTS, Behind, Change, LogCaughtUp, LogChanged, LogFact, LogWaits, Waiting

TIME_IN_NAME = re.compile(r"^rollout-(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)-")
TIME_FORMAT = "%Y-%m-%dT%H-%M-%S"


class Keeping:
    """Mutable: it holds the file with its lock, and what waits for it."""

    def __init__(self, path: Path, thread_id: str, disk: Disk | None, rescue: tuple[Path, ...] | None) -> None:
        self.path = path
        self.disk = disk or Disk()
        self.waiting = Waiting()
        self.facts: deque[LogFact] = deque(maxlen=MAX_FACTS)
        self.is_lost = False  # the earlier lines cannot be read back: only a checkpoint can begin a new file
        self._thread_id = thread_id
        self._rescue = rescue
        self._file: LogFile | None = None
        self._began = self._closed = False
        self._is_new = False  # whether the folder may not hold its name yet, were the power cut
        self._why: str | None = None  # the log is not wholly on its disk
        self._late = 0  # records that waited since it was

    @property
    def behind(self) -> Behind | None:
        return None if self._why is None else Behind(self._why, self.waiting.records, self.waiting.size)

    def open(self) -> LogFile:
        """Go on in the file that is there. Raises RolloutLocked, RolloutError."""
        try:
            file = LogFile.opened(self.path, self.disk)
        except OSError as error:
            raise RolloutError(f"{self.path} cannot be written: {error.strerror}") from None
        self._take(file)
        if odd := differs(self.path):
            self._change("copy differs", odd)
        return file

    # --- lines in ------------------------------------------------------------------------------------------------

    def put(self, data: bytes, records: int, lines: int) -> None:
        """Write, or let it wait behind what waits. Raises RolloutError with nothing acknowledged."""
        if self._closed:
            raise RolloutError(f"{self.path} is closed; open it again to go on")
        if not self._began:
            self._begin(data)
            return
        error = None
        if self._why is None or self._catch_up():
            try:
                self._ours().write(data)
                return
            except (OSError, RolloutLocked) as found:
                error = found
        why = self._why if error is None else _reason(error)
        self.waiting.add(data, records, lines, f"{self.path} cannot be written: {why}")
        self._late += records
        if error is not None:
            self._wait(error)

    def _begin(self, data: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RolloutError(f"{self.path.parent} cannot be made: {error.strerror}") from None
        file: LogFile | None = None
        try:
            file = LogFile.opened(self.path, self.disk, new=True)
            file.write(data)
        except OSError as error:
            if file is not None:
                file.close()
                with contextlib.suppress(OSError):
                    self.path.unlink()  # a new file without a line is no session
            raise RolloutError(f"{self.path} cannot be written: {error.strerror}") from None
        self._take(file)

    def begin_anew(self, first: bytes) -> None:
        """The earlier lines are lost: a new file begins with this line; what waits and what is put stand behind."""
        self.waiting.put_first(first)
        self._let_go()
        self.path, self.is_lost = free_name(self.path), False
        text = f"the log's file and its lines are lost; {self.path} goes on with all that the session still holds"
        self._change("begun anew", text)

    def sync(self, first: Callable[[], None] | None = None) -> None:
        """Write what waits, then ask the disk to keep everything. Never raises: what cannot be is a fact.

        `first`: keeps what the lines refer to; it may raise OSError.
        """
        if self._closed or not self._began or self.is_lost or not self._catch_up():
            return
        try:
            if first is not None:
                first()
            self._ours(by_name=True).sync()
            self._sync_name()
        except (OSError, RolloutLocked) as error:
            self._wait(error)
            return
        if self._why is not None:
            self._caught_up()

    def close(self) -> None:
        """Release the file and its lock. Raises RolloutUnwritten when the log is not wholly on its disk even now."""
        if self._closed:
            return
        if self._why is not None:
            self.sync()
        self._closed = True
        try:
            if self.waiting:
                raise self._unwritten()
            if self._why is not None:
                why = f"{self.path} may not be safe on its disk: {self._why}"
                raise RolloutUnwritten(f"{why}; copy it to another one", records=0, rescued=None)
        finally:
            self.waiting.clear()
            self._why = None
            self._let_go()

    # --- what waits ----------------------------------------------------------------------------------------------

    def _wait(self, error: OSError | RolloutLocked) -> None:
        why = _reason(error)
        if why != self._why:
            self.facts.append(LogWaits(self.path, why, self.waiting.records, self.waiting.size))
        self._why = why
        if isinstance(error, OSError) and error.errno in DEAD and self._file is not None:
            with contextlib.suppress(OSError, RolloutLocked):
                self._file.renew()

    def _catch_up(self) -> bool:
        """Write what waits, piece by piece: what got through need not be tried again. False: some still waits."""
        waited = bool(self.waiting)
        try:
            while self.waiting and not self.is_lost:
                self._ours().write(self.waiting.first)
                self.waiting.drop_first()
        except (OSError, RolloutLocked) as error:
            self._wait(error)
        if self.waiting or self.is_lost:
            return False
        if waited:
            self._caught_up()
        return True

    def _caught_up(self) -> None:
        self.facts.append(LogCaughtUp(self.path, self._late))
        self._why, self._late = None, 0

    def _unwritten(self) -> RolloutUnwritten:
        """What waits, saved elsewhere; with all lines before it where their file is gone."""
        from refold.rollout.rescue import places, rescued

        count, stays = self.waiting.records, self._file is not None and self._file.state() in ("here", "grown", "moved")

        def fill(fd: int) -> None:
            if not stays and self._file is not None:
                with contextlib.suppress(LinesLost):
                    self._file.copy_to(fd)
            self.disk.write_all(fd, self.waiting.data)

        path = rescued(self._thread_id, fill, places() if self._rescue is None else self._rescue, self.disk)
        what = f"{count} {'record' if count == 1 else 'records'} could not be written to {self.path}: {self._why}"
        if path is None:
            return RolloutUnwritten(f"{what}; no other folder took them: they are lost", records=count, rescued=None)
        how = f"when it can be: cat {path} >> {self.path}" if stays else "with the lines before, where they are left"
        return RolloutUnwritten(f"{what}; they are saved in {path} ({how})", records=count, rescued=path)

    def _sync_name(self) -> None:
        if self._is_new:
            with contextlib.suppress(OSError):  # not every system can
                self.disk.sync_folder(self.path.parent)
            self._is_new = False

    # --- the file ------------------------------------------------------------------------------------------------

    def _take(self, file: LogFile) -> None:
        self._let_go()
        self._file, self._began, self._is_new, self.path = file, True, True, file.path
        if file.unlocked:
            text = f"{file.path} has no lock ({file.unlocked}): see to it that no other program writes this session"
            self._change("unlocked", text)

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _ours(self, *, by_name: bool = False) -> LogFile:
        """The file, still ours; `by_name`: and where the log is looked for. Raises OSError, RolloutLocked."""
        if self._file is None:
            self.path = free_name(self.path)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._take(LogFile.opened(self.path, self.disk, new=True))
            assert self._file is not None
            return self._file
        if by_name or not self._file.is_as_left():
            state = self._file.state()
            if state != "here":
                self._mend(self._file, state)
        return self._file

    def _mend(self, file: LogFile, state: str) -> None:
        """Something became of the file. Raises OSError when the log cannot go on now."""
        path = self.path
        match state:
            case "grown":
                file.accept()
                self._change("shared", f"another program writes into {path}; fork the session to go on without mixing")
            case "moved":
                if (found := file.own_name()) is not None:
                    self.path = file.path = found
                    self._change("moved", f"{path} was moved; the log goes on in {found}")
            case "gone":
                self._copy(file, path)
                self._change("restored", f"{path} was deleted; it is there again, with all its lines")
            case "taken":
                self._copy(file, free_name(path))
                text = f"another file stands at {path} and stays as it is; the log goes on in {self.path}, whole"
                self._change("replaced", text)
            case _:
                self.is_lost = True
                raise OSError(errno.EIO, "lines that were written are missing from it")

    def _copy(self, file: LogFile, path: Path) -> None:
        """All lines in a new file, by way of the old one, which is open still. Raises OSError."""
        try:
            copy = file.copied(path)
        except LinesLost:
            self.is_lost = True
            raise
        if copy is None:
            raise FileExistsError(errno.EEXIST, "another file has just taken its name")
        self._take(copy)

    def _change(self, what: Change, text: str) -> None:
        if not any(isinstance(fact, LogChanged) and fact.text == text for fact in self.facts):
            self.facts.append(LogChanged(self.path, what, text))


def free_name(path: Path) -> Path:
    """This name or, where a file has it, the next one that means the same session: a second later, or with a number."""
    number = 1
    while path.exists():
        told = TIME_IN_NAME.match(path.name)
        if told is not None:
            later = datetime.strptime(told[1], TIME_FORMAT) + timedelta(seconds=1)
            path = path.with_name(f"rollout-{later.strftime(TIME_FORMAT)}-{path.name[told.end() :]}")
        else:
            number += 1
            path = path.with_name(f"{path.name.removesuffix('.jsonl').removesuffix(f'-{number - 1}')}-{number}.jsonl")
    return path


def _reason(error: OSError | RolloutLocked) -> str:
    return str(error) if isinstance(error, RolloutLocked) else error.strerror or str(error)
