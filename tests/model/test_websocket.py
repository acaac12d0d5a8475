"""ResponsesModel over a WebSocket, against a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from wsproto.events import BytesMessage, Ping

from refold.core.config import Config
from refold.core.history import Entry, entry
from refold.core.items import Item, function_call_output, message, user_message
from refold.core.profile import Profile, Provider
from refold.core.prompt import Prompt, prompt_from
from refold.core.wire import Identity, Request, Wire
from refold.errors import BadModelStream, ContextWindowExceeded, ModelError, ModelRefused, ModelUnavailable
from refold.model import Completed, FellBack, HasSecondWay, ItemDone, ModelEvent, ResponsesModel, websocket
from refold.model.events import CLOSED_EARLY, HIGH_DEMAND, TOO_MANY_REQUESTS
from refold.model.websocket import FALLING_BACK, IDLE_TIMEOUT, MOST_IDLE
from refold.session.clock import Clock
from refold.session.events import Event, Notice, SamplingStarted, Waiting
from refold.session.session import Session
from refold.testing import LoggedRequest, Reply, ResponsesServer, ScriptedModel, call_reply, text_reply, usage
from refold.testing.connection import Connection
from refold.testing.websocket import ServerSocket
from refold.tools import tool

PROFILE = Profile(slug="m")
TOOLS = ({"type": "function", "name": "look", "parameters": {"type": "object"}},)


class Talk:
    """A thread's requests as a session makes them. Mutable: its history grows."""

    def __init__(self, provider: Provider, *, thread_id: str = "t1", base: str | None = "Be terse.") -> None:
        self.wire = Wire(provider, PROFILE)
        self.history: list[Entry] = []
        self.thread_id = thread_id
        self.base = base

    def add(self, *items: Item) -> None:
        self.history += [entry(item, "a") for item in items]

    def request(self, kind: str = "turn", tools: tuple[dict[str, Any], ...] = TOOLS) -> Request:
        prompt: Prompt = prompt_from(self.history, PROFILE, base_instructions=self.base, tools=tools)
        return self.wire.request(prompt, Identity(thread_id=self.thread_id, turn_id="x", request_kind=kind))


async def ask(model: ResponsesModel, request: Request) -> list[ModelEvent]:
    return [event async for event in model.sample(request)]


async def ask_on(model: ResponsesModel, talk: Talk, *new: Item, **more: Any) -> list[ModelEvent]:
    """Ask with new items, and take what was answered into the history."""
    talk.add(*new)
    events = await ask(model, talk.request(**more))
    talk.add(*(event.item for event in events if isinstance(event, ItemDone)))
    return events


def over_websocket(server: ResponsesServer, **provider: Any) -> ResponsesModel:
    return ResponsesModel(PROFILE, server.provider(supports_websockets=True, **provider))


def run(replies: Any, go: Callable[[ResponsesModel], Awaitable[Any]], **settings: Any) -> ResponsesServer:
    """Give a model of a server with these replies to a test's own coroutine."""

    async def visit() -> None:
        model = over_websocket(server, **settings)
        try:
            await asyncio.wait_for(go(model), 20)
        finally:
            await model.close()

    with ResponsesServer(replies) as server:
        asyncio.run(visit())
    return server


def said(request: LoggedRequest) -> tuple[int, str | None, list[str]]:
    """A frame in short: its connection, what it goes on from, and the types of its items."""
    kinds = [item.get("role") or item["type"] for item in request.input]
    return request.connection, request.json.get("previous_response_id"), kinds


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- only what is new is said ---------------------------------------------------------------------------------------


def test_a_thread_warms_up_and_then_says_only_what_is_new():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        await ask_on(model, talk, function_call_output("c1", "seen", id="fco_1"))
        await ask_on(model, talk, user_message("more", id="msg_2"))

    server = run([call_reply("look", {}, "c1"), "ok", "ok"], go)
    assert [said(request) for request in server.requests] == [
        (1, None, ["developer"]),
        (1, "resp_warm", ["user"]),
        (1, "resp_1", ["function_call_output"]),
        (1, "resp_2", ["user"]),
    ]
    assert [request.json.get("generate") for request in server.requests] == [False, None, None, None]
    assert all(request.json["tools"] == list(TOOLS) for request in server.requests)
    assert all(
        request.transport == "websocket" and request.json["type"] == "response.create" for request in server.requests
    )


