"""Waiting: lines that the disk does not take yet, in their order and bounded, and what is said of a log's file.

A fact (LogWaits, LogCaughtUp, LogChanged) is one line for a person when it is printed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from refold.errors import RolloutError

MAX_WAITING_BYTES = 64 << 20  # hours of a session; more would take from the memory that the session itself needs
MAX_FACTS = 16  # that nobody asked for yet: the newest ones tell enough


class Behind(msgspec.Struct, frozen=True):
    """Why a log is not wholly on its disk. `records` wait in memory, `size` bytes of them; 0: only the sync failed."""

    why: str
    records: int
    size: int


class LogWaits(msgspec.Struct, frozen=True):
    """The log's file takes nothing now: what is recorded waits in memory, and is tried again."""

    path: Path
    why: str
    records: int
    size: int  # bytes

    def __str__(self) -> str:
        if not self.records:
            return f"the log is not safe on its disk: {self.path}: {self.why}; it is tried again"
        count = "1 record waits" if self.records == 1 else f"{self.records} records wait"
        return f"the log cannot be written: {self.path}: {self.why}; {count} in memory only and will be tried again"


class LogCaughtUp(msgspec.Struct, frozen=True):
    """Everything that was recorded is on the disk again; `records` had waited."""

    path: Path
    records: int

    def __str__(self) -> str:
        waited = f", with {self.records} that waited" if self.records else ""
        return f"the log is on its disk again: {self.path}{waited}"


Change: TypeAlias = Literal["moved", "restored", "replaced", "begun anew", "shared", "unlocked", "copy differs"]


class LogChanged(msgspec.Struct, frozen=True):
    """Somebody did something to the log's file: `text` says what, and what was done about it. Nothing waits for it."""

    path: Path  # where the log goes on
    what: Change
    text: str

    def __str__(self) -> str:
        return self.text


LogFact: TypeAlias = LogWaits | LogCaughtUp | LogChanged


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """The lines of one append: so many records, and so many lines."""

    data: bytes
    records: int
    lines: int


def _numbered(line: bytes, ordinal: int) -> bytes:
    """A line of ours with an ordinal, which stands behind its timestamp."""
    stamp, mark, rest = line.partition(b'",')
    return b'%b",%b%b' % (stamp, b'"ordinal":%d,' % ordinal, rest) if mark else line


class Waiting:
    """Mutable: pieces come in at the end and leave at the start, as they were acknowledged."""

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self.size = self.records = self.lines = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def first(self) -> bytes:
        return self._pieces[0].data

    @property
    def data(self) -> bytes:
        """All of it."""
        return b"".join(piece.data for piece in self._pieces)

    def raw_lines(self) -> Iterator[bytes]:
        for piece in list(self._pieces):
            yield from piece.data.splitlines()

    def add(self, data: bytes, records: int, lines: int, why: str) -> None:
        """Raises RolloutError, with nothing changed, when it would be more than is held."""
        if self.size + len(data) > MAX_WAITING_BYTES:
            raise RolloutError(
                f"{why}; {self.records} records wait in memory already and at most {MAX_WAITING_BYTES:,} bytes may:"
                " make the log writable to go on"
            )
        self._pieces.append(_Piece(data, records, lines))
        self._count(self._pieces[-1], 1)

    def number(self, first: int) -> None:
        """Give the lines, which have none, ordinals from this one on."""
        for _ in range(len(self._pieces)):
            piece = self._pieces.popleft()
            lines = [_numbered(line, first + at) for at, line in enumerate(piece.data.splitlines(keepends=True))]
            self._pieces.append(_Piece(b"".join(lines), piece.records, piece.lines))
            first += piece.lines
        self.size = sum(len(piece.data) for piece in self._pieces)

    def put_first(self, data: bytes) -> None:
        """A line that has to stand before what waits."""
        self._pieces.appendleft(_Piece(data, 0, 1))
        self._count(self._pieces[0], 1)

    def _count(self, piece: _Piece, sign: int) -> None:
        self.size += sign * len(piece.data)
        self.records += sign * piece.records
        self.lines += sign * piece.lines

    def drop_first(self) -> None:
        """It is written."""
        self._count(self._pieces.popleft(), -1)

    def clear(self) -> None:
        while self._pieces:
            self.drop_first()
