"""ResponsesServer: a scripted provider on loopback that speaks real HTTP/1.1, server-sent events and WebSocket.

It runs in a thread with its own event loop, so that it serves blocking and async callers and other processes alike.
Rule 1: every POST to a path ending in `/responses` or `/responses/compact` uses one reply of the script, and so does
every `response.create` over a WebSocket at `/responses`, unless it generates nothing.
Rule 2: a request is logged before it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import h11
import msgspec

from refold.core.profile import Provider
from refold.errors import ConfigError
from refold.model.scripted import Reply, Script, Step, document, read_script, wire_events
from refold.testing.connection import READ_BYTES, Connection, LoggedRequest
from refold.testing.websocket import play, play_warm_up

_HALF_EVENT = b'event: response.output_item.done\ndata: {"type":"response.output_item.done","item":{"type":"mess'


class ResponsesServer:
    """A scripted provider: `with ResponsesServer([text_reply("hi")]) as server: … server.url …`, or `async with`.

    `script` is a list of replies used in order, or a callable from LoggedRequest to Reply; `port` 0 takes a free one.
    `requests` holds what was asked; `abandoned` the requests whose client left before the answer was complete;
    `handshakes` those of WebSockets. With `log` false none is kept: a benchmark's bodies would fill the memory.
    The parameter `handshakes` answers handshakes as `script` does requests: a status of 300 and above refuses, anything
    else accepts with the reply's headers, and so does the end of the list.
    An exception in a callable or a reply that cannot be sent is raised again when the `with` block ends.
    Mutable, and filled from the server's thread: look at `requests` when an answer to them has come.
    """

    def __init__(
        self,
        script: Sequence[Step] | Callable[[Any], Reply | str],
        *,
        port: int = 0,
        log: bool = True,
        handshakes: Sequence[Reply] | Callable[[LoggedRequest], Reply] = (),
    ) -> None:
        self.requests: list[LoggedRequest] = []
        self.handshakes: list[LoggedRequest] = []
        self.abandoned: list[LoggedRequest] = []
        self._script = Script(script)
        self._handshakes = handshakes if callable(handshakes) else [*handshakes]
        self._websockets = itertools.count(1)
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
                if request.is_handshake:
                    goes_on = await self._converse(connection, request)
                else:
                    self._note(self.requests, request)
                    goes_on = await self._answer(connection, request, *self._next_reply(request))
                if not goes_on:
                    break
            left_in_order = True
        except (OSError, h11.RemoteProtocolError):
            pass  # the client is gone or talks no HTTP: nobody to tell
        except Exception as error:  # a reply that HTTP cannot say; the thread must go on serving the others
            self._failure = error
        finally:
            await connection.close(at_once=not left_in_order)

    def _note(self, where: list[LoggedRequest], request: LoggedRequest) -> None:
        if self._log:
            where.append(request)

    async def _converse(self, connection: Connection, handshake: LoggedRequest) -> bool:
        """Answer a handshake and, when that accepts it, what is said over the WebSocket until it ends."""
        self._note(self.handshakes, handshake)
        reply = self._next_handshake(handshake)
        if reply.status >= 300:
            return await self._answer(connection, handshake, reply, 0)
        websocket, number = await connection.upgrade(handshake, reply), next(self._websockets)
        while (text := await websocket.next_text()) is not None:
            request = replace(handshake, body=text.encode(), transport="websocket", connection=number)
            self._note(self.requests, request)
            try:
                if request.is_warm_up:
                    await play_warm_up(websocket)
                elif not await play(websocket, *self._next_reply(request)):
                    break
            except ConnectionError:
                self._note(self.abandoned, request)
                raise
        return False

    def _next_handshake(self, handshake: LoggedRequest) -> Reply:
        if callable(self._handshakes):
            return self._handshakes(handshake)
        return self._handshakes.pop(0) if self._handshakes else Reply()

    async def _answer(self, connection: Connection, request: LoggedRequest, reply: Reply, serial: int) -> bool:
        """Answer with this reply; False when the connection is to be cut."""
        try:
            await connection.silence(reply.delay)
            streamed = reply.status < 300 and request.endpoint.endswith("/responses") and request.wants_stream
            if reply.cut_after == "request" or (reply.cut_after is not None and not streamed):
                return False
            if streamed:
                return await _stream(connection, reply, serial)
            status, body = document(reply, serial, compact=request.endpoint.endswith("/compact"))
            headers = _headers(reply, serial, "application/json")
            connection.start(status, [*headers, ("content-length", str(len(body)))])
            connection.push(body)
            connection.end()
            await connection.flush()
        except ConnectionError:
            self._note(self.abandoned, request)
            raise
        return True

    def _next_reply(self, request: LoggedRequest) -> tuple[Reply, int]:
        """The reply and its number; requests that are not for a model leave the script alone."""
        if not request.endpoint.endswith(("/responses", "/responses/compact")):
            return _complaint(404, f"nothing at {request.endpoint}"), 0
        if request.method != "POST" and request.transport == "http":
            return _complaint(405, f"{request.method} is not for here"), 0
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
