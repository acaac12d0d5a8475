"""By an outline: no model is asked; the facts that the log holds, by rules."""

from __future__ import annotations

from refold.core.compaction.outline import outline as outline_of
from refold.core.compaction.replacement import NO_SUMMARY, summarised
from refold.core.fragments import SUMMARY_MARK
from refold.core.history import Entry
from refold.core.items import message_text
from refold.session.rungs.job import Found, Job

OUTLINE_TOKENS = 8_000  # of facts; at most a quarter of what fills a window


def by_outline(job: Job, snapshot: list[Entry]) -> Found:
    """The facts that the log holds, by rules; an earlier summary goes on in it."""
    memory, limit = job.memory, job.memory.profile.compact_limit
    budget = OUTLINE_TOKENS if limit is None else min(OUTLINE_TOKENS, limit // 4)
    summaries = [message_text(e.item).removeprefix(SUMMARY_MARK) for e in snapshot if e.origin == "summary"]
    text = outline_of(snapshot, budget, earlier=summaries[-1] if summaries else "")
    replacement = summarised(
        snapshot,
        job.fresh.context,
        text or NO_SUMMARY,
        summary_id=memory.clock.item_id("msg"),
        turn_id=memory.thread.open_turn,
    )
    return Found(method="outline", replacement=replacement)
