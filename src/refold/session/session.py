"""Session: memory + model + tools + the turn loop; started, resumed or forked (design.md §10)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from refold.core.config import Config
from refold.core.records import SteerQueued
from refold.core.templates import template
from refold.errors import CompactionFailed, SessionBusy, SessionClosed
from refold.model import Model
from refold.session.ahead import drop as drop_ahead
from refold.session.beginning import (
    answering_model,
    directory,
    directory_of,
    first_notices,
    home_and_settings,
    inheritance,
    surroundings,
)
from refold.session.begun import Done, Turn, TurnResult
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, Notice
from refold.session.hooks import Hook
from refold.session.memory import Memory, read_thread
from refold.session.modes import Manners
from refold.session.permits import Approve
from refold.session.said import said
from refold.session.scope import Scope
from refold.session.sections import Section, checked_sections
from refold.session.turn import run_compaction, run_turn
from refold.tools import Tool, Toolbox

if TYPE_CHECKING:
    from refold.core.thread import Thread
    from refold.session.pins import Pin
    from refold.session.preview import Preview
    from refold.session.sync import SyncSession
    from refold.session.undo import Undone

__all__ = ["Session", "Turn", "TurnResult"]


class Session(Manners):
    """Mutable: one turn at a time. Use as an async context manager; leaving it settles a running turn and closes."""

    def __init__(self, memory: Memory, scope: Scope, read: Thread | None = None) -> None:
        self.memory = memory
        self.model = scope.model
        self.surroundings = scope.surroundings  # where it works, and what is permitted there
        self.hooks: list[Hook] = scope.hooks  # called around each turn; append your own
        self._scope = scope
        self._task: asyncio.Task[Done] | None = None
        self._waiting: list[asyncio.Task[Done]] = []  # turns that were queued, in their order
        self._stopping: asyncio.Task[Done] | None = None  # what was interrupted last
        self._group: asyncio.TaskGroup | None = None
        self._notices = first_notices(scope.model, read)

    # --- begin -------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        *,
        model: str | Model | None = None,
        tools: Sequence[Tool] = (),
        cwd: str | Path | None = None,
        instructions: str | None = None,
        config: Config | None = None,
        home: str | Path | None = None,
        persist: bool = True,
        approve: Approve | None = None,
        sections: Sequence[Section] = (),
        clock: Clock | None = None,
    ) -> Self:
        """A new session. Nothing is written before its first turn.

        `model`: a Model or a name (default: the configured one). `home`: refold's folder (default `$REFOLD_HOME`).
        `persist=False`: the log lives in this process only. `approve`: asked before each call of a tool that wants it.
        `sections`: your own parts of what the model is told of the world (docs/rules.md).
        Raises ConfigError.
        """
        place, settings = home_and_settings(home, config)
        answering = answering_model(model, settings)
        where = surroundings(directory(str(cwd or Path.cwd())), place, settings, tools, approve)
        toolbox, own = Toolbox(tools), checked_sections(sections)
        memory = Memory.new(
            place.path if persist else None,
            answering.profile,
            settings,
            clock or Clock(),
            cwd=where.cwd,
            instructions=instructions or answering.profile.base_instructions or template("base_instructions"),
            provider=answering.provider.id,
        )
        return cls(memory, Scope(memory, answering, toolbox, where, approve, own))

    @classmethod
    def resume(
        cls,
        reference: str | Path,
        *,
        model: str | Model | None = None,
        tools: Sequence[Tool] = (),
        cwd: str | Path | None = None,
        config: Config | None = None,
        home: str | Path | None = None,
        in_place: bool = False,
        approve: Approve | None = None,
        sections: Sequence[Section] = (),
        clock: Clock | None = None,
    ) -> Self:
        """Go on with a session: an id, an id's beginning, or a file.

        A file outside the own home is left untouched: a child session begins with its whole active history, unless
        `in_place`. Raises RolloutNotFound, RolloutCorrupt, RolloutLocked, ConfigError.
        """
        place, settings = home_and_settings(home, config)
        path, own = place.catalogue().find(str(reference))
        if not own and not in_place:
            child = cls.fork(
                path,
                model=model,
                tools=tools,
                cwd=cwd,
                config=settings,
                home=place.path,
                approve=approve,
                sections=sections,
                clock=clock,
            )
            child._notices += (
                Notice(f"new session {child.id}: {path.name} stays as it is (--in-place goes on in it)"),
            )
            return child
        thread = read_thread(path)
        answering = answering_model(model, settings, thread)
        where = surroundings(directory_of(thread, cwd), place, settings, tools, approve)
        toolbox, own = Toolbox(tools), checked_sections(sections)  # what is wrong with them must not hold the file
        memory = Memory.reopen(path, answering.profile, settings, clock or Clock(), thread=thread)
        return cls(memory, Scope(memory, answering, toolbox, where, approve, own), thread)

    @classmethod
    def fork(
        cls,
        reference: str | Path,
        *,
        model: str | Model | None = None,
        tools: Sequence[Tool] = (),
        cwd: str | Path | None = None,
        config: Config | None = None,
        home: str | Path | None = None,
        approve: Approve | None = None,
        sections: Sequence[Section] = (),
        clock: Clock | None = None,
        turn: int | None = None,
    ) -> Self:
        """A new session that begins with another one's active history; the other one's file is only read.

        An address (`ID:N`), or `turn` (1, 2, …; -1 = newest): as it was after that. Raises as `resume`.
        """
        from refold.session.parent import parent_at

        place, settings = home_and_settings(home, config)
        parent = parent_at(place.catalogue(), str(reference), turn)
        answering = answering_model(model, settings, parent)
        where = surroundings(directory_of(parent, cwd), place, settings, tools, approve)
        toolbox, own = Toolbox(tools), checked_sections(sections)
        memory = Memory.new(
            place.path,
            answering.profile,
            settings,
            clock or Clock(),
            cwd=where.cwd,
            instructions=parent.base_instructions or template("base_instructions"),
            provider=answering.provider.id,
            forked_from=parent.id,
        )
        memory.record(*inheritance(parent))
        return cls(memory, Scope(memory, answering, toolbox, where, approve, own), parent)

    @classmethod
    def start_sync(cls, **settings: Any) -> SyncSession:
        """The same as `start`, blocking: `with Session.start_sync(…) as session: session.send("…")`."""
        from refold.session.sync import SyncSession

        return SyncSession(lambda: cls.start(**settings))

    @classmethod
    def resume_sync(cls, reference: str | Path, **settings: Any) -> SyncSession:
        """The same as `resume`, blocking."""
        from refold.session.sync import SyncSession

        return SyncSession(lambda: cls.resume(reference, **settings))

    async def __aenter__(self) -> Self:
        self.model.join()  # several sessions may share it: the last to leave closes it
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        try:
            self._notices += await self._scope.servers.open(self._scope)
        except BaseException:  # a required server is missing, or nobody wants to wait: nothing stays open
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        self.interrupt()
        try:
            async with aclosing(self._scope.servers):  # they end when no call needs them any more
                await self._group.__aexit__(None, None, None)
        finally:
            self._group = None
            async with AsyncExitStack() as leaving:  # from the last to the first, each also when one before it fails
                leaving.push_async_callback(self.model.close)
                leaving.callback(self.memory.close)
                leaving.push_async_callback(self._scope.processes.close)
                leaving.push_async_callback(drop_ahead, self._scope)

    # --- talk --------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.memory.id

    @property
    def path(self) -> Path | None:
        """The rollout file; it exists once the first turn began."""
        return self.memory.path

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or (self._task is not None and not self._task.done())

    def send(
        self,
        text: str,
        *,
        images: Sequence[str | Path] = (),
        audio: Sequence[str | Path] = (),
        output_schema: dict[str, Any] | None = None,
    ) -> Turn:
        """Begin a turn with what the user says; `images` and `audio`: files or URLs; `output_schema`: strict JSON.

        Raises SessionBusy while another one runs, SessionClosed outside, ConfigError for what is neither.
        """
        return Turn(self, self._begin(run_turn(self._scope, said(text, images, audio), output_schema)))

    def queue(
        self,
        text: str,
        *,
        images: Sequence[str | Path] = (),
        audio: Sequence[str | Path] = (),
        output_schema: dict[str, Any] | None = None,
    ) -> Turn:
        """Like `send`, but after what is running and what was queued before. An interrupt drops what waits."""
        before = self._waiting[-1] if self._waiting else self._task
        if before is None or not self.busy or self._group is None:
            return self.send(text, images=images, audio=audio, output_schema=output_schema)
        parts, mine = said(text, images, audio), list[Turn]()

        async def later() -> Done:
            await asyncio.wait([before])
            self._task = asyncio.current_task()
            mine[0].begin()
            return await self._guarded(run_turn(self._scope, parts, output_schema))

        task = self._group.create_task(later())
        self._waiting.append(task)
        task.add_done_callback(self._waiting.remove)
        mine.append(Turn(self, task, waits=True))
        return mine[0]

    def steer(self, text: str) -> str:
        """Say something while the turn goes on; the model reads it at its next sampling (or in the next turn).

        Returns the id of the message it will become; it is in the log when this returns (or waits, LogWaits).
        """
        queued = SteerQueued(self.memory.clock.item_id("msg"), text)
        self.memory.record(queued)
        return queued.item_id

    def interrupt(self) -> bool:
        """Stop what is running; its log ends in `TurnEnded(interrupted)`. False when nothing runs.

        A second time, while its tools are still given time to end: now.
        """
        if self._task is None or self._task.done():
            return False
        if self._stopping is self._task:
            for running in self._scope.calls:
                running.task.cancel()
        self._stopping = self._task
        for waiting in self._waiting:
            if waiting is not self._task:
                waiting.cancel()
        # After what is ready to run: a turn that was only just begun first records what the user said.
        self._task.get_loop().call_soon(self._task.cancel)
        return True

    @overload
    async def compact(
        self, focus: str | None = None, *, outline: bool = False, preview: Literal[False] = False
    ) -> CompactionEnded: ...
    @overload
    async def compact(self, focus: str | None = None, *, outline: bool = False, preview: Literal[True]) -> Preview: ...
    async def compact(
        self, focus: str | None = None, *, outline: bool = False, preview: bool = False
    ) -> CompactionEnded | Preview:
        """Compact now, in a turn of its own; `focus`: what the summary should keep in particular; `outline`: no model
        is asked. `preview`: what would take the history's place, to be committed or discarded; nothing is changed yet.

        Raises CompactionFailed or ModelError with the thread untouched.
        """
        done = await self._done(run_compaction(self._scope, focus, outline=outline, only_look=preview))
        if not preview:
            return done
        from refold.session.preview import Preview

        return Preview(self, done)

    async def undo(self, turns: int | None = None) -> Undone:
        """Undo the newest compaction (or undo), or the last `turns` turns; nothing leaves the log (docs/undo.md).

        Raises CompactionFailed when there is nothing to undo, SessionBusy while a turn runs.
        """
        from refold.session.undo import run_undo

        await drop_ahead(self._scope)
        return await self._done(run_undo(self.memory, turns))

    def rename(self, name: str) -> str:
        """Call the session something else ("" = nothing): the name as it is kept, on one line (docs/sessions.md)."""
        from refold.session.rename import rename

        return rename(self.memory, name, self.surroundings.home)

    def pin(self, address: str, *, text: str | None = None) -> Pin:
        """Keep what the record at an address (`thread:ordinal`, or N) says, or a part of it, word for word in every
        later context (docs/pins.md). Raises RolloutNotFound, or ConfigError when the pins' budget (tokens) is full."""
        from refold.session.pins import pin

        return pin(self.memory, address, text)

    def unpin(self, address: str, *, text: str | None = None) -> list[str]:
        """Let go of what is pinned there: the texts. Raises RolloutNotFound when nothing is."""
        from refold.session.pins import unpin

        return unpin(self.memory, address, text)

    def drop_rule(self, address: str) -> list[str]:
        """Keep the rules in the message at an address (one of them: `thread:ordinal#2`) no longer before other
        sentences: the rules. Raises RolloutNotFound when there is none."""
        from refold.session.pins import drop_rule

        return drop_rule(self.memory, address)

    async def _done(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What some work gives that is done by hand. Raises what made it fail."""
        task = self._begin(work)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # whoever asked has left: nothing should be installed behind their back
            self.interrupt()
            await asyncio.wait([task])
            raise
        if task.cancelled():
            raise CompactionFailed("the compaction was interrupted; the history is as it was")
        done = task.result()
        if done.error is not None:
            raise done.error
        return done.value

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Done]:
        if self._group is None or self.busy:
            work.close()
            if self._group is None:
                raise SessionClosed("the session is not open: use it inside `async with`")
            raise SessionBusy("a turn is running: steer it, interrupt it, or wait for it")
        self._task = self._group.create_task(self._guarded(work))
        return self._task

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Done:
        for notice in self._notices:
            self.memory.feed.publish(notice)
        self._notices = ()
        try:
            return Done(await work)
        except Exception as error:  # whoever awaits the turn raises it
            return Done(error=error)
