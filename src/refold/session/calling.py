"""Calling: one call from the model's words to its result: hooks, permission, gate, tool, hooks.

Rule 1: whatever goes wrong becomes the output, so that the turn goes on; only a cancellation is raised.
Rule 2: what is run is what was permitted: hooks change arguments before anybody is asked, never after.
"""

from __future__ import annotations

import asyncio
from functools import partial

from refold.core.items import Item
from refold.core.permissions import Confinement
from refold.errors import ToolFailed
from refold.session.events import Notice, ToolEnded, ToolProgress, ToolStarted
from refold.session.permits import permit
from refold.session.scope import Scope
from refold.tools import ToolContext, ToolResult


async def run_call(scope: Scope, call: Item) -> ToolResult:
    """Run one call. The result's output is what is recorded for it."""
    try:
        asked = await _before(scope, call)
        result = asked if isinstance(asked, ToolResult) else await _permitted(scope, asked)
        result = await _after(scope, call, result)
    except ToolFailed as failure:
        result = ToolResult(output=str(failure), success=False)
    shown = result.output if isinstance(result.output, str) else ""
    scope.memory.feed.publish(ToolEnded(call, shown, result.success, result.details))
    return result


async def _permitted(scope: Scope, call: Item) -> ToolResult:
    """Run a call if it may: alone where its tool wants to be alone."""
    tool = scope.toolbox.get(str(call.get("name")))
    permitted = await permit(scope, tool, call)
    if isinstance(permitted, ToolResult):
        return permitted
    async with scope.gate.entered(alone=tool is not None and not tool.parallel):
        return await _ran(scope, call, permitted)


async def _ran(scope: Scope, call: Item, confinement: Confinement) -> ToolResult:
    scope.memory.feed.publish(ToolStarted(call))
    context = ToolContext(
        call_id=call["call_id"],
        cwd=scope.surroundings.cwd,
        policy=scope.memory.profile.truncation,
        modalities=scope.memory.profile.input_modalities,
        new_id=scope.memory.clock.chunk_id(),
        processes=scope.processes,
        confinement=confinement,
        progress=partial(_progress, scope, call),
    )
    try:
        return await scope.toolbox.run(call, context)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return ToolResult(
            output=f"tool {call.get('name')} failed: something that it waited for was cancelled", success=False
        )


def _progress(scope: Scope, call: Item, text: str) -> None:
    scope.memory.feed.publish(ToolProgress(call, text))


# --- hooks ---------------------------------------------------------------------------------------------------------


async def _before(scope: Scope, call: Item) -> Item | ToolResult:
    """The call as the hooks leave it, or a result that takes its place."""
    for hook in scope.hooks:
        try:
            answer = await hook.before_tool(call)
        except ToolFailed:
            raise
        except Exception as error:
            raise ToolFailed(f"a hook failed before {call.get('name')}: {type(error).__name__}: {error}") from error
        if isinstance(answer, ToolResult):
            return answer
        call = call if answer is None else answer
    return call


async def _after(scope: Scope, call: Item, result: ToolResult) -> ToolResult:
    for hook in scope.hooks:
        try:
            result = await hook.after_tool(call, result) or result
        except ToolFailed:
            raise
        except Exception as error:
            scope.memory.feed.publish(
                Notice(f"a hook failed after {call.get('name')}: {type(error).__name__}: {error}")
            )
    return result
