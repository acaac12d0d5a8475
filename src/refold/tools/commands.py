"""Commands: exec_command runs one shell command; the model gets its exit code and both ends of its output (oracle §3).

Rule 1: a command has a session of its own, whose id is the shell's process id.
Rule 2: the shell is reaped last; until then its id cannot become somebody else's, and signals reach only its own.
Rule 3: however a call ends, its pipe is closed and its shell reaped; after a time-out or a cancellation no process of
        its session is left.
Rule 4: a process in the background that does not hold the output outlives the call, as `nohup server >log &` means to.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec

from refold.core.truncate import Captured, exec_output, well_formed
from refold.errors import ToolFailed
from refold.tools import ToolContext, ToolResult
from refold.tools.collector import Collector
from refold.tools.functions import convert_arguments

DEFAULT_TIMEOUT_MS = 600_000  # long enough for a build or a test suite, short enough that a hung one ends by itself
LONGEST_TIMEOUT_MS = 86_400_000  # a day; more is a mistake of units
LARGEST_NUMBER = 2**53  # what a JSON number holds exactly
TERM_SECONDS = 0.5  # what a process gets to tidy up between SIGTERM and SIGKILL
KILLED_SECONDS = 0.25  # for the last output and the exit of what was just killed
QUIET_SECONDS = 0.25  # a held pipe that says nothing for so long, after the shell's exit, is a background process's
DRAIN_SECONDS = 2.0  # the longest that a talking one is listened to
REAP_SECONDS = 1.0  # a killed shell that is not gone by then hangs in the kernel
FIRST_LOOK_SECONDS = 0.001  # where the kernel does not tell that a process ended, it is looked at: soon for a short
LONGEST_LOOK_SECONDS = 0.05  # command, and less often for a long one
READ_BYTES = 1 << 16  # what a pipe holds
TIMED_OUT = 124  # the exit code that `timeout` gives
SIGNALLED = 128  # a shell adds it to the number of the signal that ended a command

SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
PLAIN_OUTPUT = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}  # no colours, no pager that waits
BACKGROUND_NOTE = (
    "a background process still held the output when the shell exited and was cut off; "
    "redirect its output to a file to leave it running\n"
)

SPEC: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "description": (
        "Runs a shell command to its end and returns its exit code and output (stdout and stderr together). "
        "Standard input is empty. A long output is cut in the middle. To leave a process running in the background, "
        "redirect its output to a file."
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
            "timeout_ms": {
                "type": "number",
                "description": f"Milliseconds after which the command is stopped. Default {DEFAULT_TIMEOUT_MS}.",
            },
            "max_output_tokens": {
                "type": "number",
                "description": "Tokens of output to return; what is over is cut from the middle. Default 10000.",
            },
            "shell": {"type": "string", "description": "Shell binary to use. Default bash."},
        },
        "required": ["cmd"],
        "additionalProperties": False,
    },
}


class Arguments(msgspec.Struct, frozen=True):
    """What the model may say; unknown arguments, such as other versions' `tty` or `login`, are ignored.

    `yield_time_ms` is taken and ignored: a command runs to its end until there are sessions that go on.
    """

    cmd: str
    workdir: str | None = None
    timeout_ms: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_TIMEOUT_MS)] | None = None
    max_output_tokens: Annotated[float, msgspec.Meta(ge=0, le=LARGEST_NUMBER)] | None = None
    yield_time_ms: float | None = None
    shell: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is 128 + n after signal n, 124 after a time-out."""

    captured: Captured
    exit_code: int
    seconds: float
    timed_out: bool
    background_stopped: bool


# --- what to run -----------------------------------------------------------------------------------------


def command_line(arguments: Arguments) -> list[str]:
    """The shell, `-lc` and the command."""
    shell = arguments.shell or next((path for path in SHELLS if Path(path).exists()), "/bin/sh")
    return [well_formed(shell), "-lc", well_formed(arguments.cmd)]


def working_directory(workdir: str | None, cwd: str) -> str:
    """The directory to run in. Raises ToolFailed when there is none."""
    path = Path(cwd, well_formed(workdir or ""))
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a path that may not be looked at
        raise ToolFailed(f"exec_command failed: workdir {path} is not a directory; the session's is {cwd}")
    return str(path)


