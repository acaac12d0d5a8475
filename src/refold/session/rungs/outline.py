"""By an outline: no model is asked; the facts that the log holds, by rules."""

from __future__ import annotations

from collections.abc import Sequence

from refold.core.compaction.outline import OUTLINE_PART, OUTLINE_TOKENS
from refold.core.compaction.outline import outline as outline_of
from refold.core.compaction.replacement import NO_SUMMARY, fitting
from refold.core.compaction.shadow import earlier_of
from refold.core.history import Entry
from refold.session.memory import Memory
from refold.session.rungs.job import Found, Job, closed_by


def by_outline(job: Job, snapshot: list[Entry]) -> Found:
    """The facts that the log holds, by rules."""
    text = outline_text(job.memory, snapshot) or NO_SUMMARY
    return Found(method="outline", replacement=closed_by(job, snapshot, text))


def outline_text(memory: Memory, history: Sequence[Entry]) -> str:
    """The facts that the log holds of a history; an older summary, or the shadow of an encrypted one, goes on in it."""
    budget = fitting(OUTLINE_TOKENS, memory.profile.compact_limit, OUTLINE_PART)
    return outline_of(history, budget, earlier=earlier_of(history, memory.thread.shadows))
