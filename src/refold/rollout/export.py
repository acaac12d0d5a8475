"""Export: a session as one file that stands alone: no blob, no other file, nothing compressed (docs/export.md).

Rule 1: it folds to the thread that the session folds to.
Rule 2: a line that needs no change is the same, byte for byte; line numbers and ordinals stay.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias

from refold.core.jsonio import dump, is_object, load
from refold.core.lines import decode, encode, has_ordinal, ordinal_of
from refold.core.records import JSON, Compacted, Line, Record, SessionStarted, SettingsApplied, WorldObserved
from refold.errors import RolloutCorrupt, RolloutError, RolloutNotFound
from refold.rollout.blobs import BLOBS, PLAIN, sync_path
from refold.rollout.lineage import Base, active_lines, base_of, find_base, taken_over
from refold.rollout.reader import Reading, open_rollout, raw_lines

OURS = "refold"  # the key of a `session_meta` under which the mode stands that a file had before its blobs
BLOCK = 1 << 20  # bytes that are written at once

Told: TypeAlias = Callable[[str], None]
Likeness: TypeAlias = Literal["same", "begins", "differs"]


def self_contained(path: Path, tell: Told) -> Iterator[bytes]:
    """A session's lines without their ends, such that no other file is needed.

    A file that it goes on from is taken over: of the same thread its lines, of another one its active history, in one
    checkpoint. `tell` is told what is missing. Raises RolloutNotFound (also for such a file), RolloutError,
    RolloutCorrupt.
    """
    return _Exported(tell).lines(path)


class _Exported:
    """One export. `tell` takes one line for a person."""

    def __init__(self, tell: Told) -> None:
        self._tell = tell

    def lines(self, path: Path, before: int | None = None, above: tuple[Path, ...] = ()) -> Iterator[bytes]:
        """A file's lines; `before`: as if it ended before that ordinal; `above`: the files that go on from it."""
        if path in above:
            names = ", ".join(one.name for one in (*above, path))
            raise RolloutCorrupt(f"files that go on from each other in a circle: {names}")
        reading, begun = Reading(path), False
        with open_rollout(path) as file:
            for number, _, raw in raw_lines(file, path):
                raw = raw.removesuffix(b"\n")
                if before is not None and _ordinal(raw, number) >= before:
                    continue
                line = None if begun else decode(raw, number)
                if line is not None and isinstance(line.record, SessionStarted):
                    begun = True
                    yield from self._beginning(path, raw, line, line.record, above)
                else:
                    yield self._whole(reading, raw, path, number)

    def _whole(self, reading: Reading, raw: bytes, path: Path, number: int) -> bytes:
        found, missing = reading.whole(raw)
        if missing:
            self._tell(f"{path.name}: line {number}: {missing}")
        return found

    def _beginning(
        self, path: Path, raw: bytes, line: Line, meta: SessionStarted, above: tuple[Path, ...]
    ) -> Iterator[bytes]:
        """The identity, and what stands before the file's own lines."""
        base = base_of(meta)
        if base is None:
            yield _identity(raw) if meta.history_mode == BLOBS else raw
            return
        try:
            source = find_base(path, base)
        except RolloutNotFound as error:
            active_lines(path)  # raises when the file cannot do without it
            self._tell(str(error))
            yield _identity(raw)
            return
        if base.thread_id == meta.thread_id:
            yield from self._same_thread(raw, source, base, (*above, path))
        else:
            yield from _inherited(path, raw, line, meta, base, above)

    def _same_thread(self, raw: bytes, source: Path, base: Base, above: tuple[Path, ...]) -> Iterator[bytes]:
        """The lines of the base, under the identity of the file that goes on from it."""
        begun = False
        for one in self.lines(source, base.end, above):
            line = None if begun else decode(one, 0)
            if line is not None and isinstance(line.record, SessionStarted):
                begun = True
                yield _identity(raw, ordinal=line.ordinal)
            else:
                yield one


def _inherited(
    path: Path, raw: bytes, line: Line, meta: SessionStarted, base: Base, above: tuple[Path, ...]
) -> Iterator[bytes]:
    """What a fork takes over, as a child of refold's begins: one checkpoint, with the lines that repeat its parts."""
    records: list[Record] = []
    for one in taken_over(path, line, base, above):
        records.append(one.record)
        if isinstance(one.record, Compacted):
            world, settings = one.record.world, one.record.settings
            records += [WorldObserved(True, world)] if world is not None else []
            records += [SettingsApplied(settings)] if settings is not None else []
    numbered = has_ordinal(raw)
    yield _identity(raw, ordinal=0 if numbered else None)
    for place, record in enumerate(records, 1):  # the file's own lines keep theirs, which are higher
        data, _, _ = encode(
            record,
            thread_id=meta.thread_id,
            turn_id=None,
            timestamp=line.timestamp or meta.timestamp,
            ordinal=place if numbered else None,
        )
        yield data.rstrip(b"\n")


def _identity(raw: bytes, *, ordinal: int | None = None) -> bytes:
    """A `session_meta` line of a file that stands alone."""
    line: JSON = dict(load(raw.strip(b" \t\r\n"))[0])
    if ordinal is not None:
        line["ordinal"] = ordinal
    payload = line.get("payload")
    found = dict(payload if is_object(payload) else line)
    found.pop("history_base", None)
    if found.get("history_mode") == BLOBS:
        told = found.get(OURS)
        kept = {key: value for key, value in told.items() if key != "history_mode"} if is_object(told) else {}
        found["history_mode"] = told.get("history_mode", PLAIN) if is_object(told) else PLAIN
        found.pop(OURS, None)
        found |= {OURS: kept} if kept else {}
    return dump({**line, "payload": found} if is_object(payload) else found)


def _ordinal(raw: bytes, number: int) -> int:
    own = ordinal_of(raw)
    if own is not None:
        return own
    line = decode(raw, number)
    return -1 if line is None else line.ordinal


# --- beside another one ----------------------------------------------------------------------------------------------


def likeness(lines: Iterable[bytes], other: Iterable[bytes]) -> Likeness:
    """Whether two sessions' lines say the same, or the other one's begin with the first one's."""
    for one, two in zip_longest(lines, other):
        if one is None:
            return "begins"
        if two is None or (one != two and _value(one) != _value(two)):
            return "differs"
    return "same"


def _value(raw: bytes) -> Any:
    try:
        return load(raw.strip(b" \t\r\n"))[0]
    except ValueError:
        return raw.rstrip(b"\r")


# --- into a file -----------------------------------------------------------------------------------------------------


def write_new(lines: Iterable[bytes], target: Path, *, replace: bool = False) -> int:
    """Write lines into a file that appears whole, for its owner only: how many bytes.

    Raises RolloutError when it cannot be written, or is there and must not be replaced.
    """
    if not replace and os.path.lexists(target):
        raise RolloutError(f"{target} is there already; --force replaces it")
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        size = _filled(aside, lines)
        if replace:
            aside.replace(target)
        else:
            give_name(aside, target)
    except FileExistsError:
        raise RolloutError(f"{target} is there already; --force replaces it") from None
    except OSError as error:
        raise RolloutError(f"{target} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return size


def _filled(path: Path, lines: Iterable[bytes]) -> int:
    size = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", buffering=BLOCK) as file:
        for line in lines:
            size += file.write(line) + file.write(b"\n")
    sync_path(path)
    return size


def give_name(aside: Path, target: Path) -> None:
    """Let a finished file appear under a name. Raises FileExistsError where it is taken, OSError."""
    try:
        os.link(aside, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        aside.rename(target)
