"""A gateway on a free port, in a thread of its own, in front of a scripted upstream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from typing import Any

import httpx2
import msgspec
import pytest
import uvicorn

from refold.model.sse import SseDecoder
from refold.server import GatewaySettings, Secrets, new_app
from refold.server.running import listen, options
from refold.server.seal import KeyRing
from refold.testing import ResponsesServer

KEY = bytes(range(32))


class Running:
    """A gateway that listens: `url` is a base URL for clients."""

    def __init__(self, url: str, settings: GatewaySettings, app: Any) -> None:
        self.url, self.settings, self.app = url, settings, app
        self.root = url.removesuffix("/v1")

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        with client() as http:
            if isinstance(body, bytes):
                return http.post(self.url + path, content=body, **options)
            return http.post(self.url + path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        with client() as http:
            return http.get(self.url + path, **options)

    def events(self, body: Any, path: str = "/responses", **options: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer."""
        response = self.post(path, {"model": "m", "stream": True, **body}, **options)
        assert response.status_code == 200, response.text
        return [msgspec.json.decode(data) for _, data in SseDecoder().feed(response.content)]

    def metric(self, line: str) -> float:
        """The value behind a metric's name and labels."""
        with client() as http:
            text = http.get(f"{self.root}/metrics").text
        found = [told.rpartition(" ")[2] for told in text.splitlines() if told.startswith(line + " ")]
        return float(found[0]) if found else 0.0

    def eventually(self, line: str, value: float) -> None:
        """Wait, not long, until a metric has a value: what happens after an answer."""
        end = time.monotonic() + 5
        while self.metric(line) != value:
            assert time.monotonic() < end, f"{line} is {self.metric(line)}, not {value}"
            time.sleep(0.02)


def client() -> httpx2.Client:
    return httpx2.Client(timeout=20, trust_env=False)


def secrets_for(*tokens: str, keys: tuple[bytes, ...] = (KEY,), upstream_key: str | None = None) -> Secrets:
    tenants = {sha256(token.encode()).digest(): f"token:{token[:4]}" for token in tokens}
    return Secrets(keys=KeyRing(keys), tenants=tenants, upstream_key=upstream_key)


@contextmanager
def running(settings: GatewaySettings, secrets: Secrets) -> Iterator[Running]:
    app = new_app(settings, secrets)
    listener = listen(GatewaySettings(upstream=settings.upstream, port=0))
    server = uvicorn.Server(uvicorn.Config(app, **{**options(settings), "timeout_graceful_shutdown": 2}))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    end = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < end and thread.is_alive(), "the gateway did not start"
        time.sleep(0.005)
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", settings, app)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive(), "the gateway did not stop"


Gateways = Callable[..., Running]


@pytest.fixture
def secrets_of() -> Callable[..., Secrets]:
    return secrets_for


@pytest.fixture
def gateway() -> Iterator[Gateways]:
    """`gateway(upstream, …settings, secrets=…)` starts one; all are stopped at the test's end."""
    with ExitStack() as stack:

        def start(upstream: ResponsesServer | str, *, secrets: Secrets | None = None, **settings: Any) -> Running:
            url = upstream if isinstance(upstream, str) else upstream.url
            return stack.enter_context(running(GatewaySettings(upstream=url, **settings), secrets or secrets_for()))

        yield start
