"""Ladder: the attempts at one compaction, from the request that fits to the typed failure (spec §5.2, oracle §4, §6).

Rule 1: the history changes only at the end, in `Memory.install`; a failed attempt leaves a record of its cost, no item.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from refold.core.compaction import local
from refold.core.compaction.due import Due, size_of
from refold.core.compaction.replacement import assemble
from refold.core.history import Entry, drop_oldest, entry
from refold.core.items import Item
from refold.core.pairing import for_prompt
from refold.core.records import JSON, CompactionAttempted
from refold.core.usage import Usage
from refold.core.wire import Identity, Wire
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelRefused, ModelUnavailable, ResponseIncomplete
from refold.model import Completed, FellBack, ItemDone, Model
from refold.session.events import CompactionEnded, CompactionStarted, Notice, SamplingStarted
from refold.session.home import handoff_text
from refold.session.memory import Fresh, Memory
from refold.session.patience import Patience, outlast
from refold.session.sent import record_sent

METHOD = "local"
GROWTH_ALLOWED = 1_000  # tokens: a tiny history may grow by the prefix and fresh context; more is not worth installing


class Summary(msgspec.Struct, frozen=True):
    """An accepted summary and what it took."""

    text: str
    response_id: str | None
    dropped: int


async def compact(memory: Memory, model: Model, why: Due, fresh: Fresh, wire: Wire | None = None) -> CompactionEnded:
    """Ask for a summary and put it in the history's place; `wire` is one that knows the history's bytes already.

    Raises CompactionFailed, ContextWindowExceeded (nothing is left to drop) or ModelError, with the thread untouched.
    """
    memory.feed.publish(CompactionStarted(why.reason, why.phase, why.tokens, why.limit or None))
    try:
        ended = await _compacted(memory, model, why, fresh, wire or Wire(model.provider, model.profile))
    except BaseException as error:
        reason = str(error) or type(error).__name__
        memory.feed.publish(CompactionEnded(False, why.tokens, why.tokens, why.limit or None, 0, False, reason))
        raise
    memory.feed.publish(ended)
    return ended


async def _compacted(memory: Memory, model: Model, why: Due, fresh: Fresh, wire: Wire) -> CompactionEnded:
    thread = memory.thread
    before = size_of(thread, thread.history)
    snapshot = list(thread.history)
    summary = await _summarise(memory, model, snapshot, wire)
    replacement = assemble(
        snapshot, fresh.context, summary.text, summary_id=memory.clock.item_id("msg"), turn_id=thread.open_turn
    )
    after = size_of(thread, (entry(item, "") for item in replacement.items))
    limit = memory.profile.compact_limit
    made_room = after < before if limit is None else after < limit
    if why.reason != "user_requested" and after > before + GROWTH_ALLOWED:
        return CompactionEnded(False, before, after, limit, summary.dropped, False)
    facts: JSON = {
        "method": METHOD,
        "reason": why.reason,
        "phase": why.phase,
        "tokens_before": before,
        "tokens_after": after,
    }
    memory.install(replacement, facts, fresh, response_id=summary.response_id)
    return CompactionEnded(True, before, after, limit, summary.dropped, made_room)


async def _summarise(memory: Memory, model: Model, snapshot: list[Entry], wire: Wire) -> Summary:
    """Rungs: as it is → without the oldest item, again and again, while it does not fit → again after a wait."""
    patience = Patience(model.provider, memory.clock)
    entries = whole = for_prompt(snapshot, model.profile.input_modalities)
    while True:
        dropped = len(whole) - len(entries)
        completed = Completed()
        try:
            output, completed = await _ask(memory, model, wire, entries, dropped)
            text = local.settle(output)
        except ContextWindowExceeded as error:
            _failed(memory, dropped, str(error))
            if not entries:
                raise
            entries = drop_oldest(entries)
            patience.renew()
        except ResponseIncomplete as error:  # half a summary is none, and asking again would cut it off again
            _failed(memory, dropped, str(error), error.usage)
            raise
        except ModelRefused as error:
            _failed(memory, dropped, str(error))
            raise
        except (ModelUnavailable, CompactionFailed) as error:
            _failed(memory, dropped, str(error), completed.usage)
            await outlast(error, patience, model, memory)
        else:
            usage, response_id = completed.usage, completed.response_id
            done = CompactionAttempted(
                method=METHOD, outcome="completed", dropped=dropped, usage=usage, response_id=response_id
            )
            memory.record(done)
            return Summary(text, response_id, dropped)


async def _ask(
    memory: Memory, model: Model, wire: Wire, entries: list[Entry], dropped: int
) -> tuple[list[Item], Completed]:
    """One request for a summary: the output items of the reply and its end."""
    thread, handoff = memory.thread, handoff_text(memory.config)
    prompt = local.request(entries, model.profile, base_instructions=thread.base_instructions, handoff=handoff)
    identity = Identity(
        thread_id=thread.id,
        turn_id=thread.open_turn,
        window_number=thread.window.number,
        request_kind="compaction",
    )
    request = wire.request(prompt, identity)
    record_sent(memory, wire, prompt, request, kind="compaction", dropped=dropped, handoff=handoff)
    memory.feed.publish(SamplingStarted("compaction", request.items, prompt.tokens, request.size))
    output: list[Item] = []
    completed: Completed | None = None
    async with aclosing(model.sample(request)) as events:
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


def _failed(memory: Memory, dropped: int, outcome: str, usage: Usage | None = None) -> None:
    memory.record(CompactionAttempted(method=METHOD, outcome=outcome, dropped=dropped, usage=usage))
