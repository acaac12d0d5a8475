"""Answer: what a Chat Completions server says besides text and calls, in the Responses API's words.

The response object around the items, how it ended, what it cost, and what went wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from refold.core.jsonio import is_list, is_object

Response: TypeAlias = dict[str, Any]  # a response object of the Responses API

STREAM_CUT = "stream disconnected before completion: the stream ended without a finish_reason"
NO_ANSWER = "the server answered with a document that holds no choices"
FAILED = "server_error"  # the code of an error that has none
CODE_OF_STATUS = {429: "rate_limit_exceeded", 503: "server_is_overloaded", 529: "server_is_overloaded"}
REASON_OF = {"length": "max_output_tokens", "model_length": "max_output_tokens", "content_filter": "content_filter"}
BROKEN = frozenset({"error", "abort", "insufficient_system_resource"})  # a finish_reason that finishes nothing


class End(NamedTuple):
    """How a response ended: its status, and the reason of an incomplete one or the error of a failed one."""

    status: str
    reason: str | None = None
    error: dict[str, Any] | None = None


def ending(finish_reason: str | None) -> End:
    """The end that a `finish_reason` stands for; unknown ones, and none where the server said `[DONE]`, are good."""
    if finish_reason in REASON_OF:
        return End("incomplete", reason=REASON_OF[finish_reason])
    if finish_reason in BROKEN:
        return End("failed", error={"code": FAILED, "message": f"the server ended the answer with {finish_reason!r}"})
    return End("completed")


def response_shell(asked: dict[str, Any], response_id: str, created_at: int) -> Response:
    """The response object of a request that has only begun, with every key that clients read. Seconds since 1970."""
    reasoning, text = asked.get("reasoning"), asked.get("text")
    tools, metadata = asked.get("tools"), asked.get("metadata")
    parallel = asked.get("parallel_tool_calls")
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "model": asked.get("model") or "",
        "output": [],
        "parallel_tool_calls": parallel if isinstance(parallel, bool) else True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None, **(reasoning if is_object(reasoning) else {})},
        "store": asked.get("store") is not False,
        "temperature": asked.get("temperature"),
        "text": {"format": {"type": "text"}, **(text if is_object(text) else {})},
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": tools if is_list(tools) else [],
        "top_p": asked.get("top_p"),
        "truncation": "disabled",
        "usage": None,
        "metadata": metadata if is_object(metadata) else {},
    }


def ended(shell: Response, end: End, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> Response:
    """The response object of a request that has ended."""
    details = {"reason": end.reason} if end.reason else None
    told = {"status": end.status, "error": end.error, "incomplete_details": details}
    return {**shell, **told, "output": output, "usage": usage}


# --- what it cost --------------------------------------------------------------------------------------------


def usage_of(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The usage in a document or chunk, as the Responses API tells it; None where there is none.

    Most servers tell it at the top; Groq under `x_groq`, Moonshot in the choice.
    """
    choices = chunk.get("choices")
    first = choices[0] if is_list(choices) and choices else None
    for holder in (chunk, chunk.get("x_groq"), first):
        told = holder.get("usage") if is_object(holder) else None
        if is_object(told) and ("prompt_tokens" in told or "completion_tokens" in told):
            return _usage(told)
    return None


def _usage(told: dict[str, Any]) -> dict[str, Any]:
    inputs, outputs = _number(told, "prompt_tokens"), _number(told, "completion_tokens")
    prompt, completion = told.get("prompt_tokens_details"), told.get("completion_tokens_details")
    cached = _number(prompt, "cached_tokens") or _number(told, "prompt_cache_hit_tokens")  # DeepSeek
    cached = cached or _number(told, "cached_tokens")  # Moonshot
    return {
        "input_tokens": inputs,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": _number(prompt, "cache_write_tokens"),
        },
        "output_tokens": outputs,
        "output_tokens_details": {"reasoning_tokens": _number(completion, "reasoning_tokens")},
        "total_tokens": _number(told, "total_tokens") or inputs + outputs,
    }


def _number(holder: Any, key: str) -> int:
    found = holder.get(key) if is_object(holder) else None
    return int(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else 0


# --- what went wrong -----------------------------------------------------------------------------------------


def error_in(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The error object of a chunk or document as the server said it; None where all is well."""
    error = chunk.get("error")
    if is_object(error):
        return error
    if isinstance(error, str) and error:
        return {"message": error}
    if chunk.get("object") == "error":  # vLLM before 0.10
        return {key: value for key, value in chunk.items() if key != "object"}
    return None


def response_error(error: dict[str, Any]) -> dict[str, Any]:
    """A server's error object as the error of a failed response: `code` and `message` are texts, the rest is kept."""
    code, kind, message = error.get("code"), error.get("type"), error.get("message")
    if isinstance(code, int):
        code = CODE_OF_STATUS.get(code)
    known = next((text for text in (code, kind) if isinstance(text, str) and text), FAILED)
    return {**error, "code": known, "message": message if isinstance(message, str) else "the server failed"}
