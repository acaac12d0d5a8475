"""Turn: the loop: sample, run the calls, record the outputs, sample again, until the answer is there (flow a)."""

from __future__ import annotations

import asyncio

import msgspec

from refold.core.compaction.due import Due, due_for_switch
from refold.core.fragments import KIND_TURN_ABORTED, KIND_TYPED, stored_message, tagged
from refold.core.history import entry
from refold.core.items import message_text, output_for
from refold.core.records import (
    JSON,
    ItemRecorded,
    Outcome,
    Phase,
    Record,
    SettingsApplied,
    TurnEnded,
    TurnStarted,
    WorldObserved,
)
from refold.core.templates import template
from refold.core.wire import Wire
from refold.core.world import World, diff_patch, messages, render
from refold.errors import CompactionFailed, ContextWindowExceeded, RefoldError
from refold.model import Model
from refold.observe import observe
from refold.session.events import CompactionEnded, Notice
from refold.session.former import former_model
from refold.session.ladder import compact
from refold.session.memory import Fresh, Memory
from refold.session.rungs.job import Job
from refold.session.said import Parts
from refold.session.sampling import sample
from refold.session.scope import Scope
from refold.session.spending import Spending, in_time
from refold.tools import ToolResult

MOST_MESSAGES = 4  # injected context never takes more messages than sections


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
    turn_id, began = memory.clock.uuid(), memory.clock.monotonic()
    memory.record(TurnStarted(turn_id, memory.clock.seconds(), memory.profile.usable_window))
    try:
        async with in_time(memory.config.limits.turn_seconds):
            ended = Turned("completed", await _until_answered(scope, said))
    except asyncio.CancelledError:
        _settle_calls(scope, "by user")
        _note_abort(scope)
        _end(scope, turn_id, began, Turned("interrupted"))
        raise
    except Exception as error:  # also what the host's own code raised: the log is settled all the same
        _settle_calls(scope, "by an error")
        ended = Turned("failed", error=error)
    await _tell_hooks(scope, _end(scope, turn_id, began, ended))
    return ended


async def _until_answered(scope: Scope, said: Parts) -> str | None:
    memory, inbox, spending = scope.memory, scope.memory.thread.steers, Spending(scope.memory)
    _say_if_model_changed(scope)
    world = observe(scope.surroundings, memory.clock.now())
    stuck = overflowed = False
    try:
        await _before_the_switch(scope, world)
        stuck = _is_stuck(await _make_room(scope, world, "pre_turn", pending=_tokens_of(memory, said)))
    finally:  # also when there is no room: what the user said is never lost
        _tell_world(scope, world)
        _deliver(scope)
        memory.record(ItemRecorded(memory.stored(said)))
    while True:
        _deliver(scope)
        spending.step()
        try:
            answer = await sample(scope)
            overflowed = False
        except ContextWindowExceeded:
            if overflowed:  # compacted for this already: asking again would go round for ever
                raise
            overflowed = True
            await _compact(scope, world, Due("context_limit", "mid_turn", memory.tokens, 0))
            continue
        if not answer.follow_up and not inbox:
            await _after_the_answer(scope, world)
            return answer.text
        if not stuck:
            stuck = _is_stuck(await _make_room(scope, world, "mid_turn"))


async def run_compaction(scope: Scope, focus: str | None = None, *, outline: bool = False) -> CompactionEnded:
    """A compaction by hand, in a turn of its own. Raises what made it fail, after the turn is settled."""
    if not scope.memory.thread.history:
        raise CompactionFailed("there is nothing to compact yet: nothing was said")
    memory = scope.memory
    turn_id, began = memory.clock.uuid(), memory.clock.monotonic()
    memory.record(TurnStarted(turn_id, memory.clock.seconds(), memory.profile.usable_window))
    turned = Turned("interrupted")
    try:
        world = observe(scope.surroundings, memory.clock.now())
        due = Due("user_requested", "standalone_turn", memory.tokens, memory.profile.compact_limit or 0)
        told, tools = fresh(scope, world), scope.toolbox.specs
        ended = await compact(Job(memory, scope.model, due, told, scope.wire, tools, focus, outline))
        turned = Turned("completed")
        return ended
    except Exception as error:
        turned = Turned("failed", error=error)
        raise
    finally:
        _end(scope, turn_id, began, turned)


# --- the steps -----------------------------------------------------------------------------------------------------


def _deliver(scope: Scope) -> None:
    """Steers become user messages, in the order they came."""
    thread = scope.memory.thread
    for item_id, text in list(thread.steers.items()):
        item = stored_message("user", [(KIND_TYPED, text)], id=item_id, turn_id=thread.open_turn)
        scope.memory.record(ItemRecorded(item))


