"""What a client hears while a compaction takes its time, and how the events of failures are numbered."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import httpx2
import msgspec
import pytest

from refold.model import responses
from refold.model.scripted import Reply
from refold.model.sse import SseDecoder
from refold.server import GatewaySettings, Secrets, answering
from refold.server.callers import Caller
from refold.server.upstream import upstream_for
from refold.testing import ResponsesServer, text_reply
from refold.testing.chat_server import ChatServer

Gateways: TypeAlias = Callable[..., Any]
SecretsOf: TypeAlias = Callable[..., Secrets]
Event: TypeAlias = dict[str, Any]
USER = {"type": "message", "role": "user", "content": "Make the parser faster."}
ASKED = {"input": [USER, {"type": "compaction_trigger"}]}
GOES_ON = "response.compaction.compacting"
TOO_LONG = "This model's maximum context length is 100 tokens. However, your messages resulted in 200 tokens."
SECONDS = 20  # within which what a test waits for must happen


@contextmanager
def streamed(running: Any, body: dict[str, Any]) -> Iterator[Iterator[Event]]:
    """The events of an answer as they come."""
    with (
        httpx2.Client(timeout=SECONDS, trust_env=False) as http,
        http.stream("POST", f"{running.url}/responses", json={"model": "m", "stream": True, **body}) as answer,
    ):
        assert answer.status_code == 200
        decoder = SseDecoder()
        yield (msgspec.json.decode(data) for chunk in answer.iter_raw() for _, data in decoder.feed(chunk))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that does in milliseconds what it does in seconds."""
    monkeypatch.setattr(answering, "BEGIN_SECONDS", 0.02)
    monkeypatch.setattr(answering, "STEP_SECONDS", 0.02)


def numbers(events: list[Event]) -> list[int]:
    return [event["sequence_number"] for event in events]


