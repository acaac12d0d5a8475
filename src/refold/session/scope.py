"""Scope: what one turn works with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from refold.core.items import Item
from refold.core.jsonio import dump
from refold.core.truncate import tokens_for
from refold.core.wire import Wire
from refold.model import Model
from refold.observe import Surroundings, Watch
from refold.session.hooks import Hook
from refold.session.memory import Memory
from refold.session.permits import Approve
from refold.session.plugins import servers_with_plugins
from refold.session.servers import Servers
from refold.tools import Toolbox, ToolResult
from refold.tools.processes import Processes

if TYPE_CHECKING:
    from refold.session.ladder import Prepared
    from refold.session.sections import Section


class Gate:
    """Lets calls of parallel tools in together, a call of an exclusive tool in alone. Mutable: it counts who is in."""

    def __init__(self) -> None:
        self._change = asyncio.Condition()
        self._together = 0
        self._alone = False

    @asynccontextmanager
    async def entered(self, *, alone: bool) -> AsyncGenerator[None]:
        async with self._change:
            await self._change.wait_for(lambda: not self._alone and not (alone and self._together))
            self._alone, self._together = alone, self._together + (not alone)
        try:
            yield
        finally:
            async with self._change:
                self._alone, self._together = False, self._together - (not alone)
                self._change.notify_all()


class Running(NamedTuple):
    """A call that was begun: its item, its task, and when (seconds of a clock that only grows)."""

    call: Item
    task: asyncio.Task[ToolResult]
    began: float


class Scope:
    """Mutable: `calls` holds the calls of the sampling that is going on, so that an interrupt can settle them."""

    def __init__(
        self,
        memory: Memory,
        model: Model,
        toolbox: Toolbox,
        surroundings: Surroundings,
        approve: Approve | None,
        sections: Sequence[Section] = (),
    ) -> None:
        self.memory = memory
        self.model = model
        self.wire = Wire(model.provider, model.profile)
        self.asking = asyncio.Lock()  # a person answers one question at a time
        self.toolbox = toolbox
        self.surroundings = surroundings
        self.sections = sections  # the host's own parts of the world
        self.watch = Watch()  # what was read of the surroundings before
        self.told_person: set[str] = set()  # of what was found wrong there
        self.approve = approve
        self.hooks: list[Hook] = _configured_hooks(memory, surroundings.cwd)
        self.output_schema: dict[str, Any] | None = None  # of this turn's answer
        self.processes = Processes()  # that the session's calls left running
        self.servers = Servers(servers_with_plugins(memory.config, surroundings.home), surroundings.cwd)
        self.gate = Gate()
        self.calls: list[Running] = []
        self.ahead: asyncio.Task[Prepared] | None = None  # a compaction beside the turn
        self.ahead_in: int | None = None  # the window in which one was begun last
        self.weighed = False  # whether the limit was compared with what every request holds

    @property
    def tool_tokens(self) -> int:
        """About the tokens of the tools' schemas."""
        return tokens_for(len(dump(self.toolbox.specs)))


def _configured_hooks(memory: Memory, cwd: str) -> list[Hook]:
    """The hooks that a session begins with: those of its settings; what runs them is imported when there are any."""
    if not memory.config.hooks:
        return []
    from refold.session.command_hooks import CommandHooks

    return [CommandHooks(memory, cwd)]
