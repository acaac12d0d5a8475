"""Options: what several commands share, and how a command finds its home, settings and tools."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:  # what a command needs beyond its options is imported when it runs
    from refold.core.config import Config
    from refold.session.home import Home
    from refold.session.permits import Approve
    from refold.tools import Tool

SANDBOX_MODES = ("read-only", "workspace-write", "danger-full-access")
APPROVAL_POLICIES = ("never", "on-request", "untrusted", "on-failure")

F = TypeVar("F", bound=Callable[..., Any])


def run_options(function: F) -> F:
    """Options of every command that talks to a model. `--sandbox`, `--ask` and `--allow-exec` are settings, too."""
    taking: Any = _with_permissions(function)
    for option in reversed(
        (
            click.option(
                "-m", "--model", metavar="MODEL", help="The model that answers (default: the configured one)."
            ),
            click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key."),
            click.option("--cd", "cwd", metavar="FOLDER", help="Work in this folder."),
            click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines, for programs."),
            click.option("-s", "--sandbox", type=click.Choice(SANDBOX_MODES), help="What commands may do."),
            click.option("-a", "--ask", type=click.Choice(APPROVAL_POLICIES), help="When you are asked."),
            click.option("--mode", metavar="MODE", help="Work in this mode: default, plan, or one of yours."),
            click.option("--allow-exec", is_flag=True, help="Let the model run commands without asking."),
        )
    ):
        taking = option(taking)
    return taking


def one_session(
    following: str | None = None, *, metavar: str = "ID|PATH"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The argument `reference` of a command that is about one session, or `--last`: its path is the reference then.

    `following`: the argument behind it, which a command with `--last` has in its place.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def taking(*, reference: str | None, last: bool, **options: Any) -> Any:
            if last and following is None and reference is not None:
                raise click.UsageError("--last names the session: give no ID or PATH beside it")
            if last and following is not None:
                if options[following] is not None:
                    raise click.UsageError(f"--last names the session: only a {following} can follow")
                options[following] = reference
            named = _newest() if last else reference
            if named is None:
                raise _missing("reference", "which session? give an ID, a PATH, or --last")
            return function(reference=named, **options)

        with_last = click.option("--last", is_flag=True, help="The session that was written last.")(taking)
        return click.argument("reference", required=False, metavar=metavar)(with_last)

    return decorated


def required(name: str, value: str | None) -> str:
    """An argument that click cannot ask for, because `--last` may stand in its place. Raises click.UsageError."""
    if value is None:
        raise _missing(name)
    return value


def _missing(name: str, message: str | None = None) -> click.MissingParameter:
    context = click.get_current_context()
    parameter = next((one for one in context.command.params if one.name == name), None)
    return click.MissingParameter(message, context, parameter)


def _newest() -> str:
    from refold.session.home import Home

    return str(Home.find().catalogue().newest()[0])


def without_json(function: F) -> F:
    """For a command that talks with a person only: `--json` is refused, and not listed."""
    for option in getattr(function, "__click_params__", ()):
        option.hidden = option.hidden or option.name == "as_json"
    return function


def _with_permissions(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its `settings` holding what the options for permissions say."""

    @functools.wraps(function)
    def taking(*arguments: Any, sandbox: str | None, ask: str | None, mode: str | None, **options: Any) -> Any:
        asking = ask or ("never" if options["allow_exec"] else None)
        options["settings"] += (f"sandbox_mode={sandbox}",) if sandbox else ()
        options["settings"] += (f"approval_policy={asking}",) if asking else ()
        options["settings"] += (f"collaboration_mode={mode}",) if mode else ()
        return function(*arguments, **options)

    return taking


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
    """The home, and its config.toml with `-c` on top, and what is permitted where that is not set. Raises ConfigError.

    With a person at the terminal: `workspace-write` where a sandbox can be built, and `on-request` inside one.
    """
    import msgspec

    from refold.core.permissions import FREE
    from refold.session.home import Home, override

    home = Home.find()
    config = home.config(override(word) for word in words)
    if not _person() or config.approval_policy == "never" or config.sandbox_mode == FREE:
        return home, config
    mode = config.sandbox_mode or ("workspace-write" if not _fault() else None)
    # on-request is about leaving a sandbox: where none was asked for and none can be built, each command is asked
    policy = (config.approval_policy or "on-request") if mode else "untrusted"
    return home, msgspec.structs.replace(config, sandbox_mode=mode, approval_policy=policy, approvals_reviewer="user")


def _person() -> bool:
    from refold.cli.terminal import is_terminal

    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def _fault() -> str:
    from refold.tools.sandbox import sandbox_fault

    return sandbox_fault()


def command_tools(config: Config, allow_exec: bool) -> tuple[list[Tool], Approve | None, str | None]:
    """Which tools the model gets, who is asked before a command runs, and what to tell the user about it.

    Without a person at the terminal there is a command tool only where nobody has to be asked: with --allow-exec, with
    a policy of `never`, with full access, or inside a sandbox.
    """
    from refold.cli.terminal import allows
    from refold.core.permissions import FREE
    from refold.tools.commands import exec_command
    from refold.tools.images import view_image

    tools: list[Tool] = [exec_command, view_image]
    mode, policy = config.sandbox_mode, config.approval_policy
    never = allow_exec or policy == "never" or (mode == FREE and policy is None)
    if _person() and not never:
        return tools, allows, None
    if mode is not None and mode != FREE and (fault := _fault()):
        return [], None, f"the model gets no command tool here: {mode} needs a sandbox, and {fault}"
    if never or mode is not None:
        return tools, None, None
    ways = "--sandbox workspace-write lets it run commands inside a sandbox, --allow-exec with your rights"
    return [], None, f"the model gets no command tool here; {ways}"


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
