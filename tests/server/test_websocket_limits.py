"""The WebSocket's limits: the gateway's end, what is sent ahead, connections that are idle or left."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from wsproto import events as ws

sys.path.insert(0, str(Path(__file__).parent))
from test_websocket import Talk, talked, texts

from refold.server import GatewaySettings, Secrets, new_app, websocket
from refold.server.running import listen, options
from refold.testing import ResponsesServer, text_reply

Gateways = Callable[..., Any]
SecretsOf = Callable[..., Secrets]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ANSWERED = 'refold_gateway_requests_total{route="websocket",status="200"}'
ABANDONED = "refold_gateway_abandoned_total"


class Held:
    """A gateway in front of an upstream that begins its answers, and ends them when it is told to."""

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.goes_on, self.left, self.asked = asyncio.Event(), asyncio.Event(), 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        self.asked += 1
        response: dict[str, Any] = {"id": f"resp_{self.asked}", "object": "response", "model": "m", "output": []}
        begun = {"type": "response.created", "sequence_number": 0, "response": {**response, "status": "in_progress"}}
        ended = {"type": "response.completed", "sequence_number": 1, "response": {**response, "status": "completed"}}
        writer.write(HEAD + event(begun))
        waits = {asyncio.ensure_future(self.goes_on.wait()), asyncio.ensure_future(reader.read())}
        _, late = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in late:
            one.cancel()
        if self.goes_on.is_set():
            writer.write(event(ended))
        else:
            self.left.set()
        writer.close()

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[None]:
        async with await asyncio.start_server(self.answer, "127.0.0.1", 0) as upstream:
            to = GatewaySettings(upstream=address(upstream.sockets[0]), port=0, **settings)
            self.app, listener = new_app(to, self.secrets), listen(to)
            self.url = address(listener)
            self.server = uvicorn.Server(uvicorn.Config(self.app, **options(to)))
            self.ended = asyncio.create_task(self.server.serve([listener]))
            await until(lambda: self.server.started)
            try:
                yield
            finally:
                self.server.should_exit = True
                await self.ended

    async def end(self) -> None:
        """As a signal does; returns when every connection was told."""
        self.server.should_exit = True
        await until(lambda: not self.server.servers[0].is_serving())

    def metric(self, line: str) -> float:
        told = self.app.state.gateway.metrics.text().splitlines()
        return float(next((one.rpartition(" ")[2] for one in told if one.startswith(line + " ")), 0))


def event(message: dict[str, Any]) -> bytes:
    return f"event: {message['type']}\ndata: {json.dumps(message)}\n\n".encode()


def address(listener: Any) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not become so")


def request(**body: Any) -> ws.TextMessage:
    return ws.TextMessage(json.dumps({"type": "response.create", "model": "m", "input": "hi", **body}))


async def begin(talk: Talk, count: int = 1, **body: Any) -> None:
    """Send requests, and hear that the first is being answered."""
    for _ in range(count):
        talk.write(request(**body))
    assert (await talk.message())["type"] == "response.created"


async def closed(talk: Talk) -> int:
    told = await talk.event()
    assert isinstance(told, ws.CloseConnection), told
    return told.code


@pytest.fixture
def held(secrets_of: SecretsOf) -> Callable[..., None]:
    """Do something with a gateway, and a client that talks to it."""

    def go(talk: Callable[[Held, Talk], Awaitable[None]], **settings: Any) -> None:
        async def run() -> None:
            gateway = Held(secrets_of())
            async with gateway.running(**settings), Talk(gateway.url) as one:
                await talk(gateway, one)

        asyncio.run(asyncio.wait_for(run(), 30))

    return go


Do = Callable[..., None]


# --- the gateway ends --------------------------------------------------------------------------------------------


def test_answer_that_runs_when_the_gateway_ends_is_given_its_time(held: Do) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        await begin(one, 2)
        await gateway.end()
        one.write(request())
        gateway.goes_on.set()
        assert (await one.message())["type"] == "response.completed"
        assert await closed(one) == 1012
        await gateway.ended
        assert (gateway.asked, gateway.metric(ANSWERED), gateway.metric(ABANDONED)) == (1, 1, 0)

    held(talk)


@pytest.mark.parametrize("lane", [None, "lane"])
def test_answer_that_is_not_over_in_time_is_told_to_have_failed(held: Do, lane: str | None) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        body: dict[str, Any] = {"stream_id": lane} if lane else {}
        await begin(one, **body)
        await gateway.end()
        failed = await one.message()
        assert (failed["type"], failed["sequence_number"], failed.get("stream_id")) == ("response.failed", 1, lane)
        assert failed["response"]["id"] == "resp_1" and failed["response"]["error"]["code"] == "server_error"
        assert await closed(one) == 1012
        await gateway.ended
        assert gateway.left.is_set() and (gateway.metric(ANSWERED), gateway.metric(ABANDONED)) == (1, 0)

    held(talk, shutdown_seconds=0.4)


def test_idle_connection_does_not_keep_the_gateway(held: Do) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        assert isinstance(one.first, ws.AcceptConnection)
        await gateway.end()
        assert await closed(one) == 1012
        await asyncio.wait_for(gateway.ended, 5)  # the client has not said that it has heard

    held(talk)


def test_client_that_leaves_while_the_gateway_ends_ends_its_answer(held: Do) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        await begin(one)
        await gateway.end()
        one.writer.transport.abort()
        await gateway.left.wait()
        await gateway.ended
        assert gateway.metric(ABANDONED) == 1

    held(talk)


# --- what is sent ahead ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(websocket.MOST_WAITING + 2, 1), (3, 60_000)])
def test_client_that_sends_too_much_ahead_is_sent_away(held: Do, count: int, size: int) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        await begin(one, input="x")
        for _ in range(count - 1):
            one.write(request(input="x" * size))
        assert await closed(one) == 1008
        await gateway.left.wait()
        await until(lambda: gateway.metric(ABANDONED) == 1)
        assert (gateway.asked, gateway.app.state.gateway.admission.running) == (1, 0)

    held(talk, max_body_bytes=100_000)


def test_what_may_be_sent_ahead_is_answered(held: Do) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        await begin(one, websocket.MOST_WAITING + 1)
        gateway.goes_on.set()
        told = [(await one.message())["type"] for _ in range(2 * websocket.MOST_WAITING + 1)]
        assert told == ["response.completed", *["response.created", "response.completed"] * websocket.MOST_WAITING]

    held(talk)


def test_client_that_sent_ahead_and_left_is_noticed(held: Do) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        await begin(one)
        for _ in range(websocket.MOST_WAITING + 4):
            one.write(request())
        await one.writer.drain()
        one.writer.transport.abort()
        await gateway.left.wait()
        await until(lambda: gateway.app.state.gateway.admission.running == 0)
        assert gateway.asked == 1

    held(talk)


# --- connections -------------------------------------------------------------------------------------------------


def test_answer_that_was_left_is_counted_and_an_idle_connection_is_not(held: Do) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        async with Talk(gateway.url):
            pass
        await until(lambda: gateway.app.state.gateway.connections.running == 1)
        assert gateway.metric(ABANDONED) == 0
        await begin(one)
        one.writer.transport.abort()
        await until(lambda: gateway.metric(ABANDONED) == 1 and gateway.metric(ANSWERED) == 1)
        assert gateway.metric('refold_gateway_seconds_count{route="websocket"}') == 1

    held(talk)


@pytest.mark.parametrize(("limit", "status"), [("max_requests", 503), ("max_requests_per_tenant", 429)])
def test_connections_have_a_limit(held: Do, limit: str, status: int) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                other = await stack.enter_async_context(Talk(gateway.url))
                assert isinstance(other.first, ws.AcceptConnection)
            refused = await stack.enter_async_context(Talk(gateway.url))
            assert refused.first.status_code == status
        await until(lambda: gateway.app.state.gateway.connections.running == 1)
        async with Talk(gateway.url) as again:
            assert isinstance(again.first, ws.AcceptConnection)

    held(talk, **{limit: 1})


def test_connection_without_requests_is_closed_after_a_long_time(held: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(gateway: Held, one: Talk) -> None:
        gateway.goes_on.set()
        assert (await one.ask(input="hi"))[-1]["type"] == "response.completed"
        monkeypatch.setattr(websocket, "LONGEST_QUIET", 0.05)
        async with Talk(gateway.url) as other:
            assert await closed(other) == 1001
        assert (await one.ask(input="hi"))[-1]["type"] == "response.completed"  # that one had begun to wait before

    held(talk)


def test_response_that_was_completed_last_is_known_after_one_that_failed(gateway: Gateways) -> None:
    async def talk(one: Talk) -> list[dict[str, Any]]:
        first = (await one.ask(input="1", store=False))[-1]["response"]["id"]
        ahead = {"store": False, "previous_response_id": first}
        return [(await one.ask(input=text, **ahead))[-1] for text in ("2", "3")]

    with ResponsesServer(["a", text_reply("x", cut_after="partial_item"), "c"]) as upstream:
        failed, answered = talked(gateway(upstream).url, talk)
        assert (failed["type"], answered["type"]) == ("response.failed", "response.completed")
        assert texts(upstream.requests[2]) == ["1", "a", "3"]
