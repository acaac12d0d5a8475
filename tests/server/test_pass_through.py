"""The main road: what nobody has to change goes through as it is; faults are the API's own; limits hold."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest

from refold.model.scripted import Reply
from refold.server import Secrets
from refold.testing import ResponsesServer, text_reply

ASKED = {"model": "m", "input": [{"type": "message", "role": "user", "content": "hi"}], "store": False}
SECRET = "sk-upstream-secret-0123456789"
Gateways, SecretsOf = Callable[..., Any], Callable[..., Secrets]


def raw(path: str, body: bytes, url: str) -> httpx2.Response:
    with httpx2.Client(timeout=20, trust_env=False) as http:
        return http.post(url + path, content=body)


# --- byte for byte ---------------------------------------------------------------------------------------------------


def test_request_and_answer_go_through_byte_for_byte(gateway: Gateways) -> None:
    body = b'{ "model" : "m",\n "stream":true, "input":[{"role":"user","content":"h\\u00e4"}], "top_k": 4.0 }'
    noisy = Reply(
        items=({**text_reply("one two three").items[0], "id": "msg_x"},),
        usage=None,
        noise=(": keep", "id: 7"),
        response_id="resp_x",
    )
    with ResponsesServer(lambda _: noisy) as upstream:
        through = raw("/responses", body, gateway(upstream).url)
        direct = raw("/responses", body, upstream.url)
        assert [request.body for request in upstream.requests] == [body, body]
    assert through.content == direct.content
    assert through.headers["content-type"].startswith("text/event-stream")


def test_document_goes_through_byte_for_byte(gateway: Gateways) -> None:
    body = msgspec.json.encode({**ASKED, "input": "hi"})
    with ResponsesServer(
        lambda _: Reply(items=({**text_reply("hello").items[0], "id": "msg_x"},), response_id="resp_x")
    ) as upstream:
        through = raw("/responses", body, gateway(upstream).url)
        direct = raw("/responses", body, upstream.url)
    assert (through.status_code, through.content) == (200, direct.content)


def test_items_keep_their_bytes_when_others_are_changed(gateway: Gateways) -> None:
    kept = b'{ "role":"user", "content":"h\\u00e4",  "x":1.50 }'
    body = b'{"model":"m","store":false,"input":[' + kept + b',{"type":"mystery"}]}'
    with ResponsesServer(["ok"]) as upstream:
        answer = raw("/responses", body, gateway(upstream).url)
        assert upstream.requests[0].body == b'{"model":"m","store":false,"input":[' + kept + b"]}"
    assert answer.headers["x-refold-left-out"] == "item 'mystery'"


def test_model_map_names_the_upstreams_model(gateway: Gateways) -> None:
    with ResponsesServer(["a", "b"]) as upstream:
        running = gateway(upstream, model_map={"gpt-5.5": "qwen", "*": "other"})
        for model in ("gpt-5.5", "anything"):
            assert running.post("/responses", {**ASKED, "model": model}).status_code == 200
        assert [request.json["model"] for request in upstream.requests] == ["qwen", "other"]


def test_headers_that_providers_know_go_both_ways_and_others_do_not(gateway: Gateways) -> None:
    told = {"x-codex-turn-metadata": "{}", "session-id": "s", "cookie": "c=1", "x-forwarded-for": "1.2.3.4"}
    headers = {"x-codex-turn-state": "t", "openai-model": "m", "set-cookie": "a=b", "server": "x"}
    with ResponsesServer([text_reply("hi", headers=headers)]) as upstream:
        answer = gateway(upstream).post("/responses", ASKED, headers=told)
        sent = upstream.requests[0]
    assert [sent.header(name) for name in told] == ["{}", "s", None, None]
    assert [answer.headers.get(name) for name in headers] == ["t", "m", None, None]


# --- keys ------------------------------------------------------------------------------------------------------------


def test_client_bearer_is_passed_on_only_where_it_is_no_token_of_the_gateway(
    gateway: Gateways, secrets_of: SecretsOf
) -> None:
    with ResponsesServer(lambda _: text_reply("hi")) as upstream:
        bearer = {"authorization": "Bearer token-number-one"}
        gateway(upstream).post("/responses", ASKED, headers=bearer)
        gateway(upstream, secrets=secrets_of("token-number-one")).post("/responses", ASKED, headers=bearer)
        keyed = gateway(upstream, secrets=secrets_of("token-number-one", upstream_key=SECRET))
        keyed.post("/responses", ASKED, headers=bearer)
        sent = [request.header("authorization") for request in upstream.requests]
    assert sent == ["Bearer token-number-one", None, f"Bearer {SECRET}"]


def test_no_key_stands_in_an_error_or_a_log(
    gateway: Gateways, secrets_of: SecretsOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bad = Reply(status=400, body={"error": {"message": f"your key {SECRET} and token-number-one", "type": "x"}})
    failing = Reply(status=400, body={"error": {"code": "other", "message": f"no: {SECRET}"}})
    with ResponsesServer([bad, bad, failing]) as upstream:
        running = gateway(upstream, secrets=secrets_of("token-number-one", upstream_key=SECRET), log_requests=True)
        told = {"authorization": "Bearer token-number-one"}
        answers = [running.post("/responses", {**ASKED, "stream": stream}, headers=told) for stream in (False, True)]
        answers.append(running.post("/responses/compact", ASKED, headers=told))
        answers.append(running.post("/responses", ASKED, headers={"authorization": "Bearer wrong-wrong-wrong"}))
    assert [answer.status_code for answer in answers[:2]] == [400, 400]
    said = " ".join(answer.text for answer in answers) + caplog.text
    assert SECRET not in said and "wrong-wrong" not in said and "***" in answers[0].text
    assert "hi" not in [record.getMessage() for record in caplog.records]


def test_upstream_that_refuses_the_gateways_key_is_not_the_clients_fault(
    gateway: Gateways, secrets_of: SecretsOf
) -> None:
    with ResponsesServer(lambda _: Reply(status=401, body={"error": {"message": "bad key"}})) as upstream:
        own = gateway(upstream, secrets=secrets_of(upstream_key=SECRET))
        assert own.post("/responses", ASKED).status_code == 502
        assert own.post("/responses/compact", ASKED).json()["error"]["code"] == "upstream_refused_key"
        assert gateway(upstream).post("/responses", ASKED).status_code == 401


def test_token_is_needed_where_there_are_tokens(gateway: Gateways, secrets_of: SecretsOf) -> None:
    with ResponsesServer(["hi"]) as upstream:
        running = gateway(upstream, secrets=secrets_of("token-number-one"))
        for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": "Basic token-number-one"}):
            for call in (running.post("/responses", ASKED, headers=headers), running.get("/models", headers=headers)):
                assert (call.status_code, call.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (
            running.post("/responses", ASKED, headers={"authorization": "bearer token-number-one"}).status_code == 200
        )
        assert upstream.requests[0].header("authorization") is None
        with httpx2.Client(trust_env=False) as http:
            assert http.get(f"{running.root}/healthz").json() == {"status": "ok"}
            assert http.get(f"{running.root}/metrics").status_code == 401


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"host": "evil.example:80"}, {"origin": "null"}]
)
def test_web_page_cannot_ask_where_no_token_is_needed(gateway: Gateways, headers: dict[str, str]) -> None:
    with ResponsesServer(["hi"]) as upstream:
        answer = gateway(upstream).post("/responses", ASKED, headers=headers)
        assert (answer.status_code, upstream.requests) == (403, [])


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_fault_of_the_upstream_is_told_as_it_was(gateway: Gateways, stream: bool, status: int) -> None:
    error = {"message": "Something.", "type": "odd", "param": None, "code": "why", "more": [1]}
    reply = Reply(status=status, body={"error": error}, headers={"retry-after": "7"})
    with ResponsesServer([reply]) as upstream:
        answer = gateway(upstream).post("/responses", {**ASKED, "stream": stream})
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    if status in (429, 500, 503):
        assert answer.headers["retry-after"] == "7"


def test_status_that_an_upstream_calls_the_code_is_not_told_as_one(gateway: Gateways) -> None:
    """vLLM and llama.cpp do; of the API the code is a text, and there are clients that read nothing else."""
    error = {"message": "Something.", "type": "odd", "param": 7, "code": 400}
    with ResponsesServer([Reply(status=400, body={"error": error})]) as upstream:
        answer = gateway(upstream).post("/responses", ASKED)
    assert answer.json()["error"] == {**error, "param": None, "code": None}


OVERFLOWS = [
    {
        "error": {
            "code": 400,
            "message": "request (9000 tokens) exceeds the available context size (4096 tokens)",
            "n_ctx": 4096,
        }
    },
    {"error": {"message": "This model's maximum context length is 4096 tokens. However, you requested 9000."}},
    {"object": "error", "message": "maximum context length is 4096 tokens", "type": "BadRequestError", "code": 400},
]


@pytest.mark.parametrize("body", OVERFLOWS, ids=["llama.cpp", "openai", "vllm"])
def test_overflow_has_the_apis_code_and_the_true_window(gateway: Gateways, body: Any) -> None:
    with ResponsesServer(lambda _: Reply(status=400, body=body)) as upstream:
        running = gateway(upstream)
        document = running.post("/responses", ASKED)
        told = running.events(ASKED)
    assert (document.status_code, document.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert [event["type"] for event in told] == ["response.created", "response.failed"]
    assert told[-1]["response"]["error"]["code"] == "context_length_exceeded"
    for text in (document.json()["error"]["message"], told[-1]["response"]["error"]["message"]):
        assert "maximum context length is 4096 tokens" in text


def test_overflow_that_tells_no_window_is_told_the_one_that_is_set(gateway: Gateways) -> None:
    reply = Reply(fail={"code": "oops", "message": "prompt is too long"})
    with ResponsesServer(lambda _: reply) as upstream:
        told = gateway(upstream, context_window=8192).events(ASKED)
    error = told[-1]["response"]["error"]
    assert error["code"] == "context_length_exceeded" and "8192 tokens" in error["message"]


@pytest.mark.parametrize("cut", [1, 3, "partial_item", "items"])
def test_upstream_that_dies_gives_a_failed_event(gateway: Gateways, cut: Any) -> None:
    with ResponsesServer(lambda _: text_reply("one two three", cut_after=cut)) as upstream:
        running = gateway(upstream)
        told = running.events(ASKED)
        assert running.metric("refold_gateway_broken_streams_total") == 1
    assert told[-1]["type"] == "response.failed"
    response = told[-1]["response"]
    assert (response["id"], response["status"], response["error"]["code"]) == ("resp_1", "failed", "server_error")
    assert [event["sequence_number"] for event in told] == [*range(len(told))]
    assert len(response["output"]) == (cut == "items")


def test_upstream_that_dies_before_its_first_event_gives_a_failed_event(gateway: Gateways) -> None:
    with ResponsesServer(lambda _: text_reply("x", cut_after=0)) as upstream:
        told = gateway(upstream).events(ASKED)
    assert [event["type"] for event in told] == ["response.created", "response.failed"]


def test_upstream_that_falls_silent_gives_a_failed_event(gateway: Gateways) -> None:
    with ResponsesServer([text_reply("x", stall=30.0)]) as upstream:
        told = gateway(upstream, idle_seconds=0.3).events(ASKED)
    assert told[-1]["type"] == "response.failed" and "idle timeout" in told[-1]["response"]["error"]["message"]


def test_upstream_that_ends_in_order_before_the_response_does_gives_a_failed_event(gateway: Gateways) -> None:
    begun = b'data: {"type":"response.created","response":{"id":"resp_1"},"sequence_number":0}\n\n'
    said = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(begun), begun)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        told = gateway(f"http://127.0.0.1:{listener.getsockname()[1]}/v1").events(ASKED)
        thread.join()
    assert [event["type"] for event in told] == ["response.created", "response.failed"]
    assert told[-1]["response"]["id"] == "resp_1"


@pytest.mark.parametrize("stream", [False, True])
def test_upstream_that_is_not_there_is_a_bad_gateway(gateway: Gateways, stream: bool) -> None:
    answer = gateway("http://127.0.0.1:9/v1").post("/responses", {**ASKED, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert "127.0.0.1:9" not in answer.text


def test_upstream_that_hangs_up_is_a_bad_gateway(gateway: Gateways) -> None:
    with ResponsesServer(lambda _: Reply(cut_after="request")) as upstream:
        running = gateway(upstream)
        assert running.post("/responses", ASKED).status_code == 502
        assert running.post("/responses", {**ASKED, "stream": True}).status_code == 502


# --- clients that leave, limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_ends_the_upstreams_work(gateway: Gateways, stream: bool) -> None:
    slow = text_reply("one two three", stall=20.0) if stream else text_reply("x", delay=20.0)
    with ResponsesServer([slow, "again"]) as upstream:
        running = gateway(upstream)
        with pytest.raises(httpx2.ReadTimeout), httpx2.Client(timeout=0.4, trust_env=False) as http:
            http.post(f"{running.url}/responses", json={**ASKED, "stream": stream})
        running.eventually("refold_gateway_abandoned_total", 1)
        end = time.monotonic() + 5
        while not upstream.abandoned and time.monotonic() < end:
            time.sleep(0.02)
        assert len(upstream.abandoned) == 1
        assert running.post("/responses", ASKED).status_code == 200


def test_client_that_leaves_ends_a_compaction(gateway: Gateways) -> None:
    with ResponsesServer([text_reply("x", stall=20.0)]) as upstream:
        running = gateway(upstream)
        with pytest.raises(httpx2.ReadTimeout), httpx2.Client(timeout=0.4, trust_env=False) as http:
            http.post(f"{running.url}/responses/compact", json=ASKED)
        running.eventually("refold_gateway_abandoned_total", 1)
        running.eventually("refold_gateway_running", 0)


def test_large_body_is_refused_whether_its_size_is_told_or_not(gateway: Gateways) -> None:
    with ResponsesServer(["hi"]) as upstream:
        running = gateway(upstream, max_body_bytes=1000)
        told = running.post("/responses", b"x" * 1001)
        with httpx2.Client(trust_env=False) as http:
            untold = http.post(f"{running.url}/responses", content=iter([b"x" * 600] * 3))
        assert [(one.status_code, one.json()["error"]["code"]) for one in (told, untold)] == [
            (413, "request_too_large")
        ] * 2


def test_body_that_does_not_come_is_not_waited_for(gateway: Gateways) -> None:
    with ResponsesServer(["hi"]) as upstream:
        running = gateway(upstream, body_seconds=0.2)

        def slowly() -> Any:
            yield b'{"model":'
            time.sleep(1)
            yield b'"m"}'

        with httpx2.Client(trust_env=False) as http:
            try:
                assert http.post(f"{running.url}/responses", content=slowly()).status_code == 408
            except httpx2.WriteError:  # it hung up first
                assert running.metric('refold_gateway_requests_total{route="responses",status="408"}') == 1


@pytest.mark.parametrize(
    ("limits", "status", "code"),
    [
        ({"max_requests_per_tenant": 1}, 429, "rate_limit_exceeded"),
        ({"max_requests": 1}, 503, "server_is_overloaded"),
    ],
)
def test_more_requests_than_there_is_room_for_are_refused(
    gateway: Gateways, limits: dict[str, int], status: int, code: str
) -> None:
    with ResponsesServer([text_reply("slow", delay=1.0), "again"]) as upstream:
        running = gateway(upstream, **limits)
        first: list[httpx2.Response] = []
        thread = threading.Thread(target=lambda: first.append(running.post("/responses", ASKED)))
        thread.start()
        end = time.monotonic() + 5
        while not upstream.requests and time.monotonic() < end:
            time.sleep(0.01)
        second = running.post("/responses", ASKED)
        thread.join()
        assert (second.status_code, second.json()["error"]["code"]) == (status, code)
        assert second.headers["retry-after"] == "1" and first[0].status_code == 200
        assert running.post("/responses", ASKED).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"nothing", None),
        (b"[]", None),
        (b'{"model":"m","input":[{]}', None),
        (b'{"input":"x"}', "model"),
        (b'{"model":7,"input":"x"}', "model"),
        (b'{"model":"m"}', "input"),
        (b'{"model":"m","input":7}', "input"),
        (b'{"model":"m","input":[7]}', "input[0]"),
        (b'{"model":"m","input":[{}]}', "input[0].type"),
        (b'{"model":"m","input":[{"type":"message"}]}', "input[0].role"),
        (b'{"model":"m","input":"x","stream":"yes"}', "stream"),
        (b'{"model":"m","input":"x","tools":{}}', "tools"),
        (b'{"model":"m","input":"x","conversation":"c"}', "conversation"),
        (b'{"model":"m","input":"x","background":true}', "background"),
        (b'{"model":"m","input":"x","context_management":[{"type":"other"}]}', "context_management[0].type"),
        (b'{"model":"m","input":[{"type":"item_reference","id":"i"}]}', "input[0]"),
        (b'{"model":"m","input":[{"type":"compaction_trigger"},{"role":"user","content":"x"}]}', "input"),
        (b'{"model":"m","input":"\xff"}', None),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_name(gateway: Gateways, body: bytes, param: str | None) -> None:
    with ResponsesServer([]) as upstream:
        answer = gateway(upstream).post("/responses", body)
        assert upstream.requests == []
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), answer.text
    assert error["param"] == param


def test_deep_nesting_is_refused_or_answered_but_no_fault(gateway: Gateways) -> None:
    with ResponsesServer(lambda _: text_reply("hi")) as upstream:
        running = gateway(upstream)
        for body in (
            b'{"model":"m","input":[{"type":"message","role":"user","content":' + b"[" * 9000 + b"]" * 9000 + b"}]}",
        ):
            assert running.post("/responses", body).status_code == 400


def test_models_are_the_upstreams_and_the_mapped_names(gateway: Gateways) -> None:
    with ResponsesServer([]) as upstream:  # it has no list
        answer = gateway(upstream, model_map={"gpt-5.5": "qwen", "*": "x"}).get("/models")
    assert [one["id"] for one in answer.json()["data"]] == ["gpt-5.5"]


def test_what_is_not_here_is_said_in_the_apis_words(gateway: Gateways) -> None:
    with ResponsesServer([]) as upstream:
        running = gateway(upstream)
        answers = running.get("/nothing"), running.get("/responses")
    assert [answer.status_code for answer in answers] == [404, 405]
    assert all(answer.json()["error"]["message"] for answer in answers)
