"""Look: the commands that only read one session: show, context."""

from __future__ import annotations

import sys
from datetime import datetime
from itertools import count
from pathlib import Path

import click
import msgspec

from refold.cli.options import folder, one_session, settings_from
from refold.cli.style import gauge, paint
from refold.core.config import Config
from refold.core.fragments import origin_of
from refold.core.jsonio import dump
from refold.core.profile import Profile
from refold.core.thread import Thread
from refold.core.world import OWN, in_model, messages, render, value_of
from refold.errors import RolloutError, RolloutNotFound
from refold.rollout.catalogue import Catalogue
from refold.rollout.reader import find_line, read_lines
from refold.session.beginning import directory_of, model_name, surroundings
from refold.session.home import Home, profile_of
from refold.session.memory import read_thread
from refold.session.parent import meant_by
from refold.views.context import Context, ContextRow
from refold.views.context import context as context_of
from refold.views.shown import CONTROL, one_line, shown_text
from refold.views.transcript import DAMAGED, Row, Story, Transcript

COLOURS = {"user": "green", "assistant": "bold", "call": "cyan", "compaction": "magenta", "summary": "magenta"}
LONGEST_TEXT = 2_000  # characters of one record in a transcript; --record shows it whole


@click.command()
@one_session()
@click.option("--record", type=int, metavar="N", help="Print record N whole, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a record, for programs.")
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
def show(reference: str, record: int | None, as_json: bool, full: bool) -> int:
    """Show what happened in a session, record by record, each with its address.

    ID:N, an address as it is printed, means record N.
    """
    path, at = meant_by(Home.find().catalogue(), reference)
    record = record if at is None else at
    if record is not None:
        line = find_line(path, record)
        if line is None:
            raise RolloutNotFound(f"{path.name} has no record {record}")
        print(escaped(line if as_json else _pretty(line)))
        return 0
    story, problem = _read(path)
    for row in story.rows:
        print(dump(msgspec.to_builtins(row)).decode() if as_json else _painted(row, full))
    notes = [f"{path.name}: {warning}" for warning in story.warnings]
    if story.unknown and not as_json:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(story.unknown.items()))
        notes.append(f"kept, but not understood by this version: {kinds}")
    sys.stdout.flush()  # the notes come after what they are about
    for note in notes:
        print(paint(one_line(note), "yellow", stream=sys.stderr), file=sys.stderr)
    if problem is not None:
        raise problem
    return 0


@click.command()
@one_session()
@click.option("-m", "--model", metavar="MODEL", help="For this model (default: the session's own).")
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key.")
@click.option("--cd", "cwd", metavar="FOLDER", help="With --live: as if working in this folder.")
@click.option("--live", is_flag=True, help="Add what observing the surroundings now would change.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def context(
    reference: str, model: str | None, settings: tuple[str, ...], cwd: str | None, live: bool, as_json: bool
) -> int:
    """Show what the next request holds, item by item with tokens, and how full the context window is."""
    home, config = settings_from(settings)
    path = find(reference)
    thread = read_thread(path, headless=True)
    profile = profile_of(model_name(model, config, thread), config)
    if thread.usable_window and model is None and config.model_context_window is None:
        profile = profile.with_usable(thread.usable_window)  # as the session was run with
    view = context_of(thread, profile)
    added = _live_rows(thread, profile, home, config, folder(cwd)) if live else []
    if as_json:
        document = msgspec.to_builtins(view)
        print(dump({**document, **({"live": msgspec.to_builtins(added)} if live else {})}).decode())
        return 0
    print_context(view, added, live)
    return 0


def _read(path: Path) -> tuple[Transcript, RolloutError | None]:
    """What can be read of a file, and what ended the reading. Raises when there is nothing of a session in it."""
    told, problem = Story(), None
    try:
        for line in read_lines(path):
            told.add(line)
    except RolloutError as error:
        problem = error
    story = told.transcript()
    if all(row.title == DAMAGED for row in story.rows):
        if problem is not None:
            raise problem
        read_thread(path)  # says what is wrong with the file
    return story, problem


def find(reference: str) -> Path:
    """The file that an id, the beginning of one, or a path means. Raises RolloutNotFound."""
    catalogue: Catalogue = Home.find().catalogue()
    path, _ = catalogue.find(reference)
    return path


