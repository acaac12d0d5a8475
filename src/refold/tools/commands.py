"""Commands: exec_command starts a shell command, write_stdin goes on with one that still runs (spec §2.4, oracle §3).

Both wait for its end, at most for their yield time; what runs on then has a session id until the model was told its
exit, or the session ends. The model gets the exit code or that id, and both ends of what was said since it last looked.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from refold.core.permissions import CommandAsked
from refold.core.plain_command import SHELL_FOLDERS, SHELLS
from refold.core.truncate import exec_output, well_formed
from refold.errors import ToolFailed
from refold.tools import ToolContext, ToolResult
from refold.tools.child_environment import child_environment
from refold.tools.functions import convert_arguments
from refold.tools.login import known_login
from refold.tools.process import Process

YIELD_MS, TYPED_YIELD_MS, POLL_YIELD_MS = 10_000, 250, 5_000  # by default: a start, a typed line, a look
SHORTEST_YIELD_MS, LONGEST_YIELD_MS = 250, 300_000  # sooner there is nothing to see; later a person wonders
LONGEST_TIMEOUT_MS = 86_400_000  # a day; more is a mistake of units
LARGEST_NUMBER = 2**53  # what a JSON number holds exactly
TIMED_OUT = 124  # the exit code that `timeout` gives
PROGRESS_SECONDS = 1.0  # how often a command that is waited for says what it does
INTERRUPT = "\x03"  # Ctrl-C

PLAIN_OUTPUT = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}  # no colours, no pager that waits
OUTSIDE = "require_escalated"  # the real program's word for outside the sandbox
BACKGROUND_NOTE = (
    "a background process still held the output when the shell exited and was cut off; "
    "redirect its output to a file to leave it running\n"
)

_YIELD = Annotated[float, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
_OUTPUT_TOKENS = {
    "type": "number",
    "description": "Tokens of output to return; what is over is cut from the middle. Default 10000.",
}

EXEC_SPEC: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "description": (
        "Runs a shell command and returns its exit code and output (stdout and stderr together); a long output is cut "
        "in the middle. A command that outlives yield_time_ms runs on: the result then names a session ID, and "
        "write_stdin waits for it, types into it or ends it. It ends with this session at the latest."
    ),
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "cmd": {"type": "string", "description": "Shell command to execute."},
            "workdir": {
                "type": "string",
                "description": "Directory to run the command in; relative to the session's, which is the default.",
            },
            "tty": {
                "type": "boolean",
                "description": "Give the command a terminal, for programs that need one or that are typed into. "
                "Without it standard input is empty. Default false.",
            },
            "yield_time_ms": {
                "type": "number",
                "description": f"Milliseconds to wait for the command's end. Default {YIELD_MS}.",
            },
            "timeout_ms": {
                "type": "number",
                "description": "Milliseconds after which the command is stopped. Default: it is not.",
            },
            "max_output_tokens": _OUTPUT_TOKENS,
            "shell": {"type": "string", "description": "Shell binary to use. Default bash."},
            "sandbox_permissions": {
                "type": "string",
                "enum": ["use_default", OUTSIDE],
                "description": f"{OUTSIDE}: ask the user to run this command outside the sandbox. Only when it must.",
            },
            "justification": {
                "type": "string",
                "description": f"With {OUTSIDE}: one sentence for the user, why the command needs it.",
            },
        },
        "required": ["cmd"],
        "additionalProperties": False,
    },
}

STDIN_SPEC: dict[str, Any] = {
    "type": "function",
    "name": "write_stdin",
    "description": (
        "Goes on with a command that still runs: types characters into it (if it was started with tty), waits, and "
        "returns what it said since the last look. Without chars it only waits. "
        "\\u0003 interrupts a command, with or without a terminal."
    ),
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "session_id": {"type": "number", "description": "The session ID that exec_command returned."},
            "chars": {"type": "string", "description": "Characters to type, with \\n for Enter. Default none."},
            "yield_time_ms": {
                "type": "number",
                "description": f"Milliseconds to wait for the command's end. Default {TYPED_YIELD_MS} after chars, "
                f"{POLL_YIELD_MS} without.",
            },
            "max_output_tokens": _OUTPUT_TOKENS,
        },
        "required": ["session_id"],
        "additionalProperties": False,
    },
}


class ExecArguments(msgspec.Struct, frozen=True):
    """What the model may say to exec_command; unknown arguments, such as other versions' `login`, are ignored."""

    cmd: str
    workdir: str | None = None
    tty: bool | None = None
    yield_time_ms: _YIELD | None = None
    timeout_ms: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_TIMEOUT_MS)] | None = None
    max_output_tokens: Annotated[float, msgspec.Meta(ge=0, le=LARGEST_NUMBER)] | None = None
    shell: str | None = None
    sandbox_permissions: str | None = None
    justification: str | None = None


