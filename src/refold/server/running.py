"""Running: the gateway as a process that listens: one worker, or several that share a port and a store."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from refold.errors import ConfigError
from refold.server.settings import GatewaySettings, Secrets, checked, read_secrets

if TYPE_CHECKING:
    from starlette.applications import Starlette

HANDED_ON = "REFOLD_GATEWAY_SETTINGS"  # how workers are told the settings, which hold no secret
KEEP_ALIVE_SECONDS = 75  # longer than clients keep an idle connection, so that none closes under a request
LONGEST_IDLE = 2**31 - 1  # milliseconds that a socket can be told
BACKLOG = 2_048  # connections that wait to be taken
# A look of the garbage collector at everything stops every stream: some 100 ms at 500 of them. Answers leave no cycles
# behind; so it looks when there are 400,000 new objects, not 70,000.
COLLECTOR = (1_000, 20, 20)
EXTRA = "pip install 'refold[server]'"


def serve(settings: GatewaySettings, told: Callable[[str, Secrets], object]) -> None:
    """Listen until SIGINT or SIGTERM; open answers are given `shutdown_seconds` to end.

    `told` is called with the address when it is listened at. Raises ConfigError, also where the extra `server` is not
    installed or the address is taken.
    """
    require_extra()
    import uvicorn

    from refold.server.app import new_app
    from refold.server.store import check

    settings = checked(settings)
    secrets = read_secrets(settings, os.environ)
    check(settings.store)
    with listen(settings) as listener:
        host, port = listener.getsockname()[:2]
        told(f"http://{f'[{host}]' if ':' in host else host}:{port}", secrets)
        if settings.workers == 1:
            app = new_app(settings, secrets, begun=spare)
            server = uvicorn.Server(uvicorn.Config(app, **options(settings)))
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

    _end_with_parent()
    settings = msgspec.json.decode(os.environ[HANDED_ON], type=GatewaySettings)
    return new_app(settings, read_secrets(settings, os.environ), begun=spare)


def _end_with_parent() -> None:
    """A worker whose parent was killed ends in order: nobody would end it, and it would hold the port."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def spare() -> None:
    """Spare this process's streams the collector's long looks: what is loaded stays, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR)


def options(settings: GatewaySettings) -> dict[str, Any]:
    """What uvicorn is told: no log of requests, no header that names it; wsproto, which refold always has.

    h11, which refuses a head without an end; httptools would take one of any size, and saves little. The loop is uvloop
    where that is installed.
    """
    return {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "lifespan": "on",
        "http": "h11",
        "ws": "refold.server.lasting:LastingConnection",
        "ws_max_size": settings.max_body_bytes,
        "ws_per_message_deflate": False,  # a few bytes could become gigabytes before they are counted
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
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a client that takes nothing: else its connection would stay
            idle = min(round(settings.idle_seconds * 1000), LONGEST_IDLE)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, idle)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise ConfigError("port", f"{where} cannot be listened at: {why}; choose another --port") from None
