"""Upstream: the provider behind the gateway, asked once for each request; its bytes are passed on as they come.

Rule 1: nothing is retried here: the client does that, and knows how often.
Rule 2: leaving `stream` closes the connection, so a client that goes stops the upstream's work.
Rule 3: an answer that is an error is raised as RequestRefused; a stream that breaks as BadModelStream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from refold.core.jsonio import dump
from refold.core.wire import Request
from refold.errors import BadModelStream, RequestRefused
from refold.model.client import endpoint, new_client
from refold.model.compact import IDLE_TIMES
from refold.model.events import CLOSED_EARLY, IDLE_TIMEOUT
from refold.server.blocks import ENDS, Event, EventCutter
from refold.server.callers import Caller
from refold.server.faults import SHORTEST_KEY, hidden, overflow_in, refused_by, unanswered
from refold.server.settings import GatewaySettings, Secrets

if TYPE_CHECKING:
    import httpx2

    from refold.model.responses import ResponsesModel

MOST_IDLE = 32  # connections: the client looks at each idle one whenever a request begins or ends
LEFTOVER_SECONDS = 0.2  # what follows the last event (`[DONE]`, the end of the message) came with it, or will not
MOST_BYTES = 256 << 20  # of an answer that is no stream
ERROR_BYTES = 256 * 1024
ERROR_SECONDS = 10.0
LONGEST_QUERY = 8_192  # characters
STATUSES = frozenset({"completed", "failed", "incomplete", "in_progress", "queued", "cancelled"})  # of a response
# What of a client's headers the upstream is told, and of the upstream's the client.
TO_UPSTREAM = ("openai-organization", "openai-project", "x-codex-", "x-client-request-id", "session-id", "thread-id")
TO_UPSTREAM += ("originator", "user-agent", "x-stainless-", "idempotency-key", "x-openai-")
TO_CLIENT = (
    "x-request-id",
    "openai-",
    "x-codex-",
    "x-ratelimit-",
    "retry-after",
    "x-reasoning-included",
    "x-models-etag",
)


class Document(NamedTuple):
    """An answer that is no stream. `left_out`: what the upstream was not told."""

    status: int
    headers: dict[str, str]
    body: bytes
    left_out: tuple[str, ...] = ()


class Answer(NamedTuple):
    """A streamed answer that has begun. `events` ends after the event that ends the response, or raises. `left_out`:
    what the upstream was not told."""

    headers: dict[str, str]
    events: AsyncGenerator[Event]
    left_out: tuple[str, ...] = ()


class _Outcome(msgspec.Struct):
    """What of a document tells whether it is an error."""

    object: Any = None
    status: Any = None
    error: Any = None


_outcome = msgspec.json.Decoder(_Outcome).decode


class Upstream:
    """A provider with the Responses API. Mutable: it keeps HTTP clients, which belong to one event loop.

    `model`: the same provider as it is asked for summaries; which model writes one stands in the request.
    """

    def __init__(self, settings: GatewaySettings, secrets: Secrets) -> None:
        self.settings = settings
        self.provider = settings.provider()
        self.url = endpoint(self.provider)
        self.owns_key = bool(secrets.upstream_key or secrets.upstream_headers)  # the same for every client
        self.model = self._new_model()
        self._client = new_client(self.provider, self.url, most_idle=MOST_IDLE)
        self._configured = {name.lower(): value for name, value in settings.http_headers.items()}

    async def close(self) -> None:
        await self.model.close()
        await self._client.aclose()

    async def document(self, body: bytes, caller: Caller, headers: Mapping[str, str]) -> Document:
        """The whole answer, as it came. Raises RequestRefused."""
        async with self._answer("POST", self.url, body, caller, _told(headers), streamed=False) as response:
            said = self._checked(await self._whole(response), response, caller)
            return Document(response.status_code, passed_on(response.headers, caller.secrets), said)

    @asynccontextmanager
    async def stream(self, body: bytes, caller: Caller, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
        """The answer as it comes. Raises RequestRefused when it does not begin."""
        async with (
            self._answer("POST", self.url, body, caller, _told(headers), streamed=True) as response,
            aclosing(_events(response)) as events,
        ):
            yield Answer(passed_on(response.headers, caller.secrets), events)

    async def models(self, caller: Caller, query: str = "") -> Document:
        """The upstream's list of models."""
        url = self.url.copy_with(path=self.url.path.removesuffix("/responses") + "/models")
        if len(query) > LONGEST_QUERY:
            raise RequestRefused(f"The query is longer than {LONGEST_QUERY:,} characters.", param="query")
        if query:
            url = url.copy_with(query=b"&".join(filter(None, (url.query, query.encode()))))
        async with self._answer("GET", url, b"", caller, {}, streamed=False) as response:
            said = self._checked(await self._whole(response), response, caller)
            return Document(response.status_code, passed_on(response.headers, caller.secrets), said)

    def _new_model(self) -> ResponsesModel:
        from refold.model.responses import ResponsesModel

        return ResponsesModel(self.settings.profile(""), self.provider)

    def request(self, body: dict[str, Any], caller: Caller, headers: Mapping[str, str]) -> Request:
        """A request for `model.sample`."""
        told = _told(headers) | caller.sent()
        return Request(head=dump(body), parts=(), tail=b"", items=0, headers=told)

    @asynccontextmanager
    async def _answer(
        self, method: str, url: httpx2.URL, body: bytes, caller: Caller, headers: dict[str, str], *, streamed: bool
    ) -> AsyncIterator[httpx2.Response]:
        """An answer that is no error. Raises RequestRefused for one that is, and for none."""
        import httpx2

        limits = self._client.timeout
        if not streamed:  # nothing is said until all of it is there
            limits = httpx2.Timeout(
                connect=limits.connect, read=(limits.read or 0) * IDLE_TIMES, write=limits.write, pool=None
            )
        own = {"accept": "text/event-stream" if streamed else "application/json", "accept-encoding": "identity"}
        own |= {"content-type": "application/json"} if body else {}
        own |= self._configured | caller.sent()
        message = self._client.build_request(
            method, url, headers={**headers, **own}, content=body or None, timeout=limits
        )
        try:
            response = await self._client.send(message, stream=True)
        except httpx2.RequestError as error:
            raise self._unanswered(error) from None
        try:
            if not 200 <= response.status_code < 300:
                raise await self._refusal(response, caller)
            if streamed and "application/json" in response.headers.get("content-type", ""):
                raise await self._refusal(response, caller)
            yield response
        finally:
            await response.aclose()

    async def _refusal(self, response: httpx2.Response, caller: Caller) -> RequestRefused:
        import httpx2

        body = b""
        try:
            async with asyncio.timeout(ERROR_SECONDS), aclosing(_chunks(response)) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) >= ERROR_BYTES:
                        break
        except (TimeoutError, httpx2.RequestError):
            pass
        return self._refused(response, body, caller)

    def _refused(self, response: httpx2.Response, body: bytes, caller: Caller) -> RequestRefused:
        headers = {name.lower(): value for name, value in response.headers.items()}
        status = response.status_code if response.status_code >= 300 else 502  # a document in place of an answer
        return refused_by(
            status,
            headers,
            body,
            self.provider,
            window=self.settings.context_window,
            secrets=caller.secrets,
            own_key=self.owns_key,
        )

    def _checked(self, body: bytes, response: httpx2.Response, caller: Caller) -> bytes:
        """A document as the client is told it. Raises RequestRefused for one that only says an error, or that the
        input does not fit: some servers say both with status 200."""
        outcome = _outcome_of(body)
        if not outcome.error and outcome.status != "failed" and outcome.object != "error":  # vLLM before 0.10
            return hidden(body, caller.secrets, shortest=SHORTEST_KEY) if self.owns_key else body
        if not (isinstance(outcome.status, str) and outcome.status in STATUSES):
            raise self._refused(response, body, caller)
        body = hidden(body, caller.secrets)
        told = _outcome_of(body).error
        failed = {"type": "response.failed", "response": {"error": told}}
        fault = overflow_in(failed, self.settings.context_window)
        if fault is not None:
            raise fault
        return body

    async def _whole(self, response: httpx2.Response) -> bytes:
        import httpx2

        body = bytearray()
        try:
            async with aclosing(_chunks(response)) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise RequestRefused(
                            f"The upstream's answer is larger than {MOST_BYTES:,} bytes.",
                            status=502,
                            code="answer_too_large",
                            kind="server_error",
                        )
        except httpx2.RequestError as error:
            raise self._unanswered(error) from None
        return bytes(body)

    def _unanswered(self, error: httpx2.RequestError) -> RequestRefused:
        """The error of no answer; it names no address: that is the gateway's own affair."""
        import httpx2

        if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError | httpx2.ProxyError):
            return unanswered("upstream_unreachable")
        return unanswered("upstream_timeout" if isinstance(error, httpx2.TimeoutException) else "upstream_closed")


