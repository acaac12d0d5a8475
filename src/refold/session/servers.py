"""Servers: the MCP servers of a session, connected when it is entered and ended when it is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from refold.core.mcp import McpServer, Offered, tool_names
from refold.errors import ConfigError
from refold.session.events import Notice
from refold.session.hooks import Hook
from refold.tools import Tool, Toolbox

if TYPE_CHECKING:
    from refold.session.scope import Scope
    from refold.tools.mcp import ToolServer

EXTRA = "needs refold's extra mcp: pip install 'refold[mcp]'"


class Servers:
    """Mutable: it holds the connections. Without settings nothing is imported and nothing waited for."""

    def __init__(self, settings: Mapping[str, McpServer], cwd: str) -> None:
        self._settings = {name: server for name, server in settings.items() if server.enabled}
        self._cwd = cwd
        self._open: list[ToolServer] = []  # also those that could not be connected: they may still be ending

    async def open(self, scope: Scope) -> tuple[Notice, ...]:
        """Connect to all of them side by side and put their tools into the scope's toolbox.

        Gives a notice for each that could not be connected to. Raises ConfigError when such a one is required; `aclose`
        then, too.
        """
        if not self._settings:
            return ()
        from refold.tools.mcp import ToolServer, load

        try:
            await asyncio.to_thread(load)
        except ImportError as error:
            return self._missing(error)
        environ = dict(os.environ)
        self._open = [ToolServer(name, server, self._cwd, environ) for name, server in self._settings.items()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_opened(server)) for server in self._open]
        there: list[ToolServer] = []
        texts: list[str] = []
        for server, task in zip(self._open, tasks, strict=True):
            error = task.result()
            if error is None:
                there.append(server)
                texts += _not_offered(server)
            elif server.settings.required:
                raise ConfigError(error.key, f"{error.why} (it is required)")
            else:
                texts.append(f"{error}; the session goes on without its tools")
        if there:
            scope.hooks.insert(0, _Refreshed(scope, there))
        return tuple(map(Notice, texts))

    @property
    def instructions(self) -> dict[str, str]:
        """What the servers say of their tools, by their names."""
        return {server.name: server.instructions for server in self._open if server.instructions}

    @property
    def apps(self) -> dict[str, str]:
        """The apps that are there, by their names, and what each is for."""
        return {one.name: one.settings.description for one in self._open if one.settings.app and one.offered}

    async def aclose(self) -> None:
        """End every connection: no process is left, also when this is cancelled."""
        if self._open:
            from refold.tools.mcp import close_links

            await close_links([link for server in self._open for link in server.links])

    def _missing(self, error: ImportError) -> tuple[Notice, ...]:
        for name, server in self._settings.items():
            if server.required:
                raise ConfigError(f"mcp_servers.{name}", f"{EXTRA} ({error})")
        return (Notice(f"mcp_servers: {EXTRA} ({error}); the session goes on without {', '.join(self._settings)}"),)


class _Refreshed(Hook):
    """Keeps the toolbox to what the servers offer, from turn to turn: within a turn its tools stay as they are."""

    def __init__(self, scope: Scope, servers: list[ToolServer]) -> None:
        self._scope = scope
        self._servers = servers
        self._own: list[Tool] = list(scope.toolbox.values())
        self._told: list[tuple[Offered, ...]] = []
        self._refresh()

    async def before_turn(self, text: str) -> None:
        before = self._told
        if self._refresh():
            changed = [s.name for s, old in zip(self._servers, before, strict=True) if s.offered != old]
            self._scope.memory.feed.publish(Notice(f"the tools of {', '.join(changed)} have changed"))

    def _refresh(self) -> bool:
        from refold.tools.mcp import McpTool

        told = [server.offered for server in self._servers]
        if told == self._told:
            return False
        self._told = told
        found = [(server, tool) for server, tools in zip(self._servers, told, strict=True) for tool in tools]
        names = tool_names([(server.name, tool.name) for server, tool in found], {tool.name for tool in self._own})
        theirs = [McpTool(server, tool, name) for (server, tool), name in zip(found, names, strict=True)]
        self._scope.toolbox = Toolbox([*self._own, *theirs])
        return True


def _not_offered(server: ToolServer) -> list[str]:
    """A line about what is enabled by name and not offered: most likely it is misspelt."""
    there = {tool.name for tool in server.offered} | set(server.settings.disabled_tools)
    missing = [name for name in server.settings.enabled_tools or () if name not in there]
    return [f"mcp_servers.{server.name}.enabled_tools: the server has no {', '.join(missing)}"] if missing else []


async def _opened(server: ToolServer) -> ConfigError | None:
    """Why a server could not be connected to."""
    try:
        await server.open()
    except ConfigError as error:
        return error
    except Exception as error:  # such as no file descriptor left
        return ConfigError(f"mcp_servers.{server.name}", f"{type(error).__name__}: {error}")
    return None
