"""Permits: whether a call may run, and inside which walls: the policy first, then the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from refold.core.items import Item
from refold.core.permissions import CommandAsked, Confinement
from refold.session.events import Notice
from refold.tools import Tool, ToolResult

if TYPE_CHECKING:
    from refold.session.scope import Scope

DENIED = "The user did not allow this command to run."


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a host is asked: may this call run? `command` is set when it is a shell command.

    `remember`: the words that the host may allow for good (`Verdict(True, remember=True)`); empty when none can be.
    """

    call: Item
    command: CommandAsked | None = None
    why: str = ""  # why it is asked, for a person
    remember: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """A host's answer. `remember`: and from now on every command that begins with the question's words.

    `word`: what the model is told beside a no.
    """

    allowed: bool
    remember: bool = False
    word: str = ""


Approve: TypeAlias = Callable[[Question], Awaitable[bool | Verdict]]


async def permit(scope: Scope, tool: Tool | None, call: Item) -> Confinement | ToolResult:
    """How a call may run, or the output that tells the model why it may not."""
    if tool is not None and tool.needs_approval and not await _is_approved(scope, call):
        return ToolResult(output=DENIED, success=False)
    return Confinement()


async def _is_approved(scope: Scope, call: Item) -> bool:
    """Ask the host, one question at a time. A question that fails is a no: the turn goes on."""
    if scope.approve is None:
        return True
    async with scope.asking:
        try:
            answer = await scope.approve(Question(call=call))
            return answer.allowed if isinstance(answer, Verdict) else answer
        except Exception as error:
            scope.memory.feed.publish(Notice(f"nobody could be asked about {call.get('name')}: {error}"))
            return False
