"""Backward: the lines of a rollout that are enough to fold it, found from its end (spec §8.7, docs/rollout.md).

Rule 1: they fold to the thread that the whole file folds to.
Rule 2: what is read follows the active history; only where a checkpoint of another program does not carry enough is the
rest looked through, for the remainder. Where even this is not enough, the file is read whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from refold.core.compaction.carried import carried_by, told_by_another
from refold.core.compaction.shadow import seal_of, shadows_of
from refold.core.history import is_user_turn
from refold.core.lines import has_ordinal, mattering, ordinal_of
from refold.core.records import (
    Compacted,
    EventKept,
    ItemRecorded,
    Line,
    LineDamaged,
    LineKept,
    RolledBack,
    SessionStarted,
    SettingsApplied,
    SteerQueued,
    TurnStarted,
    UsageCounted,
    Window,
    WorldObserved,
)
from refold.rollout.reader import Reading, damage, for_fold, is_zstd, open_rollout, raw_lines, read_lines

BLOCK = 1 << 20  # bytes that are held at once
CHECKPOINT = b'"compacted"'  # inside a text its quotes would be escaped
ROLLBACK = b"thread_rolled_back"
OURS = b'"refold":'
RESUMED = b'"resume_metadata":'
STEP = 1 << 14  # bytes of the first look for a line's start; each further one is four times as large
HEAD = 128  # bytes in which a line says what it is

_skip = msgspec.json.Decoder(msgspec.Raw).decode
_TOO_LONG = re.compile(rb"[0-9]{4301}")  # digits that Python makes no number of


class Tail(msgspec.Struct, frozen=True):
    """The lines that are enough, in order."""

    lines: list[Line]
    is_whole: bool = True  # every line of the file
    is_alone: bool = False  # nothing outside of the file matters either: its checkpoint carries everything


class _Whole(Exception):
    """The whole file has to be read."""


def tail_of(path: Path, *, before: int | None = None, block: int = BLOCK) -> Tail:
    """What is enough to fold a file; `before`: as if it ended before the line with this ordinal.

    It is searched in pieces of `block` bytes. Compressed files are read whole. Raises what `read_lines` does.
    """
    if not is_zstd(path):
        with open_rollout(path) as file:
            try:
                return _Search(file, path, before, block).tail()
            except _Whole:
                pass
            except OSError as error:
                raise damage(path, error, 0) or error from None
    lines = read_lines(path, skim=True)
    return Tail(list(lines) if before is None else [line for line in lines if line.ordinal < before])


class _Search:
    """One search in one open file. Mutable: it holds the file and how many lines stand before the tail."""

    def __init__(self, file: IO[bytes], path: Path, before: int | None, block: int) -> None:
        self.file, self.path = file, path
        self.fd = file.fileno()
        self.reading = Reading(path)
        self.end = os.fstat(self.fd).st_size
        self.before = before
        self.block = block

    def tail(self) -> Tail:
        if self.before is not None:
            self.end = self._end_before(self.before)
        found = self._newest()
        if found is None:
            raise _Whole
        start, checkpoint = found
        meta = self._meta(start)
        behind = list(self._from(start))
        is_alone = _says_all(checkpoint, _id(meta)) or (_says_most(checkpoint, meta) and _says_settings(behind))
        told = [] if is_alone else self._told(start, checkpoint, meta)
        return Tail([meta, *told, *behind], is_whole=False, is_alone=is_alone)

    # --- the newest checkpoint that counts -------------------------------------------------------------------

    def _newest(self) -> tuple[int, Compacted] | None:
        """Where the newest checkpoint with a history begins that no later rollback undoes, and the checkpoint."""
        for start, rolled in self._places():
            raw = next((raw for _, _, raw in raw_lines(self.file, self.path, start=start)), b"")
            line = self.reading.decode(raw, 0) if mattering([raw]) else None
            if line is None or not isinstance(line.record, Compacted) or line.record.history is None:
                continue
            if not (rolled and _reach_beyond(self._from(start))):
                return start, line.record
        return None

    def _places(self) -> Iterator[tuple[int, bool]]:
        """Where lines begin that may be checkpoints, newest first; and whether a rollback may stand behind one."""
        high, rolled = self.end, False
        while high > 0:
            low = max(0, high - self.block)
            block = os.pread(self.fd, min(high + len(ROLLBACK), self.end) - low, low)  # one may lie across the end
            rolled = rolled or block.rfind(ROLLBACK) >= 0  # quicker than `in`
            at = block.rfind(CHECKPOINT, 0, high - low + len(CHECKPOINT) - 1)  # what begins behind was found before
            high = low
            if at >= 0:
                high = self._line_start(low + at)
                yield high, rolled

    def _line_start(self, at: int) -> int:
        """Where the line begins that the byte `at` belongs to."""
        step = min(STEP, self.block)
        while at > 0:
            low = max(0, at - step)
            found = os.pread(self.fd, at - low, low).rfind(b"\n")
            if found >= 0:
                return low + found + 1
            at, step = low, min(step * 4, self.block)
        return 0

    def _end_before(self, ordinal: int) -> int:
        """Where the lines end whose ordinals are below this one."""
        end = self.end
        while end > 0:
            start = self._line_start(end - 1)
            own = ordinal_of(os.pread(self.fd, min(end - start, HEAD), start))
            if own is None:
                raise _Whole  # a line without one: who stands before whom is a question for a whole reading
            if own < ordinal:
                break
            end = start
        return end

    # --- from there on ---------------------------------------------------------------------------------------

    def _from(self, start: int) -> Iterator[Line]:
        """The lines from a place on, as `read_lines` gives them for a fold."""
        before: int | None = None  # lines; counted where it is needed

        def decoded(number: int, _: int, raw: bytes) -> Line | None:
            nonlocal before
            line = self.reading.decode(raw, number + (before or 0))
            if line is None or before is not None:
                return line
            if isinstance(line.record, LineDamaged) or not _is_numbered(raw):
                before = self._lines_before(start)
                return self.reading.decode(raw, number + before) or line
            return line

        places = raw_lines(self.file, self.path, start=start)
        return for_fold(takewhile(lambda place: place[1] < self.end, places), decoded)

    def _lines_before(self, end: int) -> int:
        places = range(0, end, self.block)
        return sum(os.pread(self.fd, min(self.block, end - place), place).count(b"\n") for place in places)

    # --- before it -------------------------------------------------------------------------------------------

    def _meta(self, end: int) -> Line:
        """The session's identity. Raises _Whole where it is not the first record: what is before it has no address."""
        for number, offset, raw in raw_lines(self.file, self.path):
            line = self.reading.decode(raw, number) if offset < end else None
            if line is not None and isinstance(line.record, SessionStarted):
                return line
            if offset >= end or (line is not None and not isinstance(line.record, LineDamaged)):
                break
        raise _Whole

    def _told(self, end: int, checkpoint: Compacted, meta: Line) -> list[Line]:
        """What stands before a checkpoint that does not carry it, and still matters. Raises _Whole."""
        gathered = _Gathered(checkpoint, meta, self.reading)
        for lines in self._backwards(end):
            for raw in reversed(mattering(lines, only_counts=gathered.only_counts)):
                if gathered.take(raw):
                    return gathered.in_order()
        return gathered.in_order()

    def _backwards(self, end: int) -> Iterator[list[bytes]]:
        """The lines before a place in blocks, the newest block first, each in order and without line ends."""
        rest: list[bytes] = []  # of the line whose start is still to be found, last piece first
        while end > 0:
            low = max(0, end - self.block)
            first, *lines = os.pread(self.fd, end - low, low).split(b"\n")
            end = low
            if lines:
                lines[-1] = b"".join([lines[-1], *reversed(rest)])
                rest = []
                yield lines
            rest.append(first)
        yield [b"".join(reversed(rest))]


