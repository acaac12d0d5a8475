"""Act: the commands that talk to a model: run, resume, fork, compact."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import click

from refold.cli.json_events import JsonView
from refold.cli.live import LiveView
from refold.cli.options import (
    Sending,
    command_tools,
    folder,
    message_from,
    message_options,
    one_session,
    run_options,
    sending,
    settings_from,
)
from refold.cli.status import StatusLine
from refold.cli.terminal import asked, is_terminal
from refold.core.records import TurnEnded, TurnStarted
from refold.errors import RefoldError, SessionBusy
from refold.session.beginning import model_name
from refold.session.events import CompactionEnded, Notice
from refold.session.feed import drain
from refold.session.home import model_named
from refold.session.permits import Approve, Question, Verdict
from refold.session.session import Session
from refold.views.shown import one_line

SAME_SECONDS = 0.5  # signals that come within this are one

View = JsonView | LiveView


@click.command()
@click.argument("message")
@message_options
@run_options
def run(
    message: str,
    images: tuple[str, ...],
    schema: str | None,
    model: str | None,
    settings: tuple[str, ...],
    cwd: str | None,
    as_json: bool,
    allow_exec: bool,
) -> int:
    """Start a session with MESSAGE (`-` reads it from standard input) and work until the answer is there."""
    home, config = settings_from(settings)
    text = message_from(message)
    more = sending(images, schema)
    tools, approve, notice = command_tools(config, allow_exec)
    status = StatusLine()
    session = Session.start(
        model=model,
        tools=tools,
        cwd=folder(cwd),
        config=config,
        home=home.path,
        approve=_undisturbed(approve, status),
    )
    return _talk(session, text, _view(session, as_json, status), notice, more)


@click.command()
@one_session("message")
@click.argument("message", required=False)
@click.option("--in-place", is_flag=True, help="Go on in the very file, even outside refold's home.")
@message_options
@run_options
def resume(
    reference: str,
    message: str | None,
    in_place: bool,
    images: tuple[str, ...],
    schema: str | None,
    model: str | None,
    settings: tuple[str, ...],
    cwd: str | None,
    as_json: bool,
    allow_exec: bool,
) -> int:
    """Go on with a session: by id, by an id's beginning, by PATH, or the --last one.

    A file outside refold's home is left untouched: a child session begins with its whole active history. Without a
    MESSAGE, a terminal is asked for one after the other, and a pipe is read.
    """
    home, config = settings_from(settings)
    if message is None and not is_terminal(sys.stdin):
        message = "-"
    text = message_from(message)
    more = sending(images, schema)
    tools, approve, notice = command_tools(config, allow_exec)
    status = StatusLine()
    session = Session.resume(
        reference,
        model=model,
        tools=tools,
        cwd=folder(cwd),
        config=config,
        home=home.path,
        in_place=in_place,
        approve=_undisturbed(approve, status),
    )
    return _talk(session, text, _view(session, as_json, status), notice, more)


@click.command()
@one_session("message", metavar="ID|PATH|ADDRESS")
@click.argument("message", required=False)
@click.option("--turn", type=int, metavar="N", help="As it was after turn N: 1 is the first one, -1 the newest.")
@run_options
def fork(
    reference: str,
    message: str | None,
    turn: int | None,
    model: str | None,
    settings: tuple[str, ...],
    cwd: str | None,
    as_json: bool,
    allow_exec: bool,
) -> int:
    """Begin a new session with another one's active history; the other one's file is only read.

    ID:N, an address as it is printed: with the history as it was after record N.
    """
    home, config = settings_from(settings)
    text = message_from(message)
    tools, approve, notice = command_tools(config, allow_exec)
    status = StatusLine()
    session = Session.fork(
        reference,
        turn=turn,
        model=model if text is not None else model_named(model_name(model, config), config, with_key=False),
        tools=tools,
        cwd=folder(cwd),
        config=config,
        home=home.path,
        approve=_undisturbed(approve, status),
    )
    if text is None:
        session.memory.close()
        if as_json:
            JsonView(session).begin()
        else:
            print(session.id)
        return 0
    return _talk(session, text, _view(session, as_json, status), notice)


@click.command()
@one_session()
@click.option("--in-place", is_flag=True, help="Compact the very file, even outside refold's home.")
@click.option("--focus", metavar="TEXT", help="What the summary should keep in particular.")
@click.option("--outline", is_flag=True, help="Ask no model: facts that the log holds take the history's place.")
@click.option("--dry-run", is_flag=True, help="Show what would come of it, and change nothing.")
@run_options
def compact(
    reference: str,
    in_place: bool,
    focus: str | None,
    outline: bool,
    dry_run: bool,
    model: str | None,
    settings: tuple[str, ...],
    cwd: str | None,
    as_json: bool,
    allow_exec: bool,
) -> int:
    """Compact a session now: a summary takes the place of what the model is sent; the file keeps everything."""
    home, config = settings_from(settings)
    tools, _, _ = command_tools(config, allow_exec)
    answering = model_named(model_name(model, config), config, with_key=False) if outline else model
    if dry_run and not (found := home.catalogue().find(reference))[1]:  # somebody else's file is only read
        from refold.session.preview import aside

        session = aside(found[0], model=answering, tools=tools, cwd=folder(cwd), config=config, home=home)
    else:
        session = Session.resume(
            reference,
            model=answering,
            tools=tools,
            cwd=folder(cwd),
            config=config,
            home=home.path,
            in_place=in_place,
        )
    return asyncio.run(_compaction(session, _view(session, as_json, StatusLine()), focus, outline, dry_run))


async def _compaction(session: Session, view: View, focus: str | None, outline: bool, dry_run: bool) -> int:
    feed = session.memory.feed
    listener = feed.listen()

    async def show() -> None:
        async for event in drain(listener):
            if not isinstance(event, TurnStarted | TurnEnded):  # it is a turn of its own, but nobody spoke
                view.show(event)

    async with session:
        view.begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(show())
                with Interrupts(session), view.watching():
                    try:
                        if dry_run:
                            done = await session.compact(focus, outline=outline, preview=True)
                        else:
                            done = await session.compact(focus, outline=outline)
                    finally:
                        feed.end(listener)
        except ExceptionGroup as group:  # a task group wraps even the error that its own body raised
            raise group.exceptions[0] from None
        if isinstance(done, CompactionEnded):
            return 0 if done.installed else 1
        from refold.cli.preview import show_preview

        show_preview(session, done, as_json=isinstance(view, JsonView))
        return 0


# --- talking -----------------------------------------------------------------------------------------------------


def _view(session: Session, as_json: bool, status: StatusLine) -> View:
    return JsonView(session) if as_json else LiveView(session, status)


def _undisturbed(approve: Approve | None, status: StatusLine) -> Approve | None:
    """The same question, asked where no status line is drawn over it."""
    if approve is None:
        return None

    async def asking(question: Question) -> bool | Verdict:
        with status.held():
            return await approve(question)

    return asking


def _talk(session: Session, text: str | None, view: View, notice: str | None, more: Sending | None = None) -> int:
    return asyncio.run(_conversation(session, text, view, notice, more or Sending()))


async def _conversation(session: Session, text: str | None, view: View, notice: str | None, more: Sending) -> int:
    """One turn with the text; without one, turns with a person at the terminal until they leave.

    `more` goes with the first message.
    """
    async with session:
        view.begin()
        if notice and isinstance(view, LiveView):  # a program that runs this one has read the manual
            view.show(Notice(notice))
        if text is not None:
            return (await _turn(session, text, view, more))[0]
        status, goes_on = 0, True
        while goes_on and (line := await _next_message()) is not None:
            if line.strip():
                status, goes_on = await _turn(session, line, view, more)
                more = Sending()
        return status


async def _next_message() -> str | None:
    """What a person says next; None at the end of the input. Ctrl-C leaves (KeyboardInterrupt).

    asyncio's own handler for it can be too late: a signal that comes just before the loop begins to wait wakes nobody.
    """
    loop, task, before = asyncio.get_running_loop(), asyncio.current_task(), signal.getsignal(signal.SIGINT)
    assert task is not None
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, leave)
    try:
        return await asked("› ")
    except asyncio.CancelledError:
        if not left:
            raise
        task.uncancel()
        raise KeyboardInterrupt from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


async def _turn(session: Session, text: str, view: View, more: Sending) -> tuple[int, bool]:
    """One turn, shown: 0, or 1 when it did not come to its answer; and whether the conversation goes on."""
    outcome: str | None = None
    with Interrupts(session) as interrupts:
        try:
            with view.watching():
                async for event in session.send(text, images=more.images, output_schema=more.output_schema):
                    view.show(event)
                    if isinstance(event, TurnEnded):
                        outcome = event.outcome
        except SessionBusy:
            raise
        except RefoldError as error:
            if isinstance(view, LiveView):
                print(f"refold: {one_line(str(error))}", file=sys.stderr)
            elif outcome is None:  # no event has told it
                raise
            return 1, not interrupts.terminated
    return (0 if outcome == "completed" else 1), not interrupts.terminated


class Interrupts:
    """While something runs, the first Ctrl-C (or SIGTERM) ends it cleanly; a later one ends the program.

    One that comes with the first is the same one: a terminal tells a whole process group, and wrappers pass it on.
    Mutable: it knows whether the program was asked to end.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: dict[signal.Signals, Any] = {}
        self._first: float | None = None
        self.terminated = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, self._stop, number)
                self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        before = dict(self._before)
        for number in before:
            self._let_go(number)
            if self._first is not None:  # the loop may be over before the same signal has come from everybody
                signal.signal(number, _later_than(time.monotonic() + SAME_SECONDS, before[number]))

    def _stop(self, number: signal.Signals) -> None:
        now = asyncio.get_running_loop().time()
        if self._first is None:
            self._first = now
            self.terminated = self.terminated or number == signal.SIGTERM
            self._session.interrupt()
        elif now - self._first > SAME_SECONDS:
            self._let_go(number)
            signal.raise_signal(number)

    def _let_go(self, number: signal.Signals) -> None:
        if number in self._before:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, self._before.pop(number))


def _later_than(until: float, before: Any) -> Callable[[int, object], None]:
    """A signal handler that does nothing until then (monotonic seconds), and afterwards what was done before."""

    def handler(number: int, _: object) -> None:
        if time.monotonic() >= until:
            signal.signal(number, before)
            signal.raise_signal(number)

    return handler
