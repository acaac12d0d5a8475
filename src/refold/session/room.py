"""Room: when a turn compacts, by whom, and what a person is told of it (spec §4.3; how: session/ladder.py).

Rule 1: a compaction that made no room, or that a hook blocked, is not tried again in the same turn, save for a real
overflow. Rule 2: the ladder is imported when something is due: most turns never need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.core.compaction.due import Due, due_for_switch
from refold.core.records import Phase
from refold.core.tokens import estimate
from refold.core.wire import Wire
from refold.core.world import World
from refold.errors import CompactionBlocked, CompactionMadeNoRoom, ContextWindowExceeded, RefoldError
from refold.model import Model
from refold.session import ahead
from refold.session.events import CompactionEnded, Notice
from refold.session.former import former_model
from refold.session.rules import fresh
from refold.session.scope import Scope

if TYPE_CHECKING:
    from refold.session.ladder import Prepared
    from refold.session.rungs.job import Job

OFTEN = 3  # compactions of one session, from which on and at each doubling it is said what that does


async def make_room(scope: Scope, world: World, phase: Phase, *, pending: int = 0) -> bool:
    """Compact if that is due; `pending`: tokens of what is about to be said. False: it made no room, and would make
    none in this turn."""
    due = _due(scope, phase, pending)
    if scope.ahead is not None:
        await ahead.settle(scope, due is not None)
        due = _due(scope, phase, pending)
    return due is None or (await compact_now(scope, world, due)).made_room


async def after_overflow(
    scope: Scope, world: World, error: ContextWindowExceeded, earlier: CompactionEnded | None
) -> CompactionEnded:
    """The provider said that the request is too long: compact, unless that was done for the same request already
    (`earlier`): then going on would go round for ever, and it raises why."""
    if earlier is None:
        return await compact_now(scope, world, Due("context_limit", "mid_turn", scope.memory.tokens, 0))
    if earlier.installed and not earlier.made_room:
        raise CompactionMadeNoRoom(earlier.before, earlier.after, earlier.limit or earlier.before) from error
    raise error


async def before_the_switch(scope: Scope, world: World) -> None:
    """Another model goes on: what only the last one can compact, or what the new one cannot hold, it compacts."""
    memory = scope.memory
    last = former_model(memory, scope.model)
    if last is None:
        return
    limits = memory.config.model_auto_compact_token_limit_scope
    due = due_for_switch(memory.thread, last.profile, memory.profile, limits)
    if due is not None and not memory.waits(due):
        await compact_now(scope, world, due, last)


async def after_the_answer(scope: Scope, world: World) -> None:
    """Compact after the turn where that is set; what fails then costs the turn nothing."""
    ahead.begin(scope, world)
    if not scope.memory.config.model_post_turn_compact_threshold_percent or has_budget(scope):
        return
    try:
        await make_room(scope, world, "post_turn")
    except (RefoldError, OSError) as error:
        scope.memory.feed.publish(Notice(f"not compacted after the turn: {error}"))


async def by_hand(
    scope: Scope, world: World, focus: str | None, *, outline: bool, only_look: bool
) -> CompactionEnded | Prepared:
    """What a person asked for; `only_look`: what it would put in place, and nothing is changed."""
    from refold.session.ladder import preview
    from refold.session.shadow import compact

    await ahead.drop(scope)
    memory = scope.memory
    due = Due("user_requested", "standalone_turn", memory.tokens, memory.profile.compact_limit or 0)
    job = job_for(scope, world, due, focus=focus, outline=outline)
    return await preview(job) if only_look else await compact(job)


async def compact_now(scope: Scope, world: World, due: Due, former: Model | None = None) -> CompactionEnded:
    """By the model that goes on, or by a former one."""
    from refold.session.shadow import compact

    await ahead.drop(scope)
    memory = scope.memory
    try:
        ended = await compact(job_for(scope, world, due, former))
    except CompactionBlocked as blocked:
        memory.feed.publish(Notice(f"not compacted: {blocked}"))
        return CompactionEnded(False, due.tokens, due.tokens, due.limit or None, 0, False, str(blocked))
    if not ended.made_room and ended.limit is not None:
        text = f"compaction made no room: {ended.before:,} tokens before, {ended.after:,} after, limit {ended.limit:,}"
        memory.feed.publish(Notice(text))
    say_if_often(scope, ended)
    return ended


def job_for(
    scope: Scope,
    world: World,
    due: Due,
    former: Model | None = None,
    *,
    focus: str | None = None,
    outline: bool = False,
) -> Job:
    from refold.session.rungs.job import Job

    model, wire = (former, Wire(former.provider, former.profile)) if former else (scope.model, scope.wire)
    told, tools = fresh(scope, world), scope.toolbox.specs
    return Job(scope.memory, model, due, told, wire, tools, focus, outline, scope.hooks)


def _due(scope: Scope, phase: Phase, pending: int) -> Due | None:
    if not has_budget(scope):
        return scope.memory.due(phase, pending=pending)
    from refold.session.budget_tools import due_in_budget

    return due_in_budget(scope.memory, phase, pending)


def has_budget(scope: Scope) -> bool:
    return scope.memory.config.features.token_budget.enabled


# --- what a person is told -------------------------------------------------------------------------------------------


def say_if_often(scope: Scope, ended: CompactionEnded) -> None:
    """Many compactions make a session forget."""
    times = scope.memory.thread.compactions
    doublings = times // OFTEN
    if ended.installed and times == OFTEN * doublings and doublings & (doublings - 1) == 0 and doublings:
        text = f"this session was compacted {times} times: its beginning is known from summaries of summaries"
        scope.memory.feed.publish(Notice(f"{text}; for the next piece of work a new session is cheaper and more exact"))


def say_if_hopeless(scope: Scope) -> None:
    """Once, when the model has been told the rules for the first time: whether the limit is below what stands in every
    request. Then each turn would compact, and none would make room."""
    memory, profile = scope.memory, scope.memory.profile
    limit = profile.compact_limit
    if limit is None or scope.weighed or memory.config.model_auto_compact_token_limit_scope != "total":
        return
    scope.weighed = True
    rules = sum(e.tokens for e in memory.thread.history if e.origin == "injected")
    fixed = estimate((), memory.thread.base_instructions) + rules + scope.tool_tokens
    if fixed >= limit:
        text = f"every request holds {fixed:,} tokens of instructions, rules and tools; compaction is due at {limit:,}"
        memory.feed.publish(Notice(f"{text} and cannot make room: raise model_auto_compact_token_limit"))