def _outcome_of(body: bytes) -> _Outcome:
    """Read without the rest of the document, which may be long; what is no JSON object is no error."""
    try:
        return _outcome(body)
    except (msgspec.DecodeError, RecursionError):
        return _Outcome()


async def _events(response: httpx2.Response) -> AsyncGenerator[Event]:
    """The events of an answer, and what follows the last one at once. Raises BadModelStream."""
    import httpx2

    cutter, has_ended = EventCutter(), False
    async with aclosing(_chunks(response)) as chunks:
        while True:
            try:
                chunk = await (_leftover(chunks) if has_ended else anext(chunks, None))
            except httpx2.RequestError as error:
                if has_ended:
                    return
                late = isinstance(error, httpx2.TimeoutException)
                raise BadModelStream(IDLE_TIMEOUT if late else CLOSED_EARLY) from None
            if chunk is None:
                if has_ended:
                    return
                raise BadModelStream(CLOSED_EARLY)
            for event in cutter.feed(chunk):
                yield event
                has_ended = has_ended or event.type in ENDS


async def _leftover(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    """What follows the last event, if it comes at once."""
    try:
        async with asyncio.timeout(LEFTOVER_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        return None


def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    body = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    return cast("AsyncGenerator[bytes, None]", body)


def _told(headers: Mapping[str, str]) -> dict[str, str]:
    """What of a client's headers the upstream is told. Names are lower case. Only ASCII: httpx sends nothing else."""
    return {name: value for name, value in headers.items() if name.startswith(TO_UPSTREAM) and value.isascii()}


def passed_on(headers: Mapping[str, str], secrets: Sequence[str]) -> dict[str, str]:
    """What of the upstream's headers the client is told: none that repeats a secret."""
    return {
        name.lower(): value
        for name, value in headers.items()
        if name.lower().startswith(TO_CLIENT) and hidden(value.encode(), secrets) == value.encode()
    }


def upstream_for(settings: GatewaySettings, secrets: Secrets) -> Upstream:
    """The upstream that these settings mean: the one place that knows the kinds. Raises ConfigError."""
    if settings.upstream_api == "chat":
        from refold.server.chat_upstream import ChatUpstream

        return ChatUpstream(settings, secrets)
    return Upstream(settings, secrets)
