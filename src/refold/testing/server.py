"""ResponsesServer: a scripted provider on loopback that speaks real HTTP/1.1 and server-sent events.

It runs in a thread with its own event loop, so that it serves blocking and async callers and other processes alike.
Rule 1: every POST to a path ending in `/responses` or `/responses/compact` uses one reply of the script.
Rule 2: a request is logged before it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import h11
import msgspec

from refold.core.profile import Provider
from refold.errors import ConfigError
from refold.model.scripted import Reply, Script, Step, read_script, wire_events

READ_BYTES = 256 * 1024  # what asyncio takes from a socket at once; requests of several MB are normal here
_HALF_EVENT = b'event: response.output_item.done\ndata: {"type":"response.output_item.done","item":{"type":"mess'


@dataclass(frozen=True)
class LoggedRequest:
    """One request as it came. `path` includes the query; headers are (lower-case name, value) pairs in order."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

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
    def wants_stream(self) -> bool:
        """Whether events are asked for; the accept header spares decoding a large body."""
        if "text/event-stream" in (self.header("accept") or ""):
            return True
        try:
            return bool(self.json.get("stream"))
        except (msgspec.DecodeError, AttributeError):  # no JSON object: answered as scripted all the same
            return False


class ClientLeft(ConnectionError):
    """The client closed the connection before its answer was complete."""


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


class ResponsesServer:
    """A scripted provider: `with ResponsesServer([text_reply("hi")]) as server: … server.url …`, or `async with`.

    `script` is a list of replies used in order, or a callable from LoggedRequest to Reply; `port` 0 takes a free one.
    `requests` holds what was asked; `abandoned` the requests whose client left before the answer was complete.
    With `log` false neither is kept: a benchmark's bodies would fill the memory.
    An exception in a callable or a reply that cannot be sent is raised again when the `with` block ends.
    Mutable, and filled from the server's thread: look at `requests` when an answer to them has come.
    """

    def __init__(
        self, script: Sequence[Step] | Callable[[Any], Reply | str], *, port: int = 0, log: bool = True
    ) -> None:
        self.requests: list[LoggedRequest] = []
        self.abandoned: list[LoggedRequest] = []
        self._script = Script(script)
        self._log = log
        self._address = ("127.0.0.1", port)
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # --- for the caller's thread ---

    @property
    def port(self) -> int:
        """The port it listens on; known as soon as it is started."""
        return self._address[1]

    @property
    def url(self) -> str:
        """The base URL for a Provider."""
        return f"http://127.0.0.1:{self.port}/v1"

    def provider(self, **changes: Any) -> Provider:
        """A Provider that stands for this server and needs no key; `changes` are its other fields."""
        return Provider(**{"id": "scripted", "name": "scripted", "base_url": self.url, "env_key": None, **changes})

    def start(self) -> Self:
        """Listen; raises OSError when the port is taken. A server is started once."""
        listener = socket.create_server(self._address)
        self._address = listener.getsockname()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(listener)), name="ResponsesServer")
        self._thread.daemon = True  # a test that forgets to stop it must not hang the process
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close every connection and end the thread; what was written arrives. Stopping twice is harmless."""
        if self._thread is None:
            return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.result().call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.stop()
        if self._failure is not None and error is None:
            raise self._failure

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        await asyncio.to_thread(self.stop)
        if self._failure is not None and error is None:
            raise self._failure

    # --- in the server's thread ---

    async def _run(self, listener: socket.socket) -> None:
        """Accept until stopped. asyncio's own server loses a socket that it accepts while it is being closed."""
        loop = asyncio.get_running_loop()
        self._loop.set_result(loop)
        open_connections: set[asyncio.Task[None]] = set()
        with listener:
            listener.setblocking(False)
            async with asyncio.TaskGroup() as group:

                def greet() -> None:
                    with suppress(BlockingIOError, ConnectionAbortedError):  # the client has gone already
                        task = group.create_task(self._serve(listener.accept()[0]))
                        open_connections.add(task)
                        task.add_done_callback(open_connections.discard)

                loop.add_reader(listener, greet)
                await self._stop.wait()
                loop.remove_reader(listener)
                await asyncio.sleep(0)  # a task that has not begun could not close its socket
                for task in open_connections:
                    task.cancel()

    async def _serve(self, client: socket.socket) -> None:
        """Answer one client's requests until either side closes."""
        try:
            connection = Connection(*await asyncio.open_connection(sock=client, limit=READ_BYTES))
        except OSError:  # the client has gone already
            client.close()
            return
        left_in_order = False
        try:
            while request := await connection.next_request():
                if self._log:
                    self.requests.append(request)
                if not await self._answer(connection, request):
                    break
            left_in_order = True
        except (OSError, h11.RemoteProtocolError):
            pass  # the client is gone or talks no HTTP: nobody to tell
        except Exception as error:  # a reply that HTTP cannot say; the thread must go on serving the others
            self._failure = error
        finally:
            await connection.close(at_once=not left_in_order)

    async def _answer(self, connection: Connection, request: LoggedRequest) -> bool:
        """Answer as scripted; False when the connection is to be cut."""
        reply, serial = self._next_reply(request)
        try:
            await connection.silence(reply.delay)
            streamed = reply.status < 300 and request.endpoint.endswith("/responses") and request.wants_stream
            if reply.cut_after == "request" or (reply.cut_after is not None and not streamed):
                return False
            if streamed:
                return await _stream(connection, reply, serial)
            status, body = _document(request, reply, serial)
            headers = _headers(reply, serial, "application/json")
            connection.start(status, [*headers, ("content-length", str(len(body)))])
            connection.push(body)
            connection.end()
            await connection.flush()
        except ConnectionError:
            if self._log:
                self.abandoned.append(request)
            raise
        return True

    def _next_reply(self, request: LoggedRequest) -> tuple[Reply, int]:
        """The reply and its number; requests that are not for a model leave the script alone."""
        if not request.endpoint.endswith(("/responses", "/responses/compact")):
            return _complaint(404, f"nothing at {request.endpoint}"), 0
        if request.method != "POST":  # 426 tells a client that tries a WebSocket to use POST
            return _complaint(426 if request.header("upgrade") else 405, f"{request.method} is not for here"), 0
        try:
            return self._script.next(request), self._script.used
        except Exception as error:
            self._failure = error
            return _complaint(500, f"the script failed: {error!r}"), self._script.used


