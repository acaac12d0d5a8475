"""What a provider says: stream events → ModelEvents, and everything that went wrong → errors (spec §9.3, §9.4).

Rule 1: what cannot be read is skipped, never guessed; only an event that ends the response may raise.
Rule 2: a waiting time asked for in a header wins over one written in the text.
Rule 3: every error is one line that holds the provider's own words, at most TEXT_LIMIT characters of them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from refold.core.profile import Provider
from refold.core.usage import usage_from_api
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
from refold.model.sealed import UNREADABLE, is_unreadable
from refold.model.waits import asked_wait, written_wait

CLOSED_EARLY = "stream disconnected before completion: stream closed before response.completed"
IDLE_TIMEOUT = "idle timeout waiting for SSE"
HIGH_DEMAND = "We’re currently experiencing high demand, which may cause temporary errors."
TOO_MANY_REQUESTS = "exceeded retry limit, last status: 429 Too Many Requests"
TEXT_LIMIT = 500  # characters of a provider's message; some echo the request

OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"})
QUOTA_CODES = frozenset({"insufficient_quota", "usage_limit_reached"})  # they reset in hours, or when somebody pays
REFUSAL_CODES = frozenset(
    {"usage_not_included", "invalid_prompt", "bio_policy", "cyber_policy", "invalid_request_error"}
)
OVERLOAD_CODES = frozenset({"server_is_overloaded", "slow_down"})
RATE_LIMIT_CODE = "rate_limit_exceeded"
WORTH_REPEATING = frozenset({408, 409, 425})  # the only 4xx besides 429 that a later request may not meet

# How providers without a code say that the input does not fit; a group is the model's true window in tokens.
_OVERFLOW_PHRASES = tuple(
    re.compile(phrase, re.IGNORECASE)
    for phrase in (
        r"maximum context length is ([\d,]+)",  # OpenAI chat, vLLM, OpenRouter, DeepSeek
        r"maximum model length of ([\d,]+)",  # vLLM
        r"context length is only ([\d,]+)",  # vLLM
        r"context length of only ([\d,]+)",  # LM Studio
        r"(?:longer|greater) than the (?:model'?s )?context length(?: \(([\d,]+) tokens\))?",  # LM Studio, SGLang
        r"available context size(?: \(([\d,]+) tokens\))?",  # llama.cpp
        r"n_keep\b.*>= n_ctx\b(?:: | \()?([\d,]+)?",  # LM Studio, older llama.cpp
        r"context size has been exceeded",  # llama.cpp, while generating
        r"model with ([\d,]+) maximum context length",  # Mistral
        r"configured context size is ([\d,]+)",
        r"exceed(?:s|ed)? (?:the )?(?:model'?s )?(?:max(?:imum)? )?context (?:window|length|size)(?: of ([\d,]+))?",
        r"context[ _](?:length|window)[ _]exceeded",
        r"maximum context length",
        r"maximum prompt length is ([\d,]+)",  # xAI
        r"prompt is too long(?:.*?> ([\d,]+))?",  # Anthropic behind a proxy
        r"input is too long for requested model",  # Bedrock
        r"maximum number of tokens allowed(?: \(([\d,]+)\))?",  # Gemini
        r"exceeded model token limit(?:: ([\d,]+))?",  # Kimi
        r"reduce the length of the (?:messages|prompt|input)(?:.*?limit is ([\d,]+))?",  # Groq, Cerebras
    )
)

# Event types that say nothing to refold, although some repeat the whole response: not worth decoding.
_UNREAD = frozenset(
    {
        "response.in_progress",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.done",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
    }
)

_log = logging.getLogger(__name__)


class Fault(msgspec.Struct, frozen=True):
    """What a provider's error object says: one line of text, its codes (code, then type), and all its fields."""

    text: str = ""
    codes: tuple[str, ...] = ()
    fields: dict[str, Any] = {}

    @property
    def code(self) -> str | None:
        return self.codes[0] if self.codes else None

    def has(self, known: frozenset[str]) -> bool:
        return any(code in known for code in self.codes)


