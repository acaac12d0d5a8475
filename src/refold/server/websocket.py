"""Conversation: requests over one WebSocket, each a `response.create` that may only say what is new (oracle §12).

Rule 1: one answer at a time, in the order of the requests; a client that leaves ends the work for it.
Rule 2: the connection knows the response that it completed last, stored or not: the next request may go on from it.
Rule 3: what is said is always heard, so that it is known when the client leaves: who sends too much ahead is sent away.
Rule 4: when the gateway ends, the answer that runs may end; nothing that was sent ahead is begun.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from refold.core.chat_completions_answer import End, ended
from refold.core.jsonio import dump, is_object
from refold.core.usage import Usage
from refold.errors import RequestRefused
from refold.server import faults
from refold.server.aside import aside
from refold.server.blocks import DONE, Event, event_of
from refold.server.callers import Caller, caller_of
from refold.server.connected import while_connected
from refold.server.endpoint import refusal
from refold.server.exchange import Exchange, usage_object
from refold.server.gateway import Gateway
from refold.server.incoming import Given, object_of, refused
from refold.server.lasting import ENDING

MOST_WAITING = 8  # requests that a connection may have sent ahead, of no more bytes than the largest may have
LONGEST_QUIET = 3_600.0  # seconds without a request: then the connection ends, and what it holds of the last one
CLOSE_SECONDS = 5.0  # for a client that takes nothing
# Why a connection is closed: WebSocket's code, and the reason.
OVER, QUIET = (1000, ""), (1001, "No request for a long time.")
TOO_MUCH = (1008, f"More than {MOST_WAITING} requests, or too large ones, were sent ahead.")
RESTARTS = (1012, "The gateway ends.")
CREATE, BEGIN = "response.create", "response.created"
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
        with gateway.connections.of(caller):
            await _Conversation(websocket, gateway, caller).run()
    except RequestRefused as error:
        await websocket.send_denial_response(refusal(error))


class _Conversation:
    """One connection. Mutable: it holds what was sent ahead, and the response that was completed last."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, caller: Caller) -> None:
        self._websocket, self._gateway, self._caller = websocket, gateway, caller
        self._sent = dict(websocket.headers)
        self._waiting = _Waiting(gateway.settings.max_body_bytes)
        self._held: tuple[str, tuple[Given, ...]] | None = None
        self._has_left, self._why = False, OVER

    async def run(self) -> None:
        """Answer until the client leaves, is sent away, or the gateway ends."""
        try:
            await self._websocket.accept()
            await while_connected(self._listen, self._answer_all)
        except WebSocketDisconnect:
            pass
        except asyncio.CancelledError:
            if self._why != RESTARTS:
                raise
        finally:
            with suppress(WebSocketDisconnect, OSError, RuntimeError):  # Starlette's words for one that is closed
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._websocket.close(*self._why)

    async def _listen(self) -> None:
        """Take in what is said; returns when the client has left, or has to."""
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if ENDING in message:
                self._why = RESTARTS
                self._waiting.stop()
            elif not self._waiting.put(text.encode() if text is not None else message.get("bytes") or b""):
                self._why = TOO_MUCH
                return
            del message, text  # an idle connection would hold it
        self._has_left = True

    async def _answer_all(self) -> None:
        """Answer one request after the other; returns when there are to be no more."""
        while (frame := await self._next()) is not None:
            answer, began = _Answer(self._websocket, self._gateway.settings.idle_seconds), time.monotonic()
            try:
                await self._answer(frame, answer)
            except asyncio.CancelledError:
                await self._cut(answer)
                raise
            except WebSocketDisconnect:
                self._gateway.metrics.add("refold_gateway_abandoned_total")
                raise
            finally:
                self._count(answer.status, time.monotonic() - began)
            del frame  # an idle connection would hold it

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(LONGEST_QUIET):
                return await self._waiting.next()
        except TimeoutError:
            self._why = QUIET
            return None

    async def _cut(self, answer: _Answer) -> None:
        """An answer ends before its end: nobody hears it, or it had its time when the gateway ended."""
        if self._has_left or self._why != RESTARTS:
            self._gateway.metrics.add("refold_gateway_abandoned_total")
            return
        text = "The gateway ends, and this answer took too long for it. It may be asked for again."
        with suppress(WebSocketDisconnect):
            await answer.fail(RequestRefused(text, status=503, code=faults.FAILED, kind="server_error"))

    async def _answer(self, frame: bytes, answer: _Answer) -> None:
        try:
            keys = await aside(len(frame), lambda: _read(frame))
            answer.lane = _lane(keys)
            with self._gateway.admission.of(self._caller):
                await self._generate(keys, answer)
        except RequestRefused as error:
            await answer.refuse(error)
        except WebSocketDisconnect:
            raise
        except Exception as error:
            log.error("%s failed: %s", ROUTE, type(error).__name__)
            log.debug("%s failed", ROUTE, exc_info=error)
            await answer.refuse(faults.own_fault(error))

    async def _generate(self, keys: dict[str, bytes], answer: _Answer) -> None:
        body = object_of({name: raw for name, raw in keys.items() if name not in OF_THE_FRAME} | {"stream": b"true"})
        exchange = await self._gateway.read(body, self._caller, self._sent, held=self._held)
        generates = keys.get("generate") != b"false"
        flow = self._gateway.answering.events(exchange) if generates else self._prepared(exchange)
        async with aclosing(flow) as events:
            async for event in events:
                await answer.say(event)
        self._held = exchange.held or self._held

    async def _prepared(self, exchange: Exchange) -> AsyncGenerator[Event]:
        """The answer to a request that generates nothing: it only has an id to go on from."""
        shell = exchange.shell()
        yield event_of({"type": BEGIN, "sequence_number": 0, "response": shell})
        response = ended(shell, End("completed"), [], usage_object(Usage()))
        await self._gateway.answering.keep(exchange, response)
        yield event_of({"type": "response.completed", "sequence_number": 1, "response": response})

    def _count(self, status: int, seconds: float) -> None:
        metrics = self._gateway.metrics
        metrics.add("refold_gateway_requests_total", route=ROUTE, status=str(status))
        metrics.took(seconds, route=ROUTE)
        if self._gateway.settings.log_requests:
            log.info("WEBSOCKET %s %s %.0f ms", ROUTE, status, seconds * 1000)


