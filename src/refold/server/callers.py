"""Caller: who asks, known by a bearer token; tenants see nothing of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from urllib.parse import urlsplit

import msgspec

from refold.errors import RequestRefused
from refold.server.settings import GatewaySettings, Secrets, is_loopback

NOBODY = "loopback"  # the tenant of those who send no bearer, where none is needed
RETRY_SECONDS = 1.0  # what a client is asked to wait where there is no room


class Caller(msgspec.Struct, frozen=True):
    """A tenant, and what the upstream is sent for it: as `authorization` (None: nothing), and in other headers that
    hold what is secret."""

    tenant: str
    authorization: str | None = None
    headers: dict[str, str] = {}  # by their names in lower case

    def __repr__(self) -> str:
        return f"Caller({self.tenant[:12]}…)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not stand in an error or a log."""
        own = (self.authorization.partition(" ")[2].strip(),) if self.authorization else ()
        return (*own, *self.headers.values()) if self.headers else own

    def sent(self) -> dict[str, str]:
        """The headers that say to the upstream who asks."""
        own = {"authorization": self.authorization} if self.authorization else {}
        return own | self.headers


def caller_of(headers: Mapping[str, str], secrets: Secrets) -> Caller:
    """Who sent these headers (names in lower case). Raises RequestRefused: 401 where a token is needed and there is
    none of them, or where the upstream could not be sent the one that is there; 403 where none is needed and a web page
    asks from a browser on this machine.

    Without tokens (on loopback), each bearer is a tenant of its own, and so are those who send none.
    """
    authorization = headers.get("authorization")
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    digest = sha256(token.encode("utf-8", "replace")).digest()
    if not secrets.tenants:
        _refuse_pages(headers)
        tenant = f"bearer:{digest.hex()}" if token else NOBODY
        sent = authorization if secrets.passes_bearer and token else None
        if sent is not None and not (sent.isascii() and sent.isprintable()):
            raise _unknown(told=True)
    else:
        known = secrets.tenants.get(digest)
        if known is None:
            raise _unknown(bool(token))
        tenant, sent = known, None
    if secrets.upstream_key is not None:
        sent = f"Bearer {secrets.upstream_key}"
    return Caller(tenant, sent, secrets.upstream_headers)


def _refuse_pages(headers: Mapping[str, str]) -> None:
    """A page that somebody visits can send requests to this machine, but it cannot choose these headers."""
    origin = headers.get("origin")
    names = [_host_of(f"//{headers.get('host', '')}")]
    names += [] if origin is None else [_host_of(origin)]
    if not all(name is not None and is_loopback(name) for name in names):
        text = "This gateway has no bearer tokens, so it only answers programs that ask for it at a loopback address."
        raise RequestRefused(text, status=403, code="not_loopback")


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # half an IPv6 address
        return None


def _unknown(told: bool) -> RequestRefused:
    text = "Incorrect API key provided" if told else "You didn't provide an API key"
    return RequestRefused(
        f"{text}: this gateway takes a bearer token, in the header authorization.", status=401, code="invalid_api_key"
    )


class Admission:
    """How many requests run, all together and of each tenant; or `what` else there is, `times` as often. Mutable: it
    counts."""

    def __init__(self, settings: GatewaySettings, *, times: int = 1, what: str = "requests") -> None:
        self._most, self._most_of_one = settings.max_requests * times, settings.max_requests_per_tenant * times
        self._what = what
        self.running = 0
        self._of: dict[str, int] = {}

    @contextmanager
    def of(self, caller: Caller) -> Iterator[None]:
        """Room for one more. Raises RequestRefused: 503 when the gateway is full, 429 when the tenant's share is."""
        tenant = caller.tenant
        if self.running >= self._most:
            text = f"This gateway has {self._most:,} {self._what} at once already. Try again in 1 s."
            raise RequestRefused(
                text, status=503, code="server_is_overloaded", kind="server_error", retry_after=RETRY_SECONDS
            )
        mine = self._of.get(tenant, 0)
        if mine >= self._most_of_one:
            text = f"You have {mine:,} {self._what} at once already, which is the limit. Try again in 1 s."
            raise RequestRefused(
                text, status=429, code="rate_limit_exceeded", kind="requests", retry_after=RETRY_SECONDS
            )
        self.running += 1
        self._of[tenant] = mine + 1
        try:
            yield
        finally:
            self.running -= 1
            self._of[tenant] -= 1
            if not self._of[tenant]:
                del self._of[tenant]
