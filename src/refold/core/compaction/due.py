"""Due: whether the context must be compacted now (spec §4.1–4.3, oracle §5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from refold.core.guess import guess_item, guess_text
from refold.core.history import Entry
from refold.core.items import is_model_generated
from refold.core.profile import Profile
from refold.core.records import Phase, Reason, Scope
from refold.core.tokens import estimate

if TYPE_CHECKING:
    from refold.core.thread import Thread


class Due(msgspec.Struct, frozen=True):
    """A compaction is due: why, in which phase, and the tokens and limit that say so."""

    reason: Reason
    phase: Phase
    tokens: int
    limit: int


def context_tokens(thread: Thread) -> int:
    """Tokens in the context now: the newest response's total and the estimate of what came after it (spec §1.5).

    Where no response has ever told any usage, all of it is guessed: a provider that never tells must not overflow.
    """
    if thread.last_usage is None or not thread.usage_told:
        return thread.guessed_tokens()
    if thread.counted is not None:  # an estimate, after a compaction: what it covers is known
        return thread.last_usage.total_tokens + sum(e.tokens for e in thread.history[thread.counted :])
    tail = 0
    for e in reversed(thread.history):
        if is_model_generated(e.item):
            break
        tail += e.tokens
    return thread.last_usage.total_tokens + tail


def size_of(thread: Thread, entries: Iterable[Entry]) -> int:
    """Tokens of the base instructions and these entries in this thread, by the rule or guessed as its context is."""
    if thread.usage_told:
        return estimate((e.sizes for e in entries), thread.base_instructions)
    return guess_text(thread.base_instructions or "") + sum(guess_item(e.item) for e in entries)


def due(thread: Thread, profile: Profile, phase: Phase, scope: Scope = "total") -> Due | None:
    """Compaction is due when the context has reached the limit (>=). Without a limit it never is, by count.

    Scope `body_after_prefix` counts what came after the window's first response (spec §4.2).
    """
    limit = profile.compact_limit
    if limit is None or not thread.history:
        return None
    tokens = context_tokens(thread)
    if scope == "body_after_prefix":
        tokens -= thread.window_prefix if thread.window_prefix is not None else tokens
    return Due("context_limit", phase, tokens, limit) if tokens >= limit else None
