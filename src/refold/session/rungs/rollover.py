"""By a rollover: no model is asked; a new window begins (spec §4.5, docs/token-budget.md)."""

from __future__ import annotations

from refold.core.compaction.rollover import settle
from refold.core.compaction.shadow import seal_of, sealed
from refold.core.history import Entry
from refold.session.rungs.job import Found, Job
from refold.session.rungs.outline import OUTLINE_TOKENS


def by_rollover(job: Job, snapshot: list[Entry]) -> Found:
    """What people said, fresh context, an outline of the rest. An item that only a provider can read does not go on:
    what its shadow tells does."""
    memory, hidden = job.memory, sealed(snapshot)
    shadow = memory.thread.shadows.get(seal_of(hidden[-1].item) or "") if hidden else None
    replacement = settle(
        snapshot,
        job.fresh.context,
        limit=memory.profile.compact_limit,
        outline_tokens=OUTLINE_TOKENS,
        summary_id=memory.clock.item_id("msg"),
        turn_id=memory.thread.open_turn,
        earlier=shadow.text if shadow else "",
        dropped=memory.thread.dropped_rules,
    )
    return Found(method="rollover", replacement=replacement)
