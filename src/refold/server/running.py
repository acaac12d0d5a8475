"""Running: the gateway as a process that listens: one worker, or several that share a port and a store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from refold.errors import ConfigError
from refold.server.settings import GatewaySettings, Secrets, checked, read_secrets

if TYPE_CHECKING:
    from starlette.applications import Starlette

HANDED_ON = "REFOLD_GATEWAY_SETTINGS"  # how workers are told the settings, which hold no secret
KEEP_ALIVE_SECONDS = 75  # longer than clients keep an idle connection, so that none closes under a request
BACKLOG = 2_048  # connections that wait to be taken
EXTRA = "pip install 'refold[server]'"


def serve(settings: GatewaySettings, told: Callable[[str, Secrets], object]) -> None:
    """Listen until SIGINT or SIGTERM; open answers are given `shutdown_seconds` to end.

    `told` is called with the address when it is listened at. Raises ConfigError, also where the extra `server` is not
    installed or the address is taken.
    """
    require_extra()
    import uvicorn

    from refold.server.app import new_app

    settings = checked(settings)
    secrets = read_secrets(settings, os.environ)
    with listen(settings) as listener:
        host, port = listener.getsockname()[:2]
        told(f"http://{f'[{host}]' if ':' in host else host}:{port}", secrets)
        if settings.workers == 1:
            server = uvicorn.Server(uvicorn.Config(new_app(settings, secrets), **options(settings)))
            server.run([listener])
            return
        from uvicorn.supervisors import Multiprocess

        os.environ[HANDED_ON] = msgspec.json.encode(settings).decode()
        config = uvicorn.Config(
            "refold.server.running:handed_on", factory=True, workers=settings.workers, **options(settings)
        )
        Multiprocess(config, sockets=[listener]).run()


def handed_on() -> Starlette:
    """The application of a worker, with the settings that it was handed."""
    from refold.server.app import new_app

    settings = msgspec.json.decode(os.environ[HANDED_ON], type=GatewaySettings)
    return new_app(settings, read_secrets(settings, os.environ))


def options(settings: GatewaySettings) -> dict[str, Any]:
    """What uvicorn is told: no log of requests, no header that names it; wsproto, which refold always has."""
    return {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "lifespan": "on",
        "ws": "wsproto",
        "ws_max_size": settings.max_body_bytes,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": round(settings.shutdown_seconds),
    }


def require_extra() -> None:
    """Raises ConfigError that says what to install."""
    try:
        import cryptography
        import starlette
        import uvicorn
    except ImportError as error:
        raise ConfigError("refold serve", f"needs {error.name}, which is not installed: {EXTRA}") from None
    del cryptography, starlette, uvicorn


def listen(settings: GatewaySettings) -> socket.socket:
    """A socket at the settings' address. Raises ConfigError where it is taken.

    It says that it is TCP: asyncio sends small pieces at once only where a socket says so, and else waits up to 40 ms.
    """
    where = f"{settings.host}:{settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise ConfigError("port", f"{where} cannot be listened at: {why}; choose another --port") from None
