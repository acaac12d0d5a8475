"""Carried: what a checkpoint says of all that stands before it, so that a resume need not read that (docs/rollout.md).

Rule 1: with it, the first `session_meta` line, a checkpoint and what follows fold to the same thread as the whole log.
Rule 2: it counts in its own thread only: in a copy, what it tells of is not in the file.
Rule 3: what a thread holds beyond a checkpoint stands here, or is said by the checkpoint itself, or ends with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from refold.core.records import JSON, Compacted
from refold.core.usage import Usage

if TYPE_CHECKING:
    from refold.core.thread import Thread

CARRIED = "carried"  # its key among a checkpoint's own facts


class Carried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a thread held when a checkpoint was written, beside the history; usage in tokens."""

    thread: str  # id
    turns: int = 0
    compactions: int = 0  # before this one
    sent: int = 0  # requests
    known: tuple[str, ...] = ()  # hashes of what this file holds for requests to refer to
    used: Usage = Usage()  # by the session so far
    used_before_turn: Usage = Usage()
    usage_told: bool = False
    open_turn: str | None = None
    usable_window: int | None = None  # tokens
    settings: JSON | None = None  # in force, where the checkpoint itself says none


def carried(thread: Thread, *, settings: JSON | None) -> JSON:
    """The fact for a checkpoint of this thread that itself says these settings."""
    told = Carried(
        thread=thread.id,
        turns=thread.turns,
        compactions=thread.compactions,
        sent=thread.sent,
        known=tuple(sorted(thread.known)),
        used=thread.total_usage,
        used_before_turn=thread.used_before_turn,
        usage_told=thread.usage_told,
        open_turn=thread.open_turn,
        usable_window=thread.usable_window,
        settings=None if settings else thread.settings,
    )
    return {CARRIED: msgspec.to_builtins(told)}


def carried_by(checkpoint: Compacted, thread_id: str) -> Carried | None:
    """What a checkpoint in this thread carries; None where it does not say, or says it of another thread."""
    try:
        found = msgspec.convert(checkpoint.facts.get(CARRIED), Carried)
    except msgspec.ValidationError:
        return None
    return found if found.thread == thread_id else None
