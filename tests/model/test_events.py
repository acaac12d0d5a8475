"""Stream events and HTTP errors as refold's events and errors (cases S30, S31, S32; spec §9.3, §9.4)."""

from __future__ import annotations

import json
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from refold.core.profile import Provider
from refold.core.usage import Usage
from refold.errors import (
    BadModelStream,
    ContextWindowExceeded,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    ResponseIncomplete,
)
from refold.model import (
    ArgumentsDelta,
    Completed,
    ItemDone,
    ItemStarted,
    ModelEvent,
    ReasoningDelta,
    ResponseStarted,
    TextDelta,
)
from refold.model.events import (
    HIGH_DEMAND,
    TEXT_LIMIT,
    TOO_MANY_REQUESTS,
    decode_event,
    document_error,
    http_error,
    read_event,
)
from refold.model.retry import LONGEST_WAIT, is_worth_retrying
from refold.model.sse import SseDecoder

CASES = Path(__file__).parents[1] / "data" / "cases"
FAILED = json.loads((CASES / "S30-failed-event-while-socket-open" / "failed.json").read_text("utf-8"))
DELAYS = json.loads((CASES / "S32-retry-delay" / "delays.json").read_text("utf-8"))
NOW = 1_800_000_000.0
OPENAI = Provider()
LOCAL = Provider(id="local", name="local", base_url="http://gpu:8000/v1", env_key=None)


def failure(error: Any, **extra: Any) -> ModelError:
    """The error of a `response.failed` event."""
    with pytest.raises(ModelError) as raised:
        read_event({"type": "response.failed", "response": {"id": "r", "error": error}}, **extra)
    return raised.value


def error_event(event: dict[str, Any], **extra: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        read_event(event, **extra)
    return raised.value


def refusal(status: int, body: Any = "", headers: dict[str, str] | None = None, provider: Provider = LOCAL):
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return http_error(status, headers or {}, raw, provider=provider, now=NOW)


# --- events that count ---------------------------------------------------------------------------------

MESSAGE = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "response.created", "response": {"id": "resp_1"}}, ResponseStarted("resp_1")),
        ({"type": "response.created"}, ResponseStarted(None)),
        ({"type": "response.output_item.added", "item": MESSAGE}, ItemStarted(MESSAGE)),
        ({"type": "response.output_item.done", "item": MESSAGE}, ItemDone(MESSAGE)),
        ({"type": "response.output_text.delta", "item_id": "m", "delta": "h"}, TextDelta("m", "h")),
        ({"type": "response.output_text.delta", "delta": "h"}, TextDelta("", "h")),
        ({"type": "response.reasoning_summary_text.delta", "item_id": "r", "delta": "t"}, ReasoningDelta("r", "t")),
        ({"type": "response.reasoning_text.delta", "item_id": "r", "delta": "t"}, ReasoningDelta("r", "t")),
        ({"type": "response.completed", "response": {"id": "resp_1"}}, Completed("resp_1")),
        (
            {"type": "response.completed", "response": {"id": "a", "end_turn": False, "usage": {"input_tokens": 5}}},
            Completed("a", Usage(input_tokens=5, total_tokens=5), False),
        ),
        ({"type": "response.done", "response": {"id": "resp_1", "status": "completed"}}, Completed("resp_1")),
    ],
)
def test_events_that_count_are_decoded(event: dict[str, Any], expected: ModelEvent):
    assert read_event(event) == expected
    assert decode_event(event["type"], json.dumps(event)) == expected
    assert decode_event("message", json.dumps(event)) == expected


