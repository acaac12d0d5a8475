"""Many streams at once: no event is lost, a client that leaves or is slow costs the gateway nothing that stays."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx2
import pytest

from refold.server import GatewaySettings, new_app
from refold.server.blocks import EventCutter, event_of
from refold.server.gateway import Gateway
from refold.server.upstream import MOST_IDLE
from refold.testing import ResponsesServer, text_reply
from refold.testing.chat_server import ChatServer

Gateways = Callable[..., Any]
STREAMS = 50
ASKED = {"model": "m", "input": "hi", "stream": True, "store": False}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CREATED = event_of({"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}).raw
NUMBER = re.compile(rb'"sequence_number":(\d+)')
BIG_EVENT, BIG_EVENTS = 64 << 10, 2_048  # bytes of one, and so many: 128 MiB
MOST_AHEAD = 48 << 20  # bytes: what the system's own buffers on both sides may take, and more
QUIET_SECONDS = 1.0  # without room to write: the gateway has stopped reading


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def numbered(kind: str, number: int, **more: Any) -> bytes:
    return event_of({"type": kind, "sequence_number": number, **more}).raw


def asked_for(requests: BinaryIO) -> bool:
    """Whether a connection asks for something more; its request is read."""
    size = 0
    while (line := requests.readline()) not in (b"", b"\r\n"):
        name, _, value = line.lower().partition(b":")
        size = int(value) if name == b"content-length" else size
    return bool(line) and len(requests.read(size)) == size


class Upstream:
    """An upstream of sockets: `answer` says what each connection is told. Mutable: it counts connections."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2 * STREAMS)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self.open = 0
        self.changed = threading.Condition()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._served, args=(connection,), daemon=True).start()

    def until(self, count: int) -> bool:
        """Wait until so many connections are open."""
        with self.changed:
            return self.changed.wait_for(lambda: self.open == count, timeout=10)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _served(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            self._counted(1)
            try:
                while asked_for(requests):
                    self._answer(connection)
            except OSError:
                pass
            finally:
                self._counted(-1)

    def _counted(self, more: int) -> None:
        with self.changed:
            self.open += more
            self.changed.notify_all()


@contextmanager
def upstream_of(answer: Callable[[socket.socket], None]) -> Iterator[Upstream]:
    upstream = Upstream(answer)
    thread = threading.Thread(target=upstream.run)
    thread.start()
    try:
        yield upstream
    finally:
        upstream.close()
        thread.join(5)


async def streamed(url: str, count: int) -> list[bytes]:
    """The bodies of so many answers, asked for at once."""
    async with httpx2.AsyncClient(timeout=30, trust_env=False, limits=httpx2.Limits()) as http:
        answers = await asyncio.gather(*(http.post(f"{url}/responses", json=ASKED) for _ in range(count)))
    return [answer.content for answer in answers]


def connected(url: str) -> socket.socket:
    where = urlsplit(url)
    return socket.create_connection((where.hostname, where.port), timeout=20)


def asked(connection: socket.socket) -> bytes:
    """An answer as its bytes, head and chunks."""
    body = b'{"model":"m","input":"hi","stream":true,"store":false}'
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    connection.sendall(head % len(body) + body)
    answer = b""
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        piece = connection.recv(65_536)
        assert piece, answer
        answer += piece
    return answer


def numbers(body: bytes) -> list[int]:
    return [int(number) for number in NUMBER.findall(body)]


# --- nothing is lost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_events_of_many_streams_at_once_all_arrive_in_order(gateway: Gateways, api: str) -> None:
    server = ResponsesServer if api == "responses" else ChatServer
    with server(lambda _: text_reply("one two three")) as upstream:
        running = gateway(upstream, upstream_api=api)
        alone = numbers(running.post("/responses", ASKED).content)
        bodies = asyncio.run(streamed(running.url, STREAMS))
        running.eventually("refold_gateway_running", 0)
        counted = running.metric("refold_gateway_events_total")
    assert alone == [*range(len(alone))] and len(alone) > 5
    assert [numbers(body) for body in bodies] == [[*range(len(alone))]] * STREAMS
    assert all(body.count(b"event: response.completed\n") == 1 for body in bodies)
    assert counted == len(alone) * (STREAMS + 1)


def test_events_that_came_together_go_out_together_and_before_the_failure(gateway: Gateways) -> None:
    said = [CREATED, *(numbered("response.output_text.delta", number, delta="x") for number in (1, 2, 3))]

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + chunk(b"".join(said) + b"event: response.output_te"))
        connection.shutdown(socket.SHUT_RDWR)

    with upstream_of(answer) as upstream, connected(gateway(upstream.url).url) as client:
        _, _, body = asked(client).partition(b"\r\n\r\n")
    together = chunk(b"".join(said))
    assert body.startswith(together)
    failed = body.removeprefix(together)
    assert b"event: response.failed\n" in failed and numbers(failed) == [4]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_all_but_the_last_event_of_a_chunk_say_that_more_is_there(end: bytes) -> None:
    cutter, event = EventCutter(), b'data: {"type":"x"}' + end
    told = [*cutter.feed(event * 3 + event[:5]), *cutter.feed(event[5:] + b"data"), *cutter.feed(b": 1" + end + b":")]
    assert b"".join(event.raw for event in told) == event * 4 + b"data: 1" + end
    # a carriage return alone may be half of a line end: its event is whole when the next byte has come
    assert [event.more for event in told] == [True, True, False, False, False]


