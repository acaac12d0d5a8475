"""Begun: a turn that was begun, as its host sees it: awaited for its result, or iterated for its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any

import msgspec

from refold.core.usage import Usage
from refold.session.events import Event
from refold.session.feed import drain
from refold.session.turn import Turned

if TYPE_CHECKING:
    from refold.session.session import Session


class TurnResult(msgspec.Struct, frozen=True):
    """What a turn gave: the answer's text (None when there was none), how it ended, and what it used in tokens."""

    text: str | None
    outcome: str
    usage: Usage


class Done(msgspec.Struct, frozen=True):
    """What a task of the session gave; errors are values here, so that one turn's failure does not end the session."""

    value: Any = None
    error: Exception | None = None


class Turn:
    """A turn that is running: await it for its TurnResult, or iterate it for its events as they happen.

    Both raise the error that made the turn fail; iterating raises it after the last event.
    """

    def __init__(self, session: Session, task: asyncio.Task[Done], *, waits: bool = False) -> None:
        self._session = session
        self._task = task
        self._used = Usage()
        self._begun = asyncio.Event()
        self._listeners: list[asyncio.Queue[Event | None]] = []
        if not waits:
            self.begin()
        task.add_done_callback(self._count)

    def begin(self) -> None:
        """From here on the events are this turn's; the session calls it."""
        self._used_before = self._session.memory.thread.total_usage
        for listener in self._listeners:
            while not listener.empty():
                listener.get_nowait()
        self._begun.set()

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self._result().__await__()

    async def _result(self) -> TurnResult:
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return TurnResult(None, "interrupted", self._used)
        done = self._task.result()
        if done.error is not None:
            raise done.error
        ended: Turned = done.value
        if ended.error is not None:
            raise ended.error
        return TurnResult(ended.text, ended.outcome, self._used)

    def _count(self, _: object) -> None:
        if not self._begun.is_set():  # it was dropped from the queue
            self.begin()
        self._used = self._session.memory.thread.total_usage - self._used_before

    def __aiter__(self) -> AsyncIterator[Event]:
        feed = self._session.memory.feed
        listener = feed.listen()
        self._listeners.append(listener)
        self._task.add_done_callback(lambda _: feed.end(listener))
        return self._events(listener)

    async def _events(self, listener: asyncio.Queue[Event | None]) -> AsyncIterator[Event]:
        await self._begun.wait()
        async for event in drain(listener):
            yield event
        await self._result()