# --- while the upstream is silent ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
def test_client_hears_that_it_goes_on_while_the_upstream_says_nothing(gateway: Gateways) -> None:
    heard = threading.Event()

    def answer(_: Any) -> Reply:
        assert heard.wait(SECONDS)
        return text_reply("THE SUMMARY")

    with ResponsesServer(answer) as upstream, streamed(gateway(upstream), ASKED) as events:
        said: list[Event] = []
        for event in events:
            said.append(event)
            if [one["type"] for one in said].count(GOES_ON) == 4:
                heard.set()
    names = [event["type"] for event in said]
    assert names[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert names[-2:] == ["response.output_item.done", "response.completed"]
    assert numbers(said) == [*range(len(said))]
    assert {event["item_id"] for event in said if event["type"] == GOES_ON} == {said[-2]["item"]["id"]}


@pytest.mark.usefixtures("hasty")
def test_refusal_after_the_stream_has_begun_is_a_failed_event(gateway: Gateways) -> None:
    begun = threading.Event()

    def answer(_: Any) -> Reply:
        assert begun.wait(SECONDS)
        return Reply(status=503, body={"error": {"message": "busy"}})

    with ResponsesServer(answer) as upstream, streamed(gateway(upstream), ASKED) as events:
        said: list[Event] = []
        for event in events:
            said.append(event)
            begun.set()
    assert said[-1]["type"] == "response.failed" and numbers(said) == [*range(len(said))]


def test_refusal_before_the_stream_has_begun_keeps_its_status(gateway: Gateways) -> None:
    with ResponsesServer([Reply(status=503, body={"error": {"message": "busy"}})]) as upstream:
        answer = gateway(upstream).post("/responses", {"model": "m", "stream": True, **ASKED})
    assert answer.status_code == 503


@pytest.mark.usefixtures("hasty")
def test_client_that_leaves_a_silent_compaction_ends_the_upstreams_work(gateway: Gateways) -> None:
    with ResponsesServer([Reply(delay=60)]) as upstream:
        running = gateway(upstream)
        with streamed(running, ASKED) as events:
            assert next(events)["type"] == "response.created"
        running.eventually("refold_gateway_abandoned_total", 1)
        end = time.monotonic() + SECONDS
        while not upstream.abandoned:
            assert time.monotonic() < end, "the upstream still works"
            time.sleep(0.01)


# --- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ResponsesServer, ChatServer])
def test_summaries_of_all_models_share_one_client(
    gateway: Gateways, monkeypatch: pytest.MonkeyPatch, kind: type[ResponsesServer]
) -> None:
    made: list[Any] = []
    new_client = responses.new_client

    def counted(*values: Any, **options: Any) -> Any:
        made.append(new_client(*values, **options))
        return made[-1]

    monkeypatch.setattr(responses, "new_client", counted)
    with kind(lambda _: text_reply("THE SUMMARY")) as upstream:
        running = gateway(upstream, upstream_api="chat" if kind is ChatServer else "responses")
        for name in ("a", "b", "c"):
            assert running.post("/responses/compact", {"model": name, "input": [USER]}).status_code == 200
        assert [request.json["model"] for request in upstream.requests] == ["a", "b", "c"]
    assert len(made) == 1


def test_client_for_summaries_is_closed_with_the_upstream(secrets_of: SecretsOf) -> None:
    async def go(url: str) -> tuple[bool, bool]:
        upstream = upstream_for(GatewaySettings(upstream=url), secrets_of())
        request = upstream.request({"model": "m", "input": [USER], "stream": True}, Caller("t"), {})
        assert [event async for event in upstream.model.sample(request)]
        client = upstream.model._client
        assert client is not None
        was_closed = client.is_closed
        await upstream.close()
        return was_closed, client.is_closed

    with ResponsesServer(["THE SUMMARY"]) as server:
        assert asyncio.run(go(server.url)) == (False, True)


# --- numbers ---------------------------------------------------------------------------------------------------------


def previous(running: Any, *, chained: bool) -> dict[str, Any]:
    """The key that names a response before, where a request goes on from one."""
    if not chained:
        return {}
    return {"previous_response_id": running.post("/responses", {"model": "m", "input": "hi"}).json()["id"]}


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("noise", [(), (": ping", ": ping")])
def test_overflow_in_the_stream_takes_the_number_of_the_event_that_said_it(
    gateway: Gateways, noise: tuple[str, ...], *, chained: bool
) -> None:
    overflow = Reply(fail={"code": "server_error", "message": TOO_LONG}, noise=noise)
    with ResponsesServer(["first", overflow] if chained else [overflow]) as upstream:
        running = gateway(upstream)
        events = running.events({"input": "on", **previous(running, chained=chained)})
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
    assert numbers(events) == [0, 1, 2]


@contextmanager
def raw_upstream(*events: Event) -> Iterator[str]:
    """The base URL of an upstream that answers one request with these events."""
    said = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(said)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(head + said)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread.join(SECONDS)


@pytest.mark.parametrize("tools", [[], [{"type": "custom", "name": "patch"}]], ids=["as it came", "told anew"])
def test_overflow_as_the_first_event_is_a_response_that_begins_and_fails(gateway: Gateways, tools: list[Any]) -> None:
    first = {"type": "error", "sequence_number": 0, "code": "oops", "message": TOO_LONG}
    with raw_upstream(first) as url:
        events = gateway(url).events({"input": "on", "tools": tools})
    assert [event["type"] for event in events] == ["response.created", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
    assert {event["response"]["id"] for event in events} == {events[0]["response"]["id"]}
    assert numbers(events) == [0, 1]


def test_comments_of_the_upstream_have_no_number(gateway: Gateways) -> None:
    with ResponsesServer(["first", text_reply("second", noise=(": ping", ": ping"))]) as upstream:
        running = gateway(upstream)
        events = running.events({"input": "on", **previous(running, chained=True)})
    assert events[-1]["type"] == "response.completed" and numbers(events) == [*range(len(events))]
