"""Sync: the blocking twin of Session, for scripts and notebooks; its loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from refold.errors import SessionClosed
from refold.session.begun import TurnResult
from refold.session.events import CompactionEnded, Event
from refold.session.session import Session

if TYPE_CHECKING:
    from refold.session.pins import Pin
    from refold.session.preview import SyncPreview
    from refold.session.undo import Undone

T = TypeVar("T")


class SyncSession:
    """Mutable: it owns a thread and the session inside it. Works where a loop already runs (notebooks)."""

    def __init__(self, make: Callable[[], Session]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._session: Session | None = None

    def __enter__(self) -> Self:
        session = self._make()  # settings are checked here, before a thread exists
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="refold-session", daemon=True)
        self._thread.start()
        try:
            self._session = self._call(session.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, _, _ = self._open()
        try:
            self._call(session.__aexit__(None, None, None))
        finally:
            self._end()

    def _end(self) -> None:
        """Let the thread run out."""
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = self._session = None

    def _open(self) -> tuple[Session, asyncio.AbstractEventLoop, threading.Thread]:
        if self._session is None or self._loop is None or self._thread is None:
            raise SessionClosed("the session is not open: use it inside `with`")
        return self._session, self._loop, self._thread

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise SessionClosed("the session is not open: use it inside `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- talk --------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The asynchronous session inside; read it only while nothing runs."""
        return self._open()[0]

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def path(self) -> Path | None:
        return self.session.path

    def send(self, text: str, **more: Any) -> TurnResult:
        """One turn, until its answer is there; `more` as for `Session.send`. Raises what made it fail."""
        session = self._open()[0]

        async def turn() -> TurnResult:
            return await session.send(text, **more)

        return self._call(turn())

    def stream(self, text: str, **more: Any) -> Iterator[Event]:
        """One turn's events as they happen; raises after the last one what made it fail."""
        session, loop, _ = self._open()
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

        async def turn() -> None:
            try:
                async for event in session.send(text, **more):
                    events.put(event)
            except BaseException as error:
                events.put(error)
                raise
            finally:
                events.put(None)

        asyncio.run_coroutine_threadsafe(turn(), loop)
        ended = False
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
            ended = True
        finally:
            if not ended:
                loop.call_soon_threadsafe(session.interrupt)
                while events.get() is not None:  # the turn's end, so that the next one may begin
                    pass

    def steer(self, text: str) -> str:
        """Say something to the turn that runs (from another thread); returns when it is in the log."""
        session = self._open()[0]

        async def steered() -> str:
            return session.steer(text)

        return self._call(steered())

    def interrupt(self) -> bool:
        """Stop what is running (from another thread)."""
        session = self._open()[0]

        async def interrupted() -> bool:
            return session.interrupt()

        return self._call(interrupted())

    @overload
    def compact(
        self, focus: str | None = None, *, outline: bool = False, preview: Literal[False] = False
    ) -> CompactionEnded: ...
    @overload
    def compact(self, focus: str | None = None, *, outline: bool = False, preview: Literal[True]) -> SyncPreview: ...
    def compact(
        self, focus: str | None = None, *, outline: bool = False, preview: bool = False
    ) -> CompactionEnded | SyncPreview:
        """Compact now; `preview`: only show what would take the history's place."""
        session = self._open()[0]
        if not preview:
            return self._call(session.compact(focus, outline=outline))
        from refold.session.preview import SyncPreview

        return SyncPreview(self._call(session.compact(focus, outline=outline, preview=True)), self._call)

    def rename(self, name: str) -> str:
        """Call the session something else ("" = nothing): the name as it is kept."""
        session = self._open()[0]

        async def renamed() -> str:
            return session.rename(name)

        return self._call(renamed())

    def pin(self, address: str, *, text: str | None = None) -> Pin:
        """Keep what the record at an address says, or a part of it, word for word in every later context."""
        session = self._open()[0]

        async def pinned() -> Pin:
            return session.pin(address, text=text)

        return self._call(pinned())

    def unpin(self, address: str, *, text: str | None = None) -> list[str]:
        """Let go of what is pinned there."""
        session = self._open()[0]

        async def gone() -> list[str]:
            return session.unpin(address, text=text)

        return self._call(gone())

    def drop_rule(self, address: str) -> list[str]:
        """Keep the rules in the message at an address no longer before other sentences."""
        session = self._open()[0]

        async def dropped() -> list[str]:
            return session.drop_rule(address)

        return self._call(dropped())

    def undo(self, turns: int | None = None) -> Undone:
        """Undo the newest compaction (or undo), or the last `turns` turns."""
        return self._call(self._open()[0].undo(turns))
