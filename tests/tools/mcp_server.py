"""A server written with the official SDK: `mcp_server.py stdio|stubborn|http [--old] [--token T] [--log FILE]`.

Over HTTP it listens on loopback, on `--port` or a free one, and prints which. `stubborn` ends neither with its input
nor by SIGTERM; `--old` knows only the protocol with a handshake and sessions (2025); `--token` is asked of whoever
comes, and `--log` gets a line for each request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.types import (
    METHOD_NOT_FOUND,
    AudioContent,
    EmbeddedResource,
    ErrorData,
    JSONRPCError,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c636460f8cf000003010100c9fe92ef0000000049454e44ae426082"
)

server = MCPServer("for tests", log_level="CRITICAL")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def echo(text: str, more: int | None = None) -> str:
    """Says it again."""
    return f"you said {text}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def add(a: int, b: int) -> dict[str, int]:
    """Adds."""
    return {"sum": a + b}


@server.tool()
def who() -> str:
    """Which process this is, where, and its environment."""
    return json.dumps({"pid": os.getpid(), "cwd": str(Path.cwd()), "environ": dict(os.environ)})


@server.tool()
def fail() -> str:
    """Fails with words of its own."""
    raise ToolError("the disk is full")


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A text and a picture."""
    return ["a pixel", Image(data=PIXEL, format="png")]


@server.tool(structured_output=False)
def assorted() -> list[Any]:
    """What is neither text nor picture."""
    return [
        AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
        ResourceLink(type="resource_link", name="notes", uri="file:///notes.txt", mime_type="text/plain"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a.txt", text="inside")),
        TextContent(type="text", text="end"),
    ]


@server.tool()
def long(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool()
async def slow(seconds: float, mark: str, ctx: Context) -> str:
    """Tells how far it is, and leaves a mark when it is cancelled."""
    await ctx.report_progress(1, 10, "begun")
    try:
        await asyncio.sleep(seconds)
    except BaseException:
        Path(mark).write_text("cancelled")
        raise
    return "slept"


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    print("Segmentation fault, or so", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def grow(ctx: Context) -> str:
    """From now on there is one tool more."""
    server.add_tool(lambda: "grown", name="new", description="New here.")
    await ctx.notify_tools_changed()
    if ctx.protocol_version is None or ctx.protocol_version < "2026":
        await ctx.session.send_tool_list_changed()
    return "done"


@server.tool(name="odd.name/with everything")
def odd() -> str:
    """A name that providers refuse."""
    return "odd"


async def only_old(ctx: Any, call_next: Any) -> Any:
    """Know nothing of the newer protocol."""
    if ctx.method == "server/discover":
        raise MCPError(METHOD_NOT_FOUND, "Method not found")
    return await call_next(ctx)


class Asked:
    """Lets in who has the token, and notes what is asked: method and path, one line each."""

    def __init__(self, app: Any, token: str | None, log: str | None) -> None:
        self.app, self.token, self.log = app, token, log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            if self.log:
                with Path(self.log).open("a") as file:
                    print(scope["method"], headers.get("x-team", "-"), file=file, flush=True)
            if self.token and headers.get("authorization") != f"Bearer {self.token}":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)


async def over_http(token: str | None, log: str | None, port: int) -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", port))
    app = Asked(server.streamable_http_app(), token, log)
    serving = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    print(listener.getsockname()[1], flush=True)
    await serving.serve(sockets=[listener])


async def over_pipes(old: bool) -> None:
    from mcp.server.stdio import stdio_server

    low = server._lowlevel_server
    options = low.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write), anyio.create_task_group() as group:
        if old:
            known, kept = anyio.create_memory_object_stream[Any](0)
            group.start_soon(pass_on_what_is_old, read, write, known)
            read = kept
        await low.run(read, write, options)
        group.cancel_scope.cancel()


async def pass_on_what_is_old(read: Any, write: Any, known: Any) -> None:
    async with known:
        async for message in read:
            request = message.message
            if getattr(request, "method", "") == "server/discover":
                error = ErrorData(code=METHOD_NOT_FOUND, message="Method not found")
                await write.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request.id, error=error)))
            else:
                await known.send(message)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["stdio", "stubborn", "http"])
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--token")
    parser.add_argument("--log")
    parser.add_argument("--port", type=int, default=0)
    words = parser.parse_args()
    if words.way == "http":
        if words.old:
            server.middleware.append(only_old)
        asyncio.run(over_http(words.token, words.log, words.port))
        return
    if words.way == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asyncio.run(over_pipes(words.old))
    if words.way == "stubborn":
        time.sleep(60)


if __name__ == "__main__":
    main()
