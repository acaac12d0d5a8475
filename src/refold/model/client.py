"""Client: the HTTP client for one provider, and the address that it asks."""

from __future__ import annotations

import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

from refold.core.profile import Provider
from refold.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 15.0  # a provider that does not answer a connection by then is not there
KEEP_ALIVE_SECONDS = 55.0  # tools run between two requests; most servers and balancers drop idle connections at 60


def endpoint(provider: Provider) -> httpx2.URL:
    """Where its Responses API is. Raises ConfigError for a base URL that cannot be one."""
    import httpx2

    try:
        base = httpx2.URL(provider.base_url)
    except httpx2.InvalidURL as error:
        raise ConfigError("base_url", f"{provider.base_url!r} is no URL: {error}") from None
    if base.scheme not in ("http", "https") or not base.host:
        raise ConfigError("base_url", f"{provider.base_url!r} must begin with http:// or https:// and a host")
    url = base.copy_with(path=base.path.rstrip("/") + "/responses")
    return url.copy_merge_params(provider.query_params) if provider.query_params else url


def new_client(provider: Provider, url: httpx2.URL, *, most_idle: int | None = None) -> httpx2.AsyncClient:
    """A client for this provider; a proxy of the environment is used for anything but loopback. Raises ConfigError.

    `most_idle`: connections that it keeps open while nobody uses them; None: all of them.
    """
    import httpx2

    idle = provider.stream_idle_timeout_ms / 1000
    at_home = _is_loopback(url.host)
    # reading the certificate store takes tens of milliseconds, and nobody needs it for plain HTTP on loopback
    plain = at_home and url.scheme == "http"
    try:
        return httpx2.AsyncClient(
            timeout=httpx2.Timeout(connect=CONNECT_SECONDS, read=idle, write=idle, pool=None),
            limits=httpx2.Limits(max_keepalive_connections=most_idle, keepalive_expiry=KEEP_ALIVE_SECONDS),
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx2.create_ssl_context(),
            trust_env=not at_home,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none is kept: many may share a client
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
