"""Turn: the loop: sample, run the calls, record the outputs, sample again, until the answer is there (flow a)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from refold.core.fragments import KIND_TURN_ABORTED, KIND_TYPED, stored_message, tagged, typed_parts
from refold.core.history import entry
from refold.core.items import message_text, output_for
from refold.core.records import JSON, ItemRecorded, Outcome, TurnEnded, TurnStarted
from refold.core.templates import template
from refold.core.world import World
from refold.errors import CompactionFailed, ContextWindowExceeded
from refold.session.ahead import begin as begin_ahead
from refold.session.events import CompactionEnded, Notice
from refold.session.late import keep
from refold.session.room import (
    after_overflow,
    after_the_answer,
    before_the_switch,
    by_hand,
    has_budget,
    make_room,
    say_if_hopeless,
)
from refold.session.rules import look, say_if_model_changed, tell_world
from refold.session.said import Parts
from refold.session.sampling import sample
from refold.session.scope import Scope
from refold.session.shadow import step_in_for
from refold.session.skills import say_of_skills, tell_skills, tokens_of_skills
from refold.session.spending import Spending, in_time
from refold.tools import ToolResult

if TYPE_CHECKING:
    from refold.session.ladder import Prepared


class Turned(msgspec.Struct, frozen=True):
    """How a turn ended."""

    outcome: Outcome
    text: str | None = None
    error: Exception | None = None


# --- the loop ------------------------------------------------------------------------------------------------------


async def run_turn(scope: Scope, said: Parts, output_schema: JSON | None = None) -> Turned:
    """One turn from the user's message to the answer. It always ends in a TurnEnded record, and never raises for
    what a model, tool, compaction or host did; only cancellation passes through, after the turn is settled."""
    memory, scope.output_schema = scope.memory, output_schema
    for hook in scope.hooks:
        await hook.before_turn(message_text(memory.stored(said)))
    if has_budget(scope):
        from refold.session.budget_tools import offer

        offer(scope)
    turn_id, began = memory.clock.uuid(), memory.clock.monotonic()
    memory.record(TurnStarted(turn_id, memory.clock.seconds(), memory.profile.usable_window))
    try:
        async with in_time(memory.config.limits.turn_seconds):
            text, world = await _until_answered(scope, said)
            ended = Turned("completed", text)
    except asyncio.CancelledError:
        _settle_calls(scope, "by user")
        _note_abort(scope)
        _end(scope, turn_id, began, Turned("interrupted"))
        raise
    except Exception as error:  # also what the host's own code raised: the log is settled all the same
        _settle_calls(scope, "by an error")
        ended = Turned("failed", error=error)
    else:
        try:
            await after_the_answer(scope, world)
        except asyncio.CancelledError:  # the answer is there all the same
            _end(scope, turn_id, began, ended)
            raise
    await _tell_hooks(scope, _end(scope, turn_id, began, ended))
    return ended


async def _until_answered(scope: Scope, said: Parts) -> tuple[str | None, World]:
    """The answer's text, and the world that it was given in."""
    memory, inbox, spending = scope.memory, scope.memory.thread.steers, Spending(scope.memory)
    say_if_model_changed(scope)
    world = await _looked(scope, said)
    say_of_skills(scope, world)
    has_room, overflow = True, None
    try:
        step_in_for(memory, scope.model.provider)
        await before_the_switch(scope, world)
        has_room = await make_room(scope, world, "pre_turn", pending=_tokens_of(scope, said))
    finally:  # also when there is no room: what the user said is never lost
        try:
            tell_world(scope, world)
            say_if_hopeless(scope)
            _deliver(scope)
            tell_skills(scope, _typed(scope, said))
        finally:
            memory.record(ItemRecorded(memory.stored(said)))
    while True:
        _deliver(scope)
        spending.step()
        if has_budget(scope):
            from refold.session.budget_tools import remind

            remind(scope)
        try:
            answer = await sample(scope)
            overflow = None
        except ContextWindowExceeded as error:
            overflow = await after_overflow(scope, world, error, overflow)
            continue
        if not answer.follow_up and not inbox:
            return answer.text, world
        if has_room:
            begin_ahead(scope, world)
            has_room = await make_room(scope, world, "mid_turn")


