"""Names: what people call their sessions, as far as that stands outside of the index.

The real program keeps a list in its home, `session_index.jsonl`: the newest of an id's lines counts (spec §8.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from refold.core.jsonio import is_object, load
from refold.errors import RolloutError
from refold.rollout.index.facts import Facts, cleaned
from refold.rollout.index.reading import lines_from
from refold.rollout.index.summary import Summary, time_of
from refold.rollout.reader import damage, open_rollout

NAMES = "session_index.jsonl"  # of a home
_NAMING = (b"session_meta", b'"named"', b'"thread_name_updated"')


def with_given(found: list[Summary], homes: Iterable[tuple[Path, bool]]) -> list[Summary]:
    """The sessions with the names that the real program's lists give them, where those are newer."""
    given = {thread_id: named for home, _ in homes for thread_id, named in given_in(home)}
    return [_named(one, *given[one.id]) if one.id in given else one for one in found] if given else found


def named_in(path: Path, thread_id: str, own: bool) -> Summary | None:
    """A session with its name, found by looking through its file; None where it cannot be read."""
    facts = Facts()
    try:
        about = path.stat()
        with open_rollout(path) as file:
            for _, _, raw in lines_from(file, 0, 0):
                if any(word in raw for word in _NAMING):
                    facts.read(raw)
    except Exception as error:
        if not isinstance(error, RolloutError) and damage(path, error, 0) is None:
            raise
        return None
    modified = datetime.fromtimestamp(about.st_mtime).astimezone()
    told = {"id": facts.id or thread_id, "file": str(path), "created": modified, "modified": modified, "own": own}
    return Summary(**told, name=facts.name, named_at=time_of(facts.named_at))


def given_in(home: Path) -> Iterator[tuple[str, tuple[str, datetime | None]]]:
    """(id, (name, when it was given)), oldest first; what is no such line is passed over."""
    try:
        lines = (home / NAMES).read_bytes().splitlines()
    except OSError:
        return
    yield from (given for raw in lines if (given := given_by(raw)) is not None)


def given_by(raw: bytes) -> tuple[str, tuple[str, datetime | None]] | None:
    """The same of one line; None for what is no such line."""
    try:
        line, _ = load(raw)
    except ValueError:
        return None
    if not is_object(line) or not isinstance(line.get("id"), str):
        return None
    return line["id"], (cleaned(line.get("thread_name")), time_of(str(line.get("updated_at"))))


def _named(one: Summary, name: str, at: datetime | None) -> Summary:
    if one.named_at is not None and (at is None or at <= one.named_at):
        return one
    return replace(one, name=name, named_at=at)
