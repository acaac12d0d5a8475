"""Options: what several commands share, and how a command finds its home, settings and tools."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from refold.cli.terminal import allows, is_terminal
from refold.core.config import Config
from refold.session.home import Home, override
from refold.session.permits import Approve
from refold.tools import Tool

F = TypeVar("F", bound=Callable[..., Any])


def run_options(function: F) -> F:
    """Options of every command that talks to a model."""
    for option in reversed(
        (
            click.option(
                "-m", "--model", metavar="MODEL", help="The model that answers (default: the configured one)."
            ),
            click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key."),
            click.option("--cd", "cwd", metavar="FOLDER", help="Work in this folder."),
            click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines, for programs."),
            click.option("--allow-exec", is_flag=True, help="Let the model run commands without asking."),
        )
    ):
        function = option(function)
    return function


def message_options(function: F) -> F:
    """Options of the commands that a message can be given to."""
    images = click.option(
        "-i", "--image", "images", metavar="FILE", multiple=True, help="Send an image with the message (repeatable)."
    )
    schema = click.option("--output-schema", "schema", metavar="FILE", help="The answer keeps to this JSON schema.")
    return images(schema(function))


class Sending(NamedTuple):
    """What goes with a message."""

    images: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None


def sending(images: tuple[str, ...], schema: str | None) -> Sending:
    """Raises ConfigError for a schema that is no file, or no JSON object."""
    if schema is None:
        return Sending(images)
    from refold.core.jsonio import is_object, load
    from refold.errors import ConfigError

    try:
        value, _ = load(Path(schema).read_bytes())
    except OSError as error:
        raise ConfigError("--output-schema", f"{schema} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError("--output-schema", f"{schema} is not JSON: {error}") from None
    if not is_object(value):
        raise ConfigError("--output-schema", f"{schema} must hold a JSON object")
    return Sending(images, value)


def settings_from(words: tuple[str, ...]) -> tuple[Home, Config]:
    """The home, and its config.toml with `-c` on top. Raises ConfigError."""
    home = Home.find()
    return home, home.config(override(word) for word in words)


def command_tools(config: Config, allow_exec: bool) -> tuple[list[Tool], Approve | None, str | None]:
    """Which tools the model gets, who is asked before a command runs, and what to tell the user about it.

    Set policies or --allow-exec: commands run. Otherwise a person at a terminal is asked, and without one there is no
    command tool.
    """
    from refold.tools.commands import exec_command

    tools: list[Tool] = [exec_command]
    if allow_exec or config.approval_policy == "never" or config.sandbox_mode == "danger-full-access":
        return tools, None, None
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return tools, allows, None
    return [], None, "the model gets no command tool here; --allow-exec lets it run commands"


def message_from(given: str | None) -> str | None:
    """A message argument: `-` reads standard input. Raises click.UsageError when there is no text in it."""
    text = _standard_input() if given == "-" else given
    if text is not None and not text.strip():
        raise click.UsageError("the message is empty")
    return None if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _standard_input() -> str:
    if sys.stdin is None:  # closed
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the message is not UTF-8 text: {error.reason} at byte {error.start}") from None


def folder(name: str | None) -> str | None:
    """A `--cd` folder that exists. Raises ConfigError."""
    from refold.errors import ConfigError

    if name is not None and not Path(name).expanduser().is_dir():
        raise ConfigError("--cd", f"{name} is not a folder")
    return name
