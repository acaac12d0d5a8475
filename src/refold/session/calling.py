"""Calling: one call from the model's words to its result: hooks, permission, gate, tool, hooks.

Rule 1: whatever goes wrong becomes the output, so that the turn goes on; only a cancellation is raised.
Rule 2: what is run is what was permitted: hooks change arguments before anybody is asked, never after.
"""

from __future__ import annotations

import asyncio
from functools import partial

from refold.core.items import Item
from refold.core.jsonio import is_object
from refold.core.permissions import Confinement
from refold.errors import ToolFailed
from refold.session.events import Notice, ToolEnded, ToolProgress, ToolStarted
from refold.session.interrupted import is_interrupted
from refold.session.permits import permit
from refold.session.scope import Scope
from refold.tools import ToolContext, ToolResult


async def run_call(scope: Scope, call: Item) -> ToolResult:
    """Run one call. The result's output is what is recorded for it."""
    asked, settled = await _settled(scope, call)
    if isinstance(settled, Confinement):
        tool = scope.toolbox.get(str(asked.get("name")))
        async with scope.gate.entered(alone=tool is not None and not tool.parallel):
            result = await _ran(scope, asked, settled)
    else:
        scope.memory.feed.publish(ToolStarted(asked))  # whoever watches sees each call begin and end
        result = settled
    result = await _after(scope, asked, result)
    shown = result.output if isinstance(result.output, str) else ""
    scope.memory.feed.publish(ToolEnded(asked, shown, result.success, result.details))
    return result


async def _settled(scope: Scope, call: Item) -> tuple[Item, Confinement | ToolResult]:
    """The call as the hooks leave it, and how it may run, or the output that takes the place of running it."""
    asked = call
    try:
        answer = await _before(scope, call)
        if isinstance(answer, ToolResult):
            return call, answer
        asked = answer
        return asked, await permit(scope, scope.toolbox.get(str(asked.get("name"))), asked)
    except ToolFailed as failure:
        return asked, ToolResult(output=str(failure), success=False)


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
        if is_interrupted():
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
            if isinstance(answer, ToolResult):
                return answer
            if answer is not None:
                call = _same_call(answer, call)
        except ToolFailed:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            _raise_if_cancelled(error)
            raise ToolFailed(f"a hook failed before {call.get('name')}: {type(error).__name__}: {error}") from error
    return call


async def _after(scope: Scope, call: Item, result: ToolResult) -> ToolResult:
    for hook in scope.hooks:
        try:
            result = _result(await hook.after_tool(call, result)) or result
        except ToolFailed as failure:
            result = ToolResult(output=str(failure), success=False)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            _raise_if_cancelled(error)
            text = f"a hook failed after {call.get('name')}: {type(error).__name__}: {error}"
            scope.memory.feed.publish(Notice(text))
    return result


def _same_call(answer: object, call: Item) -> Item:
    if not is_object(answer) or answer.get("call_id") != call.get("call_id"):
        raise TypeError("before_tool must return the call with other arguments, a ToolResult or None")
    return answer


def _result(answer: object) -> ToolResult | None:
    if answer is not None and not isinstance(answer, ToolResult):
        raise TypeError(f"after_tool must return a ToolResult or None, not {type(answer).__name__}")
    return answer


def _raise_if_cancelled(error: BaseException) -> None:
    """An interrupt passes; a cancellation that was a hook's own is its failure."""
    if isinstance(error, asyncio.CancelledError) and is_interrupted():
        raise error
