"""ResponsesServer over a WebSocket, as any client sees it: no refold."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any, Self

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    TextMessage,
)
from wsproto.events import Request as Handshake
from wsproto.extensions import PerMessageDeflate

from refold.testing import LoggedRequest, Reply, ResponsesServer, text_reply


class Client:
    """A WebSocket client of wsproto alone. Mutable."""

    def __init__(self, server: ResponsesServer, path: str = "/v1/responses", **request: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        self.frames = WSConnection(ConnectionType.CLIENT)
        self.waiting: list[Event] = []
        self.send(Handshake(host="127.0.0.1", target=path, **request))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, event: Event) -> None:
        self.socket.sendall(self.frames.send(event))

    def ask(self, **body: Any) -> None:
        self.send(TextMessage(json.dumps({"type": "response.create", "input": [], **body})))

    def next(self) -> Event | None:
        """The next event; None when the server has closed."""
        while not self.waiting:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self.frames.receive_data(data)
            self.waiting += self.frames.events()
        return self.waiting.pop(0)

    def messages(self) -> list[dict[str, Any]]:
        """The events of one response, up to its last or to the end of the connection."""
        found: list[dict[str, Any]] = []
        text = ""
        while isinstance(event := self.next(), TextMessage):
            text += event.data
            if event.message_finished:
                found.append(json.loads(text))
                text = ""
                if found[-1]["type"] in ("response.completed", "response.failed", "response.incomplete", "error"):
                    return found
        self.waiting += [event] if event is not None else []
        return found


def opened(server: ResponsesServer, **request: Any) -> Client:
    client = Client(server, **request)
    assert isinstance(client.next(), AcceptConnection)
    return client


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_each_frame_is_one_event_and_the_events_are_those_of_the_stream():
    with ResponsesServer([text_reply("Hello"), "again"]) as server, opened(server) as client:
        client.ask()
        first = client.messages()
        client.ask()
        second = client.messages()
    assert [event["type"] for event in first][:3] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert first[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"
    assert (first[-1]["response"]["id"], second[-1]["response"]["id"]) == ("resp_1", "resp_2")


def test_frames_are_logged_as_requests_and_handshakes_by_themselves():
    named = {"path": "/v1/responses?v=1", "extra_headers": [(b"x-test", b"yes")]}
    with ResponsesServer(["a", "b", "c"]) as server, opened(server, **named) as one, opened(server) as two:
        for client, name in ((one, "first"), (two, "second"), (one, "third")):
            client.ask(input=[{"name": name}])
            client.messages()
    assert [request.transport for request in server.requests] == ["websocket"] * 3
    assert [request.connection for request in server.requests] == [1, 2, 1]
    assert [request.input[0]["name"] for request in server.requests] == ["first", "second", "third"]
    assert (server.requests[0].path, server.requests[0].header("x-test")) == ("/v1/responses?v=1", "yes")
    assert [handshake.body for handshake in server.handshakes] == [b"", b""]


def test_a_warm_up_is_answered_with_an_id_and_uses_no_reply():
    with ResponsesServer(["only"]) as server, opened(server) as client:
        client.ask(generate=False)
        warm = client.messages()
        client.ask()
        real = client.messages()
    assert (warm[-1]["response"]["id"], warm[-1]["response"]["output"]) == ("resp_warm", [])
    assert real[-1]["response"]["id"] == "resp_1"
    assert [request.is_warm_up for request in server.requests] == [True, False]


def test_a_callable_sees_the_frame():
    def answer(request: LoggedRequest) -> str:
        return f"you sent {len(request.input)}"

    with ResponsesServer(answer) as server, opened(server) as client:
        client.ask(input=[1, 2])
        assert client.messages()[-1]["response"]["output"][0]["content"][0]["text"] == "you sent 2"


def test_a_status_is_said_as_an_error_frame_and_the_connection_stays():
    refusal = Reply(status=429, body={"error": {"code": "c"}}, headers={"Retry-After": "1"})
    with ResponsesServer([refusal, "ok"]) as server, opened(server) as client:
        client.ask()
        assert client.messages() == [
            {"type": "error", "status": 429, "error": {"code": "c"}, "headers": {"Retry-After": "1"}}
        ]
        client.ask()
        assert client.messages()[-1]["type"] == "response.completed"


def test_an_error_event_is_sent_as_it_is_written():
    frame = {"type": "error", "status": 400, "error": {"code": "previous_response_not_found"}}
    with ResponsesServer([Reply.from_json({"error": frame})]) as server, opened(server) as client:
        client.ask()
        assert frame.items() <= client.messages()[-1].items()


@pytest.mark.parametrize(("cut", "count", "said"), [("request", 0, False), (2, 2, True), ("items", 10, True)])
def test_a_cut_ends_the_connection_after_what_was_sent(cut: Any, count: int, said: bool):
    with ResponsesServer([text_reply("Hello", cut_after=cut)]) as server, opened(server) as client:
        client.ask()
        assert len(client.messages()) == count
        assert isinstance(client.next(), CloseConnection) is said
        assert client.next() is None


def test_a_connection_can_be_cut_in_the_middle_of_a_message():
    with ResponsesServer([text_reply("Hello", cut_after="partial_item")]) as server, opened(server) as client:
        client.ask()
        assert len(client.messages()) == 9
        assert client.next() is None


@pytest.mark.parametrize("status", [401, 426, 503])
def test_a_handshake_can_be_refused_and_http_goes_on(status: int):
    refusal = Reply(status=status, body={"error": {"message": "no"}}, headers={"X-Why": "test"})
    with ResponsesServer([], handshakes=[refusal]) as server:
        with Client(server) as client:
            refused = client.next()
            assert isinstance(refused, RejectConnection)
            assert refused.status_code == status
            assert (b"x-why", b"test") in refused.headers
            body = client.next()
            assert isinstance(body, RejectData)
            assert json.loads(body.data) == {"error": {"message": "no"}}
        opened(server).socket.close()
    assert len(server.handshakes) == 2
    assert not server.requests


def test_every_handshake_can_be_answered_by_a_callable():
    def answer(handshake: LoggedRequest) -> Reply:
        return Reply(status=200 if handshake.header("authorization") else 401)

    with ResponsesServer([], handshakes=answer) as server:
        with Client(server) as client:
            assert isinstance(client.next(), RejectConnection)
        opened(server, extra_headers=[(b"authorization", b"Bearer x")]).socket.close()


def test_there_is_a_websocket_at_responses_alone():
    with ResponsesServer([]) as server, Client(server, "/v1/models") as client:
        refused = client.next()
        assert isinstance(refused, RejectConnection)
        assert refused.status_code == 404


def test_frames_are_compressed_when_the_accepting_reply_says_so():
    accept = Reply(headers={"sec-websocket-extensions": "permessage-deflate"})
    text = "b" * 100_000
    with ResponsesServer([text_reply(text)], handshakes=[accept]) as server:
        with opened(server, extensions=[PerMessageDeflate()]) as client:
            client.ask(input=[{"text": text}])
            assert client.messages()[-1]["response"]["output"][0]["content"][0]["text"] == text
        assert server.requests[0].input == [{"text": text}]


def test_pings_are_answered_and_a_goodbye_is_returned():
    with ResponsesServer([]) as server, opened(server) as client:
        client.send(Ping(b"hello"))
        assert client.next() == Pong(b"hello")
        client.send(CloseConnection(1000, "enough"))
        assert isinstance(client.next(), CloseConnection)
        assert client.next() is None


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_client_that_leaves_is_noticed_at_once(goodbye: bool):
    with ResponsesServer([text_reply("hi", stall=30)]) as server:
        with opened(server) as client:
            client.ask()
            assert isinstance(client.next(), TextMessage)
            if goodbye:
                client.send(CloseConnection(1000))
        until(lambda: len(server.abandoned) == 1)
        assert server.abandoned == server.requests


@pytest.mark.parametrize("silence", ["delay", "stall", "linger"])
def test_silences_last_as_long_as_written(silence: str):
    with ResponsesServer([text_reply("hi", **{silence: 0.1}), "next"]) as server, opened(server) as client:
        started = time.monotonic()
        client.ask()
        client.messages()
        client.ask()
        client.messages()
    assert time.monotonic() - started >= 0.1


def test_nonsense_in_a_frame_is_answered_as_scripted():
    with ResponsesServer(["one", "two"]) as server, opened(server) as client:
        for text in ("no json", "[]"):
            client.send(TextMessage(text))
            assert client.messages()[-1]["type"] == "response.completed"


def test_it_stops_while_websockets_are_open_or_answered():
    with ResponsesServer([text_reply("never", stall=30)]) as server:
        idle, busy = opened(server), opened(server)
        busy.ask()
        until(lambda: len(server.requests) == 1)
        started = time.monotonic()
    assert time.monotonic() - started < 1
    idle.socket.close()
    busy.socket.close()


def test_a_benchmark_need_not_keep_its_requests():
    with ResponsesServer(["ok"], log=False) as server, opened(server) as client:
        client.ask()
        client.messages()
        assert (server.requests, server.handshakes) == ([], [])
