"""Turn: the loop: sample, run the calls, record the outputs, sample again, until the answer is there (flow a)."""

from __future__ import annotations

import asyncio

import msgspec

from refold.core.compaction.due import Due
from refold.core.fragments import KIND_TURN_ABORTED, KIND_TYPED, stored_message, tagged
from refold.core.items import output_for
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
from refold.core.world import World, diff_patch, messages, render
from refold.errors import ContextWindowExceeded, RefoldError
from refold.observe import observe
from refold.session.events import CompactionEnded, Notice
from refold.session.ladder import Fresh, compact
from refold.session.sampling import sample
from refold.session.scope import Scope
from refold.tools import ToolResult

MOST_MESSAGES = 4  # injected context never takes more messages than sections


class Turned(msgspec.Struct, frozen=True):
    """How a turn ended."""

    outcome: Outcome
    text: str | None = None
    error: RefoldError | None = None


# --- the loop ------------------------------------------------------------------------------------------------------


async def run_turn(scope: Scope, text: str) -> Turned:
    """One turn from the user's message to the answer. It always ends in a TurnEnded record, and never raises for
    what a model, tool or compaction did; only cancellation passes through, after the turn is settled."""
    memory = scope.memory
    turn_id, began = memory.clock.uuid(), memory.clock.monotonic()
    memory.record(TurnStarted(turn_id, memory.clock.seconds(), memory.profile.usable_window))
    try:
        ended = Turned("completed", await _until_answered(scope, text))
    except RefoldError as error:
        ended = Turned("failed", error=error)
    except asyncio.CancelledError:
        _settle_calls(scope)
        _end(scope, turn_id, began, Turned("interrupted"))
        raise
    _end(scope, turn_id, began, ended)
    return ended


async def _until_answered(scope: Scope, text: str) -> str | None:
    memory, inbox = scope.memory, scope.memory.thread.steers
    _say_if_model_changed(scope)
    world = observe(scope.surroundings, memory.clock.now())
    try:
        await _make_room(scope, world, "pre_turn")
    finally:  # also when there is no room: what the user said is never lost
        _tell_world(scope, world)
        _deliver(scope)
        memory.record(ItemRecorded(memory.stored(KIND_TYPED, text)))
    stuck = overflowed = False
    while True:
        _deliver(scope)
        try:
            answer = await sample(scope)
        except ContextWindowExceeded:
            if overflowed:  # compacted for this already: asking again would go round for ever
                raise
            overflowed = True
            await _compact(scope, world, Due("context_limit", "mid_turn", memory.tokens, 0))
            continue
        if not answer.follow_up and not inbox:
            return answer.text
        if not stuck:
            ended = await _make_room(scope, world, "mid_turn")
            stuck = ended is not None and not ended.made_room


# --- the steps -----------------------------------------------------------------------------------------------------


def _deliver(scope: Scope) -> None:
    """Steers become user messages, in the order they came."""
    thread = scope.memory.thread
    for item_id, text in list(thread.steers.items()):
        item = stored_message("user", [(KIND_TYPED, text)], id=item_id, turn_id=thread.open_turn)
        scope.memory.record(ItemRecorded(item))


async def _make_room(scope: Scope, world: World, phase: Phase) -> CompactionEnded | None:
    due = scope.memory.due(phase)
    return None if due is None else await _compact(scope, world, due)


async def _compact(scope: Scope, world: World, due: Due) -> CompactionEnded:
    ended = await compact(scope.memory, scope.model, due, fresh(scope, world))
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
    memory, baseline = scope.memory, scope.memory.thread.world
    ids = [memory.clock.item_id("msg") for _ in range(MOST_MESSAGES)]
    told = messages(render(world, baseline), ids, memory.thread.open_turn)
    records: list[Record] = [ItemRecorded(item) for item in told]
    if baseline is None:
        records.append(WorldObserved(True, world.state))
    elif patch := diff_patch({key: baseline.get(key) for key in world.state if key in baseline}, world.state):
        records.append(WorldObserved(False, patch))
    settings = settings_of(scope)
    if settings != memory.thread.settings:
        records.append(SettingsApplied(settings))
    if records:
        memory.record(*records)


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


def _settle_calls(scope: Scope) -> None:
    """Every call that was begun gets its output: the real one where it finished, else that it was aborted."""
    for call, task, began in scope.calls:
        finished = task.done() and not task.cancelled() and task.exception() is None
        seconds = scope.memory.clock.monotonic() - began
        aborted = f"Wall time: {seconds:.4f} seconds\naborted by user"
        result = task.result() if finished else ToolResult(output=aborted)
        scope.memory.record(scope.memory.item(output_for(call, result.output), shaped=result.shaped))
    scope.calls.clear()
    note = tagged("turn_aborted", "\n" + template("turn_aborted").strip() + "\n")
    scope.memory.record(ItemRecorded(scope.memory.stored(KIND_TURN_ABORTED, note)))


def _end(scope: Scope, turn_id: str, began: float, ended: Turned) -> None:
    clock = scope.memory.clock
    seconds = clock.monotonic() - began
    scope.memory.record(
        TurnEnded(
            turn_id=turn_id,
            outcome=ended.outcome,
            last_message=ended.text,
            error=str(ended.error) if ended.error else None,
            started_at=clock.seconds() - int(seconds),
            completed_at=clock.seconds(),
            duration_ms=int(seconds * 1000),
        )
    )
    scope.memory.store.sync()