class _Gathered:
    """What is taken of the lines before a checkpoint, newest first. Mutable: it grows line by line, and knows of each
    thing whether an older line may still tell it."""

    def __init__(self, checkpoint: Compacted, meta: Line, reading: Reading) -> None:
        self.meta, self.reading = meta, reading
        self.most = _says_most(checkpoint, meta)
        self.sealed = not self.most and any(seal_of(item) for item in checkpoint.history or ())
        self.steers = not self.most and checkpoint.steers is None
        self.window = checkpoint.window is None
        self.settings = checkpoint.settings is None
        self.usage = not self.most
        self.began = self.most  # a turn
        self.told = False  # usage of a response
        self.lines: list[Line] = []

    def in_order(self) -> list[Line]:
        return self.lines[::-1]

    @property
    def only_counts(self) -> bool:
        """Whether older lines only add to what is counted."""
        return self.began and not self.usage and not self.settings

    def take(self, raw: bytes) -> bool:
        """Look at one more line; True when nothing before it matters. Raises _Whole."""
        if not self.window and _is_foreign_checkpoint(raw):
            self.lines.append(Line(0, Compacted(message="", history=(), window=Window())))  # it is only counted
            return False
        line = self.reading.decode(raw, 0)
        return line is not None and self._take(line)

    def _take(self, line: Line) -> bool:
        match line.record:
            case RolledBack():
                raise _Whole  # which turns it undid, and which checkpoints in them, only the items tell
            case SteerQueued() if self.steers:
                raise _Whole  # whether it was delivered, too
            case Compacted() as record:
                return self._take_checkpoint(line, record)
            case SettingsApplied() if self.settings:
                self.lines.append(line)
                self.settings = False
                return self.most
            case UsageCounted(last=last) if self.usage:
                self.told = self.told or bool(last.input_tokens or last.output_tokens)
                self.usage = not (self.began and self.told)
            case TurnStarted():
                self.began = True
            case SettingsApplied() | UsageCounted() | ItemRecorded() | WorldObserved() | SessionStarted():
                return False  # told by a newer line, or by the checkpoint itself
            case EventKept() | LineKept() | LineDamaged():
                return False
            case _:
                pass
        self.lines.append(line)
        return False

    def _take_checkpoint(self, line: Line, record: Compacted) -> bool:
        if self.sealed and shadows_of(record):
            raise _Whole  # whether its encrypted items are those of the newest checkpoint
        self.steers = self.steers and record.steers is None
        self.window = self.window and record.window is None
        self.settings = self.settings and record.settings is None
        payload = record.payload if record.history is not None else {}  # one without a history is only counted
        self.lines.append(replace(line, record=replace(record, history=(), addresses=(), payload=payload)))
        if _says_most(record, self.meta):
            self.most, self.steers, self.sealed = True, False, False
        return _says_all(record, _id(self.meta)) or (self.most and not self.settings)


