"""Rename: what a person calls a session: a record of its log, and a line in the home's list of names."""

from __future__ import annotations

import contextlib
from pathlib import Path

from refold.core.records import Named
from refold.errors import ConfigError
from refold.rollout.holdings import note_name
from refold.session.memory import Memory

MOST_CHARS = 200  # a name stands on one line of a list


def rename(memory: Memory, name: str, home: str | Path | None) -> str:
    """Call a session something else; nothing but spaces: it has no name any more. The name as it is kept: one line.

    `home`: refold's, for its list of names. Raises ConfigError for a name above 200 characters, RolloutError.
    """
    tidy = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    if len(tidy) > MOST_CHARS:
        raise ConfigError("name", f"has {len(tidy)} characters; {MOST_CHARS} are the most")
    if tidy == memory.thread.name:
        return tidy
    memory.record(Named(tidy))
    path, kept = memory.path, memory.thread.name
    place = None if home is None else Path(home)
    if place is not None and path is not None and path.resolve().is_relative_to(place.resolve()):
        with contextlib.suppress(OSError):  # the log has it; the list is for the real program
            note_name(place, memory.id, kept, memory.clock.timestamp())
    return kept
