"""Faults: what went wrong, as the Responses API says it: an error object, a failed response, an error frame.

Rule 1: a fault of the upstream is passed on as the upstream told it, save an overflow, which is always
`context_length_exceeded` and names the true context window where that is known.
Rule 2: no key and no bearer stands in it, even where the upstream repeats one. An answer that is no error is left as
it is, but for long keys of the gateway's own: `ollama` may be a key, and is a word.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from refold.core.chat_completions_answer import End, Response, ended
from refold.core.jsonio import dump, is_object, load
from refold.core.profile import Provider
from refold.errors import (
    BadModelStream,
    ContextWindowExceeded,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    RequestRefused,
    ResponseIncomplete,
)
from refold.model.events import IDLE_TIMEOUT, http_error, read_event
from refold.server.blocks import Event

OVERFLOW = "context_length_exceeded"
FAILED = "server_error"
SERVER_FAULT = 500
KEY_REFUSED = (401, 403)
HIDDEN = b"***"
CUT = "…"  # where a long text of the upstream's ends
UPSTREAM = "the upstream"
SHORTEST_SECRET = 6  # characters: shorter ones would hide half a text
SHORTEST_KEY = 20  # characters of a secret that no answer holds by chance
_UNANSWERED = {  # an upstream that answers nothing: code → status, text
    "upstream_unreachable": (502, "The upstream of this gateway cannot be reached."),
    "upstream_timeout": (504, "The upstream of this gateway did not answer in time."),
    "upstream_closed": (502, "The upstream closed the connection without an answer."),
}


def hidden(body: bytes, secrets: Iterable[str], *, shortest: int = SHORTEST_SECRET) -> bytes:
    """A text, or a JSON text, without those of these secrets that are not too short."""
    for secret in secrets:
        if len(secret) >= shortest:
            escaped = dump(secret)[1:-1]
            for spelled in {secret.encode("utf-8", "replace"), escaped, escaped.replace(b"/", rb"\/")}:
                body = body.replace(spelled, HIDDEN)
    return body


def without(event: Event, secrets: Iterable[str]) -> Event:
    """An event without these secrets."""
    secrets = [*secrets]
    return event._replace(data=hidden(event.data, secrets), raw=hidden(event.raw, secrets))


def _unsaid(error: ModelError, secrets: Iterable[str], address: str) -> str:
    """What an error says, without secrets (long texts were cut, so perhaps in the middle of one) and without where the
    upstream is: that is the gateway's own affair."""
    secrets = [*secrets]
    text = hidden(str(error).encode("utf-8", "replace"), secrets).decode("utf-8", "replace")
    for secret in secrets:
        for length in range(min(len(secret) - 1, len(text)), SHORTEST_SECRET - 1, -1):
            text = text.replace(f"{secret[:length]}{CUT}", f"{HIDDEN.decode()}{CUT}")
    return text.replace(address, UPSTREAM) if address else text


# --- as documents and events -------------------------------------------------------------------------------


def error_object(error: RequestRefused) -> dict[str, Any]:
    """The API's error object."""
    return error.told or {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}


def document(error: RequestRefused) -> bytes:
    return dump({"error": error_object(error)})


def headers_of(error: RequestRefused) -> dict[str, str]:
    if error.retry_after is None:
        return {}
    return {"retry-after": str(max(1, round(error.retry_after)))}


def frame(error: RequestRefused) -> dict[str, Any]:
    """The event of a WebSocket for a request that is refused."""
    return {"type": "error", "status": error.status, "error": error_object(error), "headers": headers_of(error)}


