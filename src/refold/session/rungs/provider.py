"""By the provider: a request with the trigger, or one at its compact endpoint; only it can read the answer (spec §6).

Rule: beside such a result stands what can be read of it (session/shadow.py), made from the log before it is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec

from refold.core.compaction import endpoint, remote
from refold.core.compaction.replacement import assemble, fitting
from refold.core.history import Entry
from refold.core.items import ID_PREFIX, Item, with_id
from refold.core.pairing import for_prompt
from refold.core.prompt import Prompt
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ModelUnavailable, ResponseIncomplete
from refold.model import Completed, EndpointAnswer, HasCompactEndpoint
from refold.session.events import SamplingStarted
from refold.session.patience import Patience, outlast
from refold.session.rungs.job import Found, Job, ask, completed, failed
from refold.session.sent import record_sent
from refold.session.shadow import shadowing, with_shadow

REMOTE_STREAM_RETRIES = 2  # a provider that breaks off twice more will not compact (spec §6.3)
NOT_IMPLEMENTED = 501  # the one server error that asking again does not help against


async def by_provider(job: Job, snapshot: list[Entry]) -> Found:
    """The provider compacts, in the way that is set for it. Raises CompactionFailed or a ModelError."""
    way = _at_endpoint if job.model.provider.compaction == "endpoint" else _by_trigger
    async with shadowing(job, snapshot) as shadow:
        return await way(job, snapshot, shadow)


# --- by the trigger ------------------------------------------------------------------------------------------------


async def _by_trigger(job: Job, snapshot: list[Entry], shadow: Awaitable[str]) -> Found:
    """One request with the trigger, asked again while the stream breaks."""
    memory, profile = job.memory, job.model.profile
    retries = min(job.model.provider.stream_max_retries, REMOTE_STREAM_RETRIES)
    patience = Patience(msgspec.structs.replace(job.model.provider, stream_max_retries=retries), memory.clock)
    prompt, left_out = _prompt(job, snapshot, trigger=True)
    while True:
        done = Completed()
        try:
            output, done = await ask(job, prompt, "remote", left_out)
            item = remote.settle(output)
        except ModelUnavailable as error:
            failed(memory, "remote", left_out, str(error), done.usage)
            if error.status == NOT_IMPLEMENTED:
                raise ModelRefused(str(error), status=error.status) from error
            await outlast(error, patience, job.model, memory)
        except (ModelRefused, CompactionFailed, ContextWindowExceeded, ResponseIncomplete) as error:
            failed(memory, "remote", left_out, str(error), done.usage)
            raise
        else:
            completed(memory, "remote", left_out, done)
            told = prompt.entries[:-1] if not left_out else for_prompt(snapshot, profile.input_modalities)
            budget = fitting(remote.RETAINED_TOKENS, memory.profile.usable_window)
            kept = remote.retained(told, budget, dropped=memory.thread.dropped_rules)
            replacement = assemble(snapshot, job.fresh.context, kept, _named(job, item))
            replacement = with_shadow(job, replacement, await shadow)
            return Found(method="remote", replacement=replacement, response_id=done.response_id, dropped=left_out)


def _prompt(job: Job, snapshot: list[Entry], *, trigger: bool) -> tuple[Prompt, int]:
    """What goes out, and how many of the last entries are left out of it so that it fits."""
    profile, base = job.model.profile, job.memory.thread.base_instructions
    left_out = remote.outputs_over(snapshot, base, profile.usable_window)
    if not left_out and job.sees_live(snapshot):
        prompt = job.memory.prompt(job.tools)
        return (remote.triggered(prompt) if trigger else prompt), 0
    prompt = remote.request(
        snapshot, profile, base_instructions=base, tools=job.tools, left_out=left_out, trigger=trigger
    )
    return prompt, left_out


def _named(job: Job, item: Item) -> Item:
    return with_id(item, job.memory.clock.item_id(ID_PREFIX.get(str(item.get("type")), "item")))


# --- at the endpoint -----------------------------------------------------------------------------------------------


async def _at_endpoint(job: Job, snapshot: list[Entry], shadow: Awaitable[str]) -> Found:
    """One request at the compact endpoint; only what was refused before it was answered is asked again (spec §6.2)."""
    memory, model = job.memory, job.model
    if not isinstance(model, HasCompactEndpoint):
        raise CompactionFailed(
            f'provider {model.provider.id!r} is set to compaction = "endpoint", but {type(model).__name__} cannot ask '
            "there; give it a method `compact` (refold.model.HasCompactEndpoint)"
        )
    patience = Patience(msgspec.structs.replace(model.provider, stream_max_retries=0), memory.clock)
    prompt, left_out = _prompt(job, snapshot, trigger=False)
    while True:
        answer = EndpointAnswer(())
        try:
            answer = await _ask_endpoint(job, model, prompt, left_out)
            kept = endpoint.settle(answer.items, prompt.entries)
        except ModelUnavailable as error:
            failed(memory, "endpoint", left_out, str(error))
            waiting = patience.wait(error)
            if waiting is None:
                raise
            memory.feed.publish(waiting)
            await asyncio.sleep(waiting.seconds)
        except (ModelRefused, CompactionFailed, ContextWindowExceeded) as error:
            failed(memory, "endpoint", left_out, str(error), answer.usage)
            raise
        else:
            completed(memory, "endpoint", left_out, Completed(answer.response_id, answer.usage))
            named = [(_named(job, item), address) for item, address in kept]
            replacement = endpoint.replacement(snapshot, job.fresh.context, named)
            replacement = with_shadow(job, replacement, await shadow)
            return Found(method="endpoint", replacement=replacement, response_id=answer.response_id, dropped=left_out)


async def _ask_endpoint(job: Job, model: HasCompactEndpoint, prompt: Prompt, left_out: int) -> EndpointAnswer:
    memory = job.memory
    request = job.wire.compact_request(prompt, job.identity)
    record_sent(
        memory, job.wire, prompt, request, kind="compaction", dropped=left_out, method="endpoint", entries=job.read
    )
    memory.feed.publish(SamplingStarted("compaction", request.items, prompt.tokens, request.size))
    return await model.compact(request)
