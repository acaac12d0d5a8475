"""ChatModel against a real server on loopback that has Chat Completions only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.core.chat_completions_settings import ChatSettings
from refold.core.config import parse_config
from refold.core.items import Item
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
from refold.model import (
    ArgumentsDelta,
    ChatModel,
    Completed,
    ItemDone,
    ItemStarted,
    ModelEvent,
    ReasoningDelta,
    ResponseStarted,
    TextDelta,
)
from refold.session.session import Session
from refold.testing import Reply, call_reply, text_reply, usage
from refold.testing.chat_server import ChatServer
from refold.tools import tool

PROFILE = Profile(slug="m")
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
LENGTHY = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"


def request(*items: Item, **more: Any) -> Request:
    parts = tuple(map(msgspec.json.encode, items or ({"type": "message", "role": "user", "content": "hi"},)))
    tail = msgspec.json.encode({"tools": [TOOL], **more})
    return Request(
        head=b'{"model":"m","stream":true,"input":[',
        parts=parts,
        tail=b"]," + tail[1:],
        items=len(parts),
    )


async def ask(model: ChatModel, what: Request | None = None) -> list[ModelEvent]:
    return [event async for event in model.sample(what or request())]


def run(replies: Any, what: Request | None = None, **provider: Any) -> tuple[list[ModelEvent], ChatServer]:
    """One sample of a server with this script."""

    async def go() -> list[ModelEvent]:
        model = ChatModel(PROFILE, server.provider(**provider))
        try:
            return await ask(model, what)
        finally:
            await model.close()

    with ChatServer(replies) as server:
        return asyncio.run(go()), server


def failure(*replies: Any, **provider: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        run(replies, **provider)
    return caught.value


def done(events: list[ModelEvent]) -> list[Item]:
    return [event.item for event in events if isinstance(event, ItemDone)]


# --- one sample ---------------------------------------------------------------------------------------------------


def test_an_answer_streams_as_the_events_of_any_model() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    reply = text_reply("Hello", usage=usage(9, 4, cached=5, reasoning=1))
    events, server = run([Reply(items=(thought, *reply.items), usage=reply.usage)])
    assert isinstance(events[0], ResponseStarted)
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hm"
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello"
    assert [item["type"] for item in done(events)] == ["reasoning", "message"]
    assert isinstance(events[-1], Completed)
    assert events[-1].usage == Usage(
        input_tokens=9, cached_input_tokens=5, output_tokens=4, reasoning_output_tokens=1, total_tokens=13
    )
    asked = server.requests[0]
    assert asked.path == "/v1/chat/completions"
    assert asked.json["messages"] == [{"role": "user", "content": "hi"}]
    assert asked.json["stream_options"] == {"include_usage": True}


def test_a_call_streams_and_comes_back_with_the_servers_id() -> None:
    events, _ = run([call_reply("look", {"at": "x"}, "call_a")])
    assert any(isinstance(event, ItemStarted) and event.item["name"] == "look" for event in events)
    assert "".join(event.text for event in events if isinstance(event, ArgumentsDelta)) == '{"at": "x"}'
    assert [(item["call_id"], item["arguments"]) for item in done(events)] == [("call_a", '{"at": "x"}')]


def test_a_server_that_tells_no_usage_completes_all_the_same() -> None:
    events, _ = run([text_reply("x", usage=None)])
    assert isinstance(events[-1], Completed)
    assert events[-1].usage is None


def test_the_providers_chat_settings_spell_the_request() -> None:
    settings = ChatSettings(max_tokens_as="max_completion_tokens", leave_out=("stream_options",))
    _, server = run(["x"], request(max_output_tokens=5), chat=settings)
    body = server.requests[0].json
    assert body["max_completion_tokens"] == 5
    assert "stream_options" not in body


def test_what_could_not_be_told_stands_in_left_out() -> None:
    async def go() -> tuple[str, ...]:
        model = ChatModel(PROFILE, server.provider())
        await ask(model, request(prompt_cache_key="k"))
        await model.close()
        return model.left_out

    with ChatServer(["x"]) as server:
        assert asyncio.run(go()) == ("key 'prompt_cache_key': only the Responses API has it",)


def test_a_connection_is_used_again() -> None:
    async def go() -> set[Any]:
        model, used = ChatModel(PROFILE, server.provider()), set[Any]()
        for _ in range(3):
            await ask(model)
            used.update(model._client._transport._pool.connections)  # type: ignore[union-attr]
        await model.close()
        return used

    with ChatServer(["a", "b", "c"]) as server:
        assert len(asyncio.run(go())) == 1


def test_the_servers_own_chunks_are_read() -> None:
    chunks = [{"choices": [{"delta": {"content": "hi"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    events, _ = run([Reply(body=chunks)])  # it never says [DONE]
    assert [item["content"][0]["text"] for item in done(events)] == ["hi"]
    assert isinstance(events[-1], Completed)


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "limit"),
    [
        (400, {"error": {"message": LENGTHY, "code": "context_length_exceeded"}}, 4096),
        (400, {"object": "error", "message": LENGTHY, "type": "BadRequestError", "param": None, "code": 400}, 4096),
        (400, {"error": {"message": LENGTHY, "type": "BadRequestError", "param": None, "code": 400}}, 4096),
        (
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size, try increasing it",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 9,
                    "n_ctx": 512,
                }
            },
            512,
        ),
        (400, {"error": "the input length exceeds the context length"}, None),
        (422, {"detail": LENGTHY}, 4096),
    ],
    ids=["openai", "vllm-old", "vllm", "llama.cpp", "ollama", "fastapi"],
)
def test_an_overflow_is_one_however_a_server_says_it(status: int, body: Any, limit: int | None) -> None:
    error = failure(Reply(status=status, body=body))
    assert isinstance(error, ContextWindowExceeded)
    assert error.limit == limit


def test_an_overflow_in_the_stream_is_one_too() -> None:
    error = failure(Reply(body=[{"error": {"message": LENGTHY, "code": 400}}, "[DONE]"]))
    assert isinstance(error, ContextWindowExceeded)
    assert error.limit == 4096


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"message": "slow down", "code": 429}}, ModelUnavailable),
        ({"error": {"message": "no such tool", "code": 400}}, ModelRefused),
        ({"object": "error", "message": "no such tool", "code": 400}, ModelRefused),
        ({"error": "engine died"}, ModelUnavailable),
    ],
)
def test_an_error_in_the_stream_has_the_kind_that_it_has_at_its_begin(error: Any, kind: type[ModelError]) -> None:
    assert type(failure(Reply(body=[error]))) is kind


def test_what_came_before_the_end_of_a_cut_answer_is_told() -> None:
    async def go() -> tuple[list[ModelEvent], ModelError]:
        events: list[ModelEvent] = []
        model = ChatModel(PROFILE, server.provider())
        with pytest.raises(ResponseIncomplete) as caught:
            async for event in model.sample(request()):
                events.append(event)
        await model.close()
        return events, caught.value

    with ChatServer([text_reply("half", incomplete="max_output_tokens")]) as server:
        events, error = asyncio.run(go())
    assert [item["status"] for item in done(events)] == ["incomplete"]
    assert isinstance(error, ResponseIncomplete)
    assert error.usage is not None


@pytest.mark.parametrize("cut", ["items", "partial_item", 2])
def test_a_broken_stream_is_worth_repeating(cut: Any) -> None:
    assert isinstance(failure(text_reply("hello", cut_after=cut)), BadModelStream)


def test_a_stream_that_ends_in_order_but_too_early_is_worth_repeating() -> None:
    error = failure(Reply(body=[{"choices": [{"delta": {"content": "half"}}]}]))
    assert isinstance(error, BadModelStream)


def test_a_silent_stream_is_given_up() -> None:
    error = failure(text_reply("hello", stall=5.0), stream_idle_timeout_ms=100)
    assert isinstance(error, BadModelStream)
    assert "idle" in str(error)


def test_a_wrong_address_is_told_in_this_apis_words() -> None:
    error = failure(Reply(status=404))
    assert isinstance(error, ModelRefused)
    assert error.status == 404
    assert "is there a Chat Completions API at this base URL?" in str(error)


def test_a_page_instead_of_a_stream_is_refused() -> None:
    error = failure(Reply(headers={"content-type": "text/html"}, body=["x"]))
    assert isinstance(error, ModelRefused)
    assert "text/html" in str(error)


def test_it_does_not_compact() -> None:
    with pytest.raises(ModelRefused) as caught:
        asyncio.run(ChatModel(PROFILE, Provider(wire_api="chat")).compact(request()))
    assert caught.value.status == 404


# --- settings ---------------------------------------------------------------------------------------------------------


def provider_from(**table: Any) -> Provider:
    document = {
        "model_provider": "p",
        "model_providers": {"p": {"base_url": "http://h/v1", "wire_api": "chat", **table}},
    }
    return parse_config(document, "config.toml").provider({})


def test_a_provider_may_have_chat_completions_only() -> None:
    provider = provider_from(chat={"reasoning_as": "reasoning_content", "keep": ["seed"]})
    assert provider.wire_api == "chat"
    assert provider.chat == ChatSettings(reasoning_as="reasoning_content", keep=("seed",))


def test_such_a_provider_is_never_asked_to_compact() -> None:
    assert not provider_from(name="OpenAI").compacts
    assert not provider_from(base_url="https://x.openai.azure.com/v1").compacts


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"chat": {"developer_rol": "user"}}, "chat.developer_rol"),
        ({"chat": {"developer_role": "tool"}}, "p"),
        ({"chat": 5}, "chat"),
        ({"wire_api": "grpc"}, "p"),
        ({"compaction": "remote"}, "compaction"),
        ({"supports_websockets": True}, "supports_websockets"),
    ],
)
def test_a_wrong_setting_is_named(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        provider_from(**table)
    assert caught.value.key.endswith(key)


# --- sessions ---------------------------------------------------------------------------------------------------------


@tool
def look(at: str) -> str:
    """Looks at something.

    Args:
        at: what.
    """
    return f"seen {at}"


async def played(server: ChatServer, tmp_path: Path, *texts: str, profile: Profile = PROFILE) -> None:
    model = ChatModel(profile, server.provider())
    home, instructions = tmp_path / "home", "BASE"
    async with Session.start(model=model, tools=[look], cwd=tmp_path, home=home, instructions=instructions) as session:
        for text in texts:
            await session.send(text)


def test_a_session_runs_tools_over_chat_completions(tmp_path: Path) -> None:
    replies = [call_reply("look", {"at": "a"}, "c1"), text_reply("done"), text_reply("again")]
    with ChatServer(replies) as server:
        asyncio.run(played(server, tmp_path, "go", "once more"))
    first, second, third = (asked.json["messages"] for asked in server.requests)
    assert first[0]["role"] == "system"
    assert first[0]["content"].startswith("BASE")
    assert {one["role"] for one in first[1:]} == {"user"}
    assert second[: len(first)] == first  # a request only grows at its end
    assert [one["role"] for one in second[len(first) :]] == ["assistant", "tool"]
    assert second[-1]["content"].endswith("seen a")
    assert third[: len(second)] == second
    assert [one["role"] for one in third[len(second) :]] == ["assistant", "user"]


def test_a_session_compacts_by_a_summary(tmp_path: Path) -> None:
    profile = Profile(slug="m", context_window=30_000)
    replies = [text_reply("one", usage=usage(29_000, 10)), text_reply("SUMMARY"), text_reply("two")]
    with ChatServer(replies) as server:
        asyncio.run(played(server, tmp_path, "first", "second", profile=profile))
    asked = [str(request.json["messages"]) for request in server.requests]
    assert len(asked) == 3
    assert "SUMMARY" in asked[2]
    assert "'one'" not in asked[2]