# --- events ------------------------------------------------------------------------------------------


def decode_event(name: str, data: str, *, now: float | None = None) -> ModelEvent | None:
    """The ModelEvent of one server-sent event, None for one that says nothing to refold.

    `now` is the time in Unix seconds, for errors that name the moment when a limit resets.
    Raises the ModelError that a failed, incomplete or broken response stands for.
    """
    if name in _UNREAD:
        return None
    message = _json(data)
    if not isinstance(message, dict):
        _log.debug("skipped an event %r that is not a JSON object: %.80r", name, data)
        return None
    return read_event(message, now=now)


def read_event(message: dict[str, Any], *, now: float | None = None) -> ModelEvent | None:
    """`decode_event` for an event that is JSON already."""
    match message:
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return TextDelta(_string(message, "item_id"), text)
        case {"type": "response.reasoning_summary_text.delta" | "response.reasoning_text.delta", "delta": str(text)}:
            return ReasoningDelta(_string(message, "item_id"), text)
        case {
            "type": "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta",
            "delta": str(text),
        }:
            return ArgumentsDelta(_string(message, "item_id"), text)
        case {"type": "response.output_item.done", "item": dict(item)}:
            return ItemDone(item)
        case {"type": "response.output_item.added", "item": dict(item)}:
            return ItemStarted(item)
        case {"type": "response.created"}:
            return ResponseStarted(_response(message).get("id"))
        case {"type": "response.completed" | "response.done"}:
            return _completed(message, now)
        case {"type": "response.failed"}:
            raise _stream_error("response.failed", read_fault(_response(message).get("error")), None, now)
        case {"type": "response.incomplete"}:
            raise _incomplete(_response(message))
        case {"type": "error"} | {"error": dict() | str()} if message.get("type") in ("error", None):
            raise _error_event(message, now)
    _log.debug("skipped an event of type %r", message.get("type"))
    return None


