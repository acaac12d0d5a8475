"""Job: what is to be compacted, one request for it, and what an attempt leaves in the log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from refold.core.compaction.due import Due
from refold.core.compaction.local import Asking
from refold.core.compaction.replacement import RETAINED_USER_TOKENS, Replacement, fitting, summarised
from refold.core.history import Entry
from refold.core.items import Item
from refold.core.prompt import Prompt
from refold.core.records import CompactionAttempted, Method
from refold.core.usage import Usage
from refold.core.wire import Identity, Wire
from refold.errors import CompactionFailed
from refold.model import Completed, FellBack, ItemDone, Model
from refold.session.events import Notice, SamplingStarted
from refold.session.hooks import Hook
from refold.session.memory import Fresh, Memory
from refold.session.sent import AS_EVER, record_sent


class Job(msgspec.Struct, frozen=True):
    """One compaction: of which memory, by which model, why, and what is told anew.

    `wire`: one of this model, that knows the history's bytes already. `tools`: those in force. `focus`: a summary is
    asked for that keeps this in particular. `outline`: no model is asked. `beside`: a turn goes on
    meanwhile; this is the history as it was.
    """

    memory: Memory
    model: Model
    why: Due
    fresh: Fresh
    wire: Wire
    tools: Sequence[dict[str, Any]] = ()
    focus: str | None = None
    outline: bool = False
    hooks: Sequence[Hook] = ()
    beside: tuple[Entry, ...] | None = None

    @property
    def read(self) -> int | None:
        """How many of the history's entries a request for it reads, where others may have come since."""
        return None if self.beside is None else len(self.beside)

    @property
    def identity(self) -> Identity:
        """What a request for it says of whom it is for."""
        thread = self.memory.thread
        return Identity(
            thread_id=thread.id,
            turn_id=thread.open_turn,
            window_number=thread.window.number,
            request_kind="compaction",
        )

    def sees_live(self, snapshot: Sequence[Entry]) -> bool:
        """Whether this model is told the history as the session's own is, and it is still the live one: then its view
        of it is known already."""
        memory = self.memory
        return self.model.profile is memory.profile and len(snapshot) == len(memory.thread.history)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt found to take the history's place, and what it took."""

    method: Method
    replacement: Replacement
    response_id: str | None = None
    dropped: int = 0


def closed_by(job: Job, snapshot: Sequence[Entry], text: str) -> Replacement:
    """What people said and the rules in force, closed by a summary."""
    memory = job.memory
    return summarised(
        snapshot,
        job.fresh.context,
        text,
        summary_id=memory.clock.item_id("msg"),
        turn_id=memory.thread.open_turn,
        budget=fitting(RETAINED_USER_TOKENS, memory.profile.usable_window),
        dropped=memory.thread.dropped_rules,
    )


# --- one attempt ---------------------------------------------------------------------------------------------------


async def ask(
    job: Job, prompt: Prompt, method: Method, dropped: int, asking: Asking = AS_EVER
) -> tuple[list[Item], Completed]:
    """One request for a compaction: the output items of the reply and its end. `asking`: how a summary is asked for."""
    memory = job.memory
    request = job.wire.request(prompt, job.identity)
    told = None if method == "local" else method
    record_sent(
        memory,
        job.wire,
        prompt,
        request,
        kind="compaction",
        dropped=dropped,
        asking=asking,
        method=told,
        entries=job.read,
    )
    memory.feed.publish(SamplingStarted("compaction", request.items, prompt.tokens, request.size))
    output: list[Item] = []
    ended: Completed | None = None
    async with aclosing(job.model.sample(request)) as events:
        async for event in events:  # a summary is not shown while it is written: it may yet be refused
            if isinstance(event, ItemDone):
                output.append(event.item)
            elif isinstance(event, FellBack):
                memory.feed.publish(Notice(event.text))
            elif isinstance(event, Completed):
                ended = event
    if ended is None:
        raise CompactionFailed("the stream ended without an answer")
    return output, ended


def failed(memory: Memory, method: Method, dropped: int, outcome: str, usage: Usage | None = None) -> None:
    memory.record(CompactionAttempted(method=method, outcome=outcome, dropped=dropped, usage=usage))


def completed(memory: Memory, method: Method, dropped: int, done: Completed) -> None:
    memory.record(
        CompactionAttempted(
            method=method, outcome="completed", dropped=dropped, usage=done.usage, response_id=done.response_id
        )
    )
