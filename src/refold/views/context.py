"""Context: what the log says the next request holds, item by item, and how full the context window is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.core.compaction.due import context_tokens
from refold.core.compaction.shadow import seal_of
from refold.core.history import Entry
from refold.core.items import argument_fault
from refold.core.pairing import Oddity, View, view_of
from refold.core.profile import Profile
from refold.core.thread import Thread
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for
from refold.views.shown import clean, one_line, shown_text

PREVIEW_CHARS = 200


class ContextRow(msgspec.Struct, frozen=True):
    """One item of the next request."""

    address: str  # where the record stands that brought it; "" = made for the request only
    kind: str  # its type, or its role for a message
    origin: str
    tokens: int  # estimated
    preview: str  # its text on one line, cut


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The next request and the gauge. Tokens throughout; None where nothing is known."""

    thread_id: str
    model: str
    window_number: int
    rows: tuple[ContextRow, ...]
    estimated: int  # of this request, by size
    used: int  # what the provider counted, and the estimate of what came after
    counted: bool  # whether `used` starts from a provider's count; else it is estimated by size
    limit: int | None  # where compaction is due
    context_window: int | None
    percent_left: int | None
    unanswered: tuple[str, ...]  # call ids whose output is made up as `aborted`
    odd: tuple[Oddity, ...]  # what is sent otherwise than it was recorded, or is not as it should be
    steers: tuple[str, ...]  # messages that wait for the next sampling


def context(thread: Thread, profile: Profile) -> Context:
    """Project a thread for one model and describe the result."""
    base = thread.base_instructions
    seen = view_of(thread.history, profile.input_modalities)
    recorded = {_key(entry) for entry in thread.history}
    rows = [_row(entry, thread, made_up=_key(entry) not in recorded) for entry in seen.sendable()]
    base_tokens = tokens_for(utf8_len(base or ""))
    if base:
        address = clean(f"{thread.id}:{thread.meta_ordinal}")
        rows.insert(0, ContextRow(address, "developer", "base", base_tokens, one_line(base, PREVIEW_CHARS)))
    used = context_tokens(thread)
    return Context(
        thread_id=clean(thread.id),
        model=clean(profile.slug),
        window_number=thread.window.number,
        rows=tuple(rows),
        estimated=seen.sendable_tokens + base_tokens,
        used=used,
        counted=thread.last_usage is not None and thread.last_usage.input_tokens > 0,
        limit=profile.compact_limit,
        context_window=profile.context_window,
        percent_left=profile.percent_left(used),
        unanswered=tuple(clean(str(entry.item["call_id"])) for entry in seen.unanswered),
        odd=_odd(thread.history, seen),
        steers=tuple(clean(text) for text in thread.steers.values()),
    )


def _odd(history: Sequence[Entry], seen: View) -> tuple[Oddity, ...]:
    """Oddities in the order of the history."""
    found = [*seen.oddities]
    found += [Oddity(e.address, str(e.item.get("call_id")), "an output without a call: not sent") for e in seen.orphans]
    for e in history:
        fault = argument_fault(e.item) if e.item.get("type") == "function_call" else None
        if fault is not None:
            found.append(Oddity(e.address, str(e.item.get("call_id")), fault))
    place = {e.address: index for index, e in enumerate(history)}
    found.sort(key=lambda odd: place.get(odd.address, 0))
    return tuple(Oddity(clean(odd.address), one_line(odd.call_id, 80), one_line(odd.what, 200)) for odd in found)


def _key(entry: Entry) -> tuple[str, str]:
    """What a history entry and its form in the request have in common, and a made-up output with no entry."""
    return entry.address, str(entry.item.get("type"))


def _row(entry: Entry, thread: Thread, *, made_up: bool) -> ContextRow:
    kind = one_line(str(entry.item.get("role") or entry.item.get("type")))
    address = "" if made_up else clean(entry.address)
    shadow = thread.shadows.get(seal_of(entry.item) or "")
    beside = f" by {shadow.provider}" if shadow and shadow.provider else ""
    beside += f"; an outline is kept: {shadow.text}" if shadow and shadow.text else ""
    text = one_line(shown_text(entry.item) + beside, PREVIEW_CHARS)
    return ContextRow(address, kind, entry.origin, entry.tokens, text)
