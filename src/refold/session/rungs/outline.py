"""By an outline: no model is asked; the facts that the log holds, by rules."""

from __future__ import annotations

from collections.abc import Sequence

from refold.core.compaction.outline import outline as outline_of
from refold.core.compaction.replacement import NO_SUMMARY
from refold.core.compaction.shadow import earlier_of
from refold.core.history import Entry
from refold.session.memory import Memory
from refold.session.rungs.job import Found, Job, closed_by

OUTLINE_TOKENS = 8_000  # of facts; at most a quarter of what fills a window


def by_outline(job: Job, snapshot: list[Entry]) -> Found:
    """The facts that the log holds, by rules."""
    text = outline_text(job.memory, snapshot) or NO_SUMMARY
    return Found(method="outline", replacement=closed_by(job, snapshot, text))


def outline_text(memory: Memory, history: Sequence[Entry]) -> str:
    """The facts that the log holds of a history; an older summary, or the shadow of an encrypted one, goes on in it."""
    limit = memory.profile.compact_limit
    budget = OUTLINE_TOKENS if limit is None else min(OUTLINE_TOKENS, limit // 4)
    return outline_of(history, budget, earlier=earlier_of(history, memory.thread.shadows))