class _Waiting:
    """The requests that were sent ahead. Mutable: it holds them, and counts them and their bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes, self._count = most_bytes, 0, 0
        self._is_over, self._is_wanted = False, True  # wanted: the next one is taken at once, and does not wait
        self._frames: asyncio.Queue[tuple[bytes, bool] | None] = asyncio.Queue()  # with whether it is counted

    def put(self, frame: bytes) -> bool:
        """Whether it is taken: where it would have to wait, there must be room; one may always wait."""
        if self._is_over:  # it is heard no more, which is no fault of the client's
            return True
        waits, self._is_wanted = not self._is_wanted, False
        if waits:
            if self._count and (self._count >= MOST_WAITING or self._bytes + len(frame) > self._most_bytes):
                return False
            self._count += 1
            self._bytes += len(frame)
        self._frames.put_nowait((frame, waits))
        return True

    async def next(self) -> bytes | None:
        """The next request; None: there are to be no more."""
        self._is_wanted = self._frames.empty()
        found = await self._frames.get()
        if found is None:
            return None
        frame, waited = found
        if waited:
            self._count -= 1
            self._bytes -= len(frame)
        return frame

    def stop(self) -> None:
        """Forget what waits; there is to be no more."""
        self._is_over = True
        while not self._frames.empty():
            self._frames.get_nowait()
        self._frames.put_nowait(None)


class _Answer:
    """One answer on its way. Mutable: it knows how it began. Raises WebSocketDisconnect where nobody hears it."""

    def __init__(self, websocket: WebSocket, idle_seconds: float) -> None:
        self._websocket, self._idle_seconds = websocket, idle_seconds
        self.lane: str | None = None
        self.status = 0  # 0: nothing was answered
        self._begun: Event | None = None
        self._said = 0

    async def say(self, event: Event) -> None:
        if not event.data or event.type == DONE:
            return
        data = event.data if self.lane is None else dump({**event.message(), "stream_id": self.lane})
        try:
            async with asyncio.timeout(self._idle_seconds):
                await self._websocket.send_text(data.decode("utf-8", "replace"))
        except (OSError, RuntimeError):  # a client that takes nothing, too: it holds its place, and the upstream
            raise WebSocketDisconnect from None
        self.status = self.status or 200
        self._said += 1
        if event.type == BEGIN:
            self._begun = event

    async def refuse(self, error: RequestRefused) -> None:
        self.status = error.status
        await self.say(event_of(faults.frame(error)))

    async def fail(self, error: RequestRefused) -> None:
        """End what has begun; refuse what has not."""
        response = self._begun.message().get("response") if self._begun is not None else None
        if not is_object(response):
            await self.refuse(error)
            return
        await self.say(event_of({**faults.failed(response, error), "sequence_number": self._said}))


def _read(frame: bytes) -> dict[str, bytes]:
    """The keys of a frame. Raises RequestRefused for one that is no `response.create`."""
    try:
        keys = {key: bytes(raw) for key, raw in _keys(frame).items()}
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
