"""Compact: where `/responses/compact` is asked, how long it may take, and what its answer says (spec §6.2).

Rule 1: one call is one request; nothing is retried here.
Rule 2: where there is no such endpoint the error says so, with the status; it is not one that is worth repeating.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec

from refold.core.jsonio import is_list, is_object
from refold.core.profile import Provider
from refold.core.usage import usage_from_api
from refold.errors import CompactionFailed, ModelRefused, ModelUnavailable
from refold.model import EndpointAnswer
from refold.model.events import document_error, http_error, told

if TYPE_CHECKING:
    import httpx2

IDLE_TIMES = 4  # a whole history is read before the first byte comes: so many times as long as a stream may be silent
NO_SUCH_ENDPOINT = frozenset({404, 405, 501})
MOST_BYTES = 256 << 20  # of an answer: more is no compacted history
TEXT_BYTES = 200  # of an answer that cannot be read, shown in the error


# --- asking ----------------------------------------------------------------------------------------------


def address(responses: httpx2.URL) -> httpx2.URL:
    """Where the endpoint is, beside the Responses API; a query stays."""
    return responses.copy_with(path=responses.path + "/compact")


def patience_for(provider: Provider) -> float:
    """Seconds that an answer may take, silence and all."""
    return provider.stream_idle_timeout_ms / 1000 * IDLE_TIMES


def patient(limits: httpx2.Timeout) -> httpx2.Timeout:
    """Limits under which silence alone is no error: `in_time` has the last word."""
    import httpx2

    return httpx2.Timeout(connect=limits.connect, read=None, write=limits.write, pool=limits.pool)


@asynccontextmanager
async def in_time(provider: Provider) -> AsyncGenerator[None]:
    """Raises ModelUnavailable, not retryable, when the work inside takes longer than `patience_for` says."""
    try:
        async with asyncio.timeout(patience_for(provider)):
            yield
    except TimeoutError:
        raise unanswered(provider) from None


def unanswered(provider: Provider) -> ModelUnavailable:
    """The error of an answer that did not come in time. Asking again would take as long again."""
    seconds = patience_for(provider)
    text = f"{where(provider)} gave no answer within {seconds:,g} s ({IDLE_TIMES} × stream_idle_timeout_ms)"
    return ModelUnavailable(text, request_level=True, retryable=False)


async def whole_body(response: httpx2.Response, provider: Provider) -> bytes:
    """The whole answer. Raises ModelUnavailable when the connection ends in its middle, CompactionFailed when it does
    not end."""
    from httpx2 import RequestError

    body = bytearray()
    try:
        async with aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > MOST_BYTES:
                    raise CompactionFailed(f"{where(provider)} answered with more than {MOST_BYTES:,} bytes")
        return bytes(body)
    except RequestError as error:
        text = f"{where(provider)} closed the connection in the middle of its answer"
        raise ModelUnavailable(text, request_level=True) from error
    finally:
        await response.aclose()


# --- the answer ------------------------------------------------------------------------------------------


def answer_from(
    status: int, headers: Mapping[str, str], body: bytes, provider: Provider, *, now: float | None = None
) -> EndpointAnswer:
    """The answer's items and what it cost; `now` (seconds since 1970) is for a wait that is told as a date.

    Raises what `HasCompactEndpoint` says.
    """
    if status in NO_SUCH_ENDPOINT:
        said = told(body)
        line = f"{status} {HTTPStatus(status).phrase} from {where(provider)}: this provider does not compact there"
        raise ModelRefused(line + (f" ({said})" if said else ""), status=status)
    if not 200 <= status < 300:
        known = {name.lower(): value for name, value in headers.items()}
        raise http_error(status, known, body, provider=provider, now=now)
    error = document_error(body)
    if error is not None:
        raise error
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        document = None
    output = document.get("output") if is_object(document) else None
    if not is_object(document) or not is_list(output) or not all(is_object(item) for item in output):
        raise CompactionFailed(f"{where(provider)} answered with no list of output items: {_start(body)}")
    if document.get("status") == "incomplete":
        details = document.get("incomplete_details")
        reason = details.get("reason") if is_object(details) else None
        raise CompactionFailed(f"{where(provider)} broke off its answer: {reason or 'incomplete'}")
    identity = document.get("id")
    return EndpointAnswer(
        items=tuple(cast("list[dict[str, Any]]", output)),
        response_id=identity if isinstance(identity, str) else None,
        usage=usage_from_api(document.get("usage")),
    )


def where(provider: Provider) -> str:
    """The endpoint as errors name it."""
    return f"{provider.base_url.rstrip('/')}/responses/compact"


def _start(body: bytes) -> str:
    text = " ".join(body[:TEXT_BYTES].decode("utf-8", "replace").split())
    return text or "an empty answer"