def test_what_the_provider_holds_and_what_is_said_make_up_the_request_that_http_would_send():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        for number in range(3):
            await ask_on(model, talk, user_message(f"hi {number}", id=f"msg_{number}"))
            whole.append(json.loads(talk.request().body())["input"])

    whole: list[list[Item]] = []
    server = run(["one", "two", "three"], go)
    held: list[Item] = []
    for number, request in enumerate(server.requests):
        held += request.input
        if number:
            held += [
                {
                    "type": "message",
                    "id": f"msg_{number}_0",
                    **message("assistant", [["one", "two", "three"][number - 1]]),
                }
            ]
            assert held == whole[number - 1]


def test_openai_itself_is_sent_metadata_and_only_what_is_new_all_the_same():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        about = {"internal_chat_message_metadata_passthrough": {"turn_id": "t"}}
        talk.add({**user_message("hi", id="msg_1"), **about})
        events = await ask(model, talk.request())
        talk.add(*({**event.item, **about} for event in events if isinstance(event, ItemDone)))
        await ask_on(model, talk, user_message("more", id="msg_2"))

    server = run(["ok", "ok"], go, name="OpenAI")
    assert said(server.requests[-1]) == (1, "resp_1", ["user"])
    assert "internal_chat_message_metadata_passthrough" in server.requests[1].input[0]


def test_an_item_that_came_without_an_id_is_known_again_by_its_content():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        talk.add(user_message("hi", id="msg_1"))
        events = await ask(model, talk.request())
        talk.add(*({**event.item, "id": "msg_ours"} for event in events if isinstance(event, ItemDone)))
        await ask_on(model, talk, user_message("more", id="msg_2"))

    server = run([Reply(items=({**message("assistant", ["ok"]), "id": None},)), "ok"], go)
    assert said(server.requests[-1]) == (1, "resp_1", ["user"])


def _edited(talk: Talk) -> None:
    talk.history[-1] = entry({**talk.history[-1].item, "content": "edited"}, "a")