class StdinArguments(msgspec.Struct, frozen=True):
    """What the model may say to write_stdin."""

    session_id: Annotated[float, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
    chars: str | None = None
    yield_time_ms: _YIELD | None = None
    max_output_tokens: Annotated[float, msgspec.Meta(ge=0, le=LARGEST_NUMBER)] | None = None


# --- what to run -----------------------------------------------------------------------------------------


def shell_of(asked: str | None) -> str:
    """The shell that runs a command: the one asked for, else bash, else sh.

    The bare name of a usual one means the system's: in `PATH` a folder may come first that commands can write.
    """
    if asked and asked not in SHELLS:
        return well_formed(asked)
    found = (f"{folder}/{asked or 'bash'}" for folder in SHELL_FOLDERS)
    return next((path for path in found if Path(path).exists()), f"/bin/{asked or 'sh'}")


def working_directory(workdir: str | None, cwd: str) -> str:
    """The directory to run in. Raises ToolFailed when there is none."""
    path = Path(cwd, well_formed(workdir or ""))
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a path that may not be looked at
        raise ToolFailed(f"exec_command failed: workdir {path} is not a directory; the session's is {cwd}")
    return str(path)


async def start(asked: ExecArguments, cwd: str, context: ToolContext) -> Process:
    """Start a command as it may run: inside its walls, with the environment it may have. Raises ToolFailed."""
    shell, cmd, shared = shell_of(asked.shell), well_formed(asked.cmd), context.processes
    confinement = context.confinement
    policy, secrets = confinement.environment, confinement.secrets
    seen = shared.environments.get((shell, secrets))
    if seen is None or seen[0] != policy:
        inherited = {**os.environ, **PLAIN_OUTPUT}
        known = await known_login(shared.logins, shell, inherited, context.cwd)
        given = inherited if known is None else known.variables
        seen = shared.environments[shell, secrets] = (policy, child_environment(policy, secrets, given))
    login, visible = shared.logins[shell], seen[1]
    shown = [shell, "-lc", cmd]  # what it amounts to, and what the real program tells
    plain = shown if login is None else login.argv(shell, cmd, visible)
    argv = plain
    if confinement.sandbox is not None:
        from refold.tools.sandbox import argv_in

        argv = argv_in(confinement.sandbox, plain, cwd)
    environment = shared.marked({**visible, **PLAIN_OUTPUT})
    return Process(argv, cwd, environment, terminal=bool(asked.tty), shown=shown)


def _seconds(asked: float | None, default: int) -> float:
    """A yield time in seconds, within its bounds."""
    given = default if asked is None else asked
    return min(max(given, SHORTEST_YIELD_MS), LONGEST_YIELD_MS) / 1000


# --- waiting for it and telling of it ------------------------------------------------------------------------


async def _watched(process: Process, seconds: float, progress: Callable[[str], None]) -> None:
    """Wait for a command's end, at most so long, and tell whoever watches how far it is."""
    loop = asyncio.get_running_loop()
    until, seen = loop.time() + seconds, -1
    while (left := until - loop.time()) > 0 and not await process.ends_within(min(PROGRESS_SECONDS, left)):
        if process.total_bytes != seen:
            seen = process.total_bytes
            progress(process.last_line())


def _result(
    process: Process, context: ToolContext, began: float, tokens: float | None, number: int | None
) -> ToolResult:
    """What the model is told of a command: of one that has ended its exit code, else its session id `number`."""
    captured, now = process.take(), asyncio.get_running_loop().time()
    runs = not process.ended.done()
    exit_code = None if runs else TIMED_OUT if process.timed_out else process.exit_code
    text = exec_output(
        captured,
        context.policy,
        chunk_id=context.new_id,
        wall_seconds=now - began,
        exit_code=exit_code,
        session_id=number,
        max_output_tokens=None if tokens is None else int(tokens),
        note=_note(process),
    )
    details = {
        "exit_code": exit_code,
        "session_id": number if runs else None,
        "command": process.shown,
        "cwd": process.cwd,
        "duration": now - process.started,
        "output": captured.text(),
        "timed_out": process.timed_out,
    }
    return ToolResult(output=text, success=exit_code in (0, None), shaped=True, details=details)


def _note(process: Process) -> str:
    """The line of ours that stands before the output of a command that did not end by itself."""
    if process.timed_out and process.ended.done():
        return f"command timed out after {process.limit_seconds * 1000:.0f} milliseconds\n"
    return BACKGROUND_NOTE if process.cut_off else ""


# --- the tools -----------------------------------------------------------------------------------------------


class WriteStdin:
    """The tool `write_stdin`: goes on with a command that `exec_command` left running. Its arguments are
    `StdinArguments`; its `ToolResult.details` are those of `exec_command`."""

    name = "write_stdin"
    spec = STDIN_SPEC
    parallel = True
    needs_approval = False  # the command was allowed when it was started

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        asked = convert_arguments(arguments, StdinArguments, STDIN_SPEC)
        number, chars, began = int(asked.session_id), asked.chars or "", asyncio.get_running_loop().time()
        process = context.processes.find(number)
        seconds = _seconds(asked.yield_time_ms, TYPED_YIELD_MS if chars else POLL_YIELD_MS)
        try:
            await _type(process, number, chars, seconds)
            await _watched(process, seconds, context.progress)
        except asyncio.CancelledError:  # whoever interrupts the turn means the command that it waits for
            await process.stop()
            context.processes.forget(number)
            raise
        if process.ended.done():
            context.processes.forget(number)
        return _result(process, context, began, asked.max_output_tokens, number)


class ExecCommand:
    """The tool `exec_command`. Its arguments are `ExecArguments`; several may run beside one another.

    `ToolResult.details`: `exit_code` (None while it runs), `session_id` (None when it has ended), `command` (shell,
    flag, text), `cwd`, `duration` in seconds since its start, `output` (what was kept of
    its newest output, at most 1 MiB of bytes, as text), `timed_out`. A Toolbox adds `companions` by itself.
    """

    name = "exec_command"
    spec = EXEC_SPEC
    parallel = True
    needs_approval = True  # a command can do anything that the user can
    companions = (WriteStdin(),)

    def asks(self, arguments: dict[str, Any], cwd: str) -> CommandAsked:
        """What a call wants to run, for whoever decides whether it may. Raises ToolFailed for wrong arguments."""
        asked = convert_arguments(arguments, ExecArguments, EXEC_SPEC)
        return CommandAsked(
            command=well_formed(asked.cmd),
            cwd=working_directory(asked.workdir, cwd),
            outside=asked.sandbox_permissions == OUTSIDE,
            reason=well_formed(asked.justification or ""),
            interactive=bool(asked.tty),
            shell=shell_of(asked.shell),
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        asked, began = convert_arguments(arguments, ExecArguments, EXEC_SPEC), asyncio.get_running_loop().time()
        process = await start(asked, working_directory(asked.workdir, context.cwd), context)
        if asked.timeout_ms is not None:
            process.end_after(asked.timeout_ms / 1000)
        number = None
        try:
            await _watched(process, _seconds(asked.yield_time_ms, YIELD_MS), context.progress)
            if not process.ended.done():
                number = context.processes.keep(process, int(context.new_id, 16))
        except BaseException:
            await process.stop()
            raise
        return _result(process, context, began, asked.max_output_tokens, number)


async def _type(process: Process, number: int, chars: str, seconds: float) -> None:
    """Type into a command's terminal; Ctrl-C reaches one without a terminal, too. Raises ToolFailed."""
    if not chars or process.ended.done():
        return
    if process.terminal:
        if not await process.write(well_formed(chars).encode(), seconds) and not process.ended.done():
            raise ToolFailed(f"write_stdin failed: the command with session ID {number} does not take its input")
    elif chars.strip("\n") == INTERRUPT:
        process.signal(signal.SIGINT)
    else:
        raise ToolFailed(
            f"write_stdin failed: the command with session ID {number} has no terminal and its standard input is "
            "empty; run it again with tty true to type into it"
        )


exec_command = ExecCommand()
write_stdin = exec_command.companions[0]
