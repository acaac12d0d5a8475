"""Ends: what an open log says: whether its last line is whole, its newest ordinal, how many lines it has."""

from __future__ import annotations

import os
from collections.abc import Iterator

from refold.core.lines import decode, has_ordinal
from refold.core.records import LineDamaged

TAIL_BLOCK = 64 * 1024
COUNT_BLOCK = 1024 * 1024


def ends_torn(fd: int) -> bool:
    """Whether the last line lacks its end."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def newest_ordinal(fd: int) -> int | None:
    """The ordinal of the newest line that is a record; None when that carries none."""
    for raw in _lines_backwards(fd):
        line = decode(raw, 0)
        if line is not None and not isinstance(line.record, LineDamaged):
            return line.ordinal if has_ordinal(raw) else None
    return None


def line_count(fd: int) -> int:
    """How many lines a file has, a torn last one included."""
    count = offset = 0
    while block := os.pread(fd, COUNT_BLOCK, offset):
        count += block.count(b"\n")
        offset += len(block)
    return count + ends_torn(fd)


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
