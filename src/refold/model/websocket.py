"""WebSocket: a thread's requests over one connection, each saying only what is new (oracle §12; frames.py says what).

Rule 1: a connection outlives a completed response only; after anything else it is closed, and the next request opens
a new one and says everything.
Rule 2: a request for a summary that does not go on where the thread stands gets a new connection; the thread keeps it.
Rule 3: nothing is retried here; what is lost is told as an error that is worth asking again after.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from refold.core.items import Item
from refold.core.jsonio import dump
from refold.core.profile import Provider
from refold.core.wire import Request
from refold.errors import BadModelStream, ModelError, ModelUnavailable
from refold.model import Completed, ItemDone, ModelEvent
from refold.model.events import CLOSED_EARLY, decode_event, http_error, read_event, read_fault
from refold.model.frames import Said, frame, is_compaction, prepared, rest, said, warm_up_frame
from refold.model.retry import is_worth_retrying
from refold.model.sse import LARGEST_EVENT

if TYPE_CHECKING:
    import httpx2
    from wsproto.events import Event
    from wsproto.extensions import Extension

IDLE_TIMEOUT = "idle timeout waiting for websocket"
FALLING_BACK = "Falling back from WebSockets to HTTPS transport."
PROTOCOL = "responses_websockets=2026-02-06"  # the value of the header `openai-beta`
RECONNECT_CODES = frozenset({"previous_response_not_found", "websocket_connection_limit_reached"})
MOST_IDLE = 32  # connections kept open between requests, over all threads; httpx2 limits none of them
QUIET_SECONDS = 55.0  # after such a silence a connection is asked whether it still stands
PONG_SECONDS = 5.0
LEFTOVER_SECONDS = 0.02  # what lies on an idle connection is there, or is half a TLS record
GOODBYE_SECONDS = 1.0
READ_BYTES = 64 * 1024
OF_A_POST = ("content-type", "content-length", "accept", "accept-encoding")


# --- the handshake -----------------------------------------------------------------------------------------


def handshake_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of the handshake, from those of a POST by lower-case name."""
    from wsproto.utilities import generate_nonce

    beta = f"{headers['openai-beta']}, {PROTOCOL}" if "openai-beta" in headers else PROTOCOL
    return {
        **{name: value for name, value in headers.items() if name not in OF_A_POST},
        "openai-beta": beta,
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": generate_nonce().decode(),
        "sec-websocket-extensions": "permessage-deflate; client_max_window_bits",
    }


def _extensions(response: httpx2.Response) -> list[Extension]:
    """What the provider took of what was offered. Raises ValueError for an answer that is not a WebSocket's."""
    from wsproto.extensions import PerMessageDeflate
    from wsproto.utilities import generate_accept_token

    key = response.request.headers["sec-websocket-key"].encode()
    if response.headers.get("sec-websocket-accept", "").encode() != generate_accept_token(key):
        raise ValueError("the handshake was answered for another key")
    taken = response.headers.get("sec-websocket-extensions")
    if not taken:
        return []
    deflate = PerMessageDeflate()
    deflate.finalize(taken)
    return [deflate]


# --- what is heard -----------------------------------------------------------------------------------------


def heard(text: str, provider: Provider, secret: str | None = None) -> ModelEvent | None:
    """The ModelEvent of one frame, None for one that says nothing to refold; raises the ModelError of an error."""
    now = time.time()
    try:
        message = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return decode_event("", text, now=now)
    if not isinstance(message, dict):
        return None
    if message.get("type") == "error":
        raise _error(message, provider, secret, now)
    return read_event(message, now=now)


