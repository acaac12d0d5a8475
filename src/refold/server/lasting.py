"""Lasting: a WebSocket connection that outlasts the signal to end, for as long as its answer runs.

uvicorn closes its WebSockets at the signal, in the middle of an answer; here the application is told, and the
connection ends with it.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

ENDING = "refold.ending"  # the key of the message that says it, which holds nothing that a client said


class LastingConnection(WSProtocol):
    """One connection, as uvicorn speaks it with wsproto. Mutable: it knows whether it is to end."""

    _is_ending = False

    def shutdown(self) -> None:
        """Tell the application that it is to end; where there is none yet, or it has closed, end at once."""
        if self._is_ending or self.close_sent or not self.handshake_complete:
            super().shutdown()
            return
        self._is_ending = True
        told: Any = {"type": "websocket.receive", ENDING: True}
        self.queue.put_nowait(told)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if self._is_ending:  # uvicorn would wait until the client says that it has heard of the end
            self.transport.close()
