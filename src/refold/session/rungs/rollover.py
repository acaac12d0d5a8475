"""By a rollover: no model is asked; a new window begins (spec §4.5, docs/token-budget.md)."""

from __future__ import annotations

from refold.core.compaction.outline import OUTLINE_TOKENS
from refold.core.compaction.rollover import settle
from refold.core.history import Entry
from refold.session.rungs.job import Found, Job


def by_rollover(job: Job, snapshot: list[Entry]) -> Found:
    """What people said, fresh context, an outline of the rest. An item that only a provider can read does not go on:
    what its shadow tells does."""
    memory = job.memory
    replacement = settle(
        snapshot,
        job.fresh.context,
        limit=memory.profile.compact_limit,
        outline_tokens=OUTLINE_TOKENS,
        summary_id=memory.clock.item_id("msg"),
        turn_id=memory.thread.open_turn,
        shadows=memory.thread.shadows,
        dropped=memory.thread.dropped_rules,
    )
    return Found(method="rollover", replacement=replacement)
