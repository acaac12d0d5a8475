"""Preview: what a compaction would put in the history's place, in rows that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.core.compaction.gone import Gone
from refold.core.fragments import SUMMARY_MARK
from refold.core.history import entry
from refold.core.items import Item
from refold.views.context import PREVIEW_CHARS, ContextRow
from refold.views.shown import clean, one_line, shown_text

IN_PART = "(kept in part) "


class PreviewRows(msgspec.Struct, frozen=True):
    """The new context and what is no longer in it, item by item; tokens are estimated."""

    new: tuple[ContextRow, ...]  # the whole context afterwards; address "" = made by this compaction
    gone: tuple[ContextRow, ...]
    gone_tokens: int  # of what is wholly gone
    summary: str  # what closes the new context, whole; "" where only the provider can read it


def preview_rows(items: Sequence[Item], addresses: Sequence[str], gone: Sequence[Gone]) -> PreviewRows:
    """`items` and `addresses` run side by side."""
    entries = [entry(item, address) for item, address in zip(items, addresses, strict=True)]
    new = [
        ContextRow(clean(e.address), _kind(e.item), e.origin, e.tokens, one_line(shown_text(e.item), PREVIEW_CHARS))
        for e in entries
    ]
    summaries = [shown_text(e.item).removeprefix(clean(SUMMARY_MARK)) for e in entries if e.origin == "summary"]
    rows = [
        ContextRow(
            clean(one.address),
            one_line(one.kind),
            one.origin,
            one.tokens,
            (IN_PART if one.in_part else "") + one_line(one.text, PREVIEW_CHARS),
        )
        for one in gone
    ]
    whole = sum(one.tokens for one in gone if not one.in_part)
    return PreviewRows(tuple(new), tuple(rows), whole, summaries[-1] if summaries else "")


def _kind(item: Item) -> str:
    return one_line(str(item.get("role") or item.get("type")))
