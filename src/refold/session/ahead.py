"""Ahead: a compaction beside the turn, on the history as it was, put in place when it is ready and still fits.

Rule 1: it is begun once in a window, from `compact_ahead` of the limit on; whatever else changes the history drops it.
Rule 2: it is put in place only between two samplings, and what was recorded meanwhile stays behind it.
Rule 3: what fails here costs nothing: the ordinary compaction comes when it is due.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from refold.core.compaction.due import Due, counted_tokens
from refold.core.wire import Wire
from refold.core.world import World
from refold.errors import RefoldError
from refold.session.events import CompactionStarted, Notice
from refold.session.memory import Fresh
from refold.session.scope import Scope

if TYPE_CHECKING:
    from refold.session.ladder import Prepared


def begin(scope: Scope, world: World) -> None:
    """Begin one, if the context has reached the share of the limit that is set, and none was begun in this window.

    Not over a WebSocket, whose one connection the turn needs, and not where a new window needs no model.
    """
    memory, share = scope.memory, scope.memory.config.compact_ahead
    limit, window = memory.profile.compact_limit, memory.thread.window.number
    if not share or limit is None or scope.ahead is not None or scope.ahead_in == window:
        return
    if scope.model.provider.supports_websockets or memory.config.features.token_budget.enabled:
        return
    tokens = counted_tokens(memory.thread, memory.config.model_auto_compact_token_limit_scope)
    if tokens < share * limit or memory.thread.is_as_restored:
        return
    from refold.session.ladder import prepare
    from refold.session.room import job_for

    scope.ahead_in = window
    due = Due("context_limit", "mid_turn", tokens, limit)
    wire = Wire(scope.model.provider, scope.model.profile)  # the turn's own is in use
    job = replace(job_for(scope, world, due), wire=wire, beside=tuple(memory.thread.history))
    memory.feed.publish(Notice(f"compacting ahead, beside the turn: {due.tokens:,} tokens of {limit:,}"))
    scope.ahead = asyncio.create_task(prepare(job))


async def settle(scope: Scope, due: bool) -> None:
    """Put it in place if it is ready, or wait for it if a compaction is due anyway."""
    task = scope.ahead
    if task is None or not (task.done() or due):
        return
    await asyncio.wait([task])  # not the task itself: an interrupt of the turn is none of it
    scope.ahead = None
    error = None if task.cancelled() else task.exception()
    if error is not None:  # also what a host's own code raised
        scope.memory.feed.publish(Notice(f"not compacted ahead: {error or type(error).__name__}"))
    elif not task.cancelled() and not scope.memory.thread.is_as_restored:
        _put(scope, task.result())


def _put(scope: Scope, prepared: Prepared) -> None:
    from refold.session.ladder import install
    from refold.session.room import say_if_often

    memory, job = scope.memory, prepared.job
    base = prepared.found.replacement.base
    since = sum(e.tokens for e in memory.thread.history[len(base) :])
    limit = prepared.limit
    if not prepared.made_room or (limit is not None and prepared.after + since >= limit):
        memory.feed.publish(Notice("what was compacted ahead does not fit any more; it is left"))
        return
    memory.feed.publish(CompactionStarted(job.why.reason, job.why.phase, job.why.tokens, limit))
    # What was told since stands behind the replacement, so the model knows the world as of now.
    told = Fresh(job.fresh.context, memory.thread.world, memory.thread.settings)
    try:
        ended = install(prepared, told)
    except (RefoldError, OSError) as error:
        memory.feed.publish(prepared.ended(False, str(error)))
        return
    memory.feed.publish(ended)
    say_if_often(scope, ended)


async def drop(scope: Scope) -> None:
    """Leave it: the history is about to change, or the session to close."""
    task, scope.ahead = scope.ahead, None
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody else will ask
