"""Lineage: the file that another one goes on from without a copy: a fork, a revert (`history_base`, oracle §8).

Rule 1: how much of the base counts is said by an ordinal. Byte offsets are hints: they choose among files, no more.
Rule 2: what is taken over from another thread keeps its addresses, in one checkpoint; of the same thread, its lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from refold.core.compaction.whole import whole
from refold.core.jsonio import is_object
from refold.core.lines import ordinal_of
from refold.core.records import Line, SessionStarted, UsageCounted
from refold.core.thread import Thread
from refold.errors import RolloutCorrupt, RolloutError, RolloutNotFound
from refold.rollout.backward import tail_of
from refold.rollout.catalogue import Catalogue
from refold.rollout.index.tree import FOLDERS
from refold.rollout.reader import is_zstd, read_lines


class Base(msgspec.Struct, frozen=True):
    """What a `session_meta` says of the file that it goes on from."""

    thread_id: str
    end: int  # the first ordinal that does not count any more
    offset: int | None = None  # bytes; where that line began once


def active_lines(path: Path, *, before: int | None = None) -> list[Line]:
    """The lines that fold to a file's thread: those after its newest checkpoint, and what else matters.
    `before`: as if the file ended before the line with this ordinal.

    Files that it goes on from are read as far as they are needed. Raises RolloutNotFound (also for such a file, which
    it names), RolloutError, RolloutCorrupt.
    """
    return _lines(path, before)


def base_of(meta: SessionStarted) -> Base | None:
    """The file that a session goes on from, by its identity; None where it stands alone."""
    told = meta.payload.get("history_base")
    if not is_object(told):
        return None
    thread_id, end, offset = told.get("thread_id"), told.get("end_ordinal_exclusive"), told.get("end_byte_offset")
    if not isinstance(thread_id, str) or not isinstance(end, int) or end <= 0:
        return None
    return Base(thread_id, end, offset if isinstance(offset, int) else None)


def find_base(path: Path, base: Base) -> Path:
    """The file of a base: beside the one that goes on from it, else in the same home. Raises RolloutNotFound."""
    fitting = list(_fitting(path, base, _named(_siblings(path), base)))
    fitting = fitting or list(_fitting(path, base, _in_home(path, base)))
    fitting = fitting or list(_fitting(path, base, _siblings(path)))
    if not fitting:
        session = " ".join(base.thread_id.split())  # as its file says it: anything
        raise RolloutNotFound(
            f"{path.name} goes on from line {base.end - 1} of the session {session}, whose file is neither"
            f" beside it nor in the same home; put it into {path.parent}"
        )
    return max(fitting, key=lambda one: (_ends_where_told(one, base), one.name < path.name, one.name))


# --- reading ---------------------------------------------------------------------------------------------------------


def _lines(path: Path, before: int | None, above: tuple[Path, ...] = ()) -> list[Line]:
    """A file's lines up to one, with what it takes over; `above`: the files that go on from it."""
    if path in above:
        names = ", ".join(one.name for one in (*above, path))
        raise RolloutCorrupt(f"files that go on from each other in a circle: {names}")
    tail = tail_of(path, before=before)
    if tail.is_alone:
        return tail.lines
    place, meta = next(
        ((at, one) for at, one in enumerate(tail.lines) if isinstance(one.record, SessionStarted)), (0, None)
    )
    base = base_of(meta.record) if meta is not None and isinstance(meta.record, SessionStarted) else None
    if base is None or meta is None:
        return tail.lines
    try:
        taken = taken_over(path, meta, base, above)
    except RolloutNotFound:
        if tail.is_whole:
            raise
        taken = []  # a checkpoint of its own tells the history
    return [*tail.lines[: place + 1], *taken, *tail.lines[place + 1 :]]


def taken_over(path: Path, meta: Line, base: Base, above: tuple[Path, ...]) -> list[Line]:
    """What a file takes over from its base, to stand behind its identity."""
    source = find_base(path, base)
    lines = _lines(source, base.end, (*above, path))
    if isinstance(meta.record, SessionStarted) and meta.record.thread_id == base.thread_id:
        return lines
    thread = Thread.replay(lines)
    if thread.meta is None:
        raise RolloutCorrupt(f"{source}, which {path.name} goes on from, is not a rollout: no session_meta line in it")
    told = thread.last_usage if thread.usage_told and thread.counted is None else None
    usage = [] if told is None else [Line(meta.ordinal, UsageCounted(told, thread.total_usage))]
    return [Line(meta.ordinal, whole(thread)), *usage]


# --- finding ---------------------------------------------------------------------------------------------------------


def _siblings(path: Path) -> list[Path]:
    try:
        found = sorted(path.parent.iterdir())
    except OSError as error:
        raise RolloutError(f"{path.parent} cannot be read: {error.strerror}") from None
    return [one for one in found if one.name.endswith((".jsonl", ".jsonl.zst"))]


def _named(paths: Iterable[Path], base: Base) -> Iterator[Path]:
    return (path for path in paths if base.thread_id in path.name)


def _in_home(path: Path, base: Base) -> Iterator[Path]:
    """The files of the base's session in the home that a file lies in."""
    for parent in path.absolute().parents:
        if parent.name in FOLDERS:
            for name, found, _ in Catalogue(parent.parent).paths():
                if name.startswith(base.thread_id):
                    yield found
            return


def _fitting(path: Path, base: Base, paths: Iterable[Path]) -> Iterator[Path]:
    """Those files of the base's session that begin before the line at which it is left; a plain one before its copy."""
    seen: set[str] = set()
    for one in paths:
        name = str(one).removesuffix(".zst")
        if name in seen or name == str(path).removesuffix(".zst"):
            continue
        meta = _meta(one)
        if meta is not None and meta[0].thread_id == base.thread_id and meta[1] < base.end:
            seen.add(name)
            yield one


def _meta(path: Path) -> tuple[SessionStarted, int] | None:
    """The first line of a file, where it is an identity, and its ordinal."""
    try:
        line = next(read_lines(path, head=1), None)
    except RolloutError:
        return None
    return (line.record, line.ordinal) if line is not None and isinstance(line.record, SessionStarted) else None


def _ends_where_told(path: Path, base: Base) -> bool:
    """Whether the line that does not count any more, or the file's end, stands where it was told to."""
    try:
        if base.offset is None or base.offset < 1 or is_zstd(path):
            return False
        with path.open("rb") as file:
            around = os.pread(file.fileno(), 256, base.offset - 1)
    except (OSError, RolloutError):
        return False
    own = ordinal_of(around[1:])
    return around[:1] == b"\n" and (len(around) == 1 or (own is not None and own >= base.end))
