"""ResponsesModel against a real server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.core.profile import Profile, Provider
from refold.core.usage import Usage
from refold.core.wire import Request
from refold.errors import (
    BadModelStream,
    ConfigError,
    ContextWindowExceeded,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    ResponseIncomplete,
)
from refold.model import Completed, ItemDone, ItemStarted, ModelEvent, ResponsesModel, ResponseStarted, TextDelta
from refold.model.events import CLOSED_EARLY, HIGH_DEMAND, IDLE_TIMEOUT, TOO_MANY_REQUESTS
from refold.model.responses import SEND_BYTES, api_key_from
from refold.testing import Reply, ResponsesServer, call_reply, text_reply, usage

CASES = Path(__file__).parents[1] / "data" / "cases"
FAILED = json.loads((CASES / "S30-failed-event-while-socket-open" / "failed.json").read_text("utf-8"))
PROFILE = Profile(slug="m")


def request(*texts: str, headers: dict[str, str] | None = None) -> Request:
    parts = tuple(msgspec.json.encode({"type": "message", "role": "user", "content": text}) for text in texts)
    return Request(
        head=b'{"model":"m","stream":true,"input":[',
        parts=parts,
        tail=b'],"tools":[]}',
        items=len(parts),
        headers=headers or {},
    )


async def ask(model: ResponsesModel, what: Request | None = None) -> list[ModelEvent]:
    return [event async for event in model.sample(what or request("hi"))]


def run(replies: Any, **provider: Any) -> tuple[list[ModelEvent], ResponsesServer]:
    """One sample of a server with this script."""

    async def go() -> list[ModelEvent]:
        model = ResponsesModel(PROFILE, server.provider(**provider))
        try:
            return await ask(model)
        finally:
            await model.close()

    with ResponsesServer(replies) as server:
        return asyncio.run(go()), server


def fails(replies: Any, **provider: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        run(replies, **provider)
    return raised.value


# --- what is sent -------------------------------------------------------------------------------------


def test_a_reply_comes_as_events_that_end_with_one_completion():
    events, _ = run([text_reply("Hello, world!", usage=usage(100, 10, cached=20, reasoning=4))])
    assert [type(event) for event in events] == [
        ResponseStarted,
        ItemStarted,
        TextDelta,
        TextDelta,
        TextDelta,
        ItemDone,
        Completed,
    ]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello, world!"
    told = Usage(
        input_tokens=100, cached_input_tokens=20, output_tokens=10, reasoning_output_tokens=4, total_tokens=110
    )
    assert events[-1] == Completed("resp_1", told)


def test_the_body_arrives_byte_for_byte_with_its_length_whatever_its_size():
    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider())
        for what in bodies:
            await ask(model, what)
        await model.close()

    bodies = [request(), request("é世🚀"), request("a", "b"), request(*["x" * 1000] * 1200)]
    assert len(bodies[-1].body()) > 4 * SEND_BYTES
    with ResponsesServer(lambda _: "ok") as server:
        asyncio.run(go())
    for sent, logged in zip(bodies, server.requests, strict=True):
        assert logged.body == sent.body()
        assert logged.header("content-length") == str(len(sent.body()))
        assert logged.header("transfer-encoding") is None


def test_headers_come_from_provider_environment_and_request_in_rising_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEAM", "blue")
    monkeypatch.setenv("MY_KEY", " secret \n")
    monkeypatch.delenv("NOT_SET", raising=False)
    provider = {
        "env_key": "MY_KEY",
        "http_headers": {"X-A": "provider", "X-B": "provider"},
        "env_http_headers": {"X-Team": "TEAM", "X-None": "NOT_SET"},
        "query_params": {"api-version": "2026-01-01-preview"},
    }

    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider(**provider))
        await ask(model, request("hi", headers={"x-b": "request", "X-Dir": "/home/zoë"}))
        await model.close()

    with ResponsesServer(["ok"]) as server:
        asyncio.run(go())
    (logged,) = server.requests
    assert logged.method == "POST"
    assert logged.path == "/v1/responses?api-version=2026-01-01-preview"
    sent = dict(logged.headers)
    assert sent["authorization"] == "Bearer secret"
    assert (sent["content-type"], sent["accept"]) == ("application/json", "text/event-stream")
    assert (sent["x-a"], sent["x-b"], sent["x-team"]) == ("provider", "request", "blue")
    assert sent["x-dir"].encode("latin-1").decode() == "/home/zoë"
    assert "x-none" not in sent


def test_a_base_url_may_end_in_a_slash_or_carry_a_query():
    async def go() -> None:
        for url in (f"{server.url}/", f"{server.url}?deployment=a%2Fb"):
            model = ResponsesModel(PROFILE, server.provider(base_url=url))
            await ask(model)
            await model.close()

    with ResponsesServer(lambda _: "ok") as server:
        asyncio.run(go())
    assert [logged.path for logged in server.requests] == ["/v1/responses", "/v1/responses?deployment=a%2Fb"]


def test_one_connection_serves_request_after_request_and_several_at_once():
    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider())
        for _ in range(5):
            await ask(model)
        assert len(model._client._transport._pool.connections) == 1  # type: ignore[union-attr]
        answers = await asyncio.gather(*(ask(model) for _ in range(4)))
        assert all(isinstance(events[-1], Completed) for events in answers)
        await ask(model)
        await model.close()

    with ResponsesServer(lambda _: text_reply("ok", pace=0.001)) as server:
        asyncio.run(go())
    assert len(server.requests) == 10
    assert not server.abandoned


def test_a_model_can_be_closed_and_used_again_and_in_another_event_loop():
    with ResponsesServer(["a", "b", "c"]) as server:
        model = ResponsesModel(PROFILE, server.provider())

        async def twice() -> None:
            await ask(model)
            await model.close()
            await ask(model)
            await model.close()

        async def once() -> None:
            await ask(model)
            await model.close()

        asyncio.run(twice())
        asyncio.run(once())
    assert len(server.requests) == 3


def test_loopback_is_reached_without_the_environments_proxy(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    events, _ = run(["ok"])
    assert isinstance(events[-1], Completed)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "gopher://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_a_setting_to_change(monkeypatch: pytest.MonkeyPatch, proxy: str):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigError, match="ALL_PROXY: cannot be used"):
        asyncio.run(ask(ResponsesModel(PROFILE, Provider(base_url="http://provider.invalid/v1", env_key=None))))


# --- keys and settings -----------------------------------------------------------------------------------


def test_a_missing_key_is_a_setting_to_change_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with ResponsesServer(["ok"]) as server:
        model = ResponsesModel(PROFILE, server.provider(env_key="NO_SUCH_KEY"))
        with pytest.raises(
            ConfigError, match=r"NO_SUCH_KEY: is not set; export it with the API key for http"
        ) as raised:
            asyncio.run(ask(model))
    assert raised.value.key == "NO_SUCH_KEY"
    assert not server.requests


def test_a_key_is_taken_from_the_named_variable_and_only_when_one_is_named():
    assert api_key_from(Provider(env_key="K"), {"K": " secret\n"}) == "secret"
    assert api_key_from(Provider(env_key=None), {"K": "secret"}) is None
    with pytest.raises(ConfigError):
        api_key_from(Provider(env_key="K"), {"K": "  "})


def test_a_given_key_or_a_configured_authorization_needs_no_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)

    async def go() -> None:
        given = ResponsesModel(PROFILE, server.provider(env_key="NO_SUCH_KEY"), api_key="given")
        await ask(given)
        await given.close()
        provider = server.provider(env_key="NO_SUCH_KEY", http_headers={"Authorization": "Basic abc"})
        configured = ResponsesModel(PROFILE, provider)
        await ask(configured)
        await configured.close()

    with ResponsesServer(["a", "b"]) as server:
        asyncio.run(go())
    assert [logged.header("authorization") for logged in server.requests] == ["Bearer given", "Basic abc"]


@pytest.mark.parametrize("url", ["", "localhost:8000/v1", "ftp://x/v1", "http://", "http://[::1/v1"])
def test_a_base_url_that_cannot_be_one_is_a_setting_to_change(url: str):
    model = ResponsesModel(PROFILE, Provider(base_url=url, env_key=None))
    with pytest.raises(ConfigError, match="base_url"):
        asyncio.run(ask(model))


def test_the_key_is_in_no_error_even_when_the_server_repeats_it():
    async def go() -> ModelError:
        model = ResponsesModel(PROFILE, server.provider(env_key="MY_KEY"), api_key="sk-secret")
        with pytest.raises(ModelRefused) as raised:
            await ask(model)
        await model.close()
        return raised.value

    with ResponsesServer([Reply(status=401, body={"error": {"message": "wrong key: sk-secret"}})]) as server:
        error = asyncio.run(go())
    assert "sk-secret" not in str(error)
    assert "check the API key in MY_KEY (wrong key: ***)" in str(error)


def test_a_header_that_http_does_not_allow_is_refused_without_showing_it():
    async def go() -> ModelError:
        model = ResponsesModel(PROFILE, server.provider(), api_key="sk-one\nsk-two")
        with pytest.raises(ModelRefused) as raised:
            await ask(model)
        await model.close()
        return raised.value

    with ResponsesServer(["ok"]) as server:
        assert "sk-" not in str(asyncio.run(go()))


# --- refusals before a stream ----------------------------------------------------------------------------


def test_429_waits_as_the_header_says():
    body = {"error": {"message": "slow down. Please try again in 9s", "code": "rate_limit_exceeded"}}
    error = fails([Reply(status=429, body=body, headers={"Retry-After": "1"})])
    assert isinstance(error, ModelUnavailable)
    assert (str(error), error.retry_after, error.request_level) == (TOO_MANY_REQUESTS, 1.0, False)


def test_500_is_a_request_level_failure():
    error = fails([Reply(status=500, body={"error": {"message": "boom"}})])
    assert isinstance(error, ModelUnavailable)
    assert (str(error), error.request_level) == (HIGH_DEMAND, True)


def test_400_for_an_input_that_does_not_fit_tells_the_true_window():
    body = {"error": {"message": "This model's maximum context length is 4096 tokens. However, you …", "code": 400}}
    error = fails([Reply(status=400, body=body)])
    assert isinstance(error, ContextWindowExceeded)
    assert error.limit == 4096


def test_a_redirect_is_not_followed():
    error = fails([Reply(status=307, headers={"location": "http://127.0.0.1:9/elsewhere"}), "followed"])
    assert isinstance(error, ModelRefused)
    assert "redirects to http://127.0.0.1:9/elsewhere" in str(error)


def test_an_error_leaves_the_connection_usable():
    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider())
        with pytest.raises(ModelUnavailable):
            await ask(model)
        await ask(model)
        assert len(model._client._transport._pool.connections) == 1  # type: ignore[union-attr]
        await model.close()

    with ResponsesServer([Reply(status=500, body={}), "ok"]) as server:
        asyncio.run(go())


def test_a_document_instead_of_a_stream_is_refused_or_read_as_its_error():
    page = fails([text_reply("x", headers={"content-type": "text/html"})])
    assert isinstance(page, ModelRefused)
    assert "answered with text/html, not an event stream" in str(page)

    async def lmstudio(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"message":"the request exceeds the available context size (4096 tokens)"}}'
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )

    error = asyncio.run(_raw_failure(lmstudio))
    assert isinstance(error, ContextWindowExceeded)
    assert error.limit == 4096


# --- connections that do not come about --------------------------------------------------------------------


def test_a_refused_connection_names_the_url_and_the_reason():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"

    async def go() -> ModelError:
        model = ResponsesModel(PROFILE, Provider(base_url=url, env_key=None))
        try:
            raise RuntimeError("an error that is being handled is not the reason")
        except RuntimeError:
            with pytest.raises(ModelUnavailable) as raised:
                await ask(model)
        await model.close()
        return raised.value

    error = asyncio.run(go())
    assert isinstance(error, ModelUnavailable)
    assert (error.request_level, error.retryable) == (True, True)
    assert str(error) == f"cannot reach {url}: Connection refused"


def test_an_unknown_host_names_the_url_and_the_reason(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def go() -> None:
        model = ResponsesModel(PROFILE, Provider(base_url="http://no-such-host.invalid/v1", env_key=None))
        with pytest.raises(ModelUnavailable, match=r"cannot reach http://no-such-host\.invalid/v1: .+"):
            await ask(model)
        await model.close()

    asyncio.run(go())


def test_tls_with_a_server_that_speaks_none_names_the_url():
    with ResponsesServer(["ok"]) as server:
        url = server.url.replace("http://", "https://")

        async def go() -> None:
            model = ResponsesModel(PROFILE, Provider(base_url=url, env_key=None))
            with pytest.raises(ModelUnavailable, match=f"cannot reach {url}: ") as raised:
                await ask(model)
            assert raised.value.request_level
            await model.close()

        asyncio.run(go())


def test_a_connection_closed_before_the_answer_is_a_request_level_failure():
    error = fails([Reply(cut_after="request")])
    assert type(error) is ModelUnavailable
    assert error.request_level
    assert "closed the connection without an answer" in str(error)


# --- streams that break --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 3, "partial_item", "items"])
def test_a_cut_stream_is_broken_and_what_was_finished_came_before(cut: Any):
    seen: list[ModelEvent] = []

    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider())
        try:
            async for event in model.sample(request("hi")):
                seen.append(event)
        finally:
            await model.close()

    broken = pytest.raises(BadModelStream, match=f"^{CLOSED_EARLY}$")
    with ResponsesServer([text_reply("PARTIAL", cut_after=cut)]) as server, broken as raised:
        asyncio.run(go())
    assert not raised.value.request_level
    assert any(isinstance(event, ItemDone) for event in seen) is (cut == "items")


async def _serve_raw(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    visit: Callable[[str], Awaitable[Any]],
) -> Any:
    """Visit a server that reads one request and answers with bytes of our own."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            with contextlib.suppress(OSError):
                await serve(reader, writer)
                await writer.drain()
        finally:
            writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        return await visit(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")


async def _raw_failure(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> ModelError:
    async def visit(url: str) -> ModelError:
        model = ResponsesModel(PROFILE, Provider(base_url=url, env_key=None))
        with pytest.raises(ModelError) as raised:
            await ask(model)
        await model.close()
        return raised.value

    return await _serve_raw(serve, visit)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"


def test_a_stream_that_ends_in_order_without_completion_is_broken():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b'\r\ndata: {"type":"response.created","response":{}}\n\n')

    error = asyncio.run(_raw_failure(serve))
    assert (type(error), str(error)) == (BadModelStream, CLOSED_EARLY)


def test_a_compressed_stream_is_read_although_none_was_asked_for():
    data = gzip.compress((CASES / "S29-sse-bytes" / "stream.sse").read_bytes())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(data) + data)

    async def visit(url: str) -> list[ModelEvent]:
        model = ResponsesModel(PROFILE, Provider(base_url=url, env_key=None))
        events = await ask(model)
        await model.close()
        return events

    events = asyncio.run(_serve_raw(serve, visit))
    assert [type(event).__name__ for event in events] == ["ResponseStarted", "TextDelta", "ItemDone", "Completed"]