def _json(data: str) -> Any:
    """The decoded text; None when it is no JSON. Halves of surrogate pairs, which no UTF-8 can hold, become U+FFFD."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        return None
    except msgspec.DecodeError:
        pass
    try:
        loose = json.dumps(json.loads(data), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return json.loads(loose.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _response(message: dict[str, Any]) -> dict[str, Any]:
    response = message.get("response")
    return response if isinstance(response, dict) else {}


def _string(message: dict[str, Any], key: str) -> str:
    value = message.get(key)
    return value if isinstance(value, str) else ""


def _completed(message: dict[str, Any], now: float | None) -> Completed:
    """Completed; raises when the response object says that it is not (vLLM ends a cut response this way)."""
    response = message.get("response")
    if not isinstance(response, dict):
        raise BadModelStream("failed to parse ResponseCompleted: the event has no response object")
    if response.get("status") == "incomplete":
        raise _incomplete(response)
    if response.get("status") == "failed":
        raise _stream_error("response.failed", read_fault(response.get("error")), None, now)
    end_turn = response.get("end_turn")
    return Completed(
        response_id=response.get("id"),
        usage=usage_from_api(response.get("usage")),
        end_turn=end_turn if isinstance(end_turn, bool) else None,
    )


def _incomplete(response: dict[str, Any]) -> ResponseIncomplete:
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return ResponseIncomplete(str(reason or "unknown"), usage=usage_from_api(response.get("usage")))


# --- errors ------------------------------------------------------------------------------------------


def read_fault(error: Any) -> Fault:
    """The error object of an event or body in any of the shapes that providers use; an empty Fault for none."""
    if isinstance(error, str):
        return Fault(_one_line(error))
    if not isinstance(error, dict):
        return Fault()
    text = next((value for key in ("message", "detail", "error") if isinstance(value := error.get(key), str)), "")
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None  # OpenRouter: what the host behind it said
    if isinstance(raw, str):
        text = f"{text}: {raw}"
    codes = tuple(value for key in ("code", "type") if isinstance(value := error.get(key), str) and value)
    return Fault(_one_line(text), codes, error)


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, now: float | None = None
) -> ModelError:
    """The error that an HTTP answer other than 200 stands for. `headers` have lower-case names; `now` is Unix seconds.

    5xx are request-level errors, 429 is not: the real program repeats the request for the first only (spec §9.5).
    What `x-should-retry` says counts for more than the status.
    """
    asked = asked_wait(headers, now)
    error = _status_error(status, headers, _body_fault(body), asked, provider, now)
    should = headers.get("x-should-retry", "").strip().lower()
    if should == "false" and isinstance(error, ModelUnavailable):
        error.retryable = False
    if should == "true" and isinstance(error, ModelRefused):
        return ModelUnavailable(str(error), retry_after=asked, status=status, request_level=True)
    return error


def _status_error(
    status: int, headers: Mapping[str, str], fault: Fault, asked: float | None, provider: Provider, now: float | None
) -> ModelError:
    if is_unreadable(fault.codes, fault.text):
        return ModelRefused(_status_line(status, provider, fault.text), status=status, code=UNREADABLE)
    known = _overflow(fault) if status not in (401, 403, 404, 429) else None
    known = known or _quota_error(fault, status, asked, now)
    if known is not None:
        return known
    if status == 413:  # a smaller request is what helps, whatever limit it was
        return ContextWindowExceeded(_status_line(status, provider, fault.text))
    if status == 429 and not fault.has(REFUSAL_CODES):
        wait = asked if asked is not None else written_wait(fault.text)
        return _noted(ModelUnavailable(TOO_MANY_REQUESTS, retry_after=wait, status=status), fault)
    if status >= 500:
        return _noted(ModelUnavailable(HIGH_DEMAND, retry_after=asked, status=status, request_level=True), fault)
    if status in WORTH_REPEATING:
        text = _status_line(status, provider, fault.text)
        return ModelUnavailable(text, retry_after=asked, status=status, request_level=True)
    return ModelRefused(_refusal_text(status, headers, provider, fault.text), status=status, code=fault.code)


def document_error(body: bytes) -> ModelError | None:
    """The error in a JSON document that came with status 200 instead of a stream; None when it holds none."""
    value = _json(body.decode("utf-8", "replace"))
    error = value.get("error") if isinstance(value, dict) else None
    return _error_event({"error": error}, None) if error and isinstance(error, (dict, str)) else None


def _stream_error(label: str, fault: Fault, status: int | None, now: float | None) -> ModelError:
    """The error of a `response.failed` or `error` event. An event has no HTTP status: overload is given 503 and a
    rate limit 429, so that callers see them alike on both ways."""
    text = fault.text
    if is_unreadable(fault.codes, text):
        return ModelRefused(text or f"{label}: {fault.code}", status=status, code=UNREADABLE)
    if RATE_LIMIT_CODE in fault.codes:
        wait = written_wait(text)
        return ModelUnavailable(f"rate limit exceeded: {text or label}", retry_after=wait, status=429)
    known = _overflow(fault) or _quota_error(fault, status, None, now)
    if known is not None:
        return known
    if fault.has(REFUSAL_CODES):
        return ModelRefused(text or f"{label}: {fault.code}", status=status, code=fault.code)
    if fault.has(OVERLOAD_CODES):
        return ModelUnavailable(f"server overloaded: {text or label}", status=503)
    if status == 429:
        return ModelUnavailable(text or TOO_MANY_REQUESTS, retry_after=written_wait(text), status=429)
    if status is not None and 400 <= status < 500 and status not in WORTH_REPEATING:
        return ModelRefused(text or label, status=status, code=fault.code)
    return ModelUnavailable(f"{label}: {text}" if text else label, status=status)


def _error_event(message: dict[str, Any], now: float | None) -> ModelError:
    """A bare `error` event: its facts lie beside `type`, or under `error` with an HTTP status here or there."""
    error = message.get("error")
    flat = {key: value for key, value in message.items() if key != "type"}
    fault = read_fault(error if isinstance(error, (dict, str)) else flat)
    numbers = (message.get("status"), message.get("status_code"), fault.fields.get("code"), fault.fields.get("status"))
    status = next((number for number in numbers if isinstance(number, int) and 400 <= number < 600), None)
    return _stream_error("error", fault, status, now)


def _quota_error(fault: Fault, status: int | None, asked: float | None, now: float | None) -> ModelUnavailable | None:
    if not fault.has(QUOTA_CODES):
        return None
    kind = "usage limit reached" if "usage_limit_reached" in fault.codes else "quota exceeded"
    wait = asked if asked is not None else _reset_wait(fault, now)
    reset = "" if wait is None else f"; it resets in {wait:,.0f} s"
    text = f"{kind}: {fault.text}" if fault.text else kind + reset
    return ModelUnavailable(text, retry_after=wait, status=status, retryable=False)


def _overflow(fault: Fault) -> ContextWindowExceeded | None:
    told = fault.fields.get("n_ctx")
    limit = told if isinstance(told, int) and told > 0 else None
    found = fault.has(OVERFLOW_CODES)
    for phrase in _OVERFLOW_PHRASES:
        match = phrase.search(fault.text)
        if match is None:
            continue
        found = True
        if limit is None and phrase.groups and match[1]:
            limit = int(match[1].replace(",", ""))
    if not found:
        return None
    return ContextWindowExceeded(fault.text or "the input exceeds the model's context window", limit=limit)


def told(body: bytes) -> str:
    """What the body of an answer says went wrong, on one line; "" when it says nothing."""
    return _body_fault(body).text


def _body_fault(body: bytes) -> Fault:
    text = body.decode("utf-8", "replace").strip()
    value = _json(text)
    if not isinstance(value, dict):
        return Fault("an HTML page" if text[:1] == "<" else _one_line(text))
    error = value.get("error")
    fault = read_fault(error if isinstance(error, dict) else value)
    return fault if fault.text else Fault(_one_line(text), fault.codes, fault.fields)


def _refusal_text(status: int, headers: Mapping[str, str], provider: Provider, said: str) -> str:
    if status == 401 and provider.env_key:
        return _status_line(status, provider, f"check the API key in {provider.env_key}", said)
    if status == 401:
        return _status_line(status, provider, f"provider {provider.id!r} asks for an API key; set its env_key", said)
    if status == 404:
        return _status_line(status, provider, said or "is there a Responses API at this base URL?")
    if 300 <= status < 400:
        target = _one_line(headers.get("location", "elsewhere"))
        return _status_line(status, provider, f"redirects to {target}; set base_url to where the Responses API is")
    return _status_line(status, provider, said)


def _status_line(status: int, provider: Provider, text: str, said: str = "") -> str:
    known = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    line = f"{status} {known}".rstrip() + f" from {provider.base_url}"
    return line + (f": {text}" if text else "") + (f" ({said})" if said else "")


def _noted(error: ModelError, fault: Fault) -> ModelError:
    """The real program's fixed text hides what the provider said; a note keeps it."""
    if fault.text:
        error.add_note(f"the provider said: {fault.text}")
    return error


# --- waits and texts -----------------------------------------------------------------------------------


def _reset_wait(fault: Fault, now: float | None) -> float | None:
    """Seconds until a quota resets, as told by `resets_in_seconds` or `resets_at` (Unix seconds)."""
    seconds, moment = fault.fields.get("resets_in_seconds"), fault.fields.get("resets_at")
    if isinstance(seconds, (int, float)):
        return float(seconds)
    if isinstance(moment, (int, float)) and now is not None:
        return max(0.0, moment - now)
    return None


def _one_line(text: str) -> str:
    line = " ".join(text[: TEXT_LIMIT * 4].split())
    return line if len(line) <= TEXT_LIMIT else line[: TEXT_LIMIT - 1] + "…"
