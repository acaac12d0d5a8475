"""Chat: the command that opens the chat."""

from __future__ import annotations

from typing import Any

import click

from refold.cli.options import run_options, without_json
from refold.cli.talk import talk


@click.command()
@click.argument("reference", required=False, metavar="[ID|PATH]")
@click.option("--last", is_flag=True, help="Go on with the session that was written last.")
@click.option("--pick", is_flag=True, help="Go on with a session picked from a list.")
@click.option("--in-place", is_flag=True, help="Go on in the very file, even outside refold's home.")
@without_json
@run_options
def chat(reference: str | None, last: bool, pick: bool, as_json: bool, **options: Any) -> int:
    """Talk with a session at a terminal: a new one, or by ID, PATH, --last or --pick an earlier one.

    Answers come as they are written; what you say meanwhile steers the work. /help lists what else there is. A dumb
    terminal, or a pipe, gets plain lines.
    """
    if as_json:
        raise click.UsageError("--json is for programs: `refold run` and `refold resume` have it")
    if (reference is not None) + last + pick > 1:
        raise click.UsageError("one session at a time: an ID or PATH, --last, or --pick")
    return talk(reference=reference, last=last, pick=pick, **options)
