"""Conversation: requests over one WebSocket, each a `response.create` that may only say what is new (oracle §12).

Rule 1: one answer at a time, in the order of the requests; a client that leaves ends the work for it.
Rule 2: the connection knows the response that it completed last, stored or not: the next request may go on from it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from refold.core.chat_completions_answer import End, ended
from refold.core.jsonio import dump
from refold.core.usage import Usage
from refold.errors import RequestRefused
from refold.server import faults
from refold.server.blocks import DONE, Event, event_of
from refold.server.callers import Caller, caller_of
from refold.server.connected import while_connected
from refold.server.endpoint import refusal
from refold.server.exchange import Exchange, usage_object
from refold.server.gateway import Gateway
from refold.server.incoming import Given, object_of, refused

MOST_WAITING = 8  # requests that a connection may have sent ahead
CREATE = "response.create"
OF_THE_FRAME = ("type", "generate", "stream_id", "stream")
LONGEST_STREAM_ID = 64  # characters
ROUTE = "websocket"
log = logging.getLogger("refold.gateway")

_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def converse(websocket: WebSocket) -> None:
    """Answer a client until it leaves."""
    gateway: Gateway = websocket.app.state.gateway
    try:
        caller = caller_of(websocket.headers, gateway.secrets)
    except RequestRefused as error:
        await websocket.send_denial_response(refusal(error))
        return
    await websocket.accept()
    conversation = _Conversation(websocket, gateway, caller)
    try:
        await while_connected(conversation.listen, conversation.answer)
    except (WebSocketDisconnect, ConnectionError, RuntimeError):  # Starlette's word for a connection that is closed
        gateway.metrics.add("refold_gateway_abandoned_total")


class _Conversation:
    """One connection. Mutable: it holds what was sent ahead, and the response that was completed last."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, caller: Caller) -> None:
        self._websocket, self._gateway, self._caller = websocket, gateway, caller
        self._sent = dict(websocket.headers)
        self._texts: asyncio.Queue[str] = asyncio.Queue(MOST_WAITING)
        self._held: tuple[str, tuple[Given, ...]] | None = None

    async def listen(self) -> None:
        """Take in what is said; returns when the client has left."""
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            await self._texts.put(
                text if text is not None else (message.get("bytes") or b"").decode("utf-8", "replace")
            )

    async def answer(self) -> None:
        """Answer one request after the other, without an end."""
        while True:
            text = await self._texts.get()
            began, status, lane = time.monotonic(), 200, None
            try:
                keys = _read(text)
                lane = _lane(keys)
                with self._gateway.admission.of(self._caller):
                    await self._answer(keys, lane)
            except RequestRefused as error:
                status = error.status
                await self._say(event_of(faults.frame(error)), lane)
            except (WebSocketDisconnect, ConnectionError, RuntimeError):
                raise
            except Exception as error:
                log.error("%s failed: %s", ROUTE, type(error).__name__)
                log.debug("%s failed", ROUTE, exc_info=error)
                status = faults.SERVER_FAULT
                await self._say(event_of(faults.frame(faults.own_fault(error))), lane)
            self._count(status, time.monotonic() - began)

    async def _answer(self, keys: dict[str, bytes], lane: str | None) -> None:
        body = object_of({name: raw for name, raw in keys.items() if name not in OF_THE_FRAME} | {"stream": b"true"})
        exchange = await self._gateway.read(body, self._caller, self._sent, held=self._held)
        generates = keys.get("generate") != b"false"
        flow = self._gateway.answering.events(exchange) if generates else self._prepared(exchange)
        async with aclosing(flow) as events:
            async for event in events:
                await self._say(event, lane)
        self._held = exchange.held

    async def _prepared(self, exchange: Exchange) -> AsyncGenerator[Event]:
        """The answer to a request that generates nothing: it only has an id to go on from."""
        shell = exchange.shell()
        yield event_of({"type": "response.created", "sequence_number": 0, "response": shell})
        response = ended(shell, End("completed"), [], usage_object(Usage()))
        await self._gateway.answering.keep(exchange, response)
        yield event_of({"type": "response.completed", "sequence_number": 1, "response": response})

    async def _say(self, event: Event, lane: str | None) -> None:
        if not event.data or event.type == DONE:
            return
        data = event.data if lane is None else dump({**event.message(), "stream_id": lane})
        try:
            async with asyncio.timeout(self._gateway.settings.idle_seconds):
                await self._websocket.send_text(data.decode("utf-8", "replace"))
        except TimeoutError:  # a client that takes nothing holds its place, and the upstream
            raise WebSocketDisconnect from None

    def _count(self, status: int, seconds: float) -> None:
        metrics = self._gateway.metrics
        metrics.add("refold_gateway_requests_total", route=ROUTE, status=str(status))
        metrics.took(seconds, route=ROUTE)
        if self._gateway.settings.log_requests:
            log.info("WEBSOCKET %s %s %.0f ms", ROUTE, status, seconds * 1000)


def _read(text: str) -> dict[str, bytes]:
    """The keys of a frame. Raises RequestRefused for one that is no `response.create`."""
    try:
        keys = {key: bytes(raw) for key, raw in _keys(text).items()}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise RequestRefused("We could not parse the frame: it must be a JSON object.") from None
    if _text(keys, "type") != CREATE:
        raise refused("type", f"Invalid value for 'type': expected {CREATE!r}.", "invalid_value")
    return keys


def _lane(keys: dict[str, bytes]) -> str | None:
    """The name under which a client tells its answers apart; every event of the answer has it."""
    lane = _text(keys, "stream_id")
    if lane is None and keys.get("stream_id", b"null") != b"null":
        raise refused("stream_id", "Invalid type for 'stream_id': expected a string.", "invalid_type")
    if lane is not None and len(lane) > LONGEST_STREAM_ID:
        raise refused("stream_id", f"'stream_id' is longer than {LONGEST_STREAM_ID} characters.", "invalid_value")
    return lane


def _text(keys: dict[str, bytes], key: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(keys.get(key, b"null"))
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, str) else None
