"""Rules: what the model is told of the rules in force: by difference before a turn, whole after a compaction."""

from __future__ import annotations

from refold.core.records import JSON, ItemRecorded, Record, SettingsApplied, Window, WorldObserved
from refold.core.world import World, diff_patch, in_window, messages, render
from refold.session.events import Notice
from refold.session.memory import Fresh
from refold.session.scope import Scope

MOST_MESSAGES = 4  # injected context never takes more messages than sections


def fresh(scope: Scope, world: World) -> Fresh:
    """The whole context in force, for re-injection."""
    clock, turn = scope.memory.clock, scope.memory.thread.open_turn
    world = _in_window(scope, world, scope.memory.thread.window.next(clock.uuid()))
    ids = [clock.item_id("msg") for _ in range(MOST_MESSAGES)]
    return Fresh(tuple(messages(render(world, None), ids, turn)), world.state, settings_of(scope))


def tell_world(scope: Scope, world: World) -> None:
    """What changed since the model was last told, then the snapshot, then the turn's settings."""
    memory, baseline, settings = scope.memory, scope.memory.thread.world, settings_of(scope)
    world = _in_window(scope, world, memory.thread.window)
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


def say_if_model_changed(scope: Scope) -> None:
    before = (scope.memory.thread.settings or {}).get("model")
    now = scope.memory.profile.slug
    if before and before != now:
        text = f"This session was recorded with model `{before}` and goes on with `{now}`."
        scope.memory.feed.publish(Notice(text))


def _in_window(scope: Scope, world: World, window: Window) -> World:
    """The world as it is told in this window, where a token budget wants it told."""
    budget = scope.memory.config.features.token_budget
    return in_window(world, window, budget.guidance_message or "") if budget.enabled else world


def _same_rules(told: JSON | None, now: JSON) -> bool:
    """Whether the last turn's context states the same rules: then the real program's words for them hold, too."""
    return told is not None and all(told.get(key) == now[key] for key in ("approval_policy", "sandbox_policy"))
