"""Gone: what a replacement takes out of the prompt, item by item."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from refold.core.compaction.outline.quote import one_line, shortened
from refold.core.compaction.replacement import Replacement
from refold.core.fragments import Origin
from refold.core.history import Entry
from refold.core.items import Item, message_text

LINE_BYTES = 160  # of one item's text: enough to know it again
READ_CHARS = 2_000  # of a text, so that a long one costs nothing


class Gone(msgspec.Struct, frozen=True):
    """An item that would no longer be in the prompt, or only in part."""

    address: str  # where its record stands; it stays in the log
    kind: str  # its type, or its role for a message
    origin: Origin
    tokens: int  # estimated, of the whole item
    text: str  # its words on one line, cut
    in_part: bool = False  # a message of which some is kept


def gone(replacement: Replacement) -> tuple[Gone, ...]:
    """What of the base is not among the new items; context that is told anew in the same words is not gone."""
    kept: dict[str, list[Item]] = defaultdict(list)
    for item, address in zip(replacement.items, replacement.addresses, strict=True):
        kept[address].append(item)
    told = {message_text(item) for item in kept[""]}
    found: list[Gone] = []
    for entry in replacement.base:
        same = kept.get(entry.address, []) if entry.address else []
        if entry.item in same or (entry.origin == "injected" and message_text(entry.item) in told):
            continue
        found.append(_gone(entry, in_part=entry.origin == "typed" and bool(same)))
    return tuple(found)


def _gone(entry: Entry, *, in_part: bool) -> Gone:
    kind = one_line(str(entry.item.get("role") or entry.item.get("type")))
    text = shortened(one_line(_words(entry.item)[:READ_CHARS]), LINE_BYTES)
    return Gone(entry.address, kind, entry.origin, entry.tokens, text, in_part)


def _words(item: Item) -> str:
    kind = str(item.get("type"))
    if kind in ("message", "agent_message") or kind.endswith("_output"):
        return message_text(item)
    if kind.endswith("_call"):
        return f"{item.get('name') or kind} {item.get('arguments') or item.get('input') or ''}"
    return ""