def _start(argv: list[str], cwd: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - running what the model asks for is what this tool is for
            argv,
            cwd=cwd,
            env={**os.environ, **PLAIN_OUTPUT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # no such shell, too long a command, a NUL in it
        raise ToolFailed(f"exec_command failed: {argv[0]} cannot be started in {cwd}: {error}") from error


def _groups_of_session(session: int) -> set[int]:
    """The process groups of a session: its own, and those that `timeout` or `set -m` made, where /proc tells."""
    groups = {session}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if len(fields) > 3 and int(fields[3]) == session:
            groups.add(int(fields[2]))
    return groups


# --- the running command -----------------------------------------------------------------------------------


class _Command:
    """One started command. Mutable because it is a process; `close` it whatever happens."""

    def __init__(self, argv: list[str], cwd: str) -> None:
        self.output = Collector()
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()  # the shell has ended; it is not reaped yet
        self._drained: asyncio.Future[None] = self._loop.create_future()  # nobody holds the output's writing end
        self._process = _start(argv, cwd)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)
        self._exit = _ExitWatch(self._process, self._exited)

    async def exits_within(self, seconds: float) -> bool:
        """Whether the shell ended in time."""
        await asyncio.wait((self._exited,), timeout=seconds)
        return self._exited.done()

    async def drains(self) -> bool:
        """Read on after the shell's exit; false when somebody still holds the output, silent or for too long."""
        deadline = self._loop.time() + DRAIN_SECONDS
        while not self._drained.done():
            seen = self.output.total_bytes
            await asyncio.wait((self._drained,), timeout=QUIET_SECONDS)
            over = self.output.total_bytes == seen or self._loop.time() >= deadline
            if over and not self._drained.done():
                return False
        return True

    async def stop(self) -> None:
        """End the whole session: ask, wait a little, kill. Cancelled meanwhile, it kills at once."""
        try:
            self._signal(signal.SIGTERM)
            await asyncio.wait((self._exited, self._drained), timeout=TERM_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
        await asyncio.wait((self._exited, self._drained), timeout=KILLED_SECONDS)

    def close(self) -> int:
        """Let go of the pipe and reap the shell; the exit code."""
        if not self._exited.done():
            self._signal(signal.SIGKILL)
        self._loop.remove_reader(self._pipe)
        self._exit.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            code = self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:  # it hangs in the kernel; `subprocess` reaps it later
            code = -signal.SIGKILL
        return code if code >= 0 else SIGNALLED - code

    def _signal(self, number: signal.Signals) -> None:
        for group in _groups_of_session(self._process.pid):
            try:
                os.killpg(group, number)
            except (ProcessLookupError, PermissionError):  # it is gone, or only the ended shell is left (macOS)
                continue

    def _read(self) -> None:
        try:
            chunk = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self.output.feed(chunk)
        else:
            self._loop.remove_reader(self._pipe)
            self._drained.set_result(None)


class _ExitWatch:
    """Sets a future when a process ends, without reaping it where the system can tell. Mutable: it holds a handle."""

    def __init__(self, process: subprocess.Popen[bytes], exited: asyncio.Future[None]) -> None:
        self._process = process
        self._exited = exited
        self._loop = exited.get_loop()
        self._pidfd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not Linux, or an old or fenced one
            self._look(FIRST_LOOK_SECONDS)
        else:
            self._loop.add_reader(self._pidfd, self._ended)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)

    def _ended(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        self._exited.set_result(None)

    def _look(self, pause: float) -> None:
        if _has_ended(self._process):
            self._ended()
        else:
            self._timer = self._loop.call_later(pause, self._look, min(2 * pause, LONGEST_LOOK_SECONDS))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None  # macOS before Python 3.13: reaps it, which rule 2 can only regret


async def run_command(argv: list[str], cwd: str, seconds: float) -> Outcome:
    """Run a command for at most that many seconds. Raises ToolFailed when it cannot be started."""
    started = time.monotonic()
    background = False
    command = _Command(argv, cwd)
    try:
        timed_out = not await command.exits_within(seconds)
        background = not timed_out and not await command.drains()
        if timed_out or background:
            await command.stop()
    except asyncio.CancelledError:
        await command.stop()
        raise
    finally:
        exit_code = command.close()
    return Outcome(
        captured=command.output.captured(),
        exit_code=TIMED_OUT if timed_out else exit_code,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
        background_stopped=background,
    )


# --- the tool ------------------------------------------------------------------------------------------------


class ExecCommand:
    """The tool `exec_command`. Its arguments are `Arguments`; several may run beside one another.

    `ToolResult.details`: `exit_code`, `command` (shell, `-lc`, command), `cwd`, `duration` in seconds, `output` (what
    was kept, at most 1 MiB of the command's bytes, as text), `timed_out`.
    """

    name = "exec_command"
    spec = SPEC
    parallel = True
    needs_approval = True  # a command can do anything that the user can

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        asked = convert_arguments(arguments, Arguments, SPEC)
        cwd = working_directory(asked.workdir, context.cwd)
        argv = command_line(asked)
        timeout_ms = asked.timeout_ms or DEFAULT_TIMEOUT_MS
        outcome = await run_command(argv, cwd, timeout_ms / 1000)
        note = f"command timed out after {timeout_ms:.0f} milliseconds\n" if outcome.timed_out else ""
        text = exec_output(
            outcome.captured,
            context.policy,
            chunk_id=context.new_id,
            wall_seconds=outcome.seconds,
            exit_code=outcome.exit_code,
            max_output_tokens=None if asked.max_output_tokens is None else int(asked.max_output_tokens),
            note=BACKGROUND_NOTE if outcome.background_stopped else note,
        )
        details = {
            "exit_code": outcome.exit_code,
            "command": argv,
            "cwd": cwd,
            "duration": outcome.seconds,
            "output": outcome.captured.text(),
            "timed_out": outcome.timed_out,
        }
        return ToolResult(output=text, success=outcome.exit_code == 0, shaped=True, details=details)


exec_command = ExecCommand()
