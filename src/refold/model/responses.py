"""ResponsesModel: a model behind `POST {base_url}/responses`, streamed as server-sent events (spec §9.1–9.4), or behind
a WebSocket at the same place (websocket.py).

Rule 1: one `sample` is one request; nothing is retried here, nothing redirected.
Rule 2: nothing is read after `response.completed`. What is left of that answer (a line, the end of the HTTP message)
is taken off the connection before the next request, so that the connection can be used again.
Rule 3: the key is never part of an error.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from refold.core.profile import Profile, Provider
from refold.core.wire import Request
from refold.errors import BadModelStream, ConfigError, ModelError, ModelRefused, ModelUnavailable
from refold.model import Completed, EndpointAnswer, FellBack, ModelEvent
from refold.model.client import CONNECT_SECONDS, endpoint, new_client
from refold.model.events import CLOSED_EARLY, IDLE_TIMEOUT, decode_event, document_error, http_error
from refold.model.sse import SseDecoder

if TYPE_CHECKING:
    import httpx2

    from refold.model.websocket import Link, Links, Socket

LEFTOVER_SECONDS = 0.02  # what follows `response.completed` came long ago, or will not
ERROR_BODY_SECONDS = 10.0
UPGRADE_REFUSED = 426  # the provider speaks no WebSocket here: HTTP it is
ERROR_BODY_BYTES = 64 * 1024
SEND_BYTES = 256 * 1024  # written at once: large enough to be cheap, small enough not to copy a 50 MB request whole


def api_key_from(provider: Provider, environ: Mapping[str, str]) -> str | None:
    """The key in the provider's environment variable; None when it needs none.

    Raises ConfigError naming the variable when it is not set or empty.
    """
    if provider.env_key is None:
        return None
    key = environ.get(provider.env_key, "").strip()
    if not key:
        raise ConfigError(provider.env_key, f"is not set; export it with the API key for {provider.base_url}")
    return key


class ResponsesModel:
    """A model of a Responses provider. Mutable: it keeps one HTTP client, made at the first `sample`.

    With `supports_websockets` each thread has a WebSocket to the provider, until that was given up for the thread.
    Without `api_key`, the first `sample` takes the key from the provider's environment variable (ConfigError when it
    is missing). Several samples may run at once. `close` when done; a closed model opens again when it is used.
    """

    def __init__(self, profile: Profile, provider: Provider, *, api_key: str | None = None) -> None:
        self.profile = profile
        self.provider = provider
        self._api_key = api_key
        self._client: httpx2.AsyncClient | None = None
        self._users = 0  # sessions that share this model and have not left yet
        self._loop: asyncio.AbstractEventLoop | None = None  # a client belongs to the event loop that it was made in
        self._url: httpx2.URL | None = None
        self._headers: dict[str, str] = {}
        self._leftovers: list[tuple[AsyncGenerator[bytes, None], httpx2.Response]] = []
        self._links: Links | None = None

    def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        """Stream the events of one request; see `Model` for what it raises."""
        return self._over_websocket(request) if self.provider.supports_websockets else self._over_http(request)

    def fall_back(self, thread_id: str) -> bool:
        """Ask over HTTP for this thread from now on; see `HasSecondWay`."""
        link = self._links.get(thread_id) if self._links else None
        return link is not None and link.fall_back()

    async def _over_http(self, request: Request) -> AsyncGenerator[ModelEvent]:
        from httpx2 import RequestError

        response = await self._open(request)
        chunks = _body(response)
        completed = False
        try:
            decoder = SseDecoder()
            async for chunk in chunks:
                for name, data in decoder.feed(chunk):
                    event = decode_event(name, data, now=time.time())
                    if event is None:
                        continue
                    if isinstance(event, Completed):
                        completed = True
                        self._leftovers.append((chunks, response))
                        yield event
                        return
                    yield event
            raise BadModelStream(CLOSED_EARLY)
        except RequestError as error:
            raise _broken_stream(error) from error
        finally:
            if not completed:
                await chunks.aclose()
                await response.aclose()

    async def _over_websocket(self, request: Request) -> AsyncGenerator[ModelEvent]:
        self._ready_client()
        assert self._links is not None
        link = self._links.of(request)
        try:
            socket = await self._socket(link, request)
            if socket is not None:
                async with aclosing(link.ask(socket, request)) as events:
                    async for event in events:
                        yield event
                return
        except ModelError as error:
            link.failure = error
            raise
        if link.notice:
            notice, link.notice = link.notice, None
            yield FellBack(notice)
        async with aclosing(self._over_http(request)) as events:
            async for event in events:
                yield event

    async def compact(self, request: Request) -> EndpointAnswer:
        """Have a history compacted at `/responses/compact`, always over HTTP; see `HasCompactEndpoint`."""
        from refold.model.compact import address, answer_from, in_time, patient, whole_body

        client = self._ready_client()
        assert self._url is not None
        headers = {**self._headers_of(request), "accept": "application/json"}
        async with in_time(self.provider):
            response = await self._send(request, address(self._url), headers, patient(client.timeout))
            if 200 <= response.status_code < 300:
                body = await whole_body(response, self.provider)
            else:
                body = self._hidden(await _error_body(response))
        return answer_from(response.status_code, response.headers, body, self.provider, now=time.time())

    def join(self) -> None:
        """One more session uses this model."""
        self._users += 1

    async def close(self) -> None:
        """One session less uses it: with the last one, or when none had joined, every connection is closed."""
        self._users = max(0, self._users - 1)
        if self._users:
            return
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await self._take_leftovers()
            if self._links is not None:
                await self._links.close()
            await client.aclose()

    async def _open(self, request: Request) -> httpx2.Response:
        """Send the request; the response whose events follow, or the error that came instead."""
        self._ready_client()
        assert self._url is not None
        response = await self._send(request, self._url, self._headers_of(request))
        if 200 <= response.status_code < 300 and not _is_document(response):
            return response
        raise await self._refusal(response)

    async def _send(
        self, request: Request, url: httpx2.URL, headers: dict[str, str], limits: httpx2.Timeout | None = None
    ) -> httpx2.Response:
        """Post the request, within other time limits than the client's own where some are given."""
        from httpx2 import RequestError

        client = self._ready_client()
        await self._take_leftovers()
        headers = {**headers, "content-length": str(request.size)}
        limits, body = limits or client.timeout, _body_chunks(request)
        message = client.build_request("POST", url, headers=_raw(headers), content=body, timeout=limits)
        try:
            return await client.send(message, stream=True)
        except RequestError as error:
            raise self._unanswered(error) from error

    async def _socket(self, link: Link, request: Request) -> Socket | None:
        """The WebSocket for this request, open; None when the thread has given that up, or the provider does it now."""
        if link.given_up:
            return None
        socket = await link.take(request)
        if socket is not None:
            return socket
        try:
            return await self._handshake(request)
        except ModelRefused as error:
            if error.status != UPGRADE_REFUSED:
                raise
            link.give_up(str(error))
            return None

    async def _handshake(self, request: Request) -> Socket:
        """A new WebSocket, or the error that came instead: the same as over HTTP."""
        from httpx2 import RequestError, TimeoutException

        from refold.model.websocket import Socket, handshake_headers

        client, where = self._ready_client(), self.provider.base_url
        assert self._url is not None
        assert self._links is not None
        await self._links.trim()
        raw = _raw(handshake_headers(self._headers_of(request)))
        message = client.build_request("GET", self._url, headers=raw, timeout=CONNECT_SECONDS)
        try:
            response = await client.send(message, stream=True)
        except TimeoutException as error:
            text = f"cannot reach {where}: no WebSocket within {CONNECT_SECONDS:g} s"
            raise ModelUnavailable(text, request_level=True, reached=False) from error
        except RequestError as error:
            raise self._unanswered(error) from error
        if response.status_code != 101:
            raise await self._refusal(response)
        try:
            return Socket(response, self.provider.stream_idle_timeout_ms / 1000)
        except ValueError as error:
            await response.aclose()
            raise ModelUnavailable(f"{where} opened no usable WebSocket: {error}", request_level=True) from error

    def _headers_of(self, request: Request) -> dict[str, str]:
        return {**self._headers, **{name.lower(): value for name, value in request.headers.items()}}

    def _ready_client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._url = endpoint(self.provider)
            self._headers = self._fixed_headers(os.environ)
            self._client, self._loop, self._leftovers = new_client(self.provider, self._url), loop, []
            if self.provider.supports_websockets:
                from refold.model.websocket import Links

                self._links = Links(self.provider, self._api_key)
        return self._client

    def _fixed_headers(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The headers of every request, by lower-case name; configured ones win over refold's own."""
        provider = self.provider
        chosen = {name.lower(): value for name, value in provider.http_headers.items()}
        for name, variable in provider.env_http_headers.items():
            if environ.get(variable):
                chosen[name.lower()] = environ[variable].strip()
        own = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",  # a compressed stream comes late, in blocks
            "user-agent": "refold",
        }
        if "authorization" not in chosen:
            self._api_key = self._api_key or api_key_from(provider, environ)
            if self._api_key:
                own["authorization"] = f"Bearer {self._api_key}"
        return {**own, **chosen}

    async def _take_leftovers(self) -> None:
        """Read what the finished answers left on their connections; close those that would have to be waited for."""
        from httpx2 import RequestError

        leftovers, self._leftovers = self._leftovers, []
        for chunks, response in leftovers:
            try:
                async with asyncio.timeout(LEFTOVER_SECONDS):
                    async for _ in chunks:
                        pass
            except (TimeoutError, RequestError):
                pass
            finally:
                await chunks.aclose()
                await response.aclose()

    async def _refusal(self, response: httpx2.Response) -> ModelError:
        """The error of an answer that is no event stream."""
        body = self._hidden(await _error_body(response))
        status, kind = response.status_code, response.headers.get("content-type", "")
        if 200 <= status < 300:
            text = f"{self.provider.base_url} answered with {kind}, not an event stream; is it the right base URL?"
            return document_error(body) or ModelRefused(text, status=status)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return http_error(status, headers, body, provider=self.provider, now=time.time())

    def _hidden(self, body: bytes) -> bytes:
        """An answer without the key, should it repeat it."""
        return body.replace(self._api_key.encode(), b"***") if self._api_key else body

    def _unanswered(self, error: httpx2.RequestError) -> ModelError:
        """The error of a request that got no answer at all."""
        import httpx2

        where = self.provider.base_url
        match error:
            case httpx2.ConnectTimeout():
                text = f"cannot reach {where}: no connection within {CONNECT_SECONDS:g} s"
                return ModelUnavailable(text, request_level=True, reached=False)
            case httpx2.ReadTimeout() | httpx2.WriteTimeout():
                return BadModelStream(IDLE_TIMEOUT)
            case httpx2.LocalProtocolError():  # its text quotes the header, which may be the key
                return ModelRefused("the request cannot be sent: a header has a character that HTTP does not allow")
            case httpx2.ConnectError() | httpx2.ProxyError():
                root = _root(error)
                text = f"cannot reach {where}: {_reason(root)}"
                lasting = isinstance(root, ssl.SSLCertVerificationError)
                return ModelUnavailable(text, request_level=True, retryable=not lasting, reached=False)
            case _:
                text = f"{where} closed the connection without an answer"
        return ModelUnavailable(text, request_level=True)


