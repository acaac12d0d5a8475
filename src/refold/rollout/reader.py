"""Reader: the lines of a rollout file, plain or zstd, from its start; it never changes a byte (spec §8.6)."""

from __future__ import annotations

import codecs
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from msgspec.structs import replace

from refold.core.jsonio import dump, is_object, load
from refold.core.lines import decode, has_ordinal, skimmed
from refold.core.records import EventKept, Line, SessionStarted
from refold.errors import RolloutCorrupt, RolloutError, RolloutNotFound
from refold.rollout.blobs import BLOBS, KEPT, MARK, BlobReader, folder_of

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_LINE_BYTES = 1 << 30  # a longer line is an error with its place, not an attempt to hold it
MAX_FIRST_LINE_BYTES = 16 << 20  # the same for a list of sessions, which reads the heads of thousands of files


def read_lines(path: Path, *, head: int | None = None, skim: bool = False) -> Iterator[Line]:
    """Every line with its record; blank lines are skipped, damage is a record too. A warning says where it stands.

    `skim`: for a fold; lines that change nothing are left out, save one at the end that holds their highest ordinal.
    `head`: only the whole lines within so many bytes, and the first one if it has no more than 16 MiB.
    Raises RolloutNotFound, RolloutError (unreadable), RolloutCorrupt (a line above 1 GiB, a broken zstd frame).
    """
    reading = Reading(path)

    def decoded(number: int, offset: int, raw: bytes) -> Line | None:
        line = reading.decode(raw, number) if b"$" in raw else decode(raw, number)  # most lines have none
        if line is None or not line.warning:
            return line
        return replace(line, warning=f"line {number}, byte {offset}: {line.warning}")

    with open_rollout(path) as file:
        places = raw_lines(file, path, head)
        if skim:
            yield from for_fold(places, decoded)
        else:
            yield from (line for place in places if (line := decoded(*place)) is not None)


def for_fold(
    places: Iterable[tuple[int, int, bytes]], decoded: Callable[[int, int, bytes], Line | None]
) -> Iterator[Line]:
    """The lines that a fold needs, of (number, offset, raw) as `raw_lines` gives them: those that change nothing are
    left out, save one at the end that holds their highest ordinal."""
    highest = -1
    for number, offset, raw in places:
        found = skimmed(raw)
        if found is None:
            line = decoded(number, offset, raw)
            if line is not None:
                yield line
        elif isinstance(found, Line):
            yield found
        elif found > highest:
            highest = found
    if highest >= 0:
        yield Line(highest, EventKept({}))


class Reading:
    """How the lines of one file are read: with the texts that lie beside it. Mutable: it learns whether any do.

    `kept`: bytes of such texts that are held, because a later line may say them again.
    """

    def __init__(self, path: Path, kept: int = KEPT) -> None:
        self._path, self._kept = path, kept
        self._blobs: BlobReader | None = None
        self._asked = False

    def decode(self, raw: bytes, number: int) -> Line | None:
        """The record of one line; see `refold.core.lines.decode`."""
        blobs = self._blobs_of() if b"$" in raw and MARK in raw else None
        return decode(raw, number) if blobs is None else decode(raw, number, blobs.whole)

    def whole(self, raw: bytes) -> tuple[bytes, str | None]:
        """A line with its texts in it, and a warning where some are missing; as it stands where it needs none."""
        blobs = self._blobs_of() if MARK in raw else None
        try:
            value = None if blobs is None else load(raw.strip(b" \t\r\n"))[0]
        except ValueError:
            return raw, None
        if blobs is None or not is_object(value):
            return raw, None
        found, missing = blobs.whole(value)
        return dump(found), missing

    def _blobs_of(self) -> BlobReader | None:
        if not self._asked:
            self._asked = True
            self._blobs = BlobReader(folder_of(self._path), self._kept) if keeps_blobs(self._path) else None
        return self._blobs


def keeps_blobs(path: Path) -> bool:
    """Whether a file's long texts lie beside it, as its identity says. Raises as `read_lines` does."""
    with open_rollout(path) as file:
        for number, _, raw in raw_lines(file, path):
            line = decode(raw, number)
            if line is not None and isinstance(line.record, SessionStarted):
                return line.record.history_mode == BLOBS
    return False


