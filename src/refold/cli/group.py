"""Group: the click group that imports a command when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from refold import __version__
from refold.cli.main import COMMANDS


class LazyGroup(click.Group):
    """Knows its commands' names; imports a module for the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return getattr(import_module(COMMANDS[cmd_name]), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            raise click.UsageError(f"there is no command {args[0]!r}; refold --help lists them", ctx) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="refold %(version)s")
def cli() -> None:
    """Agent sessions with a memory that survives: run, compact, resume, fork, and see what the model sees."""
