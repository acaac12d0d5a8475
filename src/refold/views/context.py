"""Context: what the log says the next request holds, item by item, and how full the context window is."""

from __future__ import annotations

import msgspec

from refold.core.compaction.due import context_tokens
from refold.core.history import Entry, unanswered
from refold.core.profile import Profile
from refold.core.prompt import prompt_from
from refold.core.thread import Thread
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for
from refold.views.shown import shown_text

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
    steers: tuple[str, ...]  # messages that wait for the next sampling


def context(thread: Thread, profile: Profile) -> Context:
    """Project a thread for one model and describe the result."""
    base = thread.base_instructions
    prompt = prompt_from(thread.history, profile, base_instructions=base)
    known = {id(entry) for entry in thread.history}
    rows = [_row(entry, made_up=id(entry) not in known) for entry in prompt.entries]
    if base:
        preview = " ".join(base.split())[:PREVIEW_CHARS]
        rows.insert(0, ContextRow(f"{thread.id}:0", "developer", "base", tokens_for(utf8_len(base)), preview))
    used = context_tokens(thread)
    return Context(
        thread_id=thread.id,
        model=profile.slug,
        window_number=thread.window.number,
        rows=tuple(rows),
        estimated=prompt.tokens,
        used=used,
        counted=thread.last_usage is not None and thread.last_usage.input_tokens > 0,
        limit=profile.compact_limit,
        context_window=profile.context_window,
        percent_left=profile.percent_left(used),
        unanswered=tuple(str(entry.item["call_id"]) for entry in unanswered(thread.history)),
        steers=tuple(thread.steers.values()),
    )


def _row(entry: Entry, *, made_up: bool) -> ContextRow:
    kind = str(entry.item.get("role") or entry.item.get("type"))
    preview = " ".join(shown_text(entry.item)[: 4 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]
    return ContextRow("" if made_up else entry.address, kind, entry.origin, entry.tokens, preview)
