"""Undo: the command that puts back what a compaction, an undo or turns replaced."""

from __future__ import annotations

import sys

import click
import msgspec

from refold.cli.options import one_session, settings_from
from refold.cli.style import gauge, paint
from refold.core.jsonio import dump
from refold.session.beginning import model_name
from refold.session.clock import Clock
from refold.session.home import profile_of
from refold.session.memory import Memory, read_thread
from refold.session.undo import Undone


@click.command()
@one_session()
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="The last N turns instead.")
@click.option("--in-place", is_flag=True, help="Also in a file outside refold's home: append to it.")
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def undo(reference: str, turns: int | None, in_place: bool, settings: tuple[str, ...], as_json: bool) -> int:
    """Undo a session's newest compaction; again, and that undo is undone. The file keeps everything.

    What stood before it comes back, and what was recorded since stays.
    """
    home, config = settings_from(settings)
    path, own = home.catalogue().find(reference)
    if not own and not in_place:
        raise click.UsageError(f"{path.name} is not in refold's home, and undo appends to it: --in-place allows that")
    thread = read_thread(path)
    profile = profile_of(model_name(None, config, thread), config)
    if thread.usable_window and config.model_context_window is None:
        profile = profile.with_usable(thread.usable_window)  # as the session was run with
    with Memory.reopen(path, profile, config, Clock(), thread=thread) as memory:
        undone = memory.undo(turns)
        if as_json:
            _print_json(memory, undone)
        else:
            print(f"{paint(memory.id, 'cyan')}  {undone}")
            print(gauge(memory.tokens, profile.context_window, profile.compact_limit))
            print(paint("both stay in the log (refold show); refold undo again takes this back", "dim"))
    return 0


def _print_json(memory: Memory, undone: Undone) -> None:
    told = {"type": "refold.undo.completed", "thread_id": memory.id, **msgspec.structs.asdict(undone)}
    told["tokens_before"], told["tokens_after"] = told.pop("before"), told.pop("after")
    sys.stdout.write(dump(told).decode() + "\n")
