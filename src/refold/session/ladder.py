"""Ladder: the attempts at one compaction, from the request that fits to the typed failure (spec §5.2, oracle §4, §6).

Rule 1: the history changes only at the end, in `Memory.install`; a failed attempt leaves a record of its cost, no item.
"""

from __future__ import annotations

import asyncio

import msgspec

from refold.core.compaction import local
from refold.core.compaction.due import Due
from refold.core.compaction.replacement import assemble
from refold.core.history import Entry, drop_oldest, entry
from refold.core.items import Item
from refold.core.records import JSON, CompactionAttempted
from refold.core.tokens import estimate
from refold.core.usage import Usage
from refold.core.wire import Identity, Wire
from refold.errors import CompactionFailed, ContextWindowExceeded, ModelUnavailable, ResponseIncomplete
from refold.model import Completed, ItemDone, Model
from refold.session.events import CompactionEnded, CompactionStarted, SamplingStarted
from refold.session.home import handoff_text
from refold.session.memory import Memory
from refold.session.patience import Patience

METHOD = "local"
GROWTH_ALLOWED = 1_000  # tokens: a tiny history may grow by the prefix and fresh context; more is not worth installing


class Fresh(msgspec.Struct, frozen=True):
    """What is in force after the compaction: context items to re-inject, the world they tell, the turn's settings."""

    context: tuple[Item, ...] = ()
    world: JSON | None = None
    settings: JSON | None = None


class Summary(msgspec.Struct, frozen=True):
    """An accepted summary and what it took."""

    text: str
    response_id: str | None
    dropped: int


async def compact(memory: Memory, model: Model, why: Due, fresh: Fresh) -> CompactionEnded:
    """Ask for a summary and put it in the history's place.

    Raises CompactionFailed, ContextWindowExceeded (nothing is left to drop) or ModelError, with the thread untouched.
    """
    thread, base = memory.thread, memory.thread.base_instructions
    memory.feed.publish(CompactionStarted(why.reason, why.phase, why.tokens, why.limit or None))
    before = estimate((e.sizes for e in thread.history), base)
    snapshot = list(thread.history)
    summary = await _summarise(memory, model, snapshot)
    replacement = assemble(
        snapshot, fresh.context, summary.text, summary_id=memory.clock.item_id("msg"), turn_id=thread.open_turn
    )
    after = estimate((entry(item, "").sizes for item in replacement.items), base)
    limit = memory.profile.compact_limit
    made_room = after < before if limit is None else after < limit
    ended = CompactionEnded(True, before, after, limit, summary.dropped, made_room)
    if why.reason != "user_requested" and after > before + GROWTH_ALLOWED:
        ended = msgspec.structs.replace(ended, installed=False, made_room=False)
    else:
        facts: JSON = {
            "method": METHOD,
            "reason": why.reason,
            "phase": why.phase,
            "tokens_before": before,
            "tokens_after": after,
            "response_id": summary.response_id,
        }
        memory.install(replacement, facts, fresh.world, fresh.settings)
    memory.feed.publish(ended)
    return ended


async def _summarise(memory: Memory, model: Model, snapshot: list[Entry]) -> Summary:
    """Rungs: as it is → without the oldest item, again and again, while it does not fit → again after a wait."""
    wire, patience = Wire(model.provider, model.profile), Patience(model.provider, memory.clock)
    entries = snapshot
    while True:
        dropped = len(snapshot) - len(entries)
        try:
            output, completed = await _ask(memory, model, wire, entries)
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
        except (ModelUnavailable, CompactionFailed) as error:
            _failed(memory, dropped, str(error))
            waiting = patience.wait(error)
            if waiting is None:
                raise
            memory.feed.publish(waiting)
            await asyncio.sleep(waiting.seconds)
        else:
            usage, response_id = completed.usage, completed.response_id
            done = CompactionAttempted(
                method=METHOD, outcome="completed", dropped=dropped, usage=usage, response_id=response_id
            )
            memory.record(done)
            return Summary(text, response_id, dropped)


async def _ask(memory: Memory, model: Model, wire: Wire, entries: list[Entry]) -> tuple[list[Item], Completed]:
    """One request for a summary: the output items of the reply and its end."""
    thread = memory.thread
    prompt = local.request(
        entries, model.profile, base_instructions=thread.base_instructions, handoff=handoff_text(memory.config)
    )
    identity = Identity(
        thread_id=thread.id,
        turn_id=thread.open_turn,
        window_number=thread.window.number,
        request_kind="compaction",
    )
    request = wire.request(prompt, identity)
    memory.feed.publish(SamplingStarted("compaction", len(request.parts), prompt.tokens, request.size))
    output: list[Item] = []
    async for event in model.sample(request):
        match event:
            case ItemDone(item=item):
                output.append(item)
            case Completed():
                return output, event
            case _:
                pass  # a summary is not shown while it is written: it may yet be refused
    raise CompactionFailed("the stream ended without an answer")


def _failed(memory: Memory, dropped: int, outcome: str, usage: Usage | None = None) -> None:
    memory.record(CompactionAttempted(method=METHOD, outcome=outcome, dropped=dropped, usage=usage))