def _complaint(status: int, text: str) -> Reply:
    return Reply(status=status, body={"error": {"message": text}})


def _headers(reply: Reply, serial: int, content_type: str) -> list[tuple[str, str]]:
    plain = {"content-type": content_type, "x-request-id": f"req_{serial}"}
    return list({**plain, **{name.lower(): value for name, value in reply.headers.items()}}.items())


def _document(request: LoggedRequest, reply: Reply, serial: int) -> tuple[int, bytes]:
    """Status and JSON body of an answer without a stream: an error, a whole response, or a compacted input."""
    if reply.status >= 300:
        return reply.status, b"" if reply.body is None else msgspec.json.encode(reply.body)
    if reply.fail is not None or reply.error is not None:
        return 400, msgspec.json.encode({"error": reply.fail or reply.error})
    response = wire_events(reply, serial)[-1]["response"]
    if request.endpoint.endswith("/compact"):
        response = {**response, "object": "response.compaction"}
    return reply.status, msgspec.json.encode(response)


async def _stream(connection: Connection, reply: Reply, serial: int) -> bool:
    """Send the reply's events, as few writes as its silences allow; False when the stream is to be cut."""
    events = [_sse(event, reply.noise) for event in wire_events(reply, serial)]
    connection.start(reply.status, [*_headers(reply, serial, "text/event-stream"), ("cache-control", "no-cache")])
    quiet = reply.pace or reply.stall
    for number, event in enumerate(events if quiet else [b"".join(events)] if events else []):
        if number:
            await connection.silence(reply.pace)
        if number == len(events) - 1 and reply.cut_after is None:
            await connection.silence(reply.stall)
        connection.push(event)
    if reply.cut_after is not None:
        if reply.cut_after == "partial_item":
            connection.push(_HALF_EVENT)
        await connection.silence(reply.stall)
        await connection.flush()
        return False
    await connection.silence(reply.linger)
    connection.end()
    await connection.flush()
    return True


def _sse(event: dict[str, Any], noise: tuple[str, ...]) -> bytes:
    lines = b"%b\n\n" % b"\n".join(line.encode() for line in noise) if noise else b""
    return b"%bevent: %b\ndata: %b\n\n" % (lines, event["type"].encode(), msgspec.json.encode(event))


# --- from a shell ------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a JSON script until interrupted; the first line printed is the base URL."""
    parser = argparse.ArgumentParser(prog="python -m refold.testing.server", description=main.__doc__)
    parser.add_argument("script", type=Path, help='a list of replies, {"steps": […]} or a recorded scenario')
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--repeat", action="store_true", help="begin again when the script has ended")
    options = parser.parse_args(arguments)
    try:
        replies = read_script(msgspec.json.decode(options.script.read_bytes()))
    except (OSError, msgspec.DecodeError, ConfigError) as error:
        parser.error(f"{options.script}: {error}")
    endless = itertools.cycle(replies)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    script = (lambda _: next(endless)) if options.repeat else replies
    with ResponsesServer(script, port=options.port, log=False) as server:
        print(server.url, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
