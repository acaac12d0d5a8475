"""Ladder: the attempts at one compaction, from the provider's own to the facts of the log (spec §5–6, oracle §4, §6–7).

Rule 1: the history changes only at the end, in `Memory.install`; a failed attempt leaves a record of its cost, no item.
Rule 2: rungs: the provider's compaction, where it has one → a summary, from an ever shorter history → the outline.
"""

from __future__ import annotations

from refold.core.compaction.due import size_of
from refold.core.history import Entry, entry
from refold.core.records import JSON
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ResponseIncomplete
from refold.session.events import CompactionEnded, CompactionStarted, Notice
from refold.session.rungs.job import Found, Job
from refold.session.rungs.outline import by_outline
from refold.session.rungs.provider import by_provider
from refold.session.rungs.summary import by_summary

GROWTH_ALLOWED = 1_000  # tokens: a tiny history may grow by the prefix and fresh context; more is not worth installing
NOT_OFFERED = frozenset({400, 404, 405, 422, 501})  # what a provider answers that knows no compaction trigger


async def compact(job: Job) -> CompactionEnded:
    """Have the history compacted and put the result in its place.

    Raises CompactionFailed, ContextWindowExceeded (nothing is left to drop) or ModelError, with the thread untouched.
    """
    memory, why = job.memory, job.why
    memory.feed.publish(CompactionStarted(why.reason, why.phase, why.tokens, why.limit or None))
    try:
        ended = await _compacted(job)
    except BaseException as error:
        reason = str(error) or type(error).__name__
        memory.feed.publish(CompactionEnded(False, why.tokens, why.tokens, why.limit or None, 0, False, reason))
        raise
    memory.feed.publish(ended)
    return ended


async def _compacted(job: Job) -> CompactionEnded:
    memory, thread, why = job.memory, job.memory.thread, job.why
    before = size_of(thread, thread.history)
    snapshot = list(thread.history)
    found = await _found(job, snapshot)
    after = size_of(thread, (entry(item, "") for item in found.replacement.items))
    limit = memory.profile.compact_limit
    made_room = after < before if limit is None else after < limit
    if why.reason != "user_requested" and after > before + GROWTH_ALLOWED:
        return CompactionEnded(False, before, after, limit, found.dropped, False)
    facts: JSON = {
        "method": found.method,
        "reason": why.reason,
        "phase": why.phase,
        "tokens_before": before,
        "tokens_after": after,
        **({"comp_hash": job.model.profile.comp_hash} if job.model.profile.comp_hash else {}),
    }
    memory.install(found.replacement, facts, job.fresh, response_id=found.response_id)
    return CompactionEnded(True, before, after, limit, found.dropped, made_room)


async def _found(job: Job, snapshot: list[Entry]) -> Found:
    if job.outline:
        return by_outline(job, snapshot)
    if not job.model.provider.compacts or job.focus:
        return await _summary_or_outline(job, snapshot)
    try:
        return await by_provider(job, snapshot)
    except (ModelRefused, CompactionFailed, ContextWindowExceeded) as error:
        refused = isinstance(error, ModelRefused) and error.status not in NOT_OFFERED
        if refused or not job.memory.config.compaction.fallback:
            raise
        job.memory.feed.publish(Notice(f"the provider did not compact ({error}); it is asked for a summary instead"))
    return await _summary_or_outline(job, snapshot)


async def _summary_or_outline(job: Job, snapshot: list[Entry]) -> Found:
    """A summary; where none can be had of what fits, the outline, if that is wanted. A provider that cannot be reached
    is no reason: it will be there again, and so must the history."""
    try:
        return await by_summary(job, snapshot)
    except (CompactionFailed, ContextWindowExceeded, ResponseIncomplete) as error:
        if not job.memory.config.compaction.outline:
            raise
        job.memory.feed.publish(Notice(f"no summary could be had ({error}); an outline of the log takes its place"))
    return by_outline(job, snapshot)
