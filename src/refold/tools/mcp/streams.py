"""Streams: the two message streams to a server, over a process's pipes or over HTTP, with what failed beside them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from refold.core.mcp import McpServer
from refold.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

KEPT_BYTES = 2000  # of a process's standard error: the last lines of a traceback
SHOWN_LINES = 4  # of them, in an error
PIECE = 64 * 1024
CONNECT_SECONDS = 15.0  # as for a provider
MOST_EVENT_BYTES = 64 * 1024 * 1024  # of one answer over HTTP: a few large pictures; the SDK's own limit is one MiB
AT_HOME = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})  # never behind a proxy


class LastWords:
    """The end of what a process writes to its standard error, in constant memory. Mutable: it reads a pipe.

    `writer` goes to the process and is closed here once the process has it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self.writer = os.fdopen(writer, "w")
        self._kept = b""
        self._open = True
        self._loop.add_reader(self._reader, self._read)

    def _read(self) -> bool:
        """Whether there was more."""
        try:
            chunk = os.read(self._reader, PIECE)
        except BlockingIOError:
            return False
        self._kept = (self._kept + chunk)[-KEPT_BYTES:]
        if not chunk:
            self._loop.remove_reader(self._reader)
        return bool(chunk)

    def close(self) -> None:
        """Take what is left, and stop; a process that goes on writing gets a broken pipe."""
        if self._open:
            self._open = False
            self.writer.close()
            for _ in range(4):  # a pipe's worth; whoever floods it must not hold us
                if not self._read():
                    break
            self._loop.remove_reader(self._reader)
            os.close(self._reader)

    @property
    def text(self) -> str:
        """The last lines, on one line."""
        lines = [line.strip() for line in self._kept.decode("utf-8", "replace").splitlines() if line.strip()]
        return "".join(letter if letter.isprintable() else " " for letter in " / ".join(lines[-SHOWN_LINES:]))


class Watched:
    """A read stream that tells when nobody reads it any more: the connection is over, whatever ended it."""

    def __init__(self, stream: Any, over: Callable[[], None]) -> None:
        self._stream = stream
        self._over = over

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> Watched:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        self._over()
        await self._stream.aclose()

    async def __aenter__(self) -> Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        self._over()
        return await self._stream.__aexit__(*error)


@asynccontextmanager
async def process_streams(
    key: str, server: McpServer, environment: dict[str, str], cwd: str, words: LastWords, over: Callable[[], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server's process and talk over its pipes; leaving ends the process and its group.

    Raises ConfigError for a folder or a command that is not there.
    """
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = str(server.command)
    parameters = StdioServerParameters(
        command=command,
        args=list(server.args),
        env=environment,
        cwd=_folder(key, server, cwd),
        encoding_error_handler="replace",
    )
    async with AsyncExitStack() as stack:
        try:
            read, write = await stack.enter_async_context(stdio_client(parameters, errlog=words.writer))
        except FileNotFoundError:
            raise ConfigError(f"{key}.command", f"{command!r} is not there; install it, or give its path") from None
        except OSError as error:
            raise ConfigError(f"{key}.command", f"{command!r} cannot be run: {error.strerror}") from None
        words.writer.close()
        yield Watched(read, over), write


def _folder(key: str, server: McpServer, cwd: str) -> Path:
    """Where a process starts. Raises ConfigError."""
    folder = Path(cwd, Path(server.cwd or ".").expanduser())
    if not folder.is_dir():
        raise ConfigError(f"{key}.cwd", f"{folder} is not a folder that exists")
    return folder


@asynccontextmanager
async def http_streams(
    url: str, headers: dict[str, str], answered: Callable[[int], None], over: Callable[[], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Talk to a server over HTTP; leaving ends its session. `answered` is told the status of each POST's answer."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def noted(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            answered(response.status_code)

    # A call has its own time-out, and the stream of notifications may be silent for hours: no time-out for reading.
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
    at_home = httpx2.URL(url).host in AT_HOME
    async with (
        httpx2.AsyncClient(
            headers=headers, timeout=timeout, trust_env=not at_home, event_hooks={"response": [noted]}
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MOST_EVENT_BYTES) as (read, write),
    ):
        yield Watched(read, over), write


def shown_address(url: str) -> str:
    """An address without what may be a secret in it: a password, a query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def plain_reason(error: BaseException) -> str:
    """Why a connection failed, in one line: the first error that is no wrapper around others."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, ConfigError):
        return f"{error.key.rpartition('.')[2]} {error.why}"
    text = str(error).strip()
    with suppress(IndexError):
        text = text.splitlines()[0]
    kind = type(error).__name__
    return text if kind == "MCPError" else f"{kind}: {text}" if text else kind