CHANGES: dict[str, Callable[[Talk], Any]] = {
    "an answer that is not kept": lambda talk: talk.history.pop(),
    "an answer that was edited": _edited,
    "an earlier item that is another": lambda talk: talk.history.__setitem__(
        0, entry(user_message("x", id="msg_x"), "a")
    ),
    "other base instructions": lambda talk: setattr(talk, "base", "Be verbose."),
    "another history": lambda talk: talk.history.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_provider_does_not_hold_exactly_is_said_whole_over_the_same_connection(change: str):
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        CHANGES[change](talk)
        talk.add(user_message("more", id="msg_2"))
        whole = talk.request()
        await ask(model, whole)
        expected.append(json.loads(whole.body())["input"])

    expected: list[list[Item]] = []
    server = run(["ok", "ok"], go)
    last = server.requests[-1]
    assert (last.connection, last.json.get("previous_response_id"), last.input) == (1, None, expected[0])


def test_other_tools_are_said_with_everything():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        await ask_on(model, talk, user_message("more", id="msg_2"), tools=())

    server = run(["ok", "ok"], go)
    assert said(server.requests[-1]) == (1, None, ["developer", "user", "assistant", "user"])


def test_the_same_again_is_said_whole():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        await ask(model, talk.request())

    assert said(run(["ok", "ok"], go).requests[-1]) == (1, None, ["developer", "user", "assistant"])


def test_a_request_that_no_wire_made_is_sent_whole_each_time():
    async def go(model: ResponsesModel) -> None:
        part = json.dumps(user_message("hi")).encode()
        for _ in range(2):
            await ask(model, Request(head=b'{"model":"m","input":[', parts=(part,), tail=b"]}", items=1))

    server = run(["ok", "ok"], go)
    assert [said(request) for request in server.requests] == [(1, None, ["user"])] * 2
    assert server.requests[0].json == {"type": "response.create", "model": "m", "input": [user_message("hi")]}


def test_without_base_instructions_there_is_nothing_to_warm_up_with():
    async def go(model: ResponsesModel) -> None:
        await ask_on(model, Talk(model.provider, base=None), user_message("hi", id="msg_1"))

    assert [said(request) for request in run(["ok"], go).requests] == [(1, None, ["user"])]


def test_a_large_request_and_any_text_arrive_whole():
    text = "é世🚀" + "x" * 3_000_000

    async def go(model: ResponsesModel) -> None:
        await ask_on(model, Talk(model.provider), user_message(text, id="msg_1"))

    assert run(["ok"], go).requests[-1].input[0]["content"][0]["text"] == text


def test_frames_are_compressed_where_the_provider_takes_that():
    async def go() -> None:
        model = over_websocket(server)
        talk = Talk(model.provider)
        for number in range(3):
            await ask_on(model, talk, user_message("hi " * 1000, id=f"msg_{number}"))
        await model.close()

    accept = Reply(headers={"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits=12"})
    with ResponsesServer(["a", text_reply("b" * 100_000), "c"], handshakes=[accept]) as server:
        asyncio.run(go())
    assert len(server.requests) == 4
    assert {request.connection for request in server.requests} == {1}


# --- one connection for each thread ---------------------------------------------------------------------------------


def test_a_summary_is_asked_for_over_a_second_connection_which_the_thread_keeps():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        await ask(model, talk.request("compaction", tools=()))
        assert len(pool(model)) == 1
        talk.history.clear()
        await ask_on(model, talk, user_message("summary", id="msg_2"))
        await ask_on(model, talk, user_message("more", id="msg_3"))

    server = run(["ok", "SUMMARY", "ok", "ok"], go)
    assert [said(request) for request in server.requests[2:]] == [
        (2, None, ["developer", "user", "assistant"]),
        (2, None, ["developer", "user"]),
        (2, "resp_3", ["user"]),
    ]


def test_a_request_for_a_summary_that_only_adds_goes_on_where_the_thread_stands():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        await ask_on(model, talk, user_message("sum up", id="msg_2"), kind="compaction")

    assert said(run(["ok", "SUMMARY"], go).requests[-1]) == (1, "resp_1", ["user"])


def test_threads_that_share_a_model_have_their_own_connections():
    async def go(model: ResponsesModel) -> None:
        talks = [Talk(model.provider, thread_id=name) for name in ("one", "two")]
        for _ in range(2):
            await asyncio.gather(*(ask_on(model, talk, user_message("hi")) for talk in talks))

    server = run(lambda _: "ok", go)
    assert len(server.handshakes) == 2
    for number in (1, 2):
        mine = [request for request in server.requests if request.connection == number]
        assert len({request.json["prompt_cache_key"] for request in mine}) == 1
        assert [request.json.get("previous_response_id") is None for request in mine] == [True, False, False]


def test_two_requests_of_one_thread_at_once_do_not_meet():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        talk.add(user_message("hi", id="msg_1"))
        answers = await asyncio.gather(*(ask(model, talk.request()) for _ in range(3)))
        assert all(isinstance(events[-1], Completed) for events in answers)
        assert len(pool(model)) == 1

    assert len(run(lambda _: text_reply("ok", pace=0.002), go).handshakes) == 3


def pool(model: ResponsesModel) -> list[Any]:
    """The model's open connections."""
    return model._client._transport._pool.connections  # type: ignore[union-attr]


async def something_came(model: ResponsesModel) -> None:
    """Until something lies on the idle connection of thread t1."""
    socket = model._links.get("t1")._socket  # type: ignore[union-attr]
    assert socket is not None
    await asyncio.to_thread(
        until, lambda: socket._messages or socket._end or socket._stream.get_extra_info("is_readable")
    )


def test_only_so_many_connections_wait_for_their_threads():
    async def go(model: ResponsesModel) -> None:
        for number in range(MOST_IDLE + 4):
            await ask_on(model, Talk(model.provider, thread_id=f"t{number}", base=None), user_message("hi"))
        assert len(pool(model)) == MOST_IDLE + 1

    run(lambda _: "ok", go)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
def test_a_model_can_be_closed_and_used_again_and_in_another_event_loop_and_leaves_no_socket():
    def sockets() -> int:
        return sum(str(fd.readlink()).startswith("socket:") for fd in Path("/proc/self/fd").iterdir() if fd.exists())

    before = sockets()
    with ResponsesServer(lambda _: "ok") as server:
        model = over_websocket(server)
        talk = Talk(model.provider)

        async def twice() -> None:
            for _ in range(2):
                await ask_on(model, talk, user_message("hi"))
                await model.close()

        asyncio.run(twice())
        asyncio.run(twice())
    assert len(server.handshakes) == 4
    assert not server.abandoned
    assert sockets() == before


# --- connections that end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["request", 0, 3, "partial_item", "items"])
def test_a_close_in_the_middle_is_a_broken_stream_and_the_next_request_says_everything(cut: Any):
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        talk.add(user_message("more", id="msg_2"))
        seen: list[ModelEvent] = []
        with pytest.raises(BadModelStream, match=f"^{CLOSED_EARLY}$"):
            async for event in model.sample(talk.request()):
                seen.append(event)
        assert any(isinstance(event, ItemDone) for event in seen) is (cut == "items")
        await ask(model, talk.request())

    server = run(["ok", text_reply("PARTIAL", cut_after=cut), "ok"], go)
    assert said(server.requests[-1]) == (2, None, ["developer", "user", "assistant", "user"])
    assert [request.json.get("generate") for request in server.requests] == [False, None, None, None]


def test_a_connection_that_was_closed_while_nobody_asked_is_replaced_without_a_word():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        await ask_on(model, talk, user_message("hi", id="msg_1"))
        await something_came(model)
        await ask_on(model, talk, user_message("more", id="msg_2"))

    server = run([text_reply("ok", cut_after=100), "ok"], go)
    assert said(server.requests[-1]) == (2, None, ["developer", "user", "assistant", "user"])


@pytest.mark.parametrize("code", ["previous_response_not_found", "websocket_connection_limit_reached"])
def test_an_error_frame_about_the_connection_is_a_broken_stream(code: str):
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        talk.add(user_message("hi", id="msg_1"))
        with pytest.raises(BadModelStream, match=r"^stream disconnected before completion: no$"):
            await ask(model, talk.request())
        await ask(model, talk.request())

    frame = {"status": 400, "error": {"type": "invalid_request_error", "code": code, "message": "no"}}
    server = run([Reply(error=frame), "ok"], go)
    assert said(server.requests[-1]) == (2, None, ["developer", "user"])


def error_of(reply: Reply, **settings: Any) -> ModelError:
    """What a model raises for this reply over a WebSocket."""
    raised: list[ModelError] = []

    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        talk.add(user_message("hi", id="msg_1"))
        with pytest.raises(ModelError) as caught:
            await ask(model, talk.request())
        raised.append(caught.value)
        assert not pool(model), "only a completed response leaves a connection behind"

    run([reply], go, **settings)
    return raised[0]


def test_an_error_frame_with_a_status_means_what_that_status_means_over_http():
    limited = error_of(Reply(status=429, body={"error": {"message": "slow"}}, headers={"Retry-After": "3"}))
    assert isinstance(limited, ModelUnavailable)
    assert (str(limited), limited.retry_after, limited.status) == (TOO_MANY_REQUESTS, 3.0, 429)
    failed = error_of(Reply(status=500, body={"error": {"message": "boom"}}))
    assert isinstance(failed, ModelUnavailable)
    assert (str(failed), failed.request_level) == (HIGH_DEMAND, True)
    full = error_of(Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}}))
    assert isinstance(full, ContextWindowExceeded)
    refused = error_of(Reply(status=400, body={"error": {"code": "odd", "message": "no"}}))
    assert isinstance(refused, ModelRefused)
    assert (refused.code, refused.status) == ("odd", 400)


