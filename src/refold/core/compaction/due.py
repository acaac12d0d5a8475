"""Due: whether the context must be compacted now (spec §4.1–4.3, oracle §5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from refold.core.guess import guess_items, guess_text
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


def counted_tokens(thread: Thread, scope: Scope) -> int:
    """Tokens that count against the limit: of the whole context, or of what came after the window's first response
    (scope `body_after_prefix`, spec §4.2)."""
    tokens = context_tokens(thread)
    if scope == "body_after_prefix":
        tokens -= thread.window_prefix if thread.window_prefix is not None else tokens
    return tokens


def size_of(thread: Thread, entries: Iterable[Entry]) -> int:
    """Tokens of the base instructions and these entries in this thread, by the rule or guessed as its context is."""
    if thread.usage_told:
        return estimate((), thread.base_instructions) + sum(e.tokens for e in entries)
    return guess_text(thread.base_instructions or "") + guess_items(e.item for e in entries).tokens


def due(
    thread: Thread,
    profile: Profile,
    phase: Phase,
    scope: Scope = "total",
    *,
    pending: int = 0,
    percent: int = 0,
    buffer: int = 0,
) -> Due | None:
    """Compaction is due when the context has reached the limit (>=). Without a limit it never is, by count.

    Scope `body_after_prefix` counts what came after the window's first response (spec §4.2). `pending`: tokens of what
    is about to be said; with it the context must stay within what the window can hold. `percent`: in phase
    `post_turn`, of the usable window, from which on it is due. `buffer`: tokens above the limit at which it is due, at
    most what the window can hold (spec §4.2).
    """
    limit, usable = profile.compact_limit, profile.usable_window
    if limit is None or not thread.history:
        return None
    total, tokens = context_tokens(thread), counted_tokens(thread, scope)
    over = tokens >= limit + buffer or (usable is not None and total + max(pending, 1) > usable)
    over = over or (phase == "post_turn" and usable is not None and total * 100 >= usable * percent)
    return Due("context_limit", phase, tokens + pending, limit) if over else None


def due_for_switch(thread: Thread, before: Profile, now: Profile, scope: Scope = "total") -> Due | None:
    """Whether the history has to be compacted because another model goes on with it, by the one that knows it: the
    models' compaction items differ (`comp_hash`), or it does not fit into the new one's window (spec §4.3)."""
    if not thread.history:
        return None
    tokens, limit = context_tokens(thread), now.compact_limit or 0
    if before.comp_hash and now.comp_hash and before.comp_hash != now.comp_hash:
        return Due("comp_hash_changed", "pre_turn", tokens, limit)
    if before.slug == now.slug or before.usable_window is None or now.usable_window is None:
        return None
    if before.usable_window <= now.usable_window:
        return None
    over = tokens >= now.usable_window or (scope == "total" and tokens > limit > 0)
    return Due("model_downshift", "pre_turn", tokens, limit) if over else None
