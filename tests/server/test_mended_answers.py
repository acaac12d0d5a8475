"""Answers as the upstream meant them: words that are keys, errors with status 200, clients that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from wsproto import events as ws

sys.path.insert(0, str(Path(__file__).parent))
from test_websocket import Talk, talked

from refold.errors import ConfigError
from refold.server import Secrets
from refold.server.callers import Caller
from refold.server.metrics import Metrics
from refold.server.running import listen
from refold.server.settings import GatewaySettings, checked
from refold.testing import Reply, ResponsesServer, text_reply
from refold.testing.chat_server import ChatServer

Gateways = Callable[..., Any]
SecretsOf = Callable[..., Secrets]
ASKED = {"model": "m", "input": "hi"}
WORD = {"authorization": "Bearer ollama"}
LONG_KEY = "sk-0123456789-0123456789"
LM_STUDIO = "The number of tokens to keep from the initial prompt is greater: n_keep: 4200 >= n_ctx: 4096"


def text_of(answer: Any) -> str:
    return answer.json()["output"][0]["content"][0]["text"]


# --- keys that are words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_answer_is_left_as_it_is_where_a_key_is_a_word(gateway: Gateways, secrets_of: SecretsOf, api: str) -> None:
    server = ChatServer if api == "chat" else ResponsesServer
    with server(lambda _: "run ollama pull qwen") as upstream:
        passing = gateway(upstream, upstream_api=api)
        owning = gateway(upstream, upstream_api=api, secrets=secrets_of(upstream_key="ollama"))
        for running in (passing, owning):
            assert text_of(running.post("/responses", ASKED, headers=WORD)) == "run ollama pull qwen"


def test_error_hides_a_short_key_too(gateway: Gateways) -> None:
    said = [
        Reply(status=400, body={"error": {"message": "not ollama"}}),
        Reply(body={"error": {"message": "no ollama"}}),
    ]
    with ResponsesServer(said) as upstream:
        running = gateway(upstream)
        answers = [running.post("/responses", ASKED, headers=WORD) for _ in said]
    assert [answer.json()["error"]["message"] for answer in answers] == ["not ***", "no ***"]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_long_key_of_the_gateways_own_is_hidden_in_an_answer(
    gateway: Gateways, secrets_of: SecretsOf, api: str
) -> None:
    server = ChatServer if api == "chat" else ResponsesServer
    with server(lambda _: f"the key is {LONG_KEY}") as upstream:
        running = gateway(upstream, upstream_api=api, secrets=secrets_of(upstream_key=LONG_KEY))
        assert text_of(running.post("/responses", ASKED)) == "the key is ***"


# --- errors with status 200 ------------------------------------------------------------------------------------------


def failed(message: str) -> dict[str, Any]:
    error = {"code": "invalid_request_error", "message": message}
    return {"id": "resp_1", "object": "response", "status": "failed", "output": [], "error": error}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("responses", failed("This model's maximum context length is 100 tokens")),
        ("responses", {"error": {"message": "maximum context length is 100 tokens"}}),
        ("chat", {"error": {"message": "maximum context length is 100 tokens"}}),
        ("chat", {"error": LM_STUDIO}),
        ("chat", {"object": "error", "message": "maximum context length is 100 tokens", "code": 40303}),
    ],
)
def test_overflow_in_a_document_is_told_as_one(gateway: Gateways, api: str, body: Any) -> None:
    server = ChatServer if api == "chat" else ResponsesServer
    with server([Reply(body=body)]) as upstream:
        answer = gateway(upstream, upstream_api=api).post("/responses", ASKED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "is 100 tokens" in answer.text or "is 4096 tokens" in answer.text


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("error", [{"message": "out of memory", "code": "oom"}, "out of memory"])
def test_document_that_only_says_an_error_is_one(gateway: Gateways, api: str, error: Any) -> None:
    server = ChatServer if api == "chat" else ResponsesServer
    with server([Reply(body={"error": error})]) as upstream:
        answer = gateway(upstream, upstream_api=api).post("/responses", ASKED)
    assert (answer.status_code, answer.json()["error"]["message"]) == (502, "out of memory")


def test_failed_response_is_passed_on(gateway: Gateways) -> None:
    body = failed("the model is on fire")
    with ResponsesServer([Reply(body=body)]) as upstream:
        answer = gateway(upstream).post("/responses", ASKED)
    assert (answer.status_code, answer.json()) == (200, body)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_document_that_is_no_object_is_no_answer(gateway: Gateways, api: str) -> None:
    server = ChatServer if api == "chat" else ResponsesServer
    with server([Reply(body="<html>")]) as upstream:
        answer = gateway(upstream, upstream_api=api).post("/responses", ASKED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreadable")


# --- what Chat Completions has no words for --------------------------------------------------------------------------

SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
MUCH = {
    "input": [{"role": "user", "content": "hi"}, SEARCH, {"role": "user", "content": "on"}],
    "tools": [{"type": "web_search"}],
    "truncation": "auto",
}


def test_what_a_chat_upstream_is_not_told_is_named(gateway: Gateways) -> None:
    with ChatServer(lambda _: "hello") as upstream:
        running = gateway(upstream, upstream_api="chat")
        for stream in (False, True):
            told = running.post("/responses", {"model": "m", "stream": stream, **MUCH}).headers["x-refold-left-out"]
            assert all(word in told for word in ("web_search", "web_search_call", "truncation")), told
        assert running.metric("refold_gateway_left_out_total") == 2
        assert "x-refold-left-out" not in running.post("/responses", ASKED).headers


def test_items_without_a_word_are_refused_where_that_is_asked_for(gateway: Gateways) -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}
    with ChatServer(lambda _: "hello") as upstream:
        running = gateway(upstream, upstream_api="chat", unknown_items="refuse")
        refused = running.post("/responses", {"model": "m", **MUCH})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[1].type")
        assert running.post("/responses", {"model": "m", "input": [call, output]}).status_code == 200


# --- clients that do not read ----------------------------------------------------------------------------------------

MOST = 1_000  # pieces of 64 KiB: more than any socket holds
PIECE = b'data: {"type":"response.output_text.delta","delta":"%b"}\n\n' % (b"x" * 65_000)


class Flood:
    """An upstream that says more than a client that does not read can hold; `is_left` when its connection ends."""

    def __init__(self, listener: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self.is_left = threading.Event()
        self._listener = listener

    def run(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(20)
            connection.recv(65_536)
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                for _ in range(MOST):
                    connection.sendall(PIECE)
            except TimeoutError:
                return
            except OSError:
                self.is_left.set()


@contextmanager
def flooding() -> Iterator[Flood]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        flood = Flood(listener)
        thread = threading.Thread(target=flood.run, daemon=True)
        thread.start()
        try:
            yield flood
        finally:
            thread.join(25)
            assert not thread.is_alive()


def test_client_that_does_not_read_is_left(gateway: Gateways) -> None:
    with flooding() as upstream:
        running = gateway(upstream.url, idle_seconds=1.0)
        body = json.dumps({**ASKED, "stream": True}).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        port = int(running.root.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + body)
            assert upstream.is_left.wait(20)
            running.eventually("refold_gateway_abandoned_total", 1)
            assert running.metric("refold_gateway_running") == 0


def test_client_of_a_websocket_that_does_not_read_is_left(gateway: Gateways) -> None:
    async def talk(one: Talk) -> bool:
        one.write(ws.TextMessage(data=json.dumps({"type": "response.create", **ASKED})))
        return await asyncio.to_thread(upstream.is_left.wait, 20)

    with flooding() as upstream:
        running = gateway(upstream.url, idle_seconds=1.0)
        assert talked(running.url, talk)
        running.eventually("refold_gateway_abandoned_total", 1)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has it")
def test_connection_that_takes_nothing_is_closed_by_the_kernel() -> None:
    for seconds, told in ((7.5, 7_500), (1e9, 2**31 - 1)):
        with listen(GatewaySettings(upstream="http://localhost:1", port=0, idle_seconds=seconds)) as listener:
            assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == told


# --- metrics and settings --------------------------------------------------------------------------------------------


def test_metrics_are_told_when_the_gateway_is_full(gateway: Gateways) -> None:
    with ResponsesServer([text_reply("hi")]) as upstream:
        running = gateway(upstream, max_requests=1)
        with running.app.state.gateway.admission.of(Caller("somebody")):
            assert running.post("/responses", ASKED).status_code == 503
            assert running.metric("refold_gateway_running") == 1
        assert running.metric("refold_gateway_running") == 0


def test_metrics_tell_every_digit() -> None:
    metrics = Metrics()
    metrics.add("refold_gateway_events_total", 1_234_567)
    metrics.add("refold_gateway_events_total", 3)
    metrics.took(1_234_567.25, route="responses")
    lines = metrics.text().splitlines()
    assert "refold_gateway_events_total 1234570" in lines
    assert 'refold_gateway_seconds_sum{route="responses"} 1234567.25' in lines


@pytest.mark.parametrize(
    ("word", "meant"),
    [("custm", "custom"), ("custom_tool_call", "custom"), ("tool_serach", "tool_search"), ("All", "all")],
)
def test_mistyped_word_of_what_is_accepted_is_refused_with_the_right_one(word: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"accepts: '{word}'.*'{meant}'"):
        checked(GatewaySettings(upstream="http://localhost:1/v1", accepts=(word,)))


@pytest.mark.parametrize(
    "word", ["custom", "all", "web_search", "web_search_call", "mcp", "item_reference", "compaction"]
)
def test_types_of_items_and_tools_are_accepted(word: str) -> None:
    checked(GatewaySettings(upstream="http://localhost:1/v1", accepts=(word,)))