@pytest.mark.parametrize(
    "data",
    [
        "this is not json",
        "[DONE]",
        "",
        "7",
        '"x"',
        "{}",
        '{"type":7}',
        '{"type":"response.some_future_event","x":1}',
        '{"type":"response.output_item.done"}',
        '{"type":"response.output_text.delta","delta":null}',
        "{" * 100_000,
        '{"a":' * 100_000,
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_skipped(data: str):
    assert decode_event("message", data) is None


def test_events_that_only_repeat_others_are_not_even_decoded():
    assert decode_event("response.in_progress", '{"type":"response.completed","response":{}}') is None


def test_halves_of_surrogate_pairs_become_replacement_characters_and_the_item_is_kept():
    data = r'{"type":"response.output_item.done","item":{"type":"x","text":"a\ud83db \ude00 \ud83d\ude80 \\ud83d"}}'
    event = decode_event("response.output_item.done", data)
    assert event == ItemDone({"type": "x", "text": "a\ufffdb \ufffd \U0001f680 \\ud83d"})


def test_a_completed_event_without_a_response_is_a_broken_stream():
    error = error_event({"type": "response.completed", "response": 7})
    assert isinstance(error, BadModelStream)
    assert "failed to parse ResponseCompleted" in str(error)


# --- response.failed (S30) -------------------------------------------------------------------------------

CLASSES = {
    "context window exceeded": ContextWindowExceeded,
    "quota exceeded": ModelUnavailable,
    "usage not included": ModelRefused,
    "invalid request": ModelRefused,
    "retryable": ModelUnavailable,
    "overloaded": ModelUnavailable,
}


@pytest.mark.parametrize("row", FAILED, ids=lambda row: str(row["code"]))
def test_a_failed_response_is_the_typed_error_of_its_code(row: dict[str, Any]):
    coded = {"code": row["code"], "message": row["message"]} if row["code"] else None
    error = failure(coded)
    assert type(error) is CLASSES[row["class"]]
    assert is_worth_retrying(error) is row["retry"]
    assert getattr(error, "retry_after", None) == row["delay_s"]
    assert (row["message"] or "response.failed") in str(error)


def test_overload_and_rate_limits_are_told_apart_by_their_usual_status():
    assert failure({"code": "slow_down", "message": "x"}).status == 503  # type: ignore[attr-defined]
    limited = failure({"code": "rate_limit_exceeded", "message": "Please try again in 1.5s."})
    assert str(limited) == "rate limit exceeded: Please try again in 1.5s."
    assert limited.status == 429  # type: ignore[attr-defined]


def test_a_completed_event_that_says_failed_or_incomplete_is_not_a_completion():
    failed = {"type": "response.completed", "response": {"status": "failed", "error": {"code": "invalid_prompt"}}}
    assert isinstance(error_event(failed), ModelRefused)
    usage = {"input_tokens": 3, "output_tokens": 4}
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": usage}
    error = error_event({"type": "response.completed", "response": cut})
    assert isinstance(error, ResponseIncomplete)
    assert error.usage == Usage(input_tokens=3, output_tokens=4, total_tokens=7)


def test_an_overflow_that_only_the_message_tells_is_recognised_in_a_failed_response_too():
    error = failure({"code": "server_error", "message": "This model's maximum context length is 8192 tokens. However"})
    assert isinstance(error, ContextWindowExceeded)
    assert error.limit == 8192


# --- response.incomplete (S31) ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "reason", "finished"),
    [
        ("max_tokens_text.sse", "max_output_tokens", 1),
        ("max_tokens_call.sse", "max_output_tokens", 0),
        ("filter.sse", "content_filter", 0),
    ],
)
def test_an_incomplete_response_is_a_typed_end_that_carries_its_usage(file: str, reason: str, finished: int):
    items = []
    with pytest.raises(ResponseIncomplete, match=f"Incomplete response returned, reason: {reason}") as raised:
        for name, data in SseDecoder().feed((CASES / "S31-incomplete-response" / file).read_bytes()):
            event = decode_event(name, data)
            items += [event.item] if isinstance(event, ItemDone) else []
    assert raised.value.reason == reason
    assert raised.value.usage is not None
    assert raised.value.usage.total_tokens == 1512
    assert len(items) == finished
    assert not is_worth_retrying(raised.value)


def test_an_incomplete_response_without_details_has_an_unknown_reason():
    error = error_event({"type": "response.incomplete", "response": {}})
    assert str(error) == "Incomplete response returned, reason: unknown"
    assert isinstance(error, ResponseIncomplete)
    assert error.usage is None


# --- error events ------------------------------------------------------------------------------------------


def test_a_bare_error_event_is_read_flat_or_nested():
    flat = error_event({"type": "error", "code": "server_error", "message": "boom", "sequence_number": 3})
    assert (type(flat), str(flat)) == (ModelUnavailable, "error: boom")
    nested = {"type": "error", "status": 400, "error": {"code": "previous_response_not_found", "message": "gone"}}
    refused = error_event(nested)
    assert isinstance(refused, ModelRefused)
    assert (refused.status, refused.code, str(refused)) == (400, "previous_response_not_found", "gone")


def test_an_error_object_without_a_type_ends_the_stream():
    lmstudio = error_event({"error": {"message": "Context size has been exceeded."}})
    assert isinstance(lmstudio, ContextWindowExceeded)
    vllm = error_event({"error": {"message": "bad tool", "type": "BadRequestError", "code": 400}})
    assert isinstance(vllm, ModelRefused)
    assert str(error_event({"error": "the runner has stopped"})) == "error: the runner has stopped"
    assert isinstance(error_event({"error": {"message": "slow", "code": 429}}), ModelUnavailable)


def test_a_used_up_usage_limit_is_not_retried_and_carries_its_reset():
    event = {"type": "error", "status_code": 429, "error": {"type": "usage_limit_reached", "resets_in_seconds": 9568}}
    error = error_event(event)
    assert isinstance(error, ModelUnavailable)
    assert (error.retryable, error.retry_after, error.status) == (False, 9568.0, 429)
    assert str(error) == "usage limit reached; it resets in 9,568 s"
    dated = error_event({"type": "error", "error": {"type": "usage_limit_reached", "resets_at": NOW + 60}}, now=NOW)
    assert dated.retry_after == 60.0  # type: ignore[attr-defined]


# --- waits (S32) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", DELAYS, ids=lambda row: row["message"][-30:])
def test_the_asked_wait_is_parsed(row: dict[str, Any]):
    error = {"code": row["code"], "message": row["message"]}
    headers = {name.lower(): value for name, value in row["headers"].items()}
    status = 429 if row["code"] == "rate_limit_exceeded" else 500
    over_http = refusal(status, {"error": error}, headers)
    errors = [over_http] if headers else [over_http, failure(error)]
    for found in errors:
        assert isinstance(found, ModelUnavailable)
        if row["delay_s"] == "capped":
            assert found.retry_after is not None
            assert found.retry_after > LONGEST_WAIT
            assert not is_worth_retrying(found)
        else:
            expected = row["delay_s"]
            assert found.retry_after == (expected if expected is None else pytest.approx(expected, abs=0.001))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 1m30.5s.", 90.5),
        ("Please try again in 6m0s.", 360.0),
        ("try again in 7h12m0s", 25_920.0),
        ("Try again in 2 minutes.", 120.0),
        ("Please retry after 6 seconds.", 6.0),
        ("try again in 250ms", 0.25),
        ("try again in a moment", None),
        ("try again in 5", None),
    ],
)
def test_longer_written_waits_are_understood(text: str, seconds: float | None):
    assert failure({"code": "rate_limit_exceeded", "message": text}).retry_after == seconds  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1250", "retry-after": "2"}, 1.25),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 0.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(headers: dict[str, str], seconds: float | None):
    for status in (429, 503):
        assert refusal(status, "", headers).retry_after == seconds  # type: ignore[attr-defined]


