"""FACE: the gateway that gives any Responses or Chat Completions provider the compaction that it lacks.

A request: app or websocket → gateway (what is to be done) → incoming, windows, plain → upstream → back to the client.
Public names: GatewaySettings, Secrets, new_app (an ASGI application), serve. The extra `server` holds what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refold.server.settings import GatewaySettings, Secrets

if TYPE_CHECKING:
    from refold.server.app import new_app
    from refold.server.running import serve

__all__ = ["GatewaySettings", "Secrets", "new_app", "serve"]


def __getattr__(name: str) -> Any:
    if name == "new_app":
        from refold.server.app import new_app

        return new_app
    if name == "serve":
        from refold.server.running import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