def test_a_silent_stream_times_out_and_comments_keep_it_alive():
    started = time.monotonic()
    error = fails([text_reply("hi", stall=5.0)], stream_idle_timeout_ms=150)
    assert (type(error), str(error)) == (BadModelStream, IDLE_TIMEOUT)
    assert 0.1 < time.monotonic() - started < 2

    async def comments(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b"\r\n")
        for _ in range(6):
            await asyncio.sleep(0.06)
            writer.write(b":\n\n")
            await writer.drain()
        writer.write(b'data: {"type":"response.completed","response":{"id":"r"}}\n\n')

    async def visit(url: str) -> list[ModelEvent]:
        model = ResponsesModel(PROFILE, Provider(base_url=url, env_key=None, stream_idle_timeout_ms=200))
        events = await ask(model)
        await model.close()
        return events

    assert asyncio.run(_serve_raw(comments, visit)) == [Completed("r")]


def test_no_answer_at_all_times_out_too():
    error = fails([text_reply("hi", delay=5.0)], stream_idle_timeout_ms=100)
    assert (type(error), str(error)) == (BadModelStream, IDLE_TIMEOUT)


def test_garbage_comments_and_keep_alives_between_events_change_nothing():
    noise = (": keep-alive", "data: not json", "", "event: ping", "", "id: 7", "retry: 3000", 'data: {"type":"x"}')
    clean, _ = run([text_reply("hi")])
    noisy, _ = run([text_reply("hi", noise=noise)])
    assert noisy == clean