async def run_compaction(
    scope: Scope, focus: str | None = None, *, outline: bool = False, only_look: bool = False
) -> CompactionEnded | Prepared:
    """A compaction by hand, in a turn of its own; `only_look`: what it would put in place, and nothing is changed.

    Raises what made it fail, after the turn is settled.
    """
    if not scope.memory.thread.history:
        raise CompactionFailed("there is nothing to compact yet: nothing was said")
    memory = scope.memory
    turn_id, began = memory.clock.uuid(), memory.clock.monotonic()
    memory.record(TurnStarted(turn_id, memory.clock.seconds(), memory.profile.usable_window))
    turned = Turned("interrupted")
    try:
        world = await look(scope)
        done = await by_hand(scope, world, focus, outline=outline, only_look=only_look)
        turned = Turned("completed")
        return done
    except Exception as error:
        turned = Turned("failed", error=error)
        raise
    finally:
        _end(scope, turn_id, began, turned)


# --- the steps -----------------------------------------------------------------------------------------------------


async def _looked(scope: Scope, said: Parts) -> World:
    """The world as it is now; where that is interrupted or fails, what the user said is in the log all the same."""
    try:
        return await look(scope)
    except BaseException:
        scope.memory.record(ItemRecorded(scope.memory.stored(said)))
        raise


def _deliver(scope: Scope) -> None:
    """Steers become user messages, in the order they came."""
    thread = scope.memory.thread
    for item_id, text in list(thread.steers.items()):
        tell_skills(scope, text)
        item = stored_message("user", [(KIND_TYPED, text)], id=item_id, turn_id=thread.open_turn)
        scope.memory.record(ItemRecorded(item))


def _tokens_of(scope: Scope, said: Parts) -> int:
    """About what a message adds to the context, with the skills that it names."""
    return entry(scope.memory.stored(said), "").tokens + tokens_of_skills(scope, _typed(scope, said))


def _typed(scope: Scope, said: Parts) -> str:
    """What a person typed of a message."""
    return "\n".join(typed_parts(scope.memory.stored(said))[0])


def _settle_calls(scope: Scope, by: str) -> None:
    """Every call that was begun gets its output: the real one where it finished, else that it was aborted."""
    calls, scope.calls = scope.calls, []  # none is left for the next turn, even if the log takes no more
    for call, task, began in calls:
        finished = task.done() and not task.cancelled() and task.exception() is None
        seconds = scope.memory.clock.monotonic() - began
        aborted = f"Wall time: {seconds:.4f} seconds\naborted {by}"
        result = task.result() if finished else ToolResult(output=aborted)
        scope.memory.record(scope.memory.item(output_for(call, result.output), shaped=result.shaped))


def _note_abort(scope: Scope) -> None:
    """The model is told that the user interrupted it."""
    note = tagged("turn_aborted", "\n" + template("turn_aborted").strip() + "\n")
    scope.memory.record(ItemRecorded(scope.memory.stored([(KIND_TURN_ABORTED, note)])))


async def _tell_hooks(scope: Scope, ended: TurnEnded) -> None:
    for hook in scope.hooks:
        try:
            await hook.after_turn(ended)
        except Exception as error:
            scope.memory.feed.publish(Notice(f"a hook failed after the turn: {type(error).__name__}: {error}"))


def _end(scope: Scope, turn_id: str, began: float, ended: Turned) -> TurnEnded:
    clock = scope.memory.clock
    seconds = clock.monotonic() - began
    record = TurnEnded(
        turn_id=turn_id,
        outcome=ended.outcome,
        last_message=ended.text,
        error=str(ended.error) if ended.error else None,
        started_at=clock.seconds() - int(seconds),
        completed_at=clock.seconds(),
        duration_ms=int(seconds * 1000),
    )
    scope.memory.record(record)
    keep(scope.memory)
    return record
