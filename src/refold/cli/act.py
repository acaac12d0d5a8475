"""Act: the commands that talk to a model: run, resume, fork, compact."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

import click

from refold.cli.json_events import JsonView
from refold.cli.live import LiveView
from refold.cli.options import command_tools, folder, message_from, run_options, settings_from
from refold.core.records import TurnEnded
from refold.errors import ModelError, RefoldError, SessionBusy
from refold.session.events import CompactionEnded
from refold.session.session import Session

View = JsonView | LiveView


@click.command()
@click.argument("message")
@run_options
def run(
    message: str, model: str | None, settings: tuple[str, ...], cwd: str | None, as_json: bool, allow_exec: bool
) -> int:
    """Start a session with MESSAGE (`-` reads it from standard input) and work until the answer is there."""
    home, config = settings_from(settings)
    text = message_from(message)
    tools, approve, notice = command_tools(config, allow_exec)
    session = Session.start(model=model, tools=tools, cwd=folder(cwd), config=config, home=home.path, approve=approve)
    return _talk(session, text, as_json, notice)


@click.command()
@click.argument("reference", required=False, metavar="[ID|PATH]")
@click.argument("message", required=False)
@click.option("--last", is_flag=True, help="The session that was written last.")
@click.option("--in-place", is_flag=True, help="Go on in the very file, even outside refold's home.")
@run_options
def resume(
    reference: str | None,
    message: str | None,
    last: bool,
    in_place: bool,
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
    if last:
        reference, message = str(home.catalogue().newest()[0]), message if message is not None else reference
    if reference is None:
        raise click.UsageError("which session? give an ID, a PATH, or --last")
    text = message_from(message)
    tools, approve, notice = command_tools(config, allow_exec)
    session = Session.resume(
        reference,
        model=model,
        tools=tools,
        cwd=folder(cwd),
        config=config,
        home=home.path,
        in_place=in_place,
        approve=approve,
    )
    return _talk(session, text, as_json, notice)


@click.command()
@click.argument("reference", metavar="ID|PATH")
@click.argument("message", required=False)
@run_options
def fork(
    reference: str,
    message: str | None,
    model: str | None,
    settings: tuple[str, ...],
    cwd: str | None,
    as_json: bool,
    allow_exec: bool,
) -> int:
    """Begin a new session with another one's active history; the other one's file is only read."""
    home, config = settings_from(settings)
    text = message_from(message)
    tools, approve, notice = command_tools(config, allow_exec)
    session = Session.fork(
        reference,
        model=model,
        tools=tools,
        cwd=folder(cwd),
        config=config,
        home=home.path,
        approve=approve,
    )
    if text is None:
        session.memory.close()
        if as_json:
            JsonView(session).begin()
        else:
            print(session.id)
        return 0
    return _talk(session, text, as_json, notice)


@click.command()
@click.argument("reference", metavar="ID|PATH")
@click.option("--in-place", is_flag=True, help="Compact the very file, even outside refold's home.")
@run_options
def compact(
    reference: str,
    in_place: bool,
    model: str | None,
    settings: tuple[str, ...],
    cwd: str | None,
    as_json: bool,
    allow_exec: bool,
) -> int:
    """Compact a session now: a summary takes the place of what the model is sent; the file keeps everything."""
    home, config = settings_from(settings)
    tools, _, _ = command_tools(config, allow_exec)
    session = Session.resume(
        reference,
        model=model,
        tools=tools,
        cwd=folder(cwd),
        config=config,
        home=home.path,
        in_place=in_place,
    )
    view: View = JsonView(session) if as_json else LiveView(session)

    async def compacting() -> int:
        async with session:
            view.begin()
            listener = session.memory.feed.listen()
            ended: CompactionEnded | None = None
            try:
                ended = await session.compact()
            finally:
                while not listener.empty():
                    event = listener.get_nowait()
                    if event is not None and not isinstance(event, TurnEnded):
                        view.show(event)
            return 0 if ended.installed else 1

    return asyncio.run(compacting())


# --- talking -----------------------------------------------------------------------------------------------------


def _talk(session: Session, text: str | None, as_json: bool, notice: str | None) -> int:
    view: View = JsonView(session) if as_json else LiveView(session)
    if notice and not as_json:
        print(f"refold: {notice}", file=sys.stderr)
    if text is None and not sys.stdin.isatty():
        text = message_from("-")
    return asyncio.run(_conversation(session, text, view))


async def _conversation(session: Session, text: str | None, view: View) -> int:
    async with session:
        _interrupt_on_signals(session)
        view.begin()
        if text is not None:
            return await _turn(session, text, view)
        status = 0
        while (line := await asyncio.to_thread(_ask_for_message)) is not None:
            if line.strip():
                status = await _turn(session, line, view)
        return status


def _ask_for_message() -> str | None:
    try:
        return input("› ")
    except EOFError:
        return None


async def _turn(session: Session, text: str, view: View) -> int:
    """One turn, shown; 1 when it did not come to its answer."""
    outcome = "failed"
    try:
        async for event in session.send(text):
            view.show(event)
            if isinstance(event, TurnEnded):
                outcome = event.outcome
    except SessionBusy:
        raise
    except RefoldError as error:
        if isinstance(view, LiveView):
            print(f"refold: {' '.join(str(error).split())}", file=sys.stderr)
        elif not isinstance(error, ModelError) and outcome != "failed":
            raise
        return 1
    return 0 if outcome == "completed" else 1


def _interrupt_on_signals(session: Session) -> None:
    """The first Ctrl-C (or SIGTERM) ends the turn cleanly; a second one ends the program."""
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        session.interrupt()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, ValueError):
            loop.add_signal_handler(number, stop, number)
