"""The compact endpoint over real HTTP, and how a refusal of an encrypted item is told."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from refold.core.history import entry
from refold.core.items import user_message
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.wire import Identity, Request, Wire
from refold.errors import CompactionFailed, ModelError, ModelRefused, ModelUnavailable
from refold.model import EndpointAnswer, HasCompactEndpoint, ResponsesModel
from refold.model.events import http_error
from refold.model.scripted import Reply, ScriptedModel
from refold.model.sealed import UNREADABLE, is_unreadable, named_item
from refold.testing import ResponsesServer, usage

PROFILE = Profile(slug="m")
SEALED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v"}
PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1/v1", env_key=None)


def request_for(provider: Provider, profile: Profile = PROFILE, base: str | None = None, **more: Any) -> Request:
    prompt = prompt_from([entry(user_message("hi", id="msg_1"), "")], profile, base_instructions=base, **more)
    return Wire(provider, profile).compact_request(prompt, Identity(thread_id="7d1b6a4e-0000-7000-8000-000000000000"))


def asked(reply: Reply, **more: Any) -> tuple[Any, Any]:
    """What the same reply is over HTTP and by a ScriptedModel: an answer, or an error."""

    async def ask(model: HasCompactEndpoint, provider: Provider) -> Any:
        try:
            return await model.compact(request_for(provider))
        except (ModelError, CompactionFailed) as error:
            return error

    async def go() -> tuple[Any, Any]:
        async with asyncio.timeout(20), ResponsesServer([reply]) as server:
            provider = server.provider(**more)
            real = ResponsesModel(PROFILE, provider)
            try:
                over_http = await ask(real, provider)
            finally:
                await real.close()
            return over_http, await ask(ScriptedModel([reply], profile=PROFILE, provider=provider), provider)

    return asyncio.run(go())


def test_answer_is_the_items_the_id_and_the_usage() -> None:
    for answer in asked(Reply(items=(SEALED,), usage=usage(100, 5), response_id="resp_7")):
        assert answer == EndpointAnswer((SEALED,), "resp_7", usage(100, 5))


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (Reply(status=404, body={}), ModelRefused, "404 Not Found from"),
        (Reply(status=501, body={"error": {"message": "later"}}), ModelRefused, "(later)"),
        (Reply(status=307, headers={"location": "/x"}), ModelRefused, "redirects to /x"),
        (Reply(status=429, headers={"retry-after": "7"}), ModelUnavailable, "429"),
        (Reply(status=500), ModelUnavailable, "high demand"),
        (Reply(cut_after="request"), ModelUnavailable, "closed the connection"),
        (Reply(body={"output": None}), CompactionFailed, "/v1/responses/compact answered with no list of output items"),
        (Reply(delay=9), ModelUnavailable, "gave no answer within 0.2 s"),
    ],
)
def test_errors_are_the_same_over_http_and_scripted(reply: Reply, kind: type[Exception], says: str) -> None:
    one, other = asked(reply, stream_idle_timeout_ms=50)
    assert type(one) is type(other) is kind
    assert says in str(one) and says in str(other)


def test_what_took_too_long_is_not_worth_repeating() -> None:
    error, _ = asked(Reply(delay=9), stream_idle_timeout_ms=50)
    assert error.request_level and not error.retryable


def test_silence_up_to_the_whole_time_is_no_error() -> None:
    answer, _ = asked(Reply(items=(SEALED,), delay=0.3), stream_idle_timeout_ms=150)
    assert answer.items == (SEALED,)


def test_queries_stay_behind_the_path() -> None:
    async def go() -> str:
        async with ResponsesServer([Reply(items=(SEALED,))]) as server:
            provider = server.provider(query_params={"api-version": "preview"})
            model = ResponsesModel(PROFILE, provider)
            await model.compact(request_for(provider))
            await model.close()
            return server.requests[0].path

    assert asyncio.run(go()) == "/v1/responses/compact?api-version=preview"


def test_lite_model_is_told_tools_and_instructions_in_the_input() -> None:
    lite = Profile(slug="m", lite=True)
    body = msgspec.json.decode(request_for(PROVIDER, lite, "BASE", tools=({"name": "t"},)).body())
    assert [item["type"] for item in body["input"]] == ["additional_tools", "message", "message"]
    assert "instructions" not in body and "tools" not in body


def test_body_is_whole_when_every_other_key_is_left_out() -> None:
    bare = Provider(**{**msgspec.structs.asdict(PROVIDER), "leave_out": ("parallel_tool_calls", "prompt_cache_key")})
    assert list(msgspec.json.decode(request_for(bare).body())) == ["model", "input"]


# --- encrypted items that are refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "text", "expected"),
    [
        (("invalid_encrypted_content",), "", True),
        (("thinking_signature_invalid",), "", True),
        (("invalid_request_body",), "The encrypted content gAAA... could not be verified. Reason: parsed.", True),
        ((), "Encrypted content could not be decrypted or parsed.", True),
        ((), "reasoning `encrypted_content` was not issued to this caller", True),
        ((), "Encrypted content item_id did not match the target item id.", True),
        ((), "Could not decode the compaction blob. Ensure it is unmodified from the compact response.", True),
        ((), "The input parameter could not be verified; encrypted content was not evaluated.", False),
        (("invalid_request_error",), "Invalid tool output; encrypted content was not examined.", False),
        (("rate_limit_exceeded",), "try again in 1s", False),
    ],
)
def test_refusals_of_encrypted_items_are_told_from_others(codes: tuple[str, ...], text: str, expected: bool) -> None:
    assert is_unreadable(codes, text) is expected


def test_every_such_refusal_has_the_same_code_and_is_not_retried() -> None:
    for status in (400, 422, 500, 502):
        body = b'{"error":{"message":"The encrypted content gA== could not be verified.","type":"x"}}'
        error = http_error(status, {}, body, provider=PROVIDER)
        assert isinstance(error, ModelRefused) and (error.code, error.status) == (UNREADABLE, status)
        assert "could not be verified" in str(error)


def test_item_is_read_from_the_error_where_it_is_named() -> None:
    assert named_item("The encrypted content for item cmp_0a18 could not be verified.") == "cmp_0a18"
    assert named_item("The encrypted content gAAA could not be verified.") is None