# --- ends that the provider tells ------------------------------------------------------------------------------


def test_a_failed_event_is_raised_at_once_while_the_socket_stays_open():
    rows = [{key: row[key] for key in ("code", "message")} if row["code"] else {} for row in FAILED]

    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider(stream_idle_timeout_ms=5000))
        await ask(model)  # imports and connects: not what is measured
        for row in FAILED:
            started = time.monotonic()
            with pytest.raises(ModelError) as raised:
                await ask(model)
            assert time.monotonic() - started < 0.2
            assert (row["message"] or "response.failed") in str(raised.value)
        await model.close()

    with ResponsesServer(["ok", *(Reply(fail=row, linger=30) for row in rows)]) as server:
        asyncio.run(go())
        _until(lambda: len(server.abandoned) == len(rows))  # the client closed each connection


def test_nothing_is_read_after_completion():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b'\r\ndata: {"type":"response.completed","response":{"id":"r"}}\n\n')
        writer.write(b'data: {"type":"response.failed","response":{}}\n\n')
        await writer.drain()
        await reader.read()  # until the client has gone

    async def visit(url: str) -> list[ModelEvent]:
        model = ResponsesModel(PROFILE, Provider(base_url=url, env_key=None))
        events = await ask(model)
        await model.close()
        return events

    assert asyncio.run(_serve_raw(serve, visit)) == [Completed("r")]


