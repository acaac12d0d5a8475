"""Rules: the commands for what is kept for good: rules, pin, unpin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import msgspec

from refold.cli.options import one_session, required, settings_from
from refold.cli.style import paint
from refold.core.config import Config
from refold.core.jsonio import dump
from refold.core.pins import tokens_of
from refold.core.profile import Profile
from refold.core.thread import Thread
from refold.session import pins
from refold.session.beginning import model_name
from refold.session.clock import Clock
from refold.session.home import profile_of
from refold.session.memory import Memory, read_thread
from refold.views.rules import Rules
from refold.views.rules import rules as rules_of
from refold.views.shown import clean, one_line

LONGEST = 110  # characters of a text in a list; `refold show ADDRESS` has it whole

F = TypeVar("F", bound=Callable[..., Any])


def _options(function: F) -> F:
    """Options of the three commands."""
    taking: Any = function
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs."),
        click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key."),
        click.option("--in-place", is_flag=True, help="Also in a file outside refold's home: append to it."),
    ):
        taking = option(taking)
    return taking


@click.command()
@one_session()
@click.option("--drop", "drops", metavar="ADDRESS", multiple=True, help="Keep this rule no longer before others.")
@_options
def rules(reference: str, drops: tuple[str, ...], in_place: bool, settings: tuple[str, ...], as_json: bool) -> int:
    """List what is pinned in a session, and the rules said in it that are kept before other sentences."""
    if not drops:
        home, config = settings_from(settings)
        path, _ = home.catalogue().find(reference)
        thread = read_thread(path, headless=True)
        _print(rules_of(thread, _profile(thread, config), config.compaction.pin_percent), as_json=as_json)
        return 0
    with _opened(reference, settings, in_place=in_place) as memory:
        gone = [text for address in drops for text in pins.drop_rule(memory, address)]
        _print_gone("refold.rules.dropped", "no longer kept before others", memory, gone, as_json=as_json)
    return 0


@click.command()
@one_session("address")
@click.argument("address", required=False, metavar="ADDRESS|N")
@click.option("--text", metavar="TEXT", help="Only this part of what the record says, word for word.")
@_options
def pin(
    reference: str, address: str | None, text: str | None, in_place: bool, settings: tuple[str, ...], as_json: bool
) -> int:
    """Keep what a record says word for word in every later context, whatever is compacted."""
    record = required("address", address)
    with _opened(reference, settings, in_place=in_place) as memory:
        pinned = pins.pin(memory, record, text)
        taken, budget = tokens_of(memory.thread.pins), pins.budget_of(memory)
        if as_json:
            told = {"address": pinned.address, "text": pinned.text, "tokens": pinned.tokens}
            _print_json("refold.pin.completed", memory, **told, pinned=taken, budget=budget)
        else:
            print(f"pinned {clean(pinned.address)}: {one_line(pinned.text, LONGEST)}")
            print(paint(f"{taken:,} of {budget:,} tokens for pins are taken", "dim"))
    return 0


@click.command()
@one_session("address")
@click.argument("address", required=False, metavar="ADDRESS|N")
@click.option("--text", metavar="TEXT", help="Only this text, where several are pinned of the record.")
@_options
def unpin(
    reference: str, address: str | None, text: str | None, in_place: bool, settings: tuple[str, ...], as_json: bool
) -> int:
    """Let go of what is pinned; what was told of it stays in the context until the next compaction."""
    record = required("address", address)
    with _opened(reference, settings, in_place=in_place) as memory:
        gone = pins.unpin(memory, record, text)
        _print_gone("refold.unpin.completed", "no longer pinned", memory, gone, as_json=as_json)
    return 0


@contextmanager
def _opened(reference: str, settings: tuple[str, ...], *, in_place: bool) -> Generator[Memory]:
    """The session's memory, to append to. Raises click.UsageError (outside the home), RolloutError, ConfigError."""
    home, config = settings_from(settings)
    path, own = home.catalogue().find(reference)
    if not own and not in_place:
        raise click.UsageError(f"{path.name} is not in refold's home, and this appends to it: --in-place allows that")
    thread = read_thread(path)
    with Memory.reopen(path, _profile(thread, config), config, Clock(), thread=thread) as memory:
        yield memory


def _profile(thread: Thread, config: Config) -> Profile:
    """The model's facts, with the window that the session was run with."""
    profile = profile_of(model_name(None, config, thread), config)
    if thread.usable_window and config.model_context_window is None:
        return profile.with_usable(thread.usable_window)
    return profile


def _print(found: Rules, *, as_json: bool) -> None:
    if as_json:
        print(dump(msgspec.to_builtins(found)).decode())
        return
    width = max((len(row.address) for row in (*found.pins, *found.rules)), default=0)
    print(f"{paint(found.thread_id, 'cyan')}  pins: {found.pinned:,} of {found.budget:,} tokens")
    for row in found.pins:
        state = "" if row.fits else paint("  no room for it in this window", "yellow")
        print(_line(row.address, width, row.tokens, row.text) + state)
    if not found.pins:
        print(paint(f"    nothing is pinned: refold pin {found.thread_id} ADDRESS", "dim"))
    print(paint("rules that were said: kept before other sentences", "bold"))
    for row in found.rules:
        print(_line(row.address, width, row.tokens, row.text))
    if not found.rules:
        print(paint("    none was found in what is left of what people said", "dim"))
    if found.dropped:
        print(paint(f"{found.dropped} dropped", "dim"))


def _line(address: str, width: int, tokens: int, text: str) -> str:
    return f"    {paint(f'{address:<{width}}', 'dim')} {tokens:>6,}  {one_line(text, LONGEST)}"


def _print_gone(kind: str, words: str, memory: Memory, texts: list[str], *, as_json: bool) -> None:
    if as_json:
        _print_json(kind, memory, texts=texts)
        return
    for text in texts:
        print(f"{words}: {one_line(text, LONGEST)}")


def _print_json(kind: str, memory: Memory, **told: Any) -> None:
    sys.stdout.write(dump({"type": kind, "thread_id": memory.id, **told}).decode() + "\n")
