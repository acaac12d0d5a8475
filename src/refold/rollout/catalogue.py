"""Catalogue: which sessions lie under a home, found by id, by its beginning, by path, or newest (spec §8.1)."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from refold.core.fragments import origin_of, typed_parts
from refold.core.items import Item
from refold.core.records import Compacted, ItemRecorded, Line, SessionStarted
from refold.errors import RolloutError, RolloutNotFound
from refold.rollout.reader import read_lines

NAME = re.compile(r"^rollout-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-(?P<id>.+?)\.jsonl(\.zst)?$")
HEAD_LINES = 60  # a session's first words stand near its start
HEAD_BYTES = 256 * 1024  # and a list of sessions must not read whole files
FIRST_TEXT_CHARS = 200
MOST_NAMED = 4  # sessions that an ambiguous beginning fits


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of sessions shows of one."""

    id: str
    path: Path
    created: datetime
    modified: datetime
    cwd: str = ""
    first_text: str = ""
    forked_from: str | None = None
    size: int = 0  # bytes
    own: bool = True  # False: the real program's home, read only
    problem: str | None = None


class Catalogue:
    """The sessions of refold's own home and, read-only, of the real program's."""

    def __init__(self, home: Path, foreign: Iterable[Path] = ()) -> None:
        self.home = home
        self.foreign = tuple(foreign)

    def paths(self) -> Iterator[tuple[str, Path, bool]]:
        """(id, path, own) of every rollout; a plain file wins over its compressed copy."""
        for home, own in ((self.home, True), *((other, False) for other in self.foreign)):
            seen: set[str] = set()
            for folder in ("sessions", "archived_sessions"):
                for path in sorted((home / folder).rglob("rollout-*.jsonl*")):
                    match = NAME.match(path.name)
                    if match and path.name.removesuffix(".zst") not in seen:
                        seen.add(path.name.removesuffix(".zst"))
                        yield match["id"], path, own

    def find(self, reference: str) -> tuple[Path, bool]:
        """The file that an id, an id's beginning or a path means, and whether it lies in the own home.

        Raises RolloutNotFound, also when a beginning fits several sessions, naming them; RolloutError for a path that
        cannot be looked at.
        """
        if not reference:
            raise RolloutNotFound("which session? the ID is empty")
        if "/" in reference or reference.endswith((".jsonl", ".zst")):
            return self._by_path(Path(reference))
        fitting = [(found, path, own) for found, path, own in self.paths() if found.startswith(reference)]
        exact = [one for one in fitting if one[0] == reference] or fitting
        ids = {found for found, _, _ in exact}
        if not exact:
            if os.path.lexists(reference):
                return self._by_path(Path(reference))
            raise RolloutNotFound(f"no session {reference!r} under {self.home} (refold sessions lists them)")
        if len(ids) > 1:
            shown = ", ".join(sorted(ids)[:MOST_NAMED])
            more = ", …" if len(ids) > MOST_NAMED else ""
            raise RolloutNotFound(f"{reference!r} fits {len(ids)} sessions ({shown}{more}); give more of the id")
        own_first = sorted(exact, key=lambda one: (not one[2], -_written(one[1])))
        return own_first[0][1], own_first[0][2]

    def _by_path(self, path: Path) -> tuple[Path, bool]:
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise RolloutNotFound(f"no such file: {path}") from None
        except OSError as error:
            raise RolloutError(f"{path} cannot be read: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            raise RolloutNotFound(f"{path} is a folder, not a rollout file")
        return path, path.resolve().is_relative_to(self.home.resolve())

    def newest(self, cwd: str | None = None) -> tuple[Path, bool]:
        """The session that was written last; raises RolloutNotFound when there is none."""
        found = [(path, own) for _, path, own in self.paths()]
        found.sort(key=lambda one: _written(one[0]), reverse=True)
        for path, own in found:
            if cwd is None or summary_of("", path, own).cwd == cwd:
                return path, own
        raise RolloutNotFound(f"there is no session under {self.home} yet")

    def sessions(self) -> list[Summary]:
        """Every session, newest first by its own creation time. One that vanishes meanwhile is left out."""
        found: list[Summary] = []
        for thread_id, path, own in self.paths():
            with contextlib.suppress(RolloutNotFound):
                found.append(summary_of(thread_id, path, own))
        return sorted(found, key=lambda one: one.created, reverse=True)


def summary_of(thread_id: str, path: Path, own: bool) -> Summary:
    """What the head of one file says. A damaged file is listed with its problem. Raises RolloutNotFound."""
    try:
        about = path.stat()
    except OSError:
        raise RolloutNotFound(f"no such file: {path}") from None
    modified = datetime.fromtimestamp(about.st_mtime, UTC)
    meta: SessionStarted | None = None
    text, problem = "", None
    try:
        for count, line in enumerate(read_lines(path, head=HEAD_BYTES)):
            if meta is None and isinstance(line.record, SessionStarted):
                meta = line.record
            text = text or _typed_text(line)
            if (meta and text) or count >= HEAD_LINES:
                break
    except RolloutError as error:
        problem = str(error)
    created = _time(meta.timestamp if meta else "") or modified
    return Summary(
        id=meta.thread_id if meta else thread_id,
        path=path,
        created=created,
        modified=modified,
        cwd=meta.cwd if meta else "",
        first_text=text,
        forked_from=meta.forked_from if meta else None,
        size=about.st_size,
        own=own,
        problem=problem or (None if meta else f"{path}: no session_meta line"),
    )


def _written(path: Path) -> float:
    """When a file was last written; the beginning of time for one that vanished."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _typed_text(line: Line) -> str:
    """What a person typed, on one line; of a checkpoint, what it kept of that first."""
    items: Sequence[Item] = ()
    match line.record:
        case ItemRecorded(item=item):
            items = (item,)
        case Compacted(history=tuple(history)):
            items = history
    for item in items:
        if item.get("type") == "message" and origin_of(item) == "typed":
            return " ".join("".join(typed_parts(item)[0]).split())[:FIRST_TEXT_CHARS]
    return ""


def _time(text: str) -> datetime | None:
    """A record's time in UTC: with or without milliseconds, with `Z` or an offset; None when it is not a time."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