def test_other_ends_mean_what_they_mean_over_http():
    assert str(error_of(Reply(error={"code": "server_error", "message": "boom"}))) == "error: boom"
    assert isinstance(error_of(Reply(fail={"code": "context_length_exceeded"})), ContextWindowExceeded)
    assert "max_output_tokens" in str(error_of(Reply(incomplete="max_output_tokens")))


def test_silence_times_out():
    started = time.monotonic()
    error = error_of(text_reply("hi", stall=5.0), stream_idle_timeout_ms=150)
    assert (type(error), str(error)) == (BadModelStream, IDLE_TIMEOUT)
    assert 0.1 < time.monotonic() - started < 2


def test_closing_the_iterator_early_closes_the_connection_and_the_model_can_be_asked_again():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        talk.add(user_message("hi", id="msg_1"))
        events = model.sample(talk.request())
        await anext(events)
        await events.aclose()
        assert not pool(model)
        assert isinstance((await ask(model, talk.request()))[-1], Completed)

    server = run([text_reply("a long story", pace=10), "short"], go)
    assert len(server.abandoned) == 1


def test_a_caller_may_stop_listening_at_the_completion():
    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        for number in range(3):
            talk.add(user_message("hi", id=f"msg_{number}"))
            async for event in model.sample(talk.request()):
                if isinstance(event, ItemDone):
                    talk.add(event.item)
                if isinstance(event, Completed):
                    break

    server = run(lambda _: "ok", go)
    assert [request.json.get("previous_response_id") for request in server.requests[1:]] == [
        "resp_warm",
        "resp_1",
        "resp_2",
    ]


