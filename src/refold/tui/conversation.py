"""Conversation: what a person's input does to sessions and turns.

Rule 1: one work at a time (opening, a turn, a command); what is said meanwhile steers the turn or waits.
Rule 2: nothing that goes wrong ends the conversation, save that its first session cannot be opened.
Rule 3: a session is entered and left in one task of its own, whatever the person does.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from refold.tui.board import Board
from refold.tui.commands import WHILE_WORKING, Command, Said, Unknown, read
from refold.tui.opening import First, Opening, Prepare
from refold.tui.surface import Surface

if TYPE_CHECKING:
    from refold.core.permissions import Question, Verdict
    from refold.session.session import Session
    from refold.tui.teller import Teller

AGAIN_SECONDS = 3.0  # how long a second Ctrl-C or Esc counts as a second one
AGAIN = "again leaves"


class Conversation:
    """Mutable: the session that is talked in, the work that is done, and what waits for it."""

    def __init__(self, surface: Surface, board: Board, prepare: Prepare) -> None:
        self.surface = surface
        self.board = board
        self.session: Session | None = None
        self.teller: Teller | None = None
        self.opening: Opening
        self.status = 0
        self._prepare = prepare
        self._failure: Exception | None = None
        self._group: asyncio.TaskGroup
        self._work: asyncio.Task[None] | None = None
        self._turn_runs = False
        self._held: list[str] = []  # said while neither a message nor a steer could be taken
        self._keeper: asyncio.Task[None] | None = None
        self._done = asyncio.Event()  # the session that is open may be left
        self._over = asyncio.Event()
        self._armed_until = 0.0

    async def live(self, first: First) -> int:
        """Until the person leaves: 0, or what a signal set. Raises what kept the first session from being opened."""
        async with asyncio.TaskGroup() as self._group:
            self._begin(self._open_first(first))
            await self._over.wait()
            self.board.state, self.board.hint = "leaving", ""
            self.surface.changed()
            if self._work is not None and not self._turn_runs:
                self._work.cancel()
            await self._leave_session()
        if self._failure is not None:
            raise self._failure
        return self.status

    # --- the person ----------------------------------------------------------------------------------------------

    def entered(self, text: str) -> None:
        """A whole message or command."""
        if not text.strip() or self._over.is_set():
            return
        self._disarm()
        match read(text):
            case Unknown(name=name, near=near):
                hint = f"; near: {', '.join('/' + one for one in near)}" if near else "; /help lists them"
                self.say(f"there is no /{name}{hint} (//… sends a text that begins with a slash)", "yellow")
            case Command() as command:
                self._command(command)
            case Said(text=said):
                self._said(said)

    def stop(self) -> None:
        if time.monotonic() < self._armed_until or self._over.is_set():
            self.leave()
            return
        if self.session is not None and self.session.busy:
            self.session.interrupt()
            self.board.state = "stopping"
        self._armed_until = time.monotonic() + AGAIN_SECONDS
        self.board.hint = AGAIN
        asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._disarm, self._armed_until)
        self.surface.changed()

    def leave(self, status: int = 0) -> None:
        """Settle what runs, and end. Asked for again: give running tools no time to end."""
        self.status = self.status or status
        if self.session is not None:
            self.session.interrupt()
        self._over.set()

    @property
    def works(self) -> bool:
        """Whether something is being done, a message would wait, or steer."""
        return self._work is not None

    def say(self, text: str, look: str = "") -> None:
        self.surface.say(text, look)

    def complain(self, error: BaseException) -> None:
        """What went wrong, on one line."""
        from refold.errors import RefoldError
        from refold.views.shown import one_line

        text = str(error) if isinstance(error, RefoldError) else f"{type(error).__name__}: {error}"
        self.say(f"! {one_line(text)}", "red")

    async def approve(self, question: Question) -> Verdict:
        """What the session asks before a call runs."""
        before, self.board.state = self.board.state, "asking"
        self.surface.changed()
        try:
            return await self.surface.ask(question)
        finally:
            if self.board.state == "asking":
                self.board.state = before
            self.surface.changed()

    def _said(self, text: str) -> None:
        steers = self._turn_runs and self.session is not None and self.session.busy
        if self.session is None or (self._work is not None and not steers):
            self._held.append(text)
            self.board.queued[f"held {len(self._held)}"] = text
            self.surface.changed()
        elif steers:
            try:
                self.board.queued[self.session.steer(text)] = text
            except Exception as error:  # a full disk, say: the turn will tell, too
                self.complain(error)
            self.surface.changed()
        else:
            self.surface.said(text)
            self._begin(self._turn(text))

    def _command(self, command: Command) -> None:
        from refold.tui import actions

        if command.name == "quit":
            self.leave()
        elif command.name != "help" and (
            self.session is None or (self._work is not None and command.name not in WHILE_WORKING)
        ):
            self.say(f"/{command.name} has to wait: something runs (Esc interrupts it)", "yellow")
        elif command.name in WHILE_WORKING:
            self._at_once(actions.TOLD[command.name])
        else:
            self._begin(actions.DONE[command.name](self, command.argument))

    def _at_once(self, tell: Callable[[Conversation], None]) -> None:
        try:
            tell(self)
        except Exception as error:
            self.complain(error)

    def _disarm(self, armed_until: float | None = None) -> None:
        if armed_until is None or armed_until == self._armed_until:
            self._armed_until = 0.0
            if self.board.hint == AGAIN:
                self.board.hint = ""
                self.surface.changed()

    # --- work ----------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.board.since = time.monotonic()
        if self.board.state == "idle":  # from a pipe, the next line waits for the end of a command, too
            self.board.state = "working"
        self._work = self._group.create_task(self._guarded(work))
        self.surface.changed()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            if self.session is None and not self._over.is_set():
                self._failure = error
                self._over.set()
                return
            if os.environ.get("REFOLD_DEBUG"):
                raise
            self.complain(error)
        finally:
            self._work, self._turn_runs = None, False
        self._go_on()

    def _go_on(self) -> None:
        """The work is done: what waited comes next."""
        held, self._held = self._held, []
        for number in range(len(held)):
            self.board.queued.pop(f"held {number + 1}", None)
        if not self._over.is_set():
            self.board.state = "idle"
        for text in held:
            self._said(text)
        self.surface.changed()

    async def _turn(self, text: str) -> None:
        from refold.errors import RefoldError

        assert self.session is not None
        assert self.teller is not None
        self._turn_runs = True
        try:
            async for event in self.session.send(text):
                self.teller.show(event)
        except RefoldError as error:
            self.complain(error)
            self.say("  Up brings your message back", "dim")
        finally:
            self.teller.count()

    # --- sessions --------------------------------------------------------------------------------------------------

    async def _open_first(self, first: First) -> None:
        await self.surface.painted()  # what follows takes the processor for a while
        self.opening = await asyncio.to_thread(self._prepare)
        if self.opening.notice:
            self.say(f"• {self.opening.notice}", "yellow")
        if first.pick:
            from refold.tui.actions import pick

            if await pick(self):
                return
        await self.switch(lambda: self._opened(first))

    def _opened(self, first: First) -> Session:
        if first.last:
            return self.opening.resume(self.opening.home.catalogue().newest()[0], self.approve, in_place=first.in_place)
        if first.reference is not None:
            return self.opening.resume(first.reference, self.approve, in_place=first.in_place)
        return self.opening.start(self.approve)

    async def switch(self, opened: Callable[[], Session], *, close_first: bool = False) -> None:
        """Go on in another session. It blocks, so it is opened in a thread; where that fails the old one stays.

        `close_first`: it is the same file, and one writer has it at a time.
        """
        self.board.state = "opening"
        self.surface.changed()
        if close_first:
            await self._leave_session()
        session = await asyncio.to_thread(opened)
        entered, done = asyncio.get_running_loop().create_future(), asyncio.Event()
        keeper = self._group.create_task(self._keep(session, entered, done))
        try:
            await entered
        except asyncio.CancelledError:
            keeper.cancel()
            raise
        await self._leave_session()
        self._keeper, self._done = keeper, done
        self._meet(session)

    def _meet(self, session: Session) -> None:
        from refold.tui.actions import welcome
        from refold.tui.teller import Teller

        self.teller = Teller(session, self.surface, self.board, time.monotonic)
        for number, text in enumerate(self._held):
            self.board.queued[f"held {number + 1}"] = text
        self.session = session
        welcome(self)

    async def _keep(self, session: Session, entered: asyncio.Future[None], done: asyncio.Event) -> None:
        """Enter and leave a session in one task. What goes wrong before it is entered is for who waits for that."""
        try:
            async with session:
                if not entered.cancelled():
                    entered.set_result(None)
                await done.wait()
        except Exception as error:
            if entered.done():  # its log could not be closed in order, say: the conversation goes on
                self.complain(error)
            else:
                entered.set_exception(error)

    async def _leave_session(self) -> None:
        self._done.set()
        if self._keeper is not None:
            await self._keeper
        self.session = self._keeper = None
