"""Reader: the lines of a rollout file, plain or zstd, from its start; it never changes a byte (spec §8.6)."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from refold.core.lines import decode
from refold.core.records import Line
from refold.errors import RolloutCorrupt, RolloutError, RolloutNotFound

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_LINE_BYTES = 1 << 30  # a longer line is an error with its place, not an attempt to hold it


def read_lines(path: Path) -> Iterator[Line]:
    """Every line with its record; blank lines are skipped, damage is a record too.

    Raises RolloutNotFound, RolloutError (unreadable), RolloutCorrupt (a line above 1 GiB, a broken zstd frame).
    """
    with open_rollout(path) as file:
        for number, raw in enumerate(_raw_lines(file, path), 1):
            line = decode(raw, number)
            if line is not None:
                yield line


def find_line(path: Path, ordinal: int) -> str | None:
    """The text of the line that an address means, whole; None when there is none. Bad bytes are replaced."""
    with open_rollout(path) as file:
        for number, raw in enumerate(_raw_lines(file, path), 1):
            line = decode(raw, number)
            if line is not None and line.ordinal == ordinal:
                return raw.strip(b" \t\r\n").decode("utf-8", "replace")
    return None


def open_rollout(path: Path) -> IO[bytes]:
    """The file's bytes as text lines, decompressed when the content (not the name) says zstd."""
    try:
        file = path.open("rb")
        magic = file.read(len(ZSTD_MAGIC))
        file.seek(0)
    except FileNotFoundError:
        raise RolloutNotFound(f"no such file: {path}") from None
    except OSError as error:
        raise RolloutError(f"{path} cannot be read: {error.strerror}") from None
    if magic != ZSTD_MAGIC:
        return file
    file.close()
    return _open_zstd(path)


def _open_zstd(path: Path) -> IO[bytes]:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise RolloutError(f"{path} is compressed; install backports.zstd to read it") from None
    return zstd.open(path, "rb")


def _raw_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    number = 0
    try:
        while raw := file.readline(MAX_LINE_BYTES):
            number += 1
            if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                raise RolloutCorrupt(f"{path}: line {number} is longer than {MAX_LINE_BYTES:,} bytes", line=number)
            yield raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
    except OSError as error:
        raise RolloutError(f"{path} cannot be read: {error.strerror or error}") from None
    except EOFError:
        raise RolloutCorrupt(f"{path}: the compressed file ends in its middle, after line {number}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # the class lives in a module that is only imported when needed
            raise
        raise RolloutCorrupt(f"{path}: broken zstd data after line {number}: {error}") from None