# --- handshakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [307, 401, 403, 404, 429, 500, 503])
def test_a_refused_handshake_is_the_error_that_a_refused_request_is_over_http(status: int):
    refusal = Reply(status=status, body={"error": {"message": "no: sk-secret"}}, headers={"Retry-After": "2"})

    async def fails(model: ResponsesModel) -> ModelError:
        talk = Talk(model.provider)
        talk.add(user_message("hi", id="msg_1"))
        with pytest.raises(ModelError) as raised:
            await ask(model, talk.request())
        await model.close()
        return raised.value

    def facts(error: ModelError) -> Any:
        return type(error), str(error), vars(error)

    with ResponsesServer([refusal], handshakes=[refusal]) as server:
        models = [
            ResponsesModel(PROFILE, server.provider(supports_websockets=way, env_key="MY_KEY"), api_key="sk-secret")
            for way in (True, False)
        ]
        one, other = (asyncio.run(fails(model)) for model in models)
    assert facts(one) == facts(other)
    assert "sk-secret" not in str(facts(one))
    assert server.handshakes[0].header("authorization") == "Bearer sk-secret"
    assert [request.transport for request in server.requests] == ["http"]


def test_the_key_is_in_no_error_frame():
    reply = Reply(status=401, body={"error": {"message": "wrong key: sk-secret"}})

    async def go() -> ModelError:
        model = ResponsesModel(PROFILE, server.provider(supports_websockets=True, env_key="K"), api_key="sk-secret")
        talk = Talk(model.provider)
        talk.add(user_message("hi", id="msg_1"))
        with pytest.raises(ModelRefused) as raised:
            await ask(model, talk.request())
        await model.close()
        return raised.value

    with ResponsesServer([reply]) as server:
        error = asyncio.run(go())
    assert "check the API key in K (wrong key: ***)" in str(error)


def test_a_handshake_carries_the_configured_headers_and_query_and_adds_to_a_configured_beta():
    async def go(model: ResponsesModel) -> None:
        await ask_on(model, Talk(model.provider), user_message("hi", id="msg_1"))

    server = run(["ok"], go, http_headers={"X-A": "b", "OpenAI-Beta": "other=1"}, query_params={"v": "1"})
    (handshake,) = server.handshakes
    assert handshake.path == "/v1/responses?v=1"
    assert (handshake.header("x-a"), handshake.header("thread-id")) == ("b", "t1")
    assert handshake.header("openai-beta") == "other=1, responses_websockets=2026-02-06"


def test_nobody_there_is_a_request_level_failure_that_names_the_url():
    with ResponsesServer([]) as server:
        provider = server.provider(supports_websockets=True)

    async def go() -> None:
        model = ResponsesModel(PROFILE, provider)
        with pytest.raises(ModelUnavailable, match=f"cannot reach {provider.base_url}: Connection refused") as raised:
            await ask(model, Talk(provider).request())
        assert raised.value.request_level
        await model.close()

    asyncio.run(go())


# --- a server that says what none should ----------------------------------------------------------------------------

Serve = Callable[[ServerSocket], Awaitable[None]]
CREATED = '{"type":"response.created","response":{"id":"r"}}'
COMPLETED = '{"type":"response.completed","response":{"id":"r"}}'


