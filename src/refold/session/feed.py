"""Feed: events from one writer to any number of listeners, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from refold.session.events import Event


class Feed:
    """Mutable: listeners come and go. Publishing never waits; a listener that stops reading only costs memory."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[Event | None]] = set()

    @property
    def is_heard(self) -> bool:
        return bool(self._listeners)

    def publish(self, event: Event) -> None:
        for listener in self._listeners:
            listener.put_nowait(event)

    def listen(self) -> asyncio.Queue[Event | None]:
        """A queue of every event from now on; None says that nothing more will come."""
        listener: asyncio.Queue[Event | None] = asyncio.Queue()
        self._listeners.add(listener)
        return listener

    def leave(self, listener: asyncio.Queue[Event | None]) -> None:
        self._listeners.discard(listener)

    def end(self, listener: asyncio.Queue[Event | None]) -> None:
        """Let one listener finish what it has and stop."""
        listener.put_nowait(None)
        self.leave(listener)


async def drain(listener: asyncio.Queue[Event | None]) -> AsyncIterator[Event]:
    """The events of a listener until its end."""
    while (event := await listener.get()) is not None:
        yield event