def _error(message: dict[str, Any], provider: Provider, secret: str | None, now: float) -> ModelError:
    """The error of an error frame; with a status it means what an HTTP answer of that status means."""
    if secret:
        message = msgspec.json.decode(dump(message).replace(secret.encode(), b"***"))
    fault = read_fault(message.get("error"))
    if fault.has(RECONNECT_CODES):
        return BadModelStream(f"stream disconnected before completion: {fault.text or fault.code}")
    status = message.get("status", message.get("status_code"))
    if isinstance(status, int) and 400 <= status < 600:
        headers = message.get("headers")
        named = {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
        return http_error(status, named, dump({"error": message.get("error")}), provider=provider, now=now)
    try:
        read_event(message, now=now)
    except ModelError as error:
        return error
    return BadModelStream(CLOSED_EARLY)


# --- one connection ----------------------------------------------------------------------------------------


class Socket:
    """An open WebSocket: the bytes of a handshake's connection, framed by wsproto. Mutable.

    `said`: what the provider holds through it. `patience`: seconds of silence that an answer may have.
    """

    def __init__(self, response: httpx2.Response, patience: float) -> None:
        """Raises ValueError when the handshake was not answered as a WebSocket answers."""
        from wsproto.connection import CLIENT, Connection

        self.said: Said | None = None
        self._response = response
        self._stream = response.extensions["network_stream"]
        self._frames = Connection(CLIENT, _extensions(response))
        self._patience = patience
        self._messages: deque[str] = deque()
        self._pieces: list[str] = []
        self._end: BadModelStream | None = None  # comes after the messages
        self._last = time.monotonic()  # when it was last heard

    async def send(self, text: str) -> None:
        """Raises BadModelStream when the connection has gone."""
        from wsproto.events import TextMessage

        self._messages.clear()  # what came unasked
        await self._write(TextMessage(text), self._patience)

    async def receive(self) -> str:
        """The next message. Raises BadModelStream when there is none for `patience` seconds, or the end."""
        while not self._messages:
            if self._end is not None:
                raise self._end
            if not await self._read(self._patience):
                raise BadModelStream(IDLE_TIMEOUT)
        return self._messages.popleft()

    async def is_open(self) -> bool:
        """Whether an idle connection can be used again: nothing that came meanwhile ends it, and somebody is there."""
        from wsproto.events import Ping

        try:
            if self._end is None and self._stream.get_extra_info("is_readable"):
                await self._read(LEFTOVER_SECONDS)
            if self._end is None and time.monotonic() - self._last > QUIET_SECONDS:
                await self._write(Ping(), PONG_SECONDS)
                if not await self._read(PONG_SECONDS):
                    return False
            return self._end is None and not any('"error"' in text for text in self._messages)
        except BadModelStream:
            return False

    async def close(self) -> None:
        """Say goodbye, where that is still possible, and close."""
        from wsproto.connection import ConnectionState
        from wsproto.events import CloseConnection

        try:
            if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
                await self._write(CloseConnection(1000), GOODBYE_SECONDS)
        except BadModelStream:
            pass
        finally:
            await self._response.aclose()

    async def _write(self, event: Event, seconds: float) -> None:
        from httpcore2 import NetworkError, TimeoutException

        try:
            await self._stream.write(bytes(self._frames.send(event)), timeout=seconds)
        except (NetworkError, TimeoutException) as error:
            raise BadModelStream(CLOSED_EARLY) from error

    async def _read(self, seconds: float) -> bool:
        """Take in what comes within so many seconds; False for silence."""
        from httpcore2 import NetworkError, TimeoutException
        from wsproto.events import CloseConnection, Message, Ping

        try:
            data = await self._stream.read(READ_BYTES, timeout=seconds)
        except TimeoutException:
            return False
        except NetworkError:
            data = b""
        if not data:
            self._end = self._end or BadModelStream(CLOSED_EARLY)
            return True
        self._last = time.monotonic()
        self._frames.receive_data(data)
        for event in self._frames.events():
            if isinstance(event, Message):
                self._take(event.data, event.message_finished)
            elif isinstance(event, Ping):
                await self._write(event.response(), self._patience)
            elif isinstance(event, CloseConnection):
                self._end = _closed(event.code, event.reason)
        return True

    def _take(self, data: str | bytes | bytearray, finished: bool) -> None:
        self._pieces.append(data if isinstance(data, str) else data.decode("utf-8", "replace"))
        if sum(map(len, self._pieces)) > LARGEST_EVENT:
            raise BadModelStream(f"stream disconnected: one event is larger than {LARGEST_EVENT:,} bytes")
        if finished:
            self._messages.append("".join(self._pieces))
            self._pieces = []


def _closed(code: int, reason: str | None) -> BadModelStream:
    error = BadModelStream(CLOSED_EARLY)
    if reason:
        error.add_note(f"the provider closed the WebSocket with {int(code)}: {reason}")
    return error


# --- one thread's connection -------------------------------------------------------------------------------


class Link:
    """How one thread reaches its provider. Mutable.

    `given_up`: its requests go over HTTP. `notice`: why, until somebody was told. `failure`: of the last request.
    """

    def __init__(self, provider: Provider, secret: str | None) -> None:
        self.given_up = False
        self.notice: str | None = None
        self.failure: ModelError | None = None
        self._provider = provider
        self._secret = secret
        self._socket: Socket | None = None  # the idle one
        self._begun = False

    @property
    def is_idle(self) -> bool:
        return self._socket is not None

    async def take(self, request: Request) -> Socket | None:
        """The open connection for this request, now out of anybody else's reach; None: it needs a new one."""
        socket, self._socket = self._socket, None
        if socket is None:
            return None
        usable = False
        try:
            goes_on = not is_compaction(request) or rest(socket.said, request) is not None
            usable = goes_on and await socket.is_open()
        finally:
            if not usable:
                await socket.close()
        return socket if usable else None

    async def ask(self, socket: Socket, request: Request) -> AsyncGenerator[ModelEvent]:
        """Stream the events of one request over a connection that was taken or is new."""
        output: list[Item] = []
        completed = False
        try:
            if not self._begun:
                self._begun = True
                await self._warm_up(socket, request)
            text, socket.said = frame(request, socket.said), None
            await socket.send(text)
            while not completed:
                event = heard(await socket.receive(), self._provider, self._secret)
                if isinstance(event, ItemDone):
                    output.append(event.item)
                elif isinstance(event, Completed):
                    completed, self.failure = True, None
                    socket.said = said(request, event.response_id, output)
                    await self._keep(socket)
                if event is not None:
                    yield event
        finally:
            if not completed:
                await socket.close()

    def give_up(self, why: str) -> None:
        """Take the other way from now on."""
        self.given_up, self.notice = True, f"{FALLING_BACK} {why}"

    def fall_back(self) -> bool:
        """Give up after a failure that another way may not meet."""
        if self.given_up or self.failure is None or not is_worth_retrying(self.failure):
            return False
        self.give_up(str(self.failure))
        return True

    async def close(self) -> None:
        """Close the idle connection."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _warm_up(self, socket: Socket, request: Request) -> None:
        """Say what the first request begins with. Any failure is one to ask again after: that goes without it."""
        if is_compaction(request) or request.identity is None or not request.base:
            return
        await socket.send(warm_up_frame(request))
        try:
            while not isinstance(event := heard(await socket.receive(), self._provider, self._secret), Completed):
                pass
        except ModelUnavailable:
            raise
        except ModelError as error:
            raise BadModelStream(f"the warm-up was refused: {error}") from error
        socket.said = prepared(request, event.response_id)

    async def _keep(self, socket: Socket) -> None:
        older, self._socket = self._socket, socket
        if older is not None:  # two requests of one thread ran at once
            await older.close()


class Links:
    """The links of a model's threads, the one that was used last at the end. Mutable."""

    def __init__(self, provider: Provider, secret: str | None) -> None:
        self._provider = provider
        self._secret = secret
        self._links: dict[str, Link] = {}

    def get(self, thread_id: str) -> Link | None:
        return self._links.get(thread_id)

    def of(self, request: Request) -> Link:
        thread_id = request.identity.thread_id if request.identity else ""
        link = self._links.pop(thread_id, None) or Link(self._provider, self._secret)
        self._links[thread_id] = link
        return link

    async def trim(self) -> None:
        """Close the connections that were idle longest, where there are too many."""
        idle = [link for link in self._links.values() if link.is_idle]
        for link in idle[: max(0, len(idle) - MOST_IDLE)]:
            await link.close()

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