def _live_rows(thread: Thread, profile: Profile, home: Home, config: Config, cwd: str | None) -> list[ContextRow]:
    """What a turn that may run commands would tell the model anew, because it changed since."""
    from refold.cli.options import command_tools
    from refold.observe import Watch, observe
    from refold.session.modes import manner_with, told_manner
    from refold.session.plugins import with_plugins_seen
    from refold.session.rules import permitted
    from refold.tools.commands import exec_command

    _, approve, _ = command_tools(config, allow_exec=False)
    where = surroundings(directory_of(thread, cwd), home, config, [exec_command], approve)
    where, watch = msgspec.structs.replace(where, context_window=profile.context_window), Watch()
    world = observe(permitted(where, config, watch), datetime.now().astimezone(), watch)
    instructions = profile.base_instructions or thread.base_instructions or ""
    world = in_model(world, profile.slug, instructions, thread.world, (thread.settings or {}).get("model"))
    world = world.with_section(f"{OWN}.mcp", value_of(thread.world, f"{OWN}.mcp"))  # no server is asked here
    for kept in (f"{OWN}.apps", "apps_instructions"):
        world = world.with_section(kept, value_of(thread.world, kept))
    world = with_plugins_seen(world, where, config, watch, thread.world)
    world = told_manner(world, manner_with(config, thread.settings), profile.slug, thread.world)
    told = messages(render(world, thread.world), map("msg_{}".format, count()), None)
    from refold.core.tokens import measure

    return [
        ContextRow("", str(item.get("role")), origin_of(item), measure(item).tokens, one_line(shown_text(item)))
        for item in told
    ]


def print_context(view: Context, added: list[ContextRow], live: bool) -> None:
    print(f"{paint(view.thread_id, 'cyan')}  {view.model}  window {view.window_number}")
    width = max([len(row.address) for row in view.rows], default=0)
    for row in view.rows:
        print(_context_line(row, width))
    for row in added:
        print(paint("+ ", "yellow") + _context_line(row, width))
    if live and not added:
        print(paint("nothing changed in the surroundings", "dim"))
    for text in view.steers:
        print(f"{paint('waits:', 'yellow')} {one_line(text)}")
    if view.unanswered:
        calls = ", ".join(view.unanswered)
        print(paint(f"{len(view.unanswered)} unanswered calls get the output `aborted`: {calls}", "yellow"))
    for odd in view.odd:
        print(paint(f"{odd.address} {odd.call_id}: {odd.what}", "yellow"))
    print(gauge(view.used, view.context_window, view.limit))
    how = "counted by the provider, its tail estimated" if view.counted else "estimated"
    print(paint(f"{how}; this request by size alone: {view.estimated:,} tokens, tool schemas not counted", "dim"))


def _context_line(row: ContextRow, width: int) -> str:
    kind = paint(f"{row.kind:<22}", COLOURS.get(row.kind, "dim"))
    return f"{paint(f'{row.address:<{width}}', 'dim')}  {kind} {row.tokens:>8,}  {row.preview[:90]}"


def _painted(row: Row, full: bool) -> str:
    text = row.text if full or len(row.text) <= LONGEST_TEXT else _shortened(row.text)
    head = f"{paint(row.address, 'dim')} {paint(row.kind, COLOURS.get(row.kind, 'dim'))}"
    title = f" {paint(row.title, 'dim')}" if row.title else ""
    body = "\n".join(f"    {line}" for line in text.splitlines())
    return f"{head}{title}" + (f"\n{body}" if body else "")


def _shortened(text: str) -> str:
    left_out = len(text) - LONGEST_TEXT
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[{left_out:,} characters not shown; --full or --record shows them]\n{text[-half:]}"


def _pretty(line: str) -> str:
    """A line laid out for reading; as it stands where it is not JSON."""
    try:
        return msgspec.json.format(line.encode(), indent=2).decode()
    except msgspec.DecodeError:
        return line


def escaped(text: str) -> str:
    """The same JSON with every control character spelled out, so that a terminal shows it and does not obey it."""
    return "".join(f"\\u{ord(sign):04x}" if ord(sign) in CONTROL else sign for sign in text)
