"""Rules: what the model is told of the rules in force: by difference before a turn, whole after a compaction.

Rule 1: what is told is what was observed last; what it knows is the thread's world, which only records change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from refold.core.config import Config
from refold.core.jsonio import is_object
from refold.core.permissions import FREE, SandboxMode
from refold.core.records import JSON, ItemRecorded, Record, SettingsApplied, Window, WorldObserved
from refold.core.templates import template
from refold.core.world import (
    OWN,
    World,
    diff_patch,
    in_model,
    in_window,
    messages,
    render,
    servers_state,
    value_of,
    with_value,
)
from refold.core.world.apps import with_apps
from refold.core.world.skills import ID as SKILLS
from refold.core.world.skills import lists_skills
from refold.observe import Surroundings, Watch, observe
from refold.session.clock import Clock
from refold.session.events import Notice
from refold.session.memory import Fresh
from refold.session.modes import manner_in_force, told_manner
from refold.session.plugins import with_plugins_seen
from refold.session.scope import Scope
from refold.session.sections import as_rendered, rendered_by, with_own

APPROVED = "approved.json"  # session/approved.py is imported only where there is one
PERMISSIONS = "permissions"
SAME_RULES = f"{OWN}.{PERMISSIONS}"  # the hash of our words, where the real program's words for them were told

# Sections of ours that a snapshot may lack: with their switch off they are forgotten, not kept as told.
OPTIONAL = frozenset({PERMISSIONS, "environments"})


# --- looking -------------------------------------------------------------------------------------------------------


async def look(scope: Scope) -> World:
    """What is in force now. Nothing is recorded, and only an interrupt is raised."""
    memory = scope.memory
    where = permitted(scope.surroundings, memory.config, scope.watch)
    where = replace(where, context_window=memory.profile.context_window)
    world = observe(where, memory.clock.now(), scope.watch)
    world = world.with_section(f"{OWN}.mcp", servers_state(scope.servers.instructions))
    apps = scope.servers.apps if memory.config.include_apps_instructions else {}
    world = with_apps(world, apps, memory.thread.world)
    world = with_plugins_seen(world, where, memory.config, scope.watch, memory.thread.world)
    return await with_own(world, memory, scope.sections) if scope.sections else world


def permitted(where: Surroundings, config: Config, watch: Watch) -> Surroundings:
    """The surroundings with what commands may do in them as of now: folders, network, what was approved for good."""
    mode = cast(SandboxMode, where.sandbox_mode)
    if mode == "workspace-write":
        from refold.tools.sandbox import sandbox_of

        walls = sandbox_of(mode, config.sandbox_workspace_write, where.cwd, os.environ, ())
        where = replace(where, writable_roots=walls.writable, network=walls.network) if walls else where
    if where.approval_policy == "never" or where.home is None:
        return where
    home = Path(where.home)
    try:
        approved = watch.seen(str(home / APPROVED), where.cwd, lambda _: _approved(home, where.cwd))
    except OSError:  # a home that cannot be looked into approves nothing
        approved = None
    return replace(where, approved=approved) if approved else where


def _approved(home: Path, cwd: str) -> tuple[tuple[str, ...], ...]:
    from refold.session.approved import Damaged, prefixes_in, read_approvals

    try:
        return prefixes_in(read_approvals(home), cwd)
    except Damaged:  # it approves nothing; who asks for a command is told why
        return ()


# --- telling -------------------------------------------------------------------------------------------------------


def fresh(scope: Scope, world: World) -> Fresh:
    """The whole context in force, for re-injection."""
    memory = scope.memory
    world = _as_told(scope, world, memory.thread.window.next(memory.clock.uuid()), whole=True)
    own = rendered_by(memory, scope.sections)
    told = messages(render(world, None, own), _ids(memory.clock), memory.thread.open_turn)
    return Fresh(tuple(told), as_rendered(world, None, own).state, settings_of(scope))


def tell_world(scope: Scope, world: World) -> None:
    """What changed since the model was last told, then the snapshot, then the turn's settings."""
    memory, baseline, settings = scope.memory, scope.memory.thread.world, settings_of(scope)
    world = _in_their_words(_as_told(scope, world, memory.thread.window), baseline, memory.thread.settings, settings)
    own = rendered_by(memory, scope.sections)
    told = messages(render(world, baseline, own), _ids(memory.clock), memory.thread.open_turn)
    world = as_rendered(world, baseline, own)
    records: list[Record] = [ItemRecorded(item) for item in told]
    if baseline is None:
        records.append(WorldObserved(True, world.state))
    elif patch := patch_for(baseline, world.state):
        records.append(WorldObserved(False, patch))
    if settings != memory.thread.settings:
        records.append(SettingsApplied(settings))
    if records:
        memory.record(*records)
    if memory.thread.pins:
        from refold.session.pins import tell_pins

        tell_pins(memory)


