"""Endpoint: the provider compacts at `/responses/compact`; what of its answer takes the history's place (spec §6.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from refold.core.compaction.accepting import is_refusal
from refold.core.compaction.remote import is_notice
from refold.core.compaction.replacement import Replacement, context_place
from refold.core.compaction.shadow import SEALED_TYPES
from refold.core.fragments import origin_of
from refold.core.history import Entry
from refold.core.items import Item, content_parts, is_agent_envelope, message_text, message_texts
from refold.errors import CompactionFailed


def settle(output: Sequence[Item], sent: Sequence[Entry]) -> list[tuple[Item, str]]:
    """What stays of an answer, in order, each item with the address it had among the `sent` entries ("" = new).

    A message that came back as it was sent is ours again, with what the log knows of it. Raises CompactionFailed when
    nothing is left that stands for what the model did.
    """
    ours: dict[tuple[str, ...], deque[Entry]] = {}
    for e in sent:
        if e.item.get("type") == "message":
            ours.setdefault(_told(e.item), deque()).append(e)
    kept: list[tuple[Item, str]] = []
    follows = False  # whether the item before stayed: a notice stays with what it follows
    for item in output:
        same = ours.get(_told(item))
        known = same.popleft() if same else None
        follows = follows if is_notice(item) else _stays(item, known)
        if follows:
            kept.append((item, "") if known is None else (known.item, known.address))
    if not any(_stands_for_work(item) for item, _ in kept):
        kinds = ", ".join(str(item.get("type")) for item in output) or "nothing"
        raise CompactionFailed(f"the provider's compact endpoint answered with {kinds}; expected a compaction item")
    return kept


def replacement(history: Sequence[Entry], context: Sequence[Item], kept: Sequence[tuple[Item, str]]) -> Replacement:
    """What stayed, with fresh context before the newest message that somebody said, else before the compaction."""
    items = [item for item, _ in kept]
    place = context_place(items)
    if place == len(items):
        place = max((index for index, item in enumerate(items) if item.get("type") in SEALED_TYPES), default=place)
    placed = [*kept[:place], *((item, "") for item in context), *kept[place:]]
    return Replacement(
        base=tuple(history),
        items=tuple(item for item, _ in placed),
        addresses=tuple(address for _, address in placed),
        message="",
    )


def _told(item: Item) -> tuple[str, ...]:
    """By what an item is known again: who said it, and what; providers may change ids and add keys."""
    kinds = (str(part.get("type")) for part in content_parts(item))
    return (str(item.get("role")), *kinds, "", *message_texts(item))


def _stays(item: Item, known: Entry | None) -> bool:
    """Whether an item is kept: what people, hooks, summaries, the assistant and other agents said, and compactions."""
    if item.get("type") in SEALED_TYPES or item.get("type") == "agent_message":
        return True
    if item.get("type") != "message" or is_agent_envelope(item):
        return False
    if item.get("role") == "assistant":
        return True
    origin = origin_of(item) if known is None else known.origin
    return item.get("role") == "user" and origin in ("typed", "summary", "hook")


def _stands_for_work(item: Item) -> bool:
    """Whether an item tells what was done: not an empty text, nor one that only refuses to."""
    if item.get("role") == "assistant":
        text = message_text(item)
        return bool(text.strip()) and not is_refusal(text)
    return item.get("type") in SEALED_TYPES or origin_of(item) == "summary"
