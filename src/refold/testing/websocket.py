"""The scripted server's side of a WebSocket: wsproto for the frames, one JSON event a frame, nothing but text."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec
from wsproto.connection import SERVER, Connection, ConnectionState
from wsproto.events import CloseConnection, Event, Message, Ping, TextMessage
from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.utilities import generate_accept_token

from refold.model.scripted import Reply, wire_events

READ_BYTES = 256 * 1024  # what asyncio takes from a socket at once; requests of several MB are normal here
WARM_UP_ID = "resp_warm"  # the response id of every request that generates nothing
_HALF_EVENT = '{"type":"response.output_item.done","item":{"type":"mess'


class ClientLeft(ConnectionError):
    """The client closed the connection before its answer was complete."""


def accepting_headers(key: str | None, reply: Reply) -> list[tuple[str, str]]:
    """The headers of the 101 that accepts a handshake with this key; the reply's own come last."""
    token = generate_accept_token((key or "").encode()).decode()
    own = [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-accept", token)]
    return [*own, *((name.lower(), value) for name, value in reply.headers.items())]


def extensions_of(reply: Reply) -> list[Extension]:
    """What the accepting reply's headers switch on: {"sec-websocket-extensions": "permessage-deflate"}, or nothing."""
    taken = {name.lower(): value for name, value in reply.headers.items()}.get("sec-websocket-extensions")
    if taken is None:
        return []
    deflate = PerMessageDeflate()
    deflate.finalize(taken)
    return [deflate]


class ServerSocket:
    """One accepted WebSocket. Mutable: what was pushed is not sent yet; what came is kept until it is asked for."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        early: bytes = b"",
        extensions: list[Extension] | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = Connection(SERVER, extensions)
        self._texts: deque[str] = deque()
        self._pieces: list[str] = []
        self._out: list[bytes] = []
        self._gone = False
        self._take(early)

    async def next_text(self) -> str | None:
        """The next whole message; None when the client has no more."""
        while not self._texts and not self._gone:
            await self._read()
        return self._texts.popleft() if self._texts else None

    def push(self, text: str, *, finished: bool = True) -> None:
        """Raises ClientLeft when nobody takes it any more."""
        if self._gone:
            raise ClientLeft
        self._push(TextMessage(text, message_finished=finished))

    def push_close(self, code: int = 1001, reason: str = "") -> None:
        """The end, said in order."""
        if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self._push(CloseConnection(code, reason))

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
                while not self._gone:
                    await self._read()
                raise ClientLeft

    async def _read(self) -> None:
        data = await self._reader.read(READ_BYTES)
        self._gone = not data
        self._take(data)
        await self.flush()

    def _take(self, data: bytes) -> None:
        if not data:
            return
        self._frames.receive_data(data)
        for event in self._frames.events():
            if isinstance(event, Message):
                self._pieces.append(event.data if isinstance(event.data, str) else bytes(event.data).decode())
                if event.message_finished:
                    self._texts.append("".join(self._pieces))
                    self._pieces = []
            elif isinstance(event, Ping):
                self._push(event.response())
            elif isinstance(event, CloseConnection):
                self._gone = True
                self.push_close(event.code)

    def _push(self, event: Event) -> None:
        self._out.append(bytes(self._frames.send(event)))


async def play(socket: ServerSocket, reply: Reply, serial: int) -> bool:
    """Say a reply, one event a frame; False when the connection is to be cut.

    A status of 300 and above is said as an error frame. "items" and a number of events end with a close frame,
    "partial_item" in the middle of a message, "request" without a word.
    """
    await socket.silence(reply.delay)
    if reply.cut_after == "request":
        return False
    events = [_refusal(reply)] if reply.status >= 300 else wire_events(reply, serial)
    for number, event in enumerate(events):
        if number:
            await socket.silence(reply.pace)
        if number == len(events) - 1 and reply.cut_after is None:
            await socket.silence(reply.stall)
        socket.push(msgspec.json.encode(event).decode())
    if reply.cut_after == "partial_item":
        socket.push(_HALF_EVENT, finished=False)
    await socket.silence(reply.linger if reply.cut_after is None else reply.stall)
    if reply.cut_after not in (None, "partial_item"):
        socket.push_close()
    await socket.flush()
    return reply.cut_after is None


async def play_warm_up(socket: ServerSocket) -> bool:
    """Answer a request that generates nothing: it only has an id."""
    return await play(socket, Reply(response_id=WARM_UP_ID), 0)


def _refusal(reply: Reply) -> dict[str, Any]:
    error = reply.body.get("error", reply.body) if isinstance(reply.body, dict) else reply.body
    return {"type": "error", "status": reply.status, "error": error, "headers": reply.headers}