def patch_for(baseline: JSON, state: JSON) -> JSON:
    """The merge patch for what is told; sections that only the real program knows stay as they are."""
    forgotten = OPTIONAL | {SKILLS} if lists_skills(baseline) else OPTIONAL
    known = {*state, *forgotten, OWN}
    ours = {key: value for key, value in baseline.items() if key in known}
    return diff_patch(ours, {**state, OWN: state.get(OWN, {})} if OWN in ours else state)  # each of its own by itself


def _ids(clock: Clock) -> Iterator[str]:
    while True:
        yield clock.item_id("msg")


def settings_of(scope: Scope) -> JSON:
    """The turn context: what later turns, resumes and the real program need to know of this one."""
    where, profile, manner = scope.surroundings, scope.memory.profile, manner_in_force(scope.memory)
    return {
        "turn_id": scope.memory.thread.open_turn,
        "cwd": where.cwd,
        "approval_policy": where.approval_policy,
        "approvals_reviewer": "user" if where.reviewer == "none" else where.reviewer,
        "sandbox_policy": _sandbox_policy(where, scope.memory.config),
        "model": profile.slug,
        **({"comp_hash": profile.comp_hash} if profile.comp_hash else {}),
        **({"effort": profile.reasoning_effort} if profile.reasoning_effort else {}),
        "summary": "none",
        **manner.settings(profile.slug, profile.reasoning_effort),
        OWN: {"reviewer": where.reviewer, **manner.own_settings},
    }


def _sandbox_policy(where: Surroundings, config: Config) -> JSON:
    """In the real program's words; its folders are those besides the workspace and the temporary ones."""
    if where.sandbox_mode != "workspace-write":
        return {"type": where.sandbox_mode}
    given = config.sandbox_workspace_write
    roots = (os.path.expanduser(root) for root in given.writable_roots)  # noqa: PTH111 - never raises
    return {
        "type": where.sandbox_mode,
        "writable_roots": [root for root in roots if root.startswith("/")],
        "network_access": given.network_access,
        "exclude_tmpdir_env_var": given.exclude_tmpdir_env_var,
        "exclude_slash_tmp": given.exclude_slash_tmp,
    }


def say_if_model_changed(scope: Scope) -> None:
    before = (scope.memory.thread.settings or {}).get("model")
    now = scope.memory.profile.slug
    if before and before != now:
        text = f"This session was recorded with model `{before}` and goes on with `{now}`."
        scope.memory.feed.publish(Notice(text))


# --- to whom, and when ---------------------------------------------------------------------------------------------


def _as_told(scope: Scope, world: World, window: Window, *, whole: bool = False) -> World:
    """The world as it is told to this model in this window; `whole`: everything is told anew."""
    memory = scope.memory
    thread, profile, budget = memory.thread, memory.profile, memory.config.features.token_budget
    former: Any = (thread.settings or {}).get("model")
    instructions = profile.base_instructions or thread.base_instructions or template("base_instructions")
    world = in_model(world, profile.slug, instructions, thread.world, former if isinstance(former, str) else None)
    world = told_manner(world, manner_in_force(memory), profile.slug, None if whole else thread.world)
    world = in_window(world, window, budget.guidance_message or "") if budget.enabled else world
    return memory.redacting.world(world)


def _in_their_words(world: World, baseline: JSON | None, last: JSON | None, settings: JSON) -> World:
    """The world, where the model was told the same rules by the real program: then its words for them hold, and only
    what was approved since is told."""
    told, now = value_of(baseline, PERMISSIONS), world.state.get(PERMISSIONS)
    if not is_object(told) or now is None:
        return world
    ours = value_of(baseline, SAME_RULES)
    same = ours == now["instructions"] if ours is not None else _by_another(last) and _same_rules(last, settings)
    if not same:
        return world
    state = with_value(world.state, PERMISSIONS, {**now, "instructions": told.get("instructions")})
    return World(with_value(state, SAME_RULES, now["instructions"]), world.texts)


def _by_another(settings: JSON | None) -> bool:
    """Whether the last turn was the real program's."""
    return settings is not None and OWN not in settings


def _same_rules(told: JSON | None, now: JSON) -> bool:
    """Whether two turn contexts state the same rules."""
    told = {"approvals_reviewer": "user", **(told or {})}
    place = () if now["sandbox_policy"]["type"] == FREE else ("cwd",)  # walls stand around a folder
    return all(told.get(key) == now[key] for key in ("approval_policy", "approvals_reviewer", "sandbox_policy", *place))