# --- clients that leave, or read slowly ------------------------------------------------------------------------------


def test_clients_that_leave_close_the_upstreams_connections(gateway: Gateways) -> None:
    with upstream_of(lambda connection: connection.sendall(HEAD + chunk(CREATED))) as upstream:
        running = gateway(upstream.url)
        with httpx2.Client(timeout=20, trust_env=False) as http:
            streams = [http.stream("POST", f"{running.url}/responses", json=ASKED) for _ in range(20)]
            answers = [stream.__enter__() for stream in streams]
            assert all(answer.status_code == 200 for answer in answers)
            assert upstream.until(20)
            for answer in answers:
                answer.close()
            assert upstream.until(0)
        running.eventually("refold_gateway_abandoned_total", 20)


def test_upstream_gets_no_further_ahead_of_a_slow_client_than_buffers_hold(gateway: Gateways) -> None:
    said: list[int] = [0]  # bytes
    stalled, goes_on = threading.Event(), threading.Event()
    events = [numbered("response.output_text.delta", n + 1, delta="x" * BIG_EVENT) for n in range(BIG_EVENTS)]

    def answer(connection: socket.socket) -> None:
        connection.settimeout(QUIET_SECONDS)
        last = numbered("response.completed", BIG_EVENTS + 1, response={"id": "resp_1", "status": "completed"})
        for data in (HEAD, chunk(CREATED), *map(chunk, events), chunk(last), b"0\r\n\r\n"):
            rest = memoryview(data)
            while rest:
                try:
                    sent = connection.send(rest)
                except TimeoutError:
                    stalled.set()
                    assert goes_on.wait(20)
                    continue
                said[0] += sent
                rest = rest[sent:]
        stalled.set()

    with upstream_of(answer) as upstream, httpx2.Client(timeout=30, trust_env=False) as http:
        running = gateway(upstream.url)
        with http.stream("POST", f"{running.url}/responses", json=ASKED) as response:
            assert stalled.wait(20)
            ahead = said[0]
            goes_on.set()
            found: list[int] = []
            held = b""
            for piece in response.iter_raw():
                whole, end, held = (held + piece).rpartition(b"\n\n")
                found += numbers(whole + end)
    assert ahead < MOST_AHEAD < BIG_EVENT * BIG_EVENTS
    assert found == [*range(BIG_EVENTS + 2)]


# --- what stays ------------------------------------------------------------------------------------------------------


def test_idle_connections_to_the_upstream_are_used_again_and_not_many_are_kept(gateway: Gateways) -> None:
    together = threading.Barrier(STREAMS)
    whole = CREATED + numbered("response.completed", 1, response={"id": "resp_1", "status": "completed"})

    def answer(connection: socket.socket) -> None:
        if not together.broken:
            together.wait(10)  # all are open at once
        connection.sendall(HEAD + chunk(whole) + b"0\r\n\r\n")

    with upstream_of(answer) as upstream:
        running = gateway(upstream.url)
        assert asyncio.run(streamed(running.url, STREAMS)) == [whole] * STREAMS
        assert upstream.until(MOST_IDLE)
        together.abort()
        for _ in range(3):
            assert running.post("/responses", ASKED).content == whole
        assert upstream.until(MOST_IDLE)


def test_answers_leave_no_cycles_for_the_collector(gateway: Gateways) -> None:
    """What `COLLECTOR` in running.py relies on: it looks at old objects rarely."""
    whole = CREATED + numbered("response.completed", 1, response={"id": "resp_1", "status": "completed"})
    with upstream_of(lambda connection: connection.sendall(HEAD + chunk(whole) + b"0\r\n\r\n")) as upstream:
        running = gateway(upstream.url)
        with connected(running.url) as client:
            asked(client)  # what is loaded for the first one
            gc.collect()
            gc.disable()
            try:
                assert all(numbers(asked(client)) == [0, 1] for _ in range(STREAMS))
                left = gc.collect()
            finally:
                gc.enable()
    assert left < STREAMS


def test_who_starts_an_application_is_told_once_when_its_gateway_is_there(secrets_of: Callable[..., Any]) -> None:
    seen: list[Gateway] = []
    app = new_app(
        GatewaySettings(upstream="http://127.0.0.1:9/v1"), secrets_of(), begun=lambda: seen.append(app.state.gateway)
    )

    async def lived() -> None:
        async with app.router.lifespan_context(app):
            assert seen == [app.state.gateway]

    asyncio.run(lived())
    assert len(seen) == 1


# --- limits ----------------------------------------------------------------------------------------------------------


def test_head_without_an_end_is_not_collected(gateway: Gateways) -> None:
    with ResponsesServer([]) as upstream, connected(gateway(upstream).url) as connection:
        connection.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nx-long: ")
        with pytest.raises(OSError, match=r"reset|pipe|closed"):
            for _ in range(1_000):
                connection.sendall(b"x" * 65_536)
