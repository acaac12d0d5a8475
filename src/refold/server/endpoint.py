"""Endpoint: one route over HTTP: who asks, the body within its limits, the answer, and what is counted of it.

Rule 1: a client that leaves ends the work for it, at the upstream too.
Rule 2: nothing of a request is logged: with `log_requests` its method, path, status and time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from refold.errors import RequestRefused
from refold.server import faults
from refold.server.blocks import Event
from refold.server.callers import Caller, caller_of
from refold.server.connected import disconnect_of, while_connected
from refold.server.exchange import Exchange
from refold.server.gateway import Gateway
from refold.server.unpacking import ENCODING, too_large, unpacked
from refold.server.upstream import Document

EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
LEFT_OUT = "x-refold-left-out"
LONGEST_LEFT_OUT = 500  # characters of that header
log = logging.getLogger("refold.gateway")


class Call(NamedTuple):
    """One HTTP request, its body read."""

    method: str
    body: bytes
    caller: Caller
    headers: Mapping[str, str]  # by lower-case name
    parameters: Mapping[str, str]  # of the path
    query: str


Answer = Callable[[Gateway, Call], Awaitable[Document | Exchange]]


class Endpoint:
    """An ASGI application for one route. `is_open`: whoever asks is answered, without a token and without counting.
    `needs_room`: it is refused where the gateway is full."""

    def __init__(self, name: str, answer: Answer, *, is_open: bool = False, needs_room: bool = True) -> None:
        self.name, self.answer, self.is_open = name, answer, is_open
        self.needs_room = needs_room and not is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway: Gateway = scope["app"].state.gateway
        request, began = Request(scope, receive), time.monotonic()
        sending = _Sending(send, gateway.settings.idle_seconds)
        try:
            headers = dict(request.headers)
            caller = Caller("") if self.is_open else caller_of(headers, gateway.secrets)
            room: AbstractContextManager[None] = gateway.admission.of(caller) if self.needs_room else nullcontext()
            with room:  # before the body is read: what is on its way takes memory too
                body = b"" if request.method in ("GET", "DELETE") else await read_body(request, gateway)
                call = Call(request.method, body, caller, headers, request.path_params, request.url.query)
                if not await while_connected(disconnect_of(receive), self._work(gateway, call, sending)):
                    raise ClientDisconnect
        except (ClientDisconnect, ConnectionError):
            gateway.metrics.add("refold_gateway_abandoned_total")
        except RequestRefused as error:
            await sending.refuse(error)
        except Exception as error:
            log.error("%s failed: %s", self.name, type(error).__name__)
            log.debug("%s failed", self.name, exc_info=error)
            await sending.refuse(faults.own_fault(error))
        self._count(gateway, request, sending, time.monotonic() - began)

    def _work(self, gateway: Gateway, call: Call, sending: _Sending) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            found = await self.answer(gateway, call)
            if isinstance(found, Document):
                await sending.document(found)
            elif found.asked.stream:
                async with aclosing(gateway.answering.events(found)) as events:
                    await sending.stream(events, found)
            else:
                answer = await gateway.answering.document(found)
                await sending.document(answer, found)

        return work

    def _count(self, gateway: Gateway, request: Request, sending: _Sending, seconds: float) -> None:
        if not self.is_open:
            gateway.metrics.add("refold_gateway_requests_total", route=self.name, status=str(sending.status))
            gateway.metrics.took(seconds, route=self.name)
        if gateway.settings.log_requests:
            log.info("%s %s %s %.0f ms", request.method, self.name, sending.status, seconds * 1000)


class _Sending:
    """One answer on its way. Mutable: it knows whether it has begun. Raises ClientDisconnect for a client that takes
    nothing for `idle_seconds`: it holds its place, and the upstream."""

    def __init__(self, send: Send, idle_seconds: float) -> None:
        self._to_client, self._idle_seconds = send, idle_seconds
        self.status = 0  # 0: nothing was answered

    async def document(self, answer: Document, exchange: Exchange | None = None) -> None:
        headers = {"content-type": "application/json", **answer.headers, **_left_out(exchange)}
        headers["content-length"] = str(len(answer.body))
        await self._start(answer.status, headers)
        await self._send({"type": "http.response.body", "body": answer.body})

    async def stream(self, events: AsyncGenerator[Event], exchange: Exchange) -> None:
        """The headers when the first event is there: until then an error has a status of its own."""
        held: list[bytes] = []  # events that go out at once with the next one, which is there
        async for event in events:
            if not self.status:
                await self._start(200, {**EVENT_STREAM, **exchange.headers, **_left_out(exchange)})
            held.append(event.raw)
            if not event.more:
                await self._send({"type": "http.response.body", "body": b"".join(held), "more_body": True})
                held.clear()
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, error: RequestRefused) -> None:
        """Say what went wrong; where the answer has begun, its end without an end says it."""
        if self.status:
            return  # the server closes the connection of an answer without an end, so nobody takes it for whole
        with suppress(ClientDisconnect):
            await self.document(Document(error.status, faults.headers_of(error), faults.document(error)))

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        raw = [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers.items()
        ]
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._idle_seconds):
                await self._to_client(message)
        except TimeoutError:
            raise ClientDisconnect from None


def _left_out(exchange: Exchange | None) -> dict[str, str]:
    """The header that tells what the upstream was not told."""
    if exchange is None or not exchange.left_out:
        return {}
    return {LEFT_OUT: "; ".join(exchange.left_out).encode("ascii", "replace").decode()[:LONGEST_LEFT_OUT]}


async def read_body(request: Request, gateway: Gateway) -> bytes:
    """The whole body, unpacked. Raises RequestRefused: 400, 413, 408, 415; ClientDisconnect."""
    most, seconds = gateway.settings.max_body_bytes, gateway.settings.body_seconds
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in ("", "identity", ENCODING):
        text = f"This gateway takes bodies without a content-encoding, or with {ENCODING}."
        raise RequestRefused(text, status=415, code="unsupported_encoding")
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and int(told) > most:
        raise too_large(most)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    raise too_large(most)
    except TimeoutError:
        raise RequestRefused(
            f"The body did not come within {seconds:g} s.", status=408, code="request_timeout"
        ) from None
    body = b"".join(pieces)
    return body if encoding != ENCODING else await asyncio.to_thread(unpacked, body, most)


def refusal(error: RequestRefused) -> Response:
    """A refusal as a response of Starlette's."""
    headers = faults.headers_of(error)
    return Response(faults.document(error), error.status, headers, media_type="application/json")