def with_server(serve: Serve, go: Callable[[ResponsesModel], Awaitable[Any]], **provider: Any) -> int:
    """Visit a server whose side of each WebSocket is a test's own; how many there were."""
    count = 0

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        connection = Connection(reader, writer)
        try:
            request = await connection.next_request()
            assert request is not None
            websocket = await connection.upgrade(request, Reply())
            count += 1
            await serve(websocket)
            await websocket.flush()
        except ConnectionError:
            pass
        finally:
            await connection.close()

    async def visit() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            model = ResponsesModel(
                PROFILE, Provider(name="x", base_url=url, env_key=None, supports_websockets=True, **provider)
            )
            try:
                await asyncio.wait_for(go(model), 10)
            finally:
                await model.close()

    asyncio.run(visit())
    return count


def test_pings_fragments_bytes_and_nonsense_are_taken_as_they_come():
    async def serve(websocket: ServerSocket) -> None:
        while await websocket.next_text() is not None:
            websocket._push(Ping(b"x"))
            websocket.push(CREATED[:20], finished=False)
            websocket.push(CREATED[20:])
            for text in ("[]", "no json", '{"type":"new"}', '{"type":"response.output_text.delta","delta":"\\ud800"}'):
                websocket.push(text)
            websocket._push(BytesMessage(COMPLETED.encode()))
            await websocket.flush()

    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        for _ in range(2):
            events = await ask(model, talk.request())
            assert [type(event).__name__ for event in events] == ["ResponseStarted", "TextDelta", "Completed"]
            talk.add(user_message("hi"))

    assert with_server(serve, go) == 1


def test_a_refused_warm_up_is_asked_again_after_without_it():
    async def serve(websocket: ServerSocket) -> None:
        while (text := await websocket.next_text()) is not None:
            frames.append(json.loads(text))
            refusal = {"type": "error", "status": 400, "error": {"message": "unknown parameter: generate"}}
            websocket.push(json.dumps(refusal) if "generate" in frames[-1] else COMPLETED)
            await websocket.flush()

    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        with pytest.raises(BadModelStream, match=r"the warm-up was refused: .*unknown parameter: generate"):
            await ask(model, talk.request())
        await ask(model, talk.request())

    frames: list[Any] = []
    assert with_server(serve, go) == 2
    assert ["generate" in frame for frame in frames] == [True, False]


def test_a_connection_that_was_silent_for_long_must_answer_a_ping(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(websocket, "PONG_SECONDS", 0.4)
    done = asyncio.Event()

    async def serve(websocket: ServerSocket) -> None:
        greeted.append(websocket)
        for _ in range(3 if len(greeted) == 1 else 9):
            if await websocket.next_text() is None:
                return
            websocket.push(COMPLETED)
            await websocket.flush()
        await done.wait()  # reads no more, and answers no ping

    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider)
        for number in range(3):
            await ask_on(model, talk, user_message("hi", id=f"msg_{number}"))
            await asyncio.sleep(0.06)
        done.set()

    greeted: list[ServerSocket] = []
    assert with_server(serve, go) == 2


def test_what_came_while_nobody_asked_is_no_answer_to_the_next_request():
    async def serve(websocket: ServerSocket) -> None:
        while await websocket.next_text() is not None:
            websocket.push(COMPLETED)
            websocket.push('{"type":"response.completed","response":{"id":"late"}}')
            await websocket.flush()

    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider, base=None)
        for _ in range(2):
            assert await ask_on(model, talk, user_message("hi")) == [Completed("r")]
            await something_came(model)

    assert with_server(serve, go) == 1


def test_an_error_that_came_while_nobody_asked_ends_the_connection():
    async def serve(websocket: ServerSocket) -> None:
        while await websocket.next_text() is not None:
            websocket.push(COMPLETED)
            await websocket.flush()
            websocket.push('{"type":"error","error":{"code":"websocket_connection_limit_reached"}}')
            await websocket.flush()

    async def go(model: ResponsesModel) -> None:
        talk = Talk(model.provider, base=None)
        await ask_on(model, talk, user_message("hi"))
        await something_came(model)
        await ask_on(model, talk, user_message("hi"))

    assert with_server(serve, go) == 2


