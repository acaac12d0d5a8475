"""Reading: a rollout read on from where it was read last, or from its start where it is not what it was."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from refold.core.jsonio import is_object, load
from refold.errors import RolloutError
from refold.rollout.index.facts import Facts
from refold.rollout.index.whole import Whole
from refold.rollout.reader import damage, is_zstd, open_rollout

LONGEST_LINE = 64 << 20  # bytes; a longer one is passed over, so that memory stays bounded
MARKED = 1024  # bytes at a file's start, and before the place where its reading ended, that tell whether it is the same
BOM = b"\xef\xbb\xbf"


class Known(msgspec.Struct, frozen=True):
    """How far a file is read: facts are those of its first `offset` bytes (unpacked), which are `lines` lines."""

    facts: bytes = b""
    mark: bytes = b""
    offset: int = 0
    lines: int = 0


class Reading(msgspec.Struct, frozen=True):
    """What one reading came to. `is_more`: it went on from what was known."""

    facts: Facts
    known: Known
    is_more: bool


_facts = msgspec.msgpack.Decoder(Facts).decode
_packed = msgspec.msgpack.Encoder().encode


def read_on(path: Path, known: Known | None) -> Reading:
    """The facts of a file. What is wrong with it is one of them; nothing is raised about the file."""
    try:
        with open_rollout(path) as file:
            if is_zstd(path):  # never appended to
                return _read(file, path, Known(), is_packed=True)
            if known is not None and known.offset and _mark(file.fileno(), known.offset) == known.mark:
                return _read(file, path, known)
            return _read(file, path, Known())
    except OSError as error:
        return Reading(Facts(problem=str(damage(path, error, 0))), Known(), is_more=False)
    except RolloutError as error:
        return Reading(Facts(problem=str(error)), Known(), is_more=False)


def _read(file: IO[bytes], path: Path, known: Known, *, is_packed: bool = False) -> Reading:
    facts = _facts(known.facts) if known.facts else Facts()
    facts.problem = None
    offset, lines, whole = known.offset, known.lines, Whole(path)
    try:
        for number, end, raw in lines_from(file, offset, lines):
            facts.read(raw, whole)
            offset, lines = end, number
    except Exception as error:
        found = damage(path, error, lines)
        if found is None:
            raise
        facts.problem = str(found)
    mark = b"" if is_packed else _mark(file.fileno(), offset)
    return Reading(facts, Known(_packed(facts), mark, offset, lines), is_more=known.offset > 0)


def lines_from(
    file: IO[bytes], offset: int, lines: int, until: int | None = None, *, longest: int = LONGEST_LINE
) -> Iterator[tuple[int, int, bytes]]:
    """(number, where it ends, the line) from a place on, before which there are so many lines.

    A last line without an end counts as one if it is a whole object; the line end that comes later belongs to it. Of a
    line beyond the longest only the beginning is given.
    """
    if offset:
        file.seek(offset - 1)
        lines -= file.read(1) != b"\n"
    while until is None or offset < until:
        raw = file.readline(longest)
        start, offset = offset, offset + len(raw)
        whole = raw.endswith(b"\n")
        while raw and not whole and offset - start >= longest and (more := file.readline(longest)):
            offset, whole = offset + len(more), more.endswith(b"\n")
        if not raw or not (whole or _is_object(raw)):
            return
        lines += 1
        yield lines, offset, raw.removeprefix(BOM) if start == 0 else raw


def _is_object(raw: bytes) -> bool:
    try:
        return is_object(load(raw.strip(b" \t\r"))[0])
    except ValueError:
        return False


def _mark(descriptor: int, offset: int) -> bytes:
    """What the bytes before a place look like: their first, and their last."""
    first = os.pread(descriptor, min(MARKED, offset), 0)
    last = os.pread(descriptor, min(MARKED, offset), max(0, offset - MARKED))
    return hashlib.blake2b(first + last, digest_size=16).digest()
