"""Link: one live connection to a server, held by a task of its own from the first word to the last.

Rule 1: the SDK's contexts are entered and left in the link's own task, and nobody cancels that task from outside: it
leaves when it is told to stop, or its cancel scope is cancelled, so that a process is always ended and waited for.
Rule 2: a link is never mended. When it is over it says why, and another one takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any

from refold.core.mcp import MOST_PAGES, McpServer, Offered, offered, server_environment, server_headers
from refold.errors import ConfigError
from refold.tools.mcp.streams import LastWords, http_streams, plain_reason, process_streams, shown_address

if TYPE_CHECKING:
    from mcp import Client

CLOSING_SECONDS = 5.0  # for a goodbye; then the scope is cancelled, and a process has a few seconds more before SIGKILL
GOODBYE_SECONDS = 1.0  # for a link that broke to say why
UNAUTHORIZED = (401, 403)


class Link:
    """Mutable: it opens, serves and ends once. `offered` follows the server's own notices of changes."""

    def __init__(self, name: str, server: McpServer, cwd: str, environ: Mapping[str, str]) -> None:
        from anyio import CancelScope

        self.key = f"mcp_servers.{name}"
        self.offered: tuple[Offered, ...] = ()
        self.why = ""  # why it is over
        self.status = 0  # of the last HTTP answer
        self._server = server
        self._cwd = cwd
        self._environ = environ
        self._scope = CancelScope()
        self._words = LastWords() if server.url is None else None
        self._wake = asyncio.Event()
        self._stopping = self._over = self._stale = self._babbled = False
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._hold(), name=self.key)

    @property
    def client(self) -> Client | None:
        """Whom to ask; None when there is nobody (any more)."""
        return None if self._over or self._stopping else self._client

    @property
    def over(self) -> bool:
        """Whether nobody is there any more."""
        return self._over

    @property
    def served(self) -> bool:
        """Whether it ever came as far as having tools."""
        return self._ready.done()

    async def opened(self) -> None:
        """Wait until it serves. Raises ConfigError that says why it does not, after the start-up time-out at the
        latest."""
        seconds = self._server.startup_timeout_sec
        await asyncio.wait([self._ready, self.task], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return
        if self.task.done():
            raise ConfigError(self.key, self.why)
        self.stop()
        said = self._said()
        why = f"was not ready within {seconds:g} seconds; raise startup_timeout_sec if it needs longer"
        raise ConfigError(self.key, why + said)

    def stop(self) -> None:
        """Tell it to end: with a goodbye once it serves, at once while it is still opening."""
        self._stopping = True
        self._wake.set()
        if not self._ready.done():
            self._scope.cancel()

    def abandon(self) -> None:
        """Tell it to end without a goodbye."""
        self.stop()
        self._scope.cancel()

    async def reason(self) -> str:
        """Why it broke, for somebody who just noticed."""
        await asyncio.wait([self.task], timeout=GOODBYE_SECONDS)
        return self.why or "the connection was closed" + self._said()

    # --- the task --------------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        from mcp import Client
        from mcp.types import Implementation

        from refold import __version__

        about = Implementation(name="refold", version=__version__)
        try:
            with self._scope:
                async with Client(self._streams(), cache=None, client_info=about, message_handler=self._told) as client:
                    self.offered = await self._listed(client)
                    self._client = client
                    self._ready.set_result(None)
                    await self._serve(client)
        except (Exception, BaseExceptionGroup) as error:
            self.why = self._plain(error)
        finally:
            self._over = True
            if self._words is not None:
                self._words.close()
            self.why = (self.why or "it ended") + self._said()

    def _streams(self) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        server = self._server
        if server.url is None:
            assert self._words is not None
            environment = server_environment(server, self._environ)
            return process_streams(self.key, server, environment, self._cwd, self._words, self._ended)
        headers = server_headers(self.key, server, self._environ)
        return http_streams(server.url, headers, self._answered, self._ended)

    async def _serve(self, client: Client) -> None:
        """Until it is told to stop or the server is gone; whenever the tools changed, list them anew."""
        from anyio import create_task_group, move_on_after

        async with create_task_group() as group:
            group.start_soon(self._subscribed, client)
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._stopping or self._over:
                    break
                if self._stale:
                    self._stale = False
                    with suppress(Exception), move_on_after(self._server.startup_timeout_sec):  # else: as they were
                        self.offered = await self._listed(client)
            group.cancel_scope.cancel()

    async def _subscribed(self, client: Client) -> None:
        """Since the 2026 protocol a server only tells of changes whoever asked for it; before, everybody."""
        from anyio import sleep_forever
        from mcp.client.subscriptions import ListenNotSupportedError

        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        with suppress(ListenNotSupportedError, Exception):  # whom one cannot listen to has the tools that it had
            async with client.listen(tools_list_changed=True):
                await sleep_forever()

    async def _listed(self, client: Client) -> tuple[Offered, ...]:
        """Every tool that the settings let through; of two with one name the first."""
        found: dict[str, Offered] = {}
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            for listed in page.tools:
                tool = offered(listed.model_dump(mode="json", by_alias=True, exclude_none=True))
                if self._server.offers(tool.name):
                    found.setdefault(tool.name, tool)
            cursor = page.next_cursor
            if cursor is None:
                break
        return tuple(found.values())

    # --- what the SDK tells -------------------------------------------------------------------------------------------

    async def _told(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._stale = True
            self._wake.set()
        elif isinstance(message, Exception):
            self._babbled = True

    def _answered(self, status: int) -> None:
        self.status = status

    def _ended(self) -> None:
        self._over = True
        self._wake.set()

    def _plain(self, error: BaseException) -> str:
        text, url = plain_reason(error), self._server.url
        if isinstance(error, ConfigError):
            return text
        if url is None:
            return text if self.served or not self._over else "the command ended before it was ready; try it in a shell"
        if self.status in UNAUTHORIZED:
            text = f"HTTP {self.status}; set bearer_token_env_var or http_headers to what it asks for"
        elif not self.served:
            text = f"{f'HTTP {self.status}' if self.status >= 400 else text}; is it running, and is url right?"
        return f"{shown_address(url)}: {text}"

    def _said(self) -> str:
        babbled = "; it wrote to its standard output what is no MCP message" if self._babbled else ""
        words = self._words.text if self._words is not None else ""
        return f"{babbled}; it wrote: {words}" if words else babbled


async def close_links(links: Iterable[Link]) -> None:
    """End links side by side and wait for it: no process is left. Being cancelled only makes it hasten."""
    links = tuple(links)
    for link in links:
        link.stop()
    waiting = {link.task for link in links}
    patience: float | None = CLOSING_SECONDS
    cancelled: asyncio.CancelledError | None = None
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting, timeout=patience)
        except asyncio.CancelledError as error:
            cancelled = error
        if waiting:
            patience = None  # each step of the SDK's own end of a process is bounded
            for link in links:
                link.abandon()
            waiting = {task for task in waiting if not task.done()}
    if cancelled is not None:
        raise cancelled