def _is_stuck(ended: CompactionEnded | None) -> bool:
    """Whether a compaction made no room: then another one in this turn would make none either."""
    return ended is not None and not ended.made_room


async def _make_room(scope: Scope, world: World, phase: Phase, *, pending: int = 0) -> CompactionEnded | None:
    due = scope.memory.due(phase, pending=pending)
    return None if due is None else await _compact(scope, world, due)


def _tokens_of(memory: Memory, said: Parts) -> int:
    """About what a message adds to the context."""
    return entry(memory.stored(said), "").tokens


async def _before_the_switch(scope: Scope, world: World) -> None:
    """Another model goes on: what only the last one can compact, or what the new one cannot hold, it compacts."""
    memory = scope.memory
    last = former_model(memory, scope.model)
    if last is None:
        return
    due = due_for_switch(
        memory.thread, last.profile, memory.profile, memory.config.model_auto_compact_token_limit_scope
    )
    if due is not None:
        await _compact(scope, world, due, last)


async def _after_the_answer(scope: Scope, world: World) -> None:
    """Compact after the turn where that is set; what fails then costs the turn nothing."""
    if not scope.memory.config.model_post_turn_compact_threshold_percent:
        return
    try:
        await _make_room(scope, world, "post_turn")
    except (RefoldError, OSError) as error:
        scope.memory.feed.publish(Notice(f"not compacted after the turn: {error}"))


async def _compact(scope: Scope, world: World, due: Due, former: Model | None = None) -> CompactionEnded:
    """By the model that goes on, or by a former one."""
    model, wire = (former, Wire(former.provider, former.profile)) if former else (scope.model, scope.wire)
    ended = await compact(Job(scope.memory, model, due, fresh(scope, world), wire, scope.toolbox.specs))
    if not ended.made_room and ended.limit is not None:
        text = f"compaction made no room: {ended.before:,} tokens before, {ended.after:,} after, limit {ended.limit:,}"
        scope.memory.feed.publish(Notice(text))
    return ended


def fresh(scope: Scope, world: World) -> Fresh:
    """The whole context in force, for re-injection."""
    clock, turn = scope.memory.clock, scope.memory.thread.open_turn
    ids = [clock.item_id("msg") for _ in range(MOST_MESSAGES)]
    return Fresh(tuple(messages(render(world, None), ids, turn)), world.state, settings_of(scope))


def _tell_world(scope: Scope, world: World) -> None:
    """What changed since the model was last told, then the snapshot, then the turn's settings."""
    memory, baseline, settings = scope.memory, scope.memory.thread.world, settings_of(scope)
    if baseline is not None and _same_rules(memory.thread.settings, settings) and "permissions" in baseline:
        world = World({**world.state, "permissions": baseline["permissions"]}, world.texts)
    ids = [memory.clock.item_id("msg") for _ in range(MOST_MESSAGES)]
    told = messages(render(world, baseline), ids, memory.thread.open_turn)
    records: list[Record] = [ItemRecorded(item) for item in told]
    if baseline is None:
        records.append(WorldObserved(True, world.state))
    elif patch := diff_patch({key: baseline.get(key) for key in world.state if key in baseline}, world.state):
        records.append(WorldObserved(False, patch))
    if settings != memory.thread.settings:
        records.append(SettingsApplied(settings))
    if records:
        memory.record(*records)


def _same_rules(told: JSON | None, now: JSON) -> bool:
    """Whether the last turn's context states the same rules: then the real program's words for them hold, too."""
    return told is not None and all(told.get(key) == now[key] for key in ("approval_policy", "sandbox_policy"))


def settings_of(scope: Scope) -> JSON:
    """The turn context: what later turns, resumes and the real program need to know of this one."""
    where, profile = scope.surroundings, scope.memory.profile
    return {
        "turn_id": scope.memory.thread.open_turn,
        "cwd": where.cwd,
        "approval_policy": where.approval_policy,
        "sandbox_policy": {"type": where.sandbox_mode},
        "model": profile.slug,
        **({"comp_hash": profile.comp_hash} if profile.comp_hash else {}),
        **({"effort": profile.reasoning_effort} if profile.reasoning_effort else {}),
        "summary": "none",
    }


def _say_if_model_changed(scope: Scope) -> None:
    before = (scope.memory.thread.settings or {}).get("model")
    now = scope.memory.profile.slug
    if before and before != now:
        text = f"This session was recorded with model `{before}` and goes on with `{now}`."
        scope.memory.feed.publish(Notice(text))


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
    scope.memory.store.sync()
    return record