def test_an_answer_to_another_key_is_no_websocket():
    async def go() -> None:
        model = over_websocket(server)
        with pytest.raises(
            ModelUnavailable, match="opened no usable WebSocket: the handshake was answered for another"
        ):
            await ask(model, Talk(model.provider).request())
        assert not pool(model)
        await model.close()

    with ResponsesServer([], handshakes=[Reply(headers={"sec-websocket-accept": "other"})]) as server:
        asyncio.run(go())


# --- in a session ---------------------------------------------------------------------------------------------------


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


@tool
def look() -> str:
    """Look."""
    return "seen"


def converse(
    server: ResponsesServer,
    folder: Path,
    *texts: str,
    clock: Clock | None = None,
    limit: int | None = None,
    **more: Any,
) -> list[Event]:
    """The events of one session's turns; an error ends it and is the last."""

    async def go() -> None:
        config = Config(model_auto_compact_token_limit=limit)
        model = ResponsesModel(config.profile(PROFILE), server.provider(supports_websockets=True, **more))
        async with Session.start(
            model=model, tools=[look], cwd=folder, home=folder / "home", config=config, clock=clock or Hasty()
        ) as session:
            for text in texts:
                async for event in session.send(text):
                    events.append(event)

    events: list[Event] = []
    try:
        asyncio.run(asyncio.wait_for(go(), 20))
    except ModelError as error:
        events.append(error)  # type: ignore[arg-type]
    return events


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def test_a_turn_goes_on_over_a_new_connection_a_fifth_of_a_second_after_a_close(tmp_path: Path):
    script = [call_reply("look", {}, "c1"), Reply(cut_after="items"), "done", "again"]
    with ResponsesServer(script) as server:
        events = converse(server, tmp_path, "hi", "more", clock=Clock())
    (waiting,) = [event for event in events if isinstance(event, Waiting)]
    assert (waiting.level, waiting.attempt) == ("stream", 1)
    assert waiting.seconds == pytest.approx(0.2, rel=0.11)
    short = [said(request)[:2] for request in server.requests]
    assert short == [(1, None), (1, "resp_warm"), (1, "resp_1"), (2, None), (2, "resp_3")]
    assert not notices(events)


def test_426_means_http_for_the_session_and_is_said_once(tmp_path: Path):
    refusal = Reply(status=426, body={"error": {"message": "use POST"}})
    with ResponsesServer([call_reply("look", {}, "c1"), "ok", "ok"], handshakes=[refusal]) as server:
        events = converse(server, tmp_path, "hi", "more")
    (notice,) = notices(events)
    assert notice.startswith(f"{FALLING_BACK} 426 Upgrade Required from {server.url}")
    assert [request.transport for request in server.requests] == ["http"] * 3
    assert "previous_response_id" not in server.requests[-1].json
    assert len(server.handshakes) == 1
    assert not [event for event in events if isinstance(event, Waiting)]


def test_used_up_retries_mean_http_with_new_retries(tmp_path: Path):
    cut, failed = Reply(cut_after="items"), Reply(status=500)
    with ResponsesServer([cut, cut, cut, failed, cut, "ok", "ok"]) as server:
        events = converse(server, tmp_path, "hi", "more", stream_max_retries=2, request_max_retries=1)
    assert notices(events) == [f"{FALLING_BACK} {CLOSED_EARLY}"]
    transports = [request.transport for request in server.requests if not request.is_warm_up]
    assert transports == ["websocket"] * 3 + ["http"] * 4
    waits = [(event.level, event.attempt) for event in events if isinstance(event, Waiting)]
    assert waits == [("stream", 1), ("stream", 2), ("request", 1), ("stream", 1)]


def test_where_http_helps_as_little_the_turn_fails_as_it_would_over_http(tmp_path: Path):
    with ResponsesServer(lambda _: Reply(status=500)) as server:
        events = converse(server, tmp_path, "hi", stream_max_retries=1, request_max_retries=1)
    assert str(events[-1]) == HIGH_DEMAND
    assert len(notices(events)) == 1
    assert [request.transport for request in server.requests if not request.is_warm_up] == ["websocket"] * 4 + [
        "http"
    ] * 4


