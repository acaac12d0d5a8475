"""Sampling: one request, its finished items, and the calls they ask for (design flow a.7–8).

Rule 1: an item is recorded before its tool starts. Rule 2: outputs are recorded in call order, each exactly once.
Rule 3: a broken stream is asked again from the live history; calls that were already run are not run twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from refold.core.items import is_call, message_text, output_for
from refold.core.wire import Identity
from refold.errors import ModelRefused, ModelUnavailable, RefoldError, ResponseIncomplete
from refold.model import (
    ArgumentsDelta,
    Completed,
    FellBack,
    ItemDone,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
)
from refold.session.calling import run_call
from refold.session.collector import without_collector
from refold.session.events import (
    CallPreview,
    Notice,
    PreviewDropped,
    ReasoningPreview,
    SamplingStarted,
    TextPreview,
)
from refold.session.patience import Patience, outlast
from refold.session.scope import Running, Scope
from refold.session.sent import record_sent
from refold.session.shadow import step_in_after


class Answer(msgspec.Struct, frozen=True):
    """What one sampling gave: its last message text, and whether the loop must go on."""

    text: str | None
    follow_up: bool


async def sample(scope: Scope) -> Answer:
    """Sample until a response is complete. Raises ModelError when the provider's budgets of patience are used up,
    in the model's second way too if it has one."""
    patience = Patience(scope.model.provider, scope.memory.clock)
    while True:
        try:
            return await _attempt(scope)
        except ModelUnavailable as error:
            await outlast(error, patience, scope.model, scope.memory)
        except ModelRefused as error:
            if not step_in_after(scope.memory, error):
                raise


async def _attempt(scope: Scope) -> Answer:
    """One request. What it finished counts even when it then breaks: calls are run out and their outputs recorded."""
    answer, broken = Answer(None, False), None
    try:
        async with asyncio.TaskGroup() as tools:
            try:
                answer = await _listen(scope, tools)
            except RefoldError as error:
                broken = error
                scope.memory.feed.publish(PreviewDropped())
            except asyncio.CancelledError:
                scope.memory.feed.publish(PreviewDropped())
                raise
            if isinstance(broken, ResponseIncomplete) and broken.usage is not None:
                scope.memory.record(scope.memory.usage(broken.usage))
            await _record_outputs(scope)
    except ExceptionGroup as group:  # a task group wraps even the error that its own body raised
        raise group.exceptions[0] from None
    if broken is not None:
        raise broken
    return answer


async def _listen(scope: Scope, tools: asyncio.TaskGroup) -> Answer:
    text, follow_up = None, False
    async with aclosing(_stream(scope)) as events:
        async for event in events:
            match event:
                case ItemDone(item=item):
                    scope.memory.record(scope.memory.item(item))
                    if item.get("role") == "assistant":
                        text = message_text(item) or text
                    if is_call(item):
                        began = scope.memory.clock.monotonic()
                        scope.calls.append(Running(item, tools.create_task(run_call(scope, item)), began))
                        follow_up = True
                case Completed(usage=usage, end_turn=end_turn):
                    follow_up = follow_up or end_turn is False
                    if usage is not None:
                        scope.memory.record(scope.memory.usage(usage))
                case _:
                    _preview(scope, event)
    return Answer(text, follow_up)


def _preview(scope: Scope, event: ModelEvent) -> None:
    match event:
        case TextDelta(item_id=item_id, text=more):
            scope.memory.feed.publish(TextPreview(item_id, more))
        case ReasoningDelta(item_id=item_id, text=more):
            scope.memory.feed.publish(ReasoningPreview(item_id, more))
        case ArgumentsDelta(item_id=item_id, text=more):
            scope.memory.feed.publish(CallPreview(item_id, more))
        case FellBack(text=text):
            scope.memory.feed.publish(Notice(text))
        case _:
            pass


async def _record_outputs(scope: Scope) -> None:
    """Each call's output in call order; a call leaves the list when its output is in the log."""
    while scope.calls:
        running = scope.calls[0]
        result = await running.task
        scope.memory.record(scope.memory.item(output_for(running.call, result.output), shaped=result.shaped))
        scope.calls.pop(0)


async def _stream(scope: Scope) -> AsyncGenerator[ModelEvent]:
    thread = scope.memory.thread
    identity = Identity(thread_id=thread.id, turn_id=thread.open_turn, window_number=thread.window.number)
    with without_collector(ages=not scope.wire.encodes):  # the first request of a resumed session spells all of it
        prompt = scope.memory.prompt(scope.toolbox.specs, output_schema=scope.output_schema)
        request = scope.wire.request(prompt, identity)
    while scope.wire.repaired:
        scope.memory.feed.publish(Notice(f"call {scope.wire.repaired.pop(0)}: its bad arguments are sent as {{}}"))
    record_sent(scope.memory, scope.wire, prompt, request)
    scope.memory.feed.publish(SamplingStarted("turn", request.items, prompt.tokens, request.size))
    async with aclosing(scope.model.sample(request)) as events:
        async for event in events:
            yield event
