"""Whole: one checkpoint that holds a thread's whole active state, for another thread to begin with."""

from __future__ import annotations

from refold.core.compaction.retained import retained
from refold.core.compaction.shadow import facts_beside
from refold.core.records import Compacted, addressed
from refold.core.thread import Thread


def whole(thread: Thread) -> Compacted:
    """The checkpoint; items, pins and rules keep their addresses."""
    items = tuple(entry.item for entry in thread.history)
    return Compacted(
        message="",
        history=items,
        window=thread.window,
        addresses=tuple(entry.address for entry in thread.history),
        world=thread.world,
        settings=thread.settings,
        steers=dict(thread.steers),
        pins=addressed(thread.pins),
        dropped_rules=addressed(thread.dropped_rules),
        facts={"method": "fork", **facts_beside(items, thread.shadows)},
        payload=retained(thread, items, {}),
    )
