"""Shadow: what can be read of a history that only its provider can read: an outline, kept beside the encrypted item.

Rule 1: a shadow is never sent, until its item cannot be read any more; then it takes the item's place, as a summary.
Rule 2: the checkpoint that holds an encrypted item holds its shadow too: resume and fork need nothing before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from refold.core.compaction.replacement import NO_SUMMARY, Replacement
from refold.core.fragments import KIND_SUMMARY, SUMMARY_MARK, stored_message
from refold.core.history import Entry
from refold.core.items import Item, message_text
from refold.core.records import JSON, Compacted

SEALED_TYPES = frozenset({"compaction", "compaction_summary", "context_compaction"})
SHADOW, MAKER = "shadow", "provider"  # keys of a checkpoint's own facts


class Shadow(msgspec.Struct, frozen=True):
    """An outline of what an encrypted item stands for, and the id of the provider that made the item ("" = unknown,
    of either)."""

    text: str
    provider: str = ""


class SealedReplacement(Replacement, frozen=True, kw_only=True):
    """A replacement with items that only their provider can read, and their shadow."""

    shadow: Shadow


# --- what is sealed --------------------------------------------------------------------------------------


def seal_of(item: Item) -> str | None:
    """The encrypted content of a compaction item; None for every other item."""
    content = item.get("encrypted_content")
    if content is None or str(item.get("type")) not in SEALED_TYPES:  # what a checkpoint holds may have any type
        return None
    return content if isinstance(content, str) and content else None


def sealed(history: Sequence[Entry]) -> list[Entry]:
    """The entries that stand for a history that only their provider can read."""
    return [e for e in history if seal_of(e.item) is not None]


def maker_of(e: Entry, shadows: Mapping[str, Shadow], otherwise: str) -> str:
    """The provider that can read an encrypted item: as its checkpoint says, else the session's own."""
    shadow = shadows.get(seal_of(e.item) or "")
    return (shadow.provider if shadow else "") or otherwise


# --- in a checkpoint -------------------------------------------------------------------------------------


def facts_beside(items: Sequence[Item], shadows: Mapping[str, Shadow]) -> JSON:
    """What a checkpoint with these items says of their shadow (of the newest encrypted one); nothing without any."""
    for item in reversed(items):
        shadow = shadows.get(seal_of(item) or "")
        if shadow is not None:
            return _facts(shadow)
    return {}


def _facts(shadow: Shadow) -> JSON:
    return {MAKER: shadow.provider} | ({SHADOW: shadow.text} if shadow.text else {})


def facts_of(replacement: Replacement, items: Sequence[Item], shadows: Mapping[str, Shadow]) -> JSON:
    """The same of a replacement that gave these items: its own shadow, or one that is known."""
    if isinstance(replacement, SealedReplacement):
        return _facts(replacement.shadow)
    return facts_beside(items, shadows)


def shadows_of(checkpoint: Compacted) -> dict[str, Shadow]:
    """The shadows that a checkpoint holds, by encrypted content; without a text where only the maker is known."""
    text, provider = checkpoint.facts.get(SHADOW), checkpoint.facts.get(MAKER)
    if not isinstance(text, str) and not isinstance(provider, str):
        return {}
    shadow = Shadow(text if isinstance(text, str) else "", provider if isinstance(provider, str) else "")
    seals = (seal_of(item) for item in checkpoint.history or ())
    return {seal: shadow for seal in seals if seal is not None}


# --- in use ----------------------------------------------------------------------------------------------


def earlier_of(history: Sequence[Entry], shadows: Mapping[str, Shadow]) -> str:
    """What a new outline goes on from: the newest summary, or the newest encrypted item's shadow; "" without any."""
    for e in reversed(history):
        if e.origin == "summary":
            return message_text(e.item).removeprefix(SUMMARY_MARK)
        shadow = shadows.get(seal_of(e.item) or "")
        if shadow is not None and shadow.text:
            return shadow.text
    return ""


def unsealed(history: Sequence[Entry], text: str, *, summary_id: str, turn_id: str | None) -> Replacement:
    """The same history with a summary in the place of its newest encrypted item. Older ones are part of that; encrypted
    reasoning is bound to the same account, and goes too."""
    seals = sealed(history)
    message = SUMMARY_MARK + (text or NO_SUMMARY)
    summary = stored_message("user", [(KIND_SUMMARY, message)], id=summary_id, turn_id=turn_id)
    placed: list[tuple[Item, str]] = []
    for e in history:
        if seals and e is seals[-1]:
            placed.append((summary, ""))
        elif text and e.origin == "summary":
            continue  # the new one goes on from it
        elif seal_of(e.item) is None and not _is_sealed_reasoning(e.item):
            placed.append((e.item, e.address))
    items, addresses = tuple(item for item, _ in placed), tuple(address for _, address in placed)
    return Replacement(base=tuple(history), items=items, addresses=addresses, message=message)


def _is_sealed_reasoning(item: Item) -> bool:
    return item.get("type") == "reasoning" and bool(item.get("encrypted_content"))
