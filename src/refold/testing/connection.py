"""Connection: one client of the scripted server, over HTTP/1.1 until it asks for a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import h11
import msgspec

from refold.model.scripted import Reply
from refold.testing.websocket import READ_BYTES, ClientLeft, ServerSocket, accepting_headers, extensions_of


@dataclass(frozen=True)
class LoggedRequest:
    """One request as it came. `path` includes the query; headers are (lower-case name, value) pairs in order.

    Over a WebSocket `body` is the text of a frame, the rest is its handshake's; `connection` numbers WebSockets from 1.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    transport: Literal["http", "websocket"] = "http"
    connection: int = 0

    @cached_property
    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)

    @property
    def input(self) -> list[dict[str, Any]]:
        """The items of the request."""
        return self.json["input"]

    def header(self, name: str) -> str | None:
        """The first header of this name, or None."""
        return next((value for key, value in self.headers if key == name.lower()), None)

    @property
    def endpoint(self) -> str:
        return self.path.partition("?")[0]

    @property
    def is_handshake(self) -> bool:
        """Whether a WebSocket is asked for, where there is one."""
        return self.endpoint.endswith("/responses") and (self.header("upgrade") or "").lower() == "websocket"

    @property
    def is_warm_up(self) -> bool:
        """Whether nothing is to be generated."""
        try:
            return self.json.get("generate") is False
        except (msgspec.DecodeError, AttributeError):
            return False

    @property
    def wants_stream(self) -> bool:
        """Whether events are asked for; the accept header spares decoding a large body."""
        if "text/event-stream" in (self.header("accept") or ""):
            return True
        try:
            return bool(self.json.get("stream"))
        except (msgspec.DecodeError, AttributeError):  # no JSON object: answered as scripted all the same
            return False


class Connection:
    """One client connection: h11 for the protocol, streams for the bytes. Mutable: what was pushed is not sent yet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)
        self._out: list[bytes] = []

    async def next_request(self) -> LoggedRequest | None:
        """The next whole request; None when the client has no more."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.our_state is not h11.IDLE:
            return None
        head: h11.Request | None = None
        body: list[bytes] = []
        while True:
            match self._http.next_event():
                case h11.Request() as head:
                    if self._http.they_are_waiting_for_100_continue:
                        self._push(h11.InformationalResponse(status_code=100, headers=[]))
                        await self.flush()
                case h11.Data(data=data):
                    body.append(data)
                case h11.EndOfMessage() if head is not None:
                    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
                    return LoggedRequest(head.method.decode(), head.target.decode(), headers, b"".join(body))
                case h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(READ_BYTES))
                case _:  # ConnectionClosed, PAUSED
                    return None

    async def upgrade(self, request: LoggedRequest, reply: Reply) -> ServerSocket:
        """Accept this handshake; from now on the connection is a WebSocket."""
        headers = accepting_headers(request.header("sec-websocket-key"), reply)
        self._push(h11.InformationalResponse(status_code=101, headers=headers))
        await self.flush()
        return ServerSocket(self._reader, self._writer, self._http.trailing_data[0], extensions_of(reply))

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self._push(h11.Response(status_code=status, headers=list(headers)))

    def push(self, data: bytes) -> None:
        self._push(h11.Data(data=data))

    def end(self) -> None:
        self._push(h11.EndOfMessage())

    def _push(self, event: h11.Event) -> None:
        self._out.append(self._http.send(event) or b"")

    async def flush(self) -> None:
        self._writer.write(b"".join(self._out))
        self._out = []
        await self._writer.drain()

    async def silence(self, seconds: float) -> None:
        """Send what was pushed, then nothing for so long. Raises ClientLeft as soon as the client has gone."""
        if seconds <= 0:
            return
        await self.flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while data := await self._reader.read(READ_BYTES):
                    self._http.receive_data(data)
                raise ClientLeft

    async def close(self, *, at_once: bool = False) -> None:
        """Close in order (what was written arrives first), or drop everything at once."""
        if at_once:
            self._writer.transport.abort()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
