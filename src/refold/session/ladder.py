"""Ladder: the attempts at one compaction, from the provider's own to the facts of the log (spec §5–6, oracle §4, §6–7).

Rule 1: the history changes only at the end, in `Memory.install`; a failed attempt leaves a record of its cost, no item.
Rule 2: rungs: the provider's compaction, where it has one → a summary, from an ever shorter history → the outline.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from refold.core.compaction import local, remote
from refold.core.compaction.due import Due, size_of
from refold.core.compaction.outline import outline as outline_of
from refold.core.compaction.replacement import NO_SUMMARY, Replacement, assemble, summarised
from refold.core.fragments import SUMMARY_MARK
from refold.core.history import Entry, drop_oldest, entry
from refold.core.items import Item, message_text, with_id
from refold.core.pairing import for_prompt
from refold.core.prompt import Prompt
from refold.core.records import JSON, CompactionAttempted, Method
from refold.core.templates import template
from refold.core.truncate import well_formed
from refold.core.usage import Usage
from refold.core.wire import Identity, Wire
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ModelUnavailable, ResponseIncomplete
from refold.model import Completed, FellBack, ItemDone, Model
from refold.session.events import CompactionEnded, CompactionStarted, Notice, SamplingStarted
from refold.session.home import handoff_text
from refold.session.memory import Fresh, Memory
from refold.session.patience import Patience, outlast
from refold.session.sent import record_sent

GROWTH_ALLOWED = 1_000  # tokens: a tiny history may grow by the prefix and fresh context; more is not worth installing
REMOTE_STREAM_RETRIES = 2  # a provider that breaks off twice more will not compact (spec §6.3)
OUTLINE_TOKENS = 8_000  # of facts; at most a quarter of what fills a window
NOT_OFFERED = frozenset({400, 404, 405, 422, 501})  # what a provider answers that knows no compaction trigger


class Job(msgspec.Struct, frozen=True):
    """One compaction: of which memory, by which model, why, what is told anew, and the tools in force.

    `focus`: what a summary should keep in particular. `outline`: no model is asked.
    """

    memory: Memory
    model: Model
    why: Due
    fresh: Fresh
    wire: Wire
    tools: Sequence[dict[str, Any]] = ()
    focus: str | None = None
    outline: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt found to take the history's place, and what it took."""

    method: Method
    replacement: Replacement
    response_id: str | None = None
    dropped: int = 0


async def compact(
    memory: Memory,
    model: Model,
    why: Due,
    fresh: Fresh,
    wire: Wire | None = None,
    tools: Sequence[dict[str, Any]] = (),
    *,
    focus: str | None = None,
    outline: bool = False,
) -> CompactionEnded:
    """Have the history compacted and put the result in its place; `wire` is one that knows the history's bytes already.
    With a `focus` a summary is asked for that keeps it in particular; with `outline` no model is asked.

    Raises CompactionFailed, ContextWindowExceeded (nothing is left to drop) or ModelError, with the thread untouched.
    """
    memory.feed.publish(CompactionStarted(why.reason, why.phase, why.tokens, why.limit or None))
    try:
        wire = wire or Wire(model.provider, model.profile)
        job = Job(memory, model, why, fresh, wire, tools, focus, outline)
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
        return _by_outline(job, snapshot)
    if not job.model.provider.compacts or job.focus:
        return await _summary_or_outline(job, snapshot)
    try:
        return await _by_provider(job, snapshot)
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
        return await _by_summary(job, snapshot)
    except (CompactionFailed, ContextWindowExceeded, ResponseIncomplete) as error:
        if not job.memory.config.compaction.outline:
            raise
        job.memory.feed.publish(Notice(f"no summary could be had ({error}); an outline of the log takes its place"))
    return _by_outline(job, snapshot)


# --- the provider's own ------------------------------------------------------------------------------------------


async def _by_provider(job: Job, snapshot: list[Entry]) -> Found:
    """The provider compacts: one request with the trigger, asked again while the stream breaks."""
    memory, profile, base = job.memory, job.model.profile, job.memory.thread.base_instructions
    retries = min(job.model.provider.stream_max_retries, REMOTE_STREAM_RETRIES)
    patience = Patience(msgspec.structs.replace(job.model.provider, stream_max_retries=retries), memory.clock)
    left_out = remote.outputs_over(snapshot, base, profile.usable_window)
    prompt = remote.request(snapshot, profile, base_instructions=base, tools=job.tools, left_out=left_out)
    while True:
        completed = Completed()
        try:
            output, completed = await _ask(job, prompt, "remote", left_out)
            item = remote.settle(output)
        except ModelUnavailable as error:
            _failed(memory, "remote", left_out, str(error), completed.usage)
            await outlast(error, patience, job.model, memory)
        except (ModelRefused, CompactionFailed, ContextWindowExceeded, ResponseIncomplete) as error:
            _failed(memory, "remote", left_out, str(error), completed.usage)
            raise
        else:
            _completed(memory, "remote", left_out, completed)
            kept = remote.retained(for_prompt(snapshot, profile.input_modalities))
            closing = with_id(item, memory.clock.item_id("cmp"))
            replacement = assemble(snapshot, job.fresh.context, kept, closing)
            return Found(method="remote", replacement=replacement, response_id=completed.response_id, dropped=left_out)


