"""Server: one configured MCP server: its link, the calls that go through it, and its tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from refold.core.jsonio import without_lone_surrogates
from refold.core.mcp import McpServer, Offered, function_spec, output_of, progress_text
from refold.errors import ConfigError, ToolFailed
from refold.tools import ToolContext, ToolResult
from refold.tools.mcp.link import Link

if TYPE_CHECKING:
    from mcp import MCPError

FORGOTTEN = 404  # an HTTP server that does not know our session any more
LOGGERS = ("mcp", "client")  # the SDK's


def load() -> None:
    """Import the SDK, which takes a second. Raises ImportError without refold's extra `mcp`."""
    import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]

    for name in LOGGERS:  # a host that set up logging sees its records all the same; nobody else wants tracebacks
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class ToolServer:
    """Mutable: it has one link at a time, and keeps those that are still ending. `load` first."""

    def __init__(self, name: str, server: McpServer, cwd: str, environ: Mapping[str, str]) -> None:
        self.name = name
        self.settings = server
        self.links: list[Link] = []  # the last one counts
        self._new = lambda: Link(name, server, cwd, environ)
        self._opening = asyncio.Lock()
        self._offered: tuple[Offered, ...] = ()
        self._instructions = ""

    @property
    def offered(self) -> tuple[Offered, ...]:
        """What it offers, in its order; when it is gone, what it offered last."""
        if self.links and self.links[-1].served:
            self._offered = self.links[-1].offered
        return self._offered

    @property
    def instructions(self) -> str:
        """What it says of its tools ("" = nothing); when it is gone, what it said last."""
        client = self.links[-1].client if self.links else None
        if client is not None:
            self._instructions = without_lone_surrogates(client.instructions or "")
        return self._instructions

    async def open(self) -> None:
        """Connect. Raises ConfigError that says why not and what to do."""
        link = self._new()
        self.links = [*(link for link in self.links if not link.task.done()), link]
        try:
            await link.opened()
        except asyncio.CancelledError:
            link.stop()
            raise

    async def call(self, tool: str, arguments: dict[str, Any], tell: Callable[[str], None]) -> ToolResult:
        """Call a tool by the server's own name for it.

        Raises ToolFailed that names server and tool. A server that is gone is connected to once more, before the call.
        """
        from mcp import MCPError

        async def told(progress: float, total: float | None, message: str | None) -> None:
            tell(progress_text(progress, total, message))

        link = await self._linked(tool)
        client = link.client
        if client is None:
            raise ToolFailed(f"MCP server {self.name}: {link.why}")
        seconds = self.settings.tool_timeout_sec
        try:
            clean = without_lone_surrogates(arguments)  # the SDK gives up a connection that cannot encode a request
            result = await client.call_tool(tool, clean, read_timeout_seconds=seconds, progress_callback=told)
            answer = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        except MCPError as error:
            raise ToolFailed(await self._failure(error, tool, link)) from error
        except Exception as error:  # what a server's answer makes the SDK's checks raise
            raise ToolFailed(f"MCP tool {self.name}/{tool} failed: {type(error).__name__}: {error}") from error
        return ToolResult(
            output=output_of(answer), success=not result.is_error, details={"server": self.name, "tool": tool}
        )

    async def _linked(self, tool: str) -> Link:
        async with self._opening:
            if self.links[-1].client is None:
                try:
                    await self.open()
                except ConfigError as error:
                    text = f"MCP tool {self.name}/{tool} cannot be called: the server is gone, and did not come back"
                    raise ToolFailed(f"{text}: {error.why}") from error
            return self.links[-1]

    async def _failure(self, error: MCPError, tool: str, link: Link) -> str:
        from mcp.types import REQUEST_TIMEOUT

        what = f"MCP tool {self.name}/{tool}"
        if link.over:
            why = await link.reason()
            return f"{what} failed: the server went away during the call ({why}); the next call connects to it again"
        if self.settings.url and link.status == FORGOTTEN:
            link.stop()
            return f"{what} failed: the server has forgotten this session; the next call begins a new one"
        if error.code == REQUEST_TIMEOUT:
            seconds = self.settings.tool_timeout_sec
            return f"{what} gave no answer within {seconds:g} seconds (tool_timeout_sec) and was told to stop"
        return f"{what} failed: {error.message} (code {error.code})"


class McpTool:
    """One tool of a server, under the name that the model calls it by."""

    def __init__(self, server: ToolServer, offered: Offered, name: str) -> None:
        self.name = name
        self.spec = function_spec(name, offered)
        self.parallel = offered.parallel
        self.needs_approval = offered.needs_approval
        self._server = server
        self._tool = offered.name

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call it; the server checks the arguments, and its words reach the model."""
        return await self._server.call(self._tool, arguments, context.progress)
