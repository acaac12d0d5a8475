"""Carried: what a checkpoint says of all that stands before it, so that a resume need not read that (docs/rollout.md).

Rule 1: with it, the first `session_meta` line, a checkpoint and what follows fold to the same thread as the whole log.
Rule 2: it counts in its own thread only: in a copy, what it tells of is not in the file.
Rule 3: what a thread holds beyond a checkpoint stands here, or is said by the checkpoint itself, or ends with it.
Rule 4: a checkpoint of the real program carries what its own keys say, in a file that this program began: it counts
usage and windows, no turns and nothing of ours, so a fold forgets these there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from refold.core.jsonio import is_object
from refold.core.records import JSON, Compacted, SessionStarted
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
    name: str = ""


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
        name=thread.name,
    )
    return {CARRIED: msgspec.to_builtins(told)}


def carried_by(checkpoint: Compacted, thread_id: str) -> Carried | None:
    """What a checkpoint in this thread carries; None where it does not say, or says it of another thread."""
    try:
        found = msgspec.convert(checkpoint.facts.get(CARRIED), Carried)
    except msgspec.ValidationError:
        return None
    return found if found.thread == thread_id else None


def told_by_another(checkpoint: Compacted, meta: SessionStarted | None) -> Carried | None:
    """The same of a checkpoint of the real program (from 2026-09 on); settings stand behind it.

    None where it says less, and in a file of ours, whose own lines before it matter.
    """
    if meta is None or not meta.is_foreign or meta.history_mode != "paginated":
        return None
    ours = checkpoint.facts or checkpoint.addresses or checkpoint.steers is not None
    begun, spent = (checkpoint.payload.get(key) for key in ("resume_metadata", "latest_token_usage_record"))
    if ours or checkpoint.history is None or checkpoint.window is None or not is_object(begun) or not is_object(spent):
        return None
    turn_id = begun.get("last_started_turn_id")
    if spent.get("thread_id") != meta.thread_id or not isinstance(turn_id, str):
        return None
    try:
        used, of_turn = (_used(spent, key) for key in ("thread_token_usage", "turn_token_usage"))
    except msgspec.ValidationError:
        return None
    return Carried(
        thread=meta.thread_id,
        compactions=max(0, checkpoint.window.number - 1),
        used=used,
        used_before_turn=used - of_turn if spent.get("turn_id") == turn_id else used,
        usage_told=True,
        open_turn=turn_id,
    )


def _used(spent: JSON, key: str) -> Usage:
    return msgspec.convert(spent.get(key), Usage, strict=False)