# --- HTTP errors -------------------------------------------------------------------------------------------


def test_429_has_the_real_programs_text_and_keeps_the_providers_words_as_a_note():
    error = refusal(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, {"retry-after": "1"})
    assert isinstance(error, ModelUnavailable)
    assert str(error) == TOO_MANY_REQUESTS == "exceeded retry limit, last status: 429 Too Many Requests"
    assert (error.retry_after, error.request_level, error.status) == (1.0, False, 429)
    assert error.__notes__ == ["the provider said: slow down"]


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_5xx_is_a_request_level_error_with_the_real_programs_text(status: int):
    error = refusal(status, {"error": {"message": "boom"}})
    assert isinstance(error, ModelUnavailable)
    assert str(error) == HIGH_DEMAND
    assert (error.request_level, error.retryable, error.status) == (True, True, status)
    assert error.__notes__ == ["the provider said: boom"]


def test_a_used_up_quota_is_not_retried_although_it_is_a_429():
    quota = refusal(429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
    assert isinstance(quota, ModelUnavailable)
    assert (quota.retryable, str(quota)) == (False, "quota exceeded: You exceeded your quota")
    body = {"error": {"type": "usage_limit_reached", "resets_at": NOW + 100}}
    limit = refusal(429, body)
    assert (limit.retryable, limit.retry_after) == (False, 100.0)  # type: ignore[attr-defined]
    plan = refusal(429, {"error": {"type": "usage_not_included", "message": "Upgrade your plan."}})
    assert isinstance(plan, ModelRefused)


def test_401_names_the_variable_of_the_key():
    error = refusal(401, {"error": {"message": "Incorrect API key provided"}}, provider=OPENAI)
    assert isinstance(error, ModelRefused)
    assert error.status == 401
    assert str(error) == (
        "401 Unauthorized from https://api.openai.com/v1: check the API key in OPENAI_API_KEY "
        "(Incorrect API key provided)"
    )
    assert "env_key" in str(refusal(401, provider=LOCAL))


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (
            400,
            {"error": {"message": "Unknown parameter: 'x'.", "code": "unknown_parameter"}},
            "Unknown parameter: 'x'.",
        ),
        (403, {"error": "no access"}, "403 Forbidden from http://gpu:8000/v1: no access"),
        (404, {"detail": "Not Found"}, "404 Not Found from http://gpu:8000/v1: Not Found"),
        (404, "", "is there a Responses API at this base URL?"),
        (422, {"detail": [{"msg": "field required"}]}, "field required"),
        (405, "<html>\n<body>no</body></html>", "405 Method Not Allowed from http://gpu:8000/v1: an HTML page"),
        (418, "short\nand stout", "short and stout"),
        (499, "", "499 from http://gpu:8000/v1"),
    ],
)
def test_other_4xx_are_refusals_in_one_line(status: int, body: Any, text: str):
    error = refusal(status, body)
    assert isinstance(error, ModelRefused)
    assert error.status == status
    assert text in str(error)
    assert "\n" not in str(error)


