"""Ladder: the attempts at one compaction, from the provider's own to the facts of the log (spec §5–6, oracle §4, §6–7).

Rule 1: the history changes only at the end, in `Memory.install`; a failed attempt leaves a record of its cost, no item.
Rule 2: rungs: the provider's compaction, where it has one → a summary, from an ever shorter history → the outline.
Rule 3: with a token budget there is one rung, the rollover: nobody is asked.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from refold.core.compaction.accepting import is_larger
from refold.core.compaction.due import size_of
from refold.core.history import Entry, entry
from refold.core.records import JSON
from refold.core.usage import Usage
from refold.core.world import window_told
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ResponseIncomplete
from refold.session.events import CompactionEnded, CompactionStarted, Notice
from refold.session.memory import Fresh
from refold.session.rungs import hooked
from refold.session.rungs.job import Found, Job
from refold.session.rungs.outline import by_outline
from refold.session.rungs.provider import by_provider
from refold.session.rungs.summary import by_summary
from refold.session.shadow import is_about_seal

PREVIEW = "this is a preview"
LARGER = "the result would be larger than what it replaces"
NOT_OFFERED = frozenset({400, 404, 405, 422, 501})  # what a provider answers that knows no compaction trigger


class Prepared(msgspec.Struct, frozen=True):
    """What was found to take the history's place; nothing is changed yet. Sizes in tokens."""

    job: Job
    found: Found
    before: int
    after: int
    limit: int | None
    used: Usage  # by the requests for it
    told: JSON | None  # what the model had been told of its world when this was made
    ordinal: int  # where the log stood then

    @property
    def made_room(self) -> bool:
        only_body = self.job.memory.config.model_auto_compact_token_limit_scope == "body_after_prefix"
        if self.limit is None or only_body:  # a limit that does not count what stands in every request
            return self.after < self.before
        return self.after < self.limit

    def ended(self, installed: bool, error: str | None = None) -> CompactionEnded:
        room = self.made_room and not is_larger(self.after, self.before)
        return CompactionEnded(installed, self.before, self.after, self.limit, self.found.dropped, room, error)


async def compact(job: Job) -> CompactionEnded:
    """Have the history compacted and put the result in its place.

    Raises CompactionFailed, ContextWindowExceeded (nothing is left to drop) or ModelError, with the thread untouched.
    """
    with _told(job):
        prepared = await prepare(job)
        ended = prepared.ended(False, LARGER) if is_larger(prepared.after, prepared.before) else install(prepared)
    job.memory.feed.publish(ended)
    return ended


async def preview(job: Job) -> Prepared:
    """Have the history compacted and leave it as it is. Raises as `compact` does."""
    with _told(job):
        prepared = await prepare(job)
    job.memory.feed.publish(prepared.ended(False, PREVIEW))
    return prepared


@contextmanager
def _told(job: Job) -> Generator[None]:
    """Tell that a compaction begins, and that it failed if it does."""
    why, feed = job.why, job.memory.feed
    feed.publish(CompactionStarted(why.reason, why.phase, why.tokens, why.limit or None))
    try:
        yield
    except BaseException as error:
        reason = str(error) or type(error).__name__
        feed.publish(CompactionEnded(False, why.tokens, why.tokens, why.limit or None, 0, False, reason))
        raise


async def prepare(job: Job) -> Prepared:
    """What would take the history's place, by the first rung that holds. Raises as `compact` does."""
    job = await hooked.before(job)
    memory, thread = job.memory, job.memory.thread
    before, used = size_of(thread, thread.history), thread.total_usage
    told, ordinal = thread.world, thread.next_ordinal
    snapshot = list(thread.history if job.beside is None else job.beside)
    found = await hooked.after(job, await _found(job, snapshot), snapshot)
    if thread.pins:
        from refold.session.pins import pinned_in

        found = replace(found, replacement=pinned_in(memory, found.replacement, thread.history[len(snapshot) :]))
    after = size_of(thread, (entry(item, "") for item in found.replacement.items))
    limit, used = memory.profile.compact_limit, thread.total_usage - used
    return Prepared(job, found, before, after, limit, used, told, ordinal)


def install(prepared: Prepared, fresh: Fresh | None = None) -> CompactionEnded:
    """Put it in place; `fresh`: what is in force by now, where that is not what was when it was made.

    Raises CompactionFailed, with nothing changed, when the history no longer begins with what it was made from.
    """
    job, found, why = prepared.job, prepared.found, prepared.job.why
    since = job.memory.thread.history[len(found.replacement.base) :]
    if since:  # it stays behind what is put in place
        more = sum(e.tokens for e in since)
        before = size_of(job.memory.thread, job.memory.thread.history)
        prepared = replace(prepared, before=before, after=prepared.after + more)
    facts: JSON = {
        "method": found.method,
        "reason": why.reason,
        "phase": why.phase,
        "tokens_before": prepared.before,
        "tokens_after": prepared.after,
        **({"comp_hash": job.model.profile.comp_hash} if job.model.profile.comp_hash else {}),
    }
    window = window_told(job.fresh.world)  # where the model is told which one begins, the checkpoint names the same
    job.memory.install(found.replacement, facts, fresh or job.fresh, response_id=found.response_id, window=window)
    return prepared.ended(True)


async def _found(job: Job, snapshot: list[Entry]) -> Found:
    if job.outline:
        return by_outline(job, snapshot)
    if job.memory.config.features.token_budget.enabled and not job.focus:  # only a model can keep something in focus
        from refold.session.rungs.rollover import by_rollover

        return by_rollover(job, snapshot)
    if not job.model.provider.compacts or job.focus:
        return await _summary_or_outline(job, snapshot)
    try:
        return await by_provider(job, snapshot)
    except (ModelRefused, CompactionFailed, ContextWindowExceeded, ResponseIncomplete) as error:
        refused = isinstance(error, ModelRefused) and error.status not in NOT_OFFERED
        refused = refused or is_about_seal(job.memory, error)  # a summary would be refused for it, too
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
