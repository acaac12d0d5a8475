"""ResponsesServer as any client sees it: plain HTTP, no refold."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
import pytest

from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage

STREAM = {"accept": "text/event-stream"}


def post(
    server: ResponsesServer, body: Any = None, path: str = "/v1/responses", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body or {"input": []}), STREAM if headers is None else headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def events(data: bytes) -> list[dict[str, Any]]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        lines = [line for line in block.split("\n") if line.startswith(("event: ", "data: "))]
        if len(lines) == 2:
            found.append(json.loads(lines[1][6:]))
            assert lines[0] == f"event: {found[-1]['type']}"
    return found


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_text_is_streamed_in_the_order_of_the_real_protocol():
    with ResponsesServer([text_reply("Hello", usage=usage(100, 10, cached=20, reasoning=3))]) as server:
        status, headers, data = post(server)
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    found = events(data)
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in found] == list(range(11))
    assert [event["delta"] for event in found[4:7]] == ["He", "ll", "o"]
    assert found[2]["item"]["content"] == []
    assert {event["item_id"] for event in found[3:9]} == {"msg_1_0"}
    response = found[-1]["response"]
    assert (response["id"], response["status"], response["output"]) == ("resp_1", "completed", [found[9]["item"]])
    assert response["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 110,
    }


def test_a_call_is_streamed_with_its_arguments_and_made_up_ids():
    with ResponsesServer([call_reply("exec_command", {"cmd": "true"})]) as server:
        found = events(post(server)[2])
    deltas = [event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta"]
    (done,) = [event for event in found if event["type"] == "response.function_call_arguments.done"]
    assert "".join(deltas) == done["arguments"] == '{"cmd": "true"}'
    item = found[-2]["item"]
    assert (item["id"], item["call_id"], item["arguments"]) == ("fc_1_0", "call_1_0", '{"cmd": "true"}')


def test_ids_and_unknown_items_are_sent_as_they_are_written():
    written = (
        {"type": "function_call", "id": None, "call_id": None, "name": "x", "arguments": "{"},
        {"type": "new", "id": "n"},
    )
    with ResponsesServer([Reply(items=written)]) as server:
        found = events(post(server)[2])
    assert [event["item"] for event in found if event["type"] == "response.output_item.done"] == list(written)


def test_requests_are_logged_as_they_came():
    body = {"model": "m", "input": [{"type": "message", "role": "user", "content": "é"}]}
    with ResponsesServer(["ok"]) as server:
        post(server, body, "/v1/responses?api-version=1", {**STREAM, "X-Test": "yes"})
        (logged,) = server.requests
    assert (logged.method, logged.path, logged.endpoint) == ("POST", "/v1/responses?api-version=1", "/v1/responses")
    assert (logged.header("x-test"), logged.header("X-TEST"), logged.header("none")) == ("yes", "yes", None)
    assert logged.body == json.dumps(body).encode()
    assert (logged.json, logged.input) == (body, body["input"])


def test_a_callable_sees_the_request():
    def answer(request: LoggedRequest) -> Reply | str:
        return f"you sent {len(request.input)}"

    with ResponsesServer(answer) as server:
        assert b"you sent 2" in post(server, {"input": [1, 2]})[2]
        assert b"you sent 3" in post(server, {"input": [1, 2, 3]})[2]


def test_an_exception_in_a_callable_is_answered_and_raised_at_the_end():
    def broken(_: LoggedRequest) -> Reply:
        raise ZeroDivisionError("oops")

    with pytest.raises(ZeroDivisionError, match="oops"), ResponsesServer(broken) as server:
        assert post(server)[0] == 500


def test_a_reply_that_http_cannot_say_is_raised_at_the_end_and_others_are_served():
    unsayable = text_reply("x", headers={"x": "a\nb"})
    with pytest.raises(h11.LocalProtocolError, match="header"), ResponsesServer([unsayable, "fine"]) as server:
        with pytest.raises(ConnectionError):
            post(server)
        assert post(server)[0] == 200


def test_a_script_that_has_ended_is_a_refusal_that_nobody_retries():
    with ResponsesServer([]) as server:
        status, _, data = post(server)
    error = json.loads(data)["error"]
    assert (status, error["code"]) == (400, "script_exhausted")
    assert error["message"] == "the script has 0 replies; this is request 1"


def test_an_error_status_has_its_body_and_headers():
    with ResponsesServer([Reply(status=429, body={"error": {"code": "x"}}, headers={"Retry-After": "1"})]) as server:
        status, headers, data = post(server)
    assert (status, headers["retry-after"], headers["content-type"]) == (429, "1", "application/json")
    assert json.loads(data) == {"error": {"code": "x"}}


@pytest.mark.parametrize(
    ("reply", "last"),
    [
        (
            Reply(fail={"code": "c", "message": "m"}),
            {"type": "response.failed", "error": {"code": "c", "message": "m"}},
        ),
        (Reply(fail={}), {"type": "response.failed", "error": None}),
        (Reply(incomplete="r"), {"type": "response.incomplete", "incomplete_details": {"reason": "r"}}),
        (Reply(end_turn=False), {"type": "response.completed", "end_turn": False}),
    ],
)
def test_the_last_event_says_how_the_response_ended(reply: Reply, last: dict[str, Any]):
    with ResponsesServer([reply]) as server:
        event = events(post(server)[2])[-1]
    assert event["type"] == last.pop("type")
    assert last.items() <= event["response"].items()


def test_an_error_event_is_sent_flat():
    with ResponsesServer([Reply(error={"code": "c", "message": "m"})]) as server:
        event = events(post(server)[2])[-1]
    assert event == {"type": "error", "code": "c", "message": "m", "sequence_number": 2}


def test_noise_is_sent_between_events_and_text_is_kept():
    with ResponsesServer([text_reply("hi", noise=(": ping", "data: junk"))]) as server:
        data = post(server)[2]
    assert data.count(b": ping\ndata: junk\n\nevent: ") == 10
    assert events(data)[-1]["type"] == "response.completed"


def test_without_events_asked_for_the_response_is_one_document():
    with ResponsesServer([text_reply("hi"), text_reply("hi"), Reply(fail={"code": "c"})]) as server:
        document = json.loads(post(server, {"input": []}, headers={})[2])
        streamed = post(server, {"input": [], "stream": True}, headers={})[2]
        refused = post(server, headers={})
    assert (document["object"], document["status"]) == ("response", "completed")
    assert document["output"][0]["content"][0]["text"] == "hi"
    assert events(streamed)[-1]["type"] == "response.completed"
    assert (refused[0], json.loads(refused[2])) == (400, {"error": {"code": "c"}})


def test_the_compact_endpoint_answers_with_a_document():
    reply = Reply(items=({"type": "compaction", "encrypted_content": "E"},), usage=usage(5, 1))
    with ResponsesServer([reply]) as server:
        status, _, data = post(server, path="/v1/responses/compact")
    document = json.loads(data)
    assert (status, document["object"]) == (200, "response.compaction")
    assert document["output"] == [{"type": "compaction", "id": "cmp_1_0", "encrypted_content": "E"}]


def test_other_requests_leave_the_script_alone():
    with ResponsesServer(["one"]) as server:
        assert post(server, path="/v1/models")[0] == 404
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/v1/responses")
        assert connection.getresponse().status == 405
        connection.close()
        assert post(server)[0] == 200
        assert len(server.requests) == 3


@pytest.mark.parametrize(("cut", "count"), [(0, 0), (2, 2), ("partial_item", 9), ("items", 10)])
def test_a_cut_stream_breaks_off_after_what_was_sent(cut: Any, count: int):
    broken = pytest.raises(http.client.IncompleteRead)
    with ResponsesServer([text_reply("Hello", cut_after=cut)]) as server, broken as raised:
        post(server)
    assert len(events(raised.value.partial)) == count
    assert raised.value.partial.endswith(b"\n\n") is (cut not in (0, "partial_item"))


def test_a_connection_can_be_cut_before_anything_is_answered():
    with ResponsesServer([Reply(cut_after="request"), "again"]) as server:
        with pytest.raises(http.client.RemoteDisconnected):
            post(server)
        assert post(server)[0] == 200


@pytest.mark.parametrize("silence", ["delay", "stall", "linger"])
def test_silences_last_as_long_as_written(silence: str):
    with ResponsesServer([text_reply("hi", **{silence: 0.1})]) as server:
        started = time.monotonic()
        data = post(server)[2]
    assert time.monotonic() - started >= 0.1
    assert events(data)[-1]["type"] == "response.completed"


def test_pace_spreads_the_events():
    with ResponsesServer([Reply(pace=0.03)]) as server:
        started = time.monotonic()
        assert len(events(post(server)[2])) == 3
    assert time.monotonic() - started >= 0.06


def test_a_client_that_leaves_is_noticed_at_once():
    with ResponsesServer([text_reply("hi", stall=30)]) as server:
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(
            b"POST /v1/responses HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\ncontent-length: 2\r\n\r\n{}"
        )
        assert client.recv(65536)
        client.close()
        until(lambda: len(server.abandoned) == 1)
        assert server.abandoned == server.requests


def test_one_connection_carries_many_requests_and_many_connections_run_at_once():
    with ResponsesServer(lambda _: "ok") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        for _ in range(3):
            connection.request("POST", "/v1/responses", b"{}", STREAM)
            own = connection.sock
            connection.getresponse().read()
        assert connection.sock is own
        threads = [threading.Thread(target=post, args=(server,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        connection.close()
    assert len(server.requests) == 11


def test_a_client_that_waits_for_permission_to_send_gets_it():
    with ResponsesServer(["ok"]) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            b"POST /v1/responses HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n"
            b"content-length: 2\r\nexpect: 100-continue\r\n\r\n"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"{}")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_nonsense_on_a_connection_harms_nobody():
    with ResponsesServer(["ok"]) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            assert client.recv(1000) == b""
        assert post(server)[0] == 200


def test_a_benchmark_need_not_keep_its_requests():
    with ResponsesServer(lambda _: "ok", log=False) as server:
        assert post(server)[0] == 200
        assert server.requests == []


def test_it_serves_inside_an_event_loop_and_stops_while_a_reply_is_pending():
    async def go() -> float:
        async with ResponsesServer([text_reply("hi"), text_reply("never", stall=30)]) as server:
            assert (await asyncio.to_thread(post, server))[0] == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(
                b"POST /v1/responses HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\ncontent-length: 2\r\n\r\n{}"
            )
            assert await reader.readuntil(b"\r\n\r\n")
            started = time.monotonic()
        writer.close()
        return time.monotonic() - started

    assert asyncio.run(go()) < 1


def test_stopping_while_clients_connect_leaves_nothing_open():
    for _ in range(20):  # what is left open would be warned of, and a warning is an error here
        server = ResponsesServer([]).start()
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        server.stop()
        for client in clients:
            client.close()
    gc.collect()


def test_a_taken_port_is_an_error_in_the_callers_thread_and_stopping_twice_is_harmless():
    with ResponsesServer([]) as server, pytest.raises(OSError, match="in use"):
        ResponsesServer([], port=server.port).start()
    server.stop()


def test_a_provider_stands_for_the_server():
    with ResponsesServer([]) as server:
        provider = server.provider(name="OpenAI", request_max_retries=1)
    assert (provider.base_url, provider.env_key) == (f"http://127.0.0.1:{server.port}/v1", None)
    assert (provider.is_openai, provider.request_max_retries) == (True, 1)


def test_from_a_shell_a_json_script_is_served_until_interrupted(tmp_path: Path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"steps": [{"items": [], "usage": {"input": 7, "output": 1}}]}))
    command = [sys.executable, "-m", "refold.testing.server", str(script), "--repeat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            for _ in range(2):
                connection = http.client.HTTPConnection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
                connection.request("POST", "/v1/responses", b"{}", STREAM)
                assert events(connection.getresponse().read())[-1]["response"]["usage"]["input_tokens"] == 7
                connection.close()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