def _says_all(checkpoint: Compacted, thread_id: str) -> bool:
    """Whether nothing that stands before a checkpoint matters: it is one of ours, whole."""
    named = checkpoint.window is not None and checkpoint.steers is not None
    return named and carried_by(checkpoint, thread_id) is not None


def _says_most(checkpoint: Compacted, meta: Line) -> bool:
    """Whether all that matters of what stands before a checkpoint are the settings."""
    return isinstance(meta.record, SessionStarted) and told_by_another(checkpoint, meta.record) is not None


def _says_settings(lines: Iterable[Line]) -> bool:
    """Whether lines say the settings in force, and no rollback takes that back."""
    kinds = {type(line.record) for line in lines}
    return SettingsApplied in kinds and RolledBack not in kinds


def _is_foreign_checkpoint(raw: bytes) -> bool:
    """Whether a whole line is surely a checkpoint of the real program that carries nothing."""
    start = b'"type":"compacted","payload":{"message":"'
    whole = start in raw[:HEAD] and raw.endswith(b"}}") and b'}{"timestamp"' not in raw
    return whole and OURS not in raw and RESUMED not in raw and _is_json(raw)


def _is_json(raw: bytes) -> bool:
    """Whether a line is JSON, without making anything of it."""
    try:
        _skip(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return _TOO_LONG.search(raw) is None


def _is_numbered(raw: bytes) -> bool:
    return ordinal_of(raw) is not None or has_ordinal(raw)


def _id(meta: Line) -> str:
    return meta.record.thread_id if isinstance(meta.record, SessionStarted) else ""


def _reach_beyond(lines: Iterable[Line]) -> bool:
    """Whether rollbacks in these lines undo the turn in which they begin, counting as `Thread.replay` does."""
    spoken = [False]  # of each turn, whether somebody spoke in it
    for line in lines:
        match line.record:
            case TurnStarted():
                spoken.append(False)
            case ItemRecorded(item=item):
                spoken[-1] = spoken[-1] or is_user_turn(item)
            case RolledBack(turns=count):
                while count > 0 and len(spoken) > 1:
                    count -= spoken.pop()
                if count > 0:
                    return True
            case _:
                pass
    return False