def failed(shell: Response, error: RequestRefused, output: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The event `response.failed` for a response that has begun."""
    told = {"code": error.code or FAILED, "message": str(error)}
    response = ended(shell, End("failed", error=told), output or [], None)
    return {"type": "response.failed", "response": response}


def own_fault(error: Exception) -> RequestRefused:
    """The answer to a fault of the gateway's own; what it was stands in the log, where one was asked for."""
    text = f"The gateway failed ({type(error).__name__}). The request was not the reason; it may be tried again."
    return RequestRefused(text, status=SERVER_FAULT, code=FAILED, kind="server_error")


# --- of the upstream ---------------------------------------------------------------------------------------


def refused_by(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    provider: Provider,
    *,
    window: int | None,
    secrets: Iterable[str] = (),
    own_key: bool = False,
) -> RequestRefused:
    """The answer for an HTTP answer of the upstream that is an error. `headers` by lower-case name; `window`: tokens of
    its model as they are set; `own_key`: the upstream refused the gateway's key, not the client's."""
    body = hidden(body, secrets)
    error = http_error(status, headers, body, provider=provider, now=time.time())
    if isinstance(error, ContextWindowExceeded) and status != 413:
        return overflow(error, window)
    if own_key and status in KEY_REFUSED:
        return _own_key_refused(status)
    told = _told(body)
    kind = "invalid_request_error" if status < SERVER_FAULT else "server_error"
    message = str(told.get("message") or _unsaid(error, secrets, provider.base_url))
    wait = error.retry_after if isinstance(error, ModelUnavailable) else None
    code = told.get("code") if isinstance(told.get("code"), str) else None
    if 300 <= status < 400:
        return _redirected(status)
    complete = isinstance(told.get("message"), str)
    whole = {"type": kind, "param": None, "code": None, **_as_texts(told)} if complete else None
    return RequestRefused(message, status=status, code=code, kind=kind, retry_after=wait, told=whole)


def _as_texts(told: dict[str, Any]) -> dict[str, Any]:
    """An error object without what is no text where the API has one: vLLM and llama.cpp tell the status as its code."""
    return {key: value for key, value in told.items() if key not in ("type", "param", "code") or isinstance(value, str)}


def unanswered(code: str) -> RequestRefused:
    """The answer where the upstream gave none, for one of three reasons."""
    status, text = _UNANSWERED[code]
    return RequestRefused(text, status=status, code=code, kind="server_error")


def unreadable() -> RequestRefused:
    """The answer where the upstream gave none in JSON."""
    text = "The upstream answered with no JSON object."
    return RequestRefused(text, status=502, code="upstream_unreadable", kind="server_error")


def _own_key_refused(status: int) -> RequestRefused:
    text = f"The upstream did not take the gateway's key ({status}): whoever runs the gateway must set another one."
    return RequestRefused(text, status=502, code="upstream_refused_key", kind="server_error")


def _redirected(status: int) -> RequestRefused:
    text = f"The upstream redirects ({status}): whoever runs the gateway must set another address."
    return RequestRefused(text, status=502, code="upstream_redirects", kind="server_error")


def _told(body: bytes) -> dict[str, Any]:
    """The error object of a body, with a message where there is any; nothing for another document."""
    try:
        value, _ = load(body)
    except ValueError:
        return {}
    error = value.get("error") if is_object(value) else None
    if isinstance(error, str):
        return {"message": error}
    if is_object(error):
        return error
    if is_object(value) and isinstance(value.get("message"), str):  # vLLM
        return {key: value[key] for key in ("message", "type", "param", "code") if key in value}
    return {}


def overflow_in(message: dict[str, Any], window: int | None) -> RequestRefused | None:
    """The answer to an event that says in the upstream's own words that the input does not fit; None for another."""
    try:
        read_event(message)
    except ContextWindowExceeded as error:
        return overflow(error, window)
    except ModelError:
        pass
    return None


def overflow(error: ContextWindowExceeded, window: int | None) -> RequestRefused:
    """The answer to an input that does not fit."""
    limit = error.limit or window
    said = str(error)
    told = "Your input exceeds the context window of this model. Please adjust your input and try again."
    if limit:
        told = f"{told} This model's maximum context length is {limit} tokens."
    text = f"{told} (The upstream said: {said})" if said and said != told else told
    return RequestRefused(text, status=400, code=OVERFLOW, param="input")


def of_model(
    error: ModelError, window: int | None, secrets: Iterable[str] = (), *, own_key: bool = False, address: str = ""
) -> RequestRefused:
    """The answer for an error of refold.model: a compaction that the upstream, which is at `address`, did not give."""
    text = _unsaid(error, secrets, address)
    match error:
        case ContextWindowExceeded():
            return overflow(ContextWindowExceeded(text, limit=error.limit), window)
        case ModelRefused() if own_key and error.status in KEY_REFUSED:
            return _own_key_refused(error.status)
        case ModelRefused() if error.status and 300 <= error.status < 400:
            return _redirected(error.status)
        case ModelRefused():
            status = error.status if error.status and error.status >= 400 else 400
            return RequestRefused(text, status=status, code=error.code)
        case ResponseIncomplete():
            return RequestRefused(text, status=502, code="incomplete", kind="server_error")
        case BadModelStream() if str(error) == IDLE_TIMEOUT:
            return unanswered("upstream_timeout")
        case BadModelStream():
            return RequestRefused(text, status=502, code=FAILED, kind="server_error")
        case ModelUnavailable() if error.status is None and error.request_level:
            return unanswered("upstream_closed" if error.reached else "upstream_unreachable")
        case ModelUnavailable():
            code = "rate_limit_exceeded" if error.status == 429 else FAILED
            wait = error.retry_after
            status = error.status if error.status and error.status >= 400 else 502
            return RequestRefused(text, status=status, code=code, kind="server_error", retry_after=wait)
        case _:
            return RequestRefused(text, status=502, code=FAILED, kind="server_error")
