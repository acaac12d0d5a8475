"""ResponsesModel: a model behind `POST {base_url}/responses`, streamed as server-sent events (spec §9.1–9.4).

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
from refold.model import Completed, ModelEvent
from refold.model.events import CLOSED_EARLY, IDLE_TIMEOUT, decode_event, document_error, http_error
from refold.model.sse import SseDecoder

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 15.0  # a provider that does not answer a connection by then is not there
KEEP_ALIVE_SECONDS = 55.0  # tools run between two requests; most servers and balancers drop idle connections at 60
LEFTOVER_SECONDS = 0.02  # what follows `response.completed` came long ago, or will not
ERROR_BODY_SECONDS = 10.0
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

    async def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        """Stream the events of one request; see `Model` for what it raises."""
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
            await client.aclose()

    async def _open(self, request: Request) -> httpx2.Response:
        """Send the request; the response whose events follow, or the error that came instead."""
        from httpx2 import RequestError

        client = self._ready_client()
        await self._take_leftovers()
        assert self._url is not None
        headers = {**self._headers, **{name.lower(): value for name, value in request.headers.items()}}
        headers["content-length"] = str(request.size)
        raw = {name.encode("ascii"): value.encode() for name, value in headers.items()}  # paths in metadata: UTF-8
        message = client.build_request("POST", self._url, headers=raw, content=_body_chunks(request))
        try:
            response = await client.send(message, stream=True)
        except RequestError as error:
            raise self._unanswered(error) from error
        if 200 <= response.status_code < 300 and not _is_document(response):
            return response
        raise await self._refusal(response)

    def _ready_client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._url = _endpoint(self.provider)
            self._headers = self._fixed_headers(os.environ)
            self._client, self._loop, self._leftovers = _new_client(self.provider, self._url), loop, []
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
        body = await _error_body(response)
        if self._api_key:
            body = body.replace(self._api_key.encode(), b"***")
        status, kind = response.status_code, response.headers.get("content-type", "")
        if 200 <= status < 300:
            text = f"{self.provider.base_url} answered with {kind}, not an event stream; is it the right base URL?"
            return document_error(body) or ModelRefused(text, status=status)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return http_error(status, headers, body, provider=self.provider, now=time.time())

    def _unanswered(self, error: httpx2.RequestError) -> ModelError:
        """The error of a request that got no answer at all."""
        import httpx2

        where = self.provider.base_url
        match error:
            case httpx2.ConnectTimeout():
                text = f"cannot reach {where}: no connection within {CONNECT_SECONDS:g} s"
            case httpx2.ReadTimeout() | httpx2.WriteTimeout():
                return BadModelStream(IDLE_TIMEOUT)
            case httpx2.LocalProtocolError():  # its text quotes the header, which may be the key
                return ModelRefused("the request cannot be sent: a header has a character that HTTP does not allow")
            case httpx2.ConnectError() | httpx2.ProxyError():
                root = _root(error)
                text = f"cannot reach {where}: {_reason(root)}"
                lasting = isinstance(root, ssl.SSLCertVerificationError)
                return ModelUnavailable(text, request_level=True, retryable=not lasting)
            case _:
                text = f"{where} closed the connection without an answer"
        return ModelUnavailable(text, request_level=True)


# --- requests --------------------------------------------------------------------------------------------


def _endpoint(provider: Provider) -> httpx2.URL:
    import httpx2

    try:
        base = httpx2.URL(provider.base_url)
    except httpx2.InvalidURL as error:
        raise ConfigError("base_url", f"{provider.base_url!r} is no URL: {error}") from None
    if base.scheme not in ("http", "https") or not base.host:
        raise ConfigError("base_url", f"{provider.base_url!r} must begin with http:// or https:// and a host")
    url = base.copy_with(path=base.path.rstrip("/") + "/responses")
    return url.copy_merge_params(provider.query_params) if provider.query_params else url


def _new_client(provider: Provider, url: httpx2.URL) -> httpx2.AsyncClient:
    """A client for this provider; a proxy of the environment is used for anything but loopback."""
    import httpx2

    idle = provider.stream_idle_timeout_ms / 1000
    at_home = _is_loopback(url.host)
    # reading the certificate store takes tens of milliseconds, and nobody needs it for plain HTTP on loopback
    plain = at_home and url.scheme == "http"
    try:
        return httpx2.AsyncClient(
            timeout=httpx2.Timeout(connect=CONNECT_SECONDS, read=idle, write=idle, pool=None),
            limits=httpx2.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS),
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx2.create_ssl_context(),
            trust_env=not at_home,
            follow_redirects=False,
        )
    except OSError as error:
        raise ConfigError("SSL_CERT_FILE", f"cannot be used: {error}") from error
    except (ImportError, ValueError, httpx2.InvalidURL) as error:  # a SOCKS proxy needs a package of its own
        raise ConfigError("HTTPS_PROXY or ALL_PROXY", f"cannot be used: {error}") from error


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


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
