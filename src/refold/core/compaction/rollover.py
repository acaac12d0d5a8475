"""Rollover: a full window ends without a request; the next begins with what people said and what the log says of the
rest (spec §4.5, oracle §13).

The real program's next window has forgotten its task; here the messages of the user and an outline stay.
Rule 1: that the model asked for a new window, and what it was told in this one, is read from the history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from refold.core.compaction.due import context_tokens, counted_tokens
from refold.core.compaction.outline import OUTLINE_PART, outline
from refold.core.compaction.replacement import NO_SUMMARY, RETAINED_USER_TOKENS, Replacement, fitting, summarised
from refold.core.compaction.shadow import Shadow, earlier_of
from refold.core.fragments import stored_kinds
from refold.core.history import Entry
from refold.core.items import Item, is_call, is_model_generated, is_output
from refold.core.profile import Profile
from refold.core.records import Scope
from refold.core.thread import Thread

NEW_CONTEXT = "new_context"
CONTEXT_REMAINING = "get_context_remaining"
WINDOW_TOOLS = frozenset({NEW_CONTEXT, CONTEXT_REMAINING})
GRANTED = "A new context window begins now."  # how a call of new_context that is followed is answered
TOO_SOON = "This context window has only just begun, there is nothing to leave behind: go on with the task in it."
NO_SHADOWS: Mapping[str, Shadow] = MappingProxyType({})


# --- asked for -----------------------------------------------------------------------------------------------


def is_asked_for(history: Sequence[Entry]) -> bool:
    """Whether the model asked for a new window that has not begun yet.

    It is read back over the newest response's calls and outputs: a request is followed before the next sampling, or not
    at all.
    """
    answered: set[str] = set()
    is_past_calls = False
    for e in reversed(history):
        item = e.item
        if is_output(item):
            if is_past_calls:  # of an earlier response
                return False
            if item.get("output") == GRANTED:
                answered.add(str(item.get("call_id")))
        elif is_call(item):
            is_past_calls = True
            if _is_window_call(item, NEW_CONTEXT) and item["call_id"] in answered:
                return True
        elif e.origin in ("typed", "summary"):
            return False
    return False


def has_news(history: Sequence[Entry]) -> bool:
    """Whether anything was said or done since the window began: without that a new one would be the same again."""
    ours = _window_call_ids(history)
    for e in reversed(history):
        if e.origin == "summary":
            return False
        if e.origin == "typed" or (is_output(e.item) and e.item.get("call_id") not in ours):
            return True
    return True


def _is_window_call(item: Item, *names: str) -> bool:
    return item.get("name") in names and item.get("type") == "function_call" and is_call(item)


def _window_call_ids(history: Sequence[Entry]) -> set[str]:
    named = (e.item for e in history if str(e.item.get("name")) in WINDOW_TOOLS)
    return {item["call_id"] for item in named if _is_window_call(item, *WINDOW_TOOLS)}


# --- how much is left ----------------------------------------------------------------------------------------


def tokens_left(thread: Thread, profile: Profile, scope: Scope, *, sampling: bool = False) -> int | None:
    """Tokens up to the limit, which is not enlarged by a buffer; None where there is no limit.

    `sampling`: a response is coming in. Where its usage is not told yet, its items so far are estimated.
    """
    if profile.compact_limit is None:
        return None
    tokens = counted_tokens(thread, scope)
    if sampling:
        tokens += _since_last_usage(thread) - context_tokens(thread)
    return max(0, profile.compact_limit - tokens)


def _since_last_usage(thread: Thread) -> int:
    """Tokens of the context while a response is coming in, of which the last usage may know nothing."""
    if thread.last_usage is None or not thread.usage_told or thread.counted is not None:
        return context_tokens(thread)
    place = thread.told_at
    while place and not is_model_generated(thread.history[place - 1].item):  # outputs that were written before it
        place -= 1
    return thread.last_usage.total_tokens + sum(e.tokens for e in thread.history[place:])


def is_measured(thread: Thread) -> bool:
    """Whether this window's use is known: a response in it told its usage or, where none ever does, has come."""
    if thread.usage_told:
        return thread.window_prefix is not None
    return any(is_model_generated(e.item) for e in reversed(thread.history))


def was_told(history: Sequence[Entry], kind: str) -> bool:
    """Whether the model was told a message of this kind in this window: a new one begins without it."""
    return any(kind in stored_kinds(e.item) for e in reversed(history) if e.item.get("role") == "developer")


# --- the next window -----------------------------------------------------------------------------------------


def settle(
    history: Sequence[Entry],
    context: Sequence[Item],
    *,
    limit: int | None,
    outline_tokens: int,
    summary_id: str,
    turn_id: str | None,
    shadows: Mapping[str, Shadow] = NO_SHADOWS,
    dropped: Collection[tuple[str, str]] = (),
) -> Replacement:
    """What people said last, fresh context, and an outline of the rest, of at most `outline_tokens`.

    `limit`: tokens that fill a window; of a small one what people said gets at most half, the outline a quarter.
    `shadows`: what is known of the time before the history, where an item tells it that only a provider can read.
    `dropped`: rules that are kept before others no more.
    """
    facts = fitting(outline_tokens, limit, OUTLINE_PART)
    text = outline(without_window_calls(history), facts, earlier=earlier_of(history, shadows))
    return summarised(
        history,
        context,
        text or NO_SUMMARY,
        summary_id=summary_id,
        turn_id=turn_id,
        budget=fitting(RETAINED_USER_TOKENS, limit),  # a window needs room to work in
        dropped=dropped,
    )


def without_window_calls(history: Sequence[Entry]) -> list[Entry]:
    """The history without the calls of the window's own tools and their outputs: they are over with the window."""
    ours = _window_call_ids(history)
    if not ours:
        return list(history)
    return [
        e
        for e in history
        if not _is_window_call(e.item, *WINDOW_TOOLS) and not (is_output(e.item) and e.item.get("call_id") in ours)
    ]