# --- a summary -----------------------------------------------------------------------------------------------------


async def _by_summary(job: Job, snapshot: list[Entry]) -> Found:
    """Rungs: as it is → without the oldest item, again and again, while it does not fit → again after a wait."""
    memory = job.memory
    text, response_id, dropped = await _summarise(job, snapshot)
    replacement = summarised(
        snapshot,
        job.fresh.context,
        text,
        summary_id=memory.clock.item_id("msg"),
        turn_id=memory.thread.open_turn,
    )
    return Found(method="local", replacement=replacement, response_id=response_id, dropped=dropped)


async def _summarise(job: Job, snapshot: list[Entry]) -> tuple[str, str | None, int]:
    """The accepted summary, the id of its response, and how many of the oldest items were left out of the request."""
    memory, model, handoff = job.memory, job.model, handoff_text(job.memory.config)
    if job.focus:
        handoff = (handoff or template("handoff")) + "\n\n" + template("focus").format(focus=well_formed(job.focus))
    patience = Patience(model.provider, memory.clock)
    entries = whole = for_prompt(snapshot, model.profile.input_modalities)
    while True:
        dropped = len(whole) - len(entries)
        completed = Completed()
        base = memory.thread.base_instructions
        prompt = local.request(entries, model.profile, base_instructions=base, handoff=handoff)
        try:
            output, completed = await _ask(job, prompt, "local", dropped, handoff)
            text = local.settle(output)
        except ContextWindowExceeded as error:
            _failed(memory, "local", dropped, str(error))
            if not entries:
                raise
            entries = drop_oldest(entries)
            patience.renew()
        except ResponseIncomplete as error:  # half a summary is none, and asking again would cut it off again
            _failed(memory, "local", dropped, str(error), error.usage)
            raise
        except ModelRefused as error:
            _failed(memory, "local", dropped, str(error))
            raise
        except (ModelUnavailable, CompactionFailed) as error:
            _failed(memory, "local", dropped, str(error), completed.usage)
            await outlast(error, patience, model, memory)
        else:
            _completed(memory, "local", dropped, completed)
            return text, completed.response_id, dropped


# --- no model ------------------------------------------------------------------------------------------------------


def _by_outline(job: Job, snapshot: list[Entry]) -> Found:
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


# --- one attempt ---------------------------------------------------------------------------------------------------


async def _ask(
    job: Job, prompt: Prompt, method: Method, dropped: int, handoff: str | None = None
) -> tuple[list[Item], Completed]:
    """One request for a compaction: the output items of the reply and its end."""
    memory, thread = job.memory, job.memory.thread
    identity = Identity(
        thread_id=thread.id,
        turn_id=thread.open_turn,
        window_number=thread.window.number,
        request_kind="compaction",
    )
    request = job.wire.request(prompt, identity)
    told = None if method == "local" else method
    record_sent(memory, job.wire, prompt, request, kind="compaction", dropped=dropped, handoff=handoff, method=told)
    memory.feed.publish(SamplingStarted("compaction", request.items, prompt.tokens, request.size))
    output: list[Item] = []
    completed: Completed | None = None
    async with aclosing(job.model.sample(request)) as events:
        async for event in events:  # a summary is not shown while it is written: it may yet be refused
            if isinstance(event, ItemDone):
                output.append(event.item)
            elif isinstance(event, FellBack):
                memory.feed.publish(Notice(event.text))
            elif isinstance(event, Completed):
                completed = event
    if completed is None:
        raise CompactionFailed("the stream ended without an answer")
    return output, completed


def _failed(memory: Memory, method: Method, dropped: int, outcome: str, usage: Usage | None = None) -> None:
    memory.record(CompactionAttempted(method=method, outcome=outcome, dropped=dropped, usage=usage))


def _completed(memory: Memory, method: Method, dropped: int, done: Completed) -> None:
    memory.record(
        CompactionAttempted(
            method=method, outcome="completed", dropped=dropped, usage=done.usage, response_id=done.response_id
        )
    )