def find_line(path: Path, ordinal: int) -> str | None:
    """The text of the line that an address means, whole; None when there is none. Bad bytes are replaced.

    A line's own ordinal comes before the number of a line that has none, as a damaged one.
    """
    reading = Reading(path)
    meant: bytes | None = None
    numbered: bool | None = None  # whether the file's lines have ordinals
    with open_rollout(path) as file:
        for number, _, raw in raw_lines(file, path):
            line = decode(raw, number)
            if line is None:
                continue
            if numbered is None:
                numbered = has_ordinal(raw)
            if line.ordinal == ordinal:
                meant = meant or raw
                if not numbered or has_ordinal(raw):
                    return _text(reading.whole(raw)[0])
    return None if meant is None else _text(reading.whole(meant)[0])


def is_zstd(path: Path) -> bool:
    """Whether a file's content (not its name) says that it is compressed. Raises RolloutNotFound, RolloutError."""
    with _open(path) as file:
        try:
            return file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
        except OSError as error:
            raise RolloutError(f"{path} cannot be read: {error.strerror}") from None


def open_rollout(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed where its content (not its name) says zstd. Raises like `is_zstd`."""
    return _open_zstd(path) if is_zstd(path) else _open(path)


def damage(path: Path, error: Exception, line: int) -> RolloutError | None:
    """What an error while reading a file's bytes means; None when it is not about the file."""
    if isinstance(error, OSError):
        return RolloutError(f"{path} cannot be read: {error.strerror or error}")
    if isinstance(error, EOFError):
        return RolloutCorrupt(f"{path}: the compressed file ends in its middle, after line {line}")
    if type(error).__name__ == "ZstdError":  # the class lives in a module that is only imported when needed
        return RolloutCorrupt(f"{path}: broken zstd data after line {line}: {error}")
    return None


def _open(path: Path) -> IO[bytes]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe has no start to come back to, and may never begin
            raise RolloutError(f"{path} is not a regular file")
        return path.open("rb")
    except FileNotFoundError:
        raise RolloutNotFound(f"no such file: {path}") from None
    except OSError as error:
        raise RolloutError(f"{path} cannot be read: {error.strerror}") from None


def _open_zstd(path: Path) -> IO[bytes]:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise RolloutError(f"{path} is compressed; install backports.zstd to read it") from None
    return cast("IO[bytes]", zstd.open(path, "rb"))


def raw_lines(
    file: IO[bytes], path: Path, head: int | None = None, *, start: int = 0
) -> Iterator[tuple[int, int, bytes]]:
    """(number, offset in bytes, the line with its end), numbers from 1 at the line that begins at `start`.

    Raises RolloutError, RolloutCorrupt as `read_lines` does.
    """
    number, offset = 0, start
    try:
        if file.tell() != start:
            file.seek(start)
        # where no line can be too long, they are read the quick way
        lines = file if head is None and _most_bytes(file) <= MAX_LINE_BYTES else _limited(file, path, head, start)
        for number, raw in enumerate(lines, 1):
            yield number, offset, raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
            offset += len(raw)
    except RolloutError:
        raise
    except Exception as error:
        raise damage(path, error, number) or error from None


def _most_bytes(file: IO[bytes]) -> float:
    """Bytes that a file can give; infinite where it is unpacked as it is read."""
    return os.fstat(file.fileno()).st_size if isinstance(file, io.BufferedReader) else float("inf")


def _limited(file: IO[bytes], path: Path, head: int | None, start: int) -> Iterator[bytes]:
    """The lines, or those that lie wholly in the head. Raises RolloutCorrupt for one that is too long."""
    number, offset = 0, start
    longest = MAX_LINE_BYTES if head is None else max(head, MAX_FIRST_LINE_BYTES)
    while longest > 0 and (raw := file.readline(longest)):
        number += 1
        if len(raw) == longest and not raw.endswith(b"\n"):
            if head is not None and number > 1:
                return  # it goes on beyond the head
            where = f"a line at byte {offset}" if start else f"line {number}, at byte {offset},"
            raise RolloutCorrupt(f"{path}: {where} is longer than {longest:,} bytes", line=None if start else number)
        yield raw
        offset += len(raw)
        longest = MAX_LINE_BYTES if head is None else head - offset


def _text(raw: bytes) -> str:
    return raw.strip(b" \t\r\n").decode("utf-8", "replace")