def test_a_quota_that_is_used_up_is_not_tried_in_the_second_way(tmp_path: Path):
    with ResponsesServer([Reply(status=429, body={"error": {"code": "insufficient_quota"}})]) as server:
        events = converse(server, tmp_path, "hi")
    assert "quota exceeded" in str(events[-1])
    assert not notices(events)


def test_a_request_for_a_summary_falls_back_too(tmp_path: Path):
    big = call_reply("look", {}, "c1", usage=usage(9_000, 10))
    with ResponsesServer([big, Reply(cut_after="items"), "SUMMARY", "done"]) as server:
        events = converse(server, tmp_path, "hi", limit=8_000, stream_max_retries=0, request_max_retries=0)
    assert notices(events) == [f"{FALLING_BACK} {CLOSED_EARLY}"]
    kinds = [event.kind for event in events if isinstance(event, SamplingStarted)]
    assert kinds == ["turn", "compaction", "compaction", "turn"]
    assert [request.transport for request in server.requests[2:]] == ["websocket", "http", "http"]


def test_an_interrupted_turn_closes_its_connection_and_the_next_says_everything(tmp_path: Path):
    async def go() -> None:
        async with Session.start(model=over_websocket(server), cwd=tmp_path, home=tmp_path / "home") as session:
            turn = session.send("hi")
            await asyncio.to_thread(until, lambda: len(server.requests) == 2)
            session.interrupt()
            assert (await turn).outcome == "interrupted"
            await asyncio.to_thread(until, lambda: len(server.abandoned) == 1)
            assert (await session.send("more")).text == "short"

    with ResponsesServer([text_reply("a long story", stall=10), "short"]) as server:
        asyncio.run(asyncio.wait_for(go(), 20))
    assert said(server.requests[-1])[:2] == (2, None)
    assert len(server.requests) == 3


def test_sessions_that_share_a_model_keep_their_connections_when_one_leaves(tmp_path: Path):
    async def go() -> None:
        model = over_websocket(server)
        homes = [tmp_path / name for name in ("a", "b")]
        async with Session.start(model=model, cwd=tmp_path, home=homes[0]) as one:
            await one.send("hi")
            async with Session.start(model=model, cwd=tmp_path, home=homes[1]) as other:
                await other.send("hi")
            await one.send("more")
        assert model._client is None

    with ResponsesServer(lambda _: "ok") as server:
        asyncio.run(go())
    assert [said(request)[:2] for request in server.requests] == [
        (1, None),
        (1, "resp_warm"),
        (2, None),
        (2, "resp_warm"),
        (1, "resp_1"),
    ]


# --- the seam -------------------------------------------------------------------------------------------------------


def test_a_model_says_whether_it_has_a_second_way():
    model = ResponsesModel(PROFILE, Provider(env_key=None))
    assert isinstance(model, HasSecondWay)
    assert not isinstance(ScriptedModel([]), HasSecondWay)
    assert not model.fall_back("t1"), "over HTTP already"


def test_over_http_it_tells_of_no_fall_back():
    async def go() -> list[ModelEvent]:
        model = ResponsesModel(PROFILE, server.provider())
        events = await ask(model, Talk(model.provider).request())
        await model.close()
        return events

    with ResponsesServer(["ok"]) as server:
        assert not any(isinstance(event, FellBack) for event in asyncio.run(go()))
    assert server.requests[0].transport == "http"


def test_http_imports_nothing_of_it():
    code = (
        "import asyncio, sys\n"
        "from refold.core.profile import Profile, Provider\n"
        "from refold.core.wire import Request\n"
        "from refold.model import ResponsesModel\n"
        "async def go():\n"
        "    model = ResponsesModel(Profile(slug='m'), Provider(base_url=sys.argv[1], env_key=None))\n"
        "    async for _ in model.sample(Request(head=b'{\"input\":[', parts=(), tail=b']}', items=0)): pass\n"
        "    await model.close()\n"
        "asyncio.run(go())\n"
        "assert not {'wsproto', 'refold.model.websocket', 'refold.model.frames'} & set(sys.modules)\n"
    )
    with ResponsesServer(["ok"]) as server:
        subprocess.run([sys.executable, "-c", code, server.url], check=True, timeout=30)
