"""App: the gateway as an ASGI application: its routes, and what each asks of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from refold.core.jsonio import dump
from refold.errors import RequestRefused
from refold.server.endpoint import Call, Endpoint, refusal
from refold.server.exchange import Exchange
from refold.server.gateway import Gateway
from refold.server.openapi import description
from refold.server.settings import GatewaySettings, Secrets
from refold.server.upstream import Document
from refold.server.websocket import converse

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def new_app(settings: GatewaySettings, secrets: Secrets, *, begun: Callable[[], object] = lambda: None) -> Starlette:
    """The application; its gateway lives as long as its lifespan. Raises ConfigError when that begins.

    `begun` is called when the gateway is there.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        gateway = app.state.gateway = Gateway(settings, secrets)
        begun()
        try:
            yield
        finally:
            await gateway.close()

    app = Starlette(routes=_routes(), lifespan=lifespan, exception_handlers={HTTPException: _not_here})
    app.router.redirect_slashes = False  # it would send a client, and its token, to whatever `host` says
    return app


def _routes() -> list[BaseRoute]:
    one = "/v1/responses/{response_id}"
    return [
        WebSocketRoute("/v1/responses", converse),
        Route("/v1/responses", Endpoint("responses", _responses), methods=["POST"]),
        Route("/v1/responses/compact", Endpoint("compact", _compact), methods=["POST"]),
        Route("/v1/responses/input_tokens", Endpoint("input_tokens", _input_tokens), methods=["POST"]),
        Route("/v1/responses/compact", _only_posted, methods=["GET", "DELETE"]),  # no ids of responses
        Route("/v1/responses/input_tokens", _only_posted, methods=["GET", "DELETE"]),
        Route(one, Endpoint("response", _response), methods=["GET", "DELETE"]),
        Route("/v1/models", Endpoint("models", _models), methods=["GET"]),
        Route("/metrics", Endpoint("metrics", _metrics, needs_room=False), methods=["GET"]),
        Route("/healthz", Endpoint("healthz", _health, is_open=True), methods=["GET"]),
        Route("/openapi.json", Endpoint("openapi", _openapi, is_open=True), methods=["GET"]),
    ]


async def _responses(gateway: Gateway, call: Call) -> Exchange:
    return await gateway.read(call.body, call.caller, call.headers)


async def _compact(gateway: Gateway, call: Call) -> Document:
    return await gateway.compact(call.body, call.caller, call.headers)


async def _input_tokens(gateway: Gateway, call: Call) -> Document:
    return await gateway.input_tokens(call.body, call.caller)


async def _response(gateway: Gateway, call: Call) -> Document:
    act = gateway.delete if call.method == "DELETE" else gateway.stored
    if parse_qs(call.query).get("stream", ["false"])[-1].lower() not in ("false", "0", ""):
        text = "A stored response is given as a document: its events are not kept."
        raise RequestRefused(text, code="unsupported_parameter", param="stream")
    return await act(call.parameters["response_id"], call.caller)


async def _models(gateway: Gateway, call: Call) -> Document:
    return await gateway.models(call.caller, call.query)


async def _metrics(gateway: Gateway, call: Call) -> Document:
    gateway.metrics.set("refold_gateway_running", gateway.admission.running)
    return Document(200, {"content-type": PROMETHEUS}, gateway.metrics.text().encode())


async def _health(gateway: Gateway, call: Call) -> Document:
    return Document(200, {}, dump({"status": "ok"}))


async def _openapi(gateway: Gateway, call: Call) -> Document:
    return Document(200, {}, dump(description(needs_token=bool(gateway.secrets.tenants))))


async def _only_posted(request: Request) -> Response:
    raise HTTPException(405, headers={"allow": "POST"})


async def _not_here(request: Request, error: Exception) -> Response:
    """A path or a method that is not there, in the API's words."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    phrase = HTTPStatus(status).phrase
    told = RequestRefused(f"{phrase}: {request.method} {request.url.path} is not here.", status=status)
    response = refusal(told)
    response.headers.update(getattr(error, "headers", None) or {})
    return response
