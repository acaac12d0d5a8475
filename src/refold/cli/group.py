"""Group: the commands by name, each imported when it is called."""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword

import click

from refold import __version__

# command → the module that holds it, and what the list of commands says, so that listing imports none of them
COMMANDS = {
    "chat": ("refold.cli.chat", "Talk with a session at a terminal (so does refold alone)."),
    "run": ("refold.cli.act", "Start a session and work until the answer is there."),
    "resume": ("refold.cli.act", "Go on with a session."),
    "fork": ("refold.cli.act", "Begin a new session with another one's active history."),
    "compact": ("refold.cli.act", "Compact a session now."),
    "undo": ("refold.cli.undo", "Undo a session's newest compaction, or its last turns."),
    "rename": ("refold.cli.keeping", "Give a session a name."),
    "archive": ("refold.cli.keeping", "Put sessions away; they can still be read and resumed."),
    "unarchive": ("refold.cli.keeping", "Bring archived sessions back."),
    "delete": ("refold.cli.keeping", "Delete sessions for good."),
    "prune": ("refold.cli.keeping", "Delete the sessions that were last written long ago."),
    "rules": ("refold.cli.rules", "List what is pinned in a session, and the rules said in it."),
    "pin": ("refold.cli.rules", "Keep what a record says word for word in every later context."),
    "unpin": ("refold.cli.rules", "Let go of what is pinned."),
    "sessions": ("refold.cli.sessions", "List the sessions, newest first."),
    "show": ("refold.cli.look", "Show what happened in a session, record by record."),
    "context": ("refold.cli.look", "Show what the next request holds, item by item, and how full the window is."),
    "sent": ("refold.cli.sent", "Show every request that a session sent, byte for byte."),
    "export": ("refold.cli.export", "Write a session into one file that needs no other."),
    "import": ("refold.cli.export", "Take sessions from elsewhere into refold's home."),
    "doctor": ("refold.cli.doctor", "Examine a session's file and repair it, or a provider."),
    "serve": ("refold.cli.serve", "Run a gateway that gives any provider the compaction that it lacks."),
    "demo": ("refold.cli.demo", "Play a whole session for real, with a scripted model."),
}


class LazyGroup(click.Group):
    """Knows its commands' names; imports a module for the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name  # `import` is no name in Python
        return getattr(import_module(COMMANDS[cmd_name][0]), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

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