# --- requests --------------------------------------------------------------------------------------------


def _raw(headers: dict[str, str]) -> dict[bytes, bytes]:
    """Headers as they are sent; paths in metadata are UTF-8."""
    return {name.encode("ascii"): value.encode() for name, value in headers.items()}


async def _body_chunks(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces of about SEND_BYTES; never a second copy of the whole."""
    piece, size = [request.head], 0
    for number, part in enumerate(request.parts):
        if number:
            piece.append(b",")
        piece.append(part)
        size += len(part)
        if size >= SEND_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    piece.append(request.tail)
    yield b"".join(piece)


# --- answers ---------------------------------------------------------------------------------------------


def _body(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body's bytes as they come; without the decoders where nothing is encoded, as was asked for."""
    body = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    return cast("AsyncGenerator[bytes, None]", body)


def _is_document(response: httpx2.Response) -> bool:
    """Whether this is a page or a JSON object instead of a stream; a missing or odd type is given the benefit."""
    return response.headers.get("content-type", "").partition(";")[0].strip() in ("application/json", "text/html")


async def _error_body(response: httpx2.Response) -> bytes:
    """The first part of the body; whatever came when it does not end."""
    from httpx2 import RequestError

    body = b""
    try:
        async with asyncio.timeout(ERROR_BODY_SECONDS), aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) >= ERROR_BODY_BYTES:
                    break
    except (TimeoutError, RequestError):
        pass
    finally:
        await response.aclose()
    return body


def _broken_stream(error: httpx2.RequestError) -> BadModelStream:
    import httpx2

    return BadModelStream(IDLE_TIMEOUT if isinstance(error, httpx2.ReadTimeout) else CLOSED_EARLY)


def _root(error: BaseException) -> BaseException:
    """The system's error that a connection error began with, found below the wrappings of three libraries."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            cause = error.exceptions[0]
        elif isinstance(error, OSError):  # the context of a system error is the caller's, not its cause
            cause = error.__cause__
        else:
            cause = error.__cause__ or error.__context__
        if cause is None:
            return error
        error = cause


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, (ssl.SSLError, socket.gaierror)) and error.strerror:
        return error.strerror
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