def test_a_redirect_is_a_refusal_that_names_the_target():
    error = refusal(307, "", {"location": "https://elsewhere/v1/responses"})
    assert isinstance(error, ModelRefused)
    assert "redirects to https://elsewhere/v1/responses; set base_url" in str(error)


def test_a_request_time_out_may_be_repeated():
    assert is_worth_retrying(refusal(408))


def test_a_long_message_is_cut():
    error = refusal(400, {"error": {"message": "x" * 10_000}})
    assert len(str(error)) < TEXT_LIMIT + 100


OVERFLOWS: list[tuple[str, int, Any, int | None]] = [
    (
        "openai",
        400,
        {"error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window"}},
        None,
    ),
    (
        "vllm",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
            "type": "BadRequestError",
            "code": 400,
        },
        4096,
    ),
    (
        "vllm engine",
        400,
        {"error": {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4,096."}},
        4096,
    ),
    (
        "vllm new",
        400,
        {"error": {"message": "You passed 12 input tokens. However, the model's context length is only 10 tokens"}},
        10,
    ),
    (
        "llama.cpp",
        400,
        {
            "error": {
                "code": 400,
                "message": "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 4390,
                "n_ctx": 4096,
            }
        },
        4096,
    ),
    (
        "llama.cpp old",
        500,
        {"error": {"code": 500, "message": "x", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}},
        8,
    ),
    ("llama.cpp slot", 500, {"error": {"message": "Context size has been exceeded.", "type": "server_error"}}, None),
    ("ollama", 400, {"error": "prompt too long; exceeded max context length by 1200 tokens"}, None),
    ("ollama runner", 500, {"error": "the input length exceeds the context length"}, None),
    (
        "lm studio",
        400,
        {
            "error": "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded "
            "with context length of only 8192 tokens, which is not enough."
        },
        8192,
    ),
    (
        "lm studio 2",
        400,
        {
            "error": {
                "message": "The number of tokens to keep from the initial prompt is greater than the context length"
            }
        },
        None,
    ),
    ("lm studio 3", 400, {"error": {"message": "Cannot truncate prompt with n_keep (9000) >= n_ctx (4096)"}}, 4096),
    (
        "openrouter",
        400,
        {"error": {"code": 400, "message": "This endpoint's maximum context length is 131072 tokens. However, you …"}},
        131072,
    ),
    (
        "openrouter raw",
        400,
        {
            "error": {
                "code": 400,
                "message": "Provider returned error",
                "metadata": {"raw": '{"message":"prompt is too long: 213462 tokens > 200000 maximum"}'},
            }
        },
        200000,
    ),
    ("sglang", 400, {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}, 8),
    ("mistral", 400, {"message": "Prompt has 9 tokens, too large for model with 32768 maximum context length"}, 32768),
    ("xai", 400, {"error": "This model's maximum prompt length is 131072 but the request contains 537812"}, 131072),
    ("too large", 413, "Request Entity Too Large", None),
]


@pytest.mark.parametrize(("_name", "status", "body", "limit"), OVERFLOWS, ids=[row[0] for row in OVERFLOWS])
def test_an_overflow_is_recognised_in_every_providers_words(_name: str, status: int, body: Any, limit: int | None):
    error = refusal(status, body)
    assert isinstance(error, ContextWindowExceeded)
    assert error.limit == limit
    assert str(error)


@pytest.mark.parametrize(
    "text", ["Unsupported value: 'context'", "max_output_tokens must be at least 16", "image exceeds 20 MB", "boom"]
)
def test_other_messages_are_no_overflow(text: str):
    assert not isinstance(refusal(400, {"error": {"message": text}}), ContextWindowExceeded)


def test_a_rate_limit_that_speaks_of_tokens_is_no_overflow():
    text = "Rate limit reached: the maximum context length is not the problem. Please try again in 2s."
    error = refusal(429, {"error": {"message": text}})
    assert isinstance(error, ModelUnavailable)
    assert error.retry_after == 2.0


def test_an_error_document_with_status_200_is_read():
    assert isinstance(document_error(b'{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}'), ModelError)
    assert document_error(b'{"error":null,"output":[]}') is None
    assert document_error(b"<html>") is None


# --- x-should-retry ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_provider_may_say_that_asking_again_is_no_use(status: int):
    error = refusal(status, {"message": "no"}, {"x-should-retry": "false"})
    assert isinstance(error, ModelUnavailable)
    assert not is_worth_retrying(error)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_provider_may_say_that_asking_again_helps(status: int):
    error = refusal(status, {"message": "busy"}, {"x-should-retry": "true", "retry-after": "2"})
    assert isinstance(error, ModelUnavailable)
    assert (error.request_level, error.retry_after, error.status) == (True, 2, status)
    assert "busy" in str(error)


def test_what_does_not_fit_is_not_asked_again_whatever_is_said():
    error = refusal(400, {"code": "context_length_exceeded", "message": "too long"}, {"x-should-retry": "true"})
    assert isinstance(error, ContextWindowExceeded)


@pytest.mark.parametrize("kind", ["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"])
def test_more_of_what_a_call_asks_for_is_a_preview(kind: str):
    assert read_event({"type": kind, "item_id": "fc_1", "delta": '{"cm'}) == ArgumentsDelta("fc_1", '{"cm')
