"""File name: what a rollout is called: the local time of its beginning, and the id of its session (spec §8.1)."""

from __future__ import annotations

import re

NAME = re.compile(r"rollout-(?P<day>\d{4}-\d\d-\d\d)T\d\d-\d\d-\d\d-(?P<id>.+?)\.jsonl(\.zst)?")
DAMAGED = ".damaged"  # after the whole name of what a repair kept, so that no list of sessions takes it for one
MOST_BYTES = 150  # of an id: the longest name that a file system takes has 255, and ours add to it


def id_in(name: str) -> str | None:
    """The session's id, as the name of its file says it."""
    found = NAME.fullmatch(name)
    return found["id"] if found else None


def day_in(name: str) -> tuple[str, ...]:
    """Year, month and day: the folders in which a file of this name lies; () where it says none."""
    found = NAME.fullmatch(name)
    return tuple(found["day"].split("-")) if found else ()


def can_be_named_by(thread_id: str) -> bool:
    """Whether an id can stand in the name of a file; one from elsewhere may be anything, a path that leads out too."""
    is_text = thread_id != "" and thread_id.isprintable()  # half a surrogate pair is not
    return is_text and "/" not in thread_id and len(thread_id.encode()) <= MOST_BYTES