def test_a_provider_that_holds_the_socket_after_completion_does_not_hold_up_the_next_request():
    async def go() -> float:
        model = ResponsesModel(PROFILE, server.provider())
        started = time.monotonic()
        for _ in range(3):
            assert isinstance((await ask(model))[-1], Completed)
        await model.close()
        return time.monotonic() - started

    with ResponsesServer(lambda _: text_reply("hi", linger=30)) as server:
        assert asyncio.run(go()) < 1


def test_an_incomplete_response_is_an_end_of_its_own_with_usage():
    error = fails([text_reply("half", incomplete="max_output_tokens", usage=usage(1000, 512))])
    assert isinstance(error, ResponseIncomplete)
    assert error.reason == "max_output_tokens"
    assert error.usage == usage(1000, 512)


def test_an_error_event_is_raised():
    error = fails([Reply(error={"code": "server_error", "message": "boom"}, linger=30)])
    assert (type(error), str(error)) == (ModelUnavailable, "error: boom")


# --- leaving early -----------------------------------------------------------------------------------------------


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_closing_the_iterator_early_closes_the_connection():
    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider())
        events: AsyncIterator[ModelEvent] = model.sample(request("hi"))
        assert isinstance(await anext(events), ResponseStarted)
        await events.aclose()  # type: ignore[attr-defined]
        assert not model._client._transport._pool.connections  # type: ignore[union-attr]
        await asyncio.to_thread(_until, lambda: len(server.abandoned) == 1)
        assert isinstance((await ask(model))[-1], Completed)
        await model.close()

    with ResponsesServer([text_reply("a long story", pace=10), "short"]) as server:
        asyncio.run(go())


def test_a_caller_may_stop_listening_at_the_completion():
    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider())
        kept = []
        for _ in range(3):
            events = model.sample(request("hi"))
            kept.append(events)
            async for event in events:
                if isinstance(event, Completed):
                    break
        assert len(model._client._transport._pool.connections) == 1  # type: ignore[union-attr]
        for events in kept:
            await events.aclose()  # type: ignore[attr-defined]
        await model.close()

    with ResponsesServer(lambda _: "ok") as server:
        asyncio.run(go())
    assert len(server.requests) == 3


def test_cancelling_the_task_closes_the_connection():
    async def go() -> None:
        model = ResponsesModel(PROFILE, server.provider())
        task = asyncio.create_task(ask(model))
        await asyncio.to_thread(_until, lambda: bool(server.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(_until, lambda: len(server.abandoned) == 1)
        await model.close()

    with ResponsesServer([call_reply("slow", {}, delay=10)]) as server:
        asyncio.run(go())


def test_the_http_client_is_not_imported_before_it_is_needed():
    code = (
        "import sys, refold.model.responses, refold.testing; assert not {'httpx2', 'h11', 'anyio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
