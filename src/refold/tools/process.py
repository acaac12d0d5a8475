"""Process: one started command, from its start until it is reaped.

Rule 1: a command has a session of its own, whose id is the shell's process id.
Rule 2: the shell is reaped last; until then its id cannot become somebody else's, and signals reach only its own.
Rule 3: however it ends, its pipe is closed and its shell reaped, at once and by itself; after `end` no process of its
        session is left.
Rule 4: a process in the background that does not hold the output outlives the shell, as `nohup server >log &` means to.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from refold.core.truncate import Captured
from refold.errors import ToolFailed
from refold.tools.collector import Collector

TERM_SECONDS = 0.5  # what a process gets to tidy up between SIGTERM and SIGKILL
KILLED_SECONDS = 0.25  # for the last output and the exit of what was just killed
QUIET_SECONDS = 0.25  # a held pipe that says nothing for so long, after the shell's exit, is a background process's
DRAIN_SECONDS = 2.0  # the longest that a talking one is listened to
REAP_SECONDS = 1.0  # a killed shell that is not gone by then hangs in the kernel
FIRST_LOOK_SECONDS = 0.001  # where the kernel does not tell that a process ended, it is looked at: soon for a short
LONGEST_LOOK_SECONDS = 0.05  # command, and less often for a long one
READ_BYTES = 1 << 16  # what a pipe holds
SIGNALLED = 128  # a shell adds it to the number of the signal that ended a command
ROWS, COLUMNS = 24, 80  # of a command's terminal
# A session's first process gets the terminal that it opens as its own: then Ctrl-C reaches what runs in front.
OWN_TERMINAL = ("/bin/sh", "-c", 'exec "$@" <"$0"')


class Process:
    """A running command. Mutable because it is a process.

    `ended` is done when the shell was reaped; then `exit_code` is set: 128 + n after signal n. `cut_off`: a background
    process still held the output when the shell had exited, and was ended. `timed_out`: it was ended when
    `limit_seconds` were over. `terminal`: it has one, and can be typed to.
    """

    def __init__(
        self,
        argv: list[str],
        cwd: str,
        environment: Mapping[str, str],
        *,
        terminal: bool = False,
        shown: list[str] | None = None,
    ) -> None:
        """Start it; `shown` is what a person is told of `argv`. Raises ToolFailed when it cannot be started."""
        self.shown = shown or argv
        self.cwd = cwd
        self.terminal = terminal
        self.exit_code: int | None = None
        self.cut_off = self.timed_out = False
        self.limit_seconds = 0.0  # the longest that it may run; 0: as long as it wants
        self.total_bytes = 0
        self._output = Collector()
        self._loop = asyncio.get_running_loop()
        self.started = self._loop.time()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._exited = self._drained = self._ending = False
        self._timers: list[asyncio.TimerHandle] = []
        self._process, self._pipe = _start(argv, cwd, environment, terminal)
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)
        self._watch = _ExitWatch(self._process, self._on_exit)

    # --- what it says -------------------------------------------------------------------------------------------

    async def ends_within(self, seconds: float) -> bool:
        """Whether it has ended in time, output and all."""
        await asyncio.wait((self.ended,), timeout=seconds)
        return self.ended.done()

    def take(self) -> Captured:
        """What it said since this was last called: its two ends, at most 1 MiB."""
        taken, self._output = self._output, Collector()
        return taken.captured()

    def last_line(self, most: int = 400) -> str:
        """The end of what it said since it was last taken: the newest line that is not blank, at most `most` bytes."""
        lines = [line for line in self._output.last(most).decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    # --- what is said to it -------------------------------------------------------------------------------------

    async def write(self, data: bytes, seconds: float) -> bool:
        """Type into its terminal; false when it did not take everything in time, or is gone."""
        deadline = self._loop.time() + seconds
        while data and not self.ended.done():
            try:
                data = data[os.write(self._pipe, data) :]
            except BlockingIOError:
                if not await self._takes_more(deadline - self._loop.time()):
                    return False
            except OSError:  # nobody holds the other side any more
                return False
        return not data

    async def _takes_more(self, seconds: float) -> bool:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._pipe, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait((ready, self.ended), timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not self.ended.done():
                self._loop.remove_writer(self._pipe)
        return ready.done()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process group of its session."""
        if self.ended.done():
            return
        for group in _groups_of_session(self._process.pid):
            with suppress(ProcessLookupError, PermissionError):  # it is gone, or only the ended shell is left (macOS)
                os.killpg(group, number)

    def end_after(self, seconds: float) -> None:
        """End it when it runs longer than that from now."""
        self.limit_seconds = seconds
        self._timers.append(self._loop.call_later(seconds, self._time_is_over))

    def _time_is_over(self) -> None:
        if not self._exited:
            self.timed_out = True
            self.end()

    def end(self) -> None:
        """End the whole session: ask, wait a little, kill. `ended` tells when that is done."""
        if self._ending or self.ended.done():
            return
        self._ending = True
        self.signal(signal.SIGTERM)
        self._timers.append(self._loop.call_later(TERM_SECONDS, self.kill))
        self._settle()

    def kill(self) -> None:
        """End the whole session at once."""
        self._ending = True
        self.signal(signal.SIGKILL)
        if not self.ended.done():
            self._timers.append(self._loop.call_later(KILLED_SECONDS, self._finish))

    async def stop(self) -> None:
        """End it and wait for that. Cancelled meanwhile, it is killed at once."""
        self.end()
        try:
            await asyncio.wait((self.ended,))
        except asyncio.CancelledError:
            self.kill()
            await asyncio.wait((self.ended,))
            raise

    # --- its end ------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            chunk = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that nobody holds any more
            chunk = b""
        if chunk:
            self.total_bytes += len(chunk)
            self._output.feed(chunk)
            return
        self._loop.remove_reader(self._pipe)
        self._drained = True
        self._settle()

    def _on_exit(self) -> None:
        self._exited = True
        self._settle()
        if not self._drained and not self._ending:
            self._listen_on(self._loop.time() + DRAIN_SECONDS)

    def _listen_on(self, deadline: float) -> None:
        """Read on after the shell's exit, while somebody who talks still holds the output."""
        self._timers.append(self._loop.call_later(QUIET_SECONDS, self._is_quiet, self.total_bytes, deadline))

    def _is_quiet(self, seen: int, deadline: float) -> None:
        if self.total_bytes == seen or self._loop.time() >= deadline:
            self.cut_off = True
            self.end()
        else:
            self._listen_on(deadline)

    def _settle(self) -> None:
        if self._exited and self._drained:
            self._finish()

    def _finish(self) -> None:
        """Let go of the pipe and reap the shell."""
        if self.ended.done():
            return
        if self._ending:
            self.signal(signal.SIGKILL)  # what neither held the output nor heard SIGTERM
        for timer in self._timers:
            timer.cancel()
        self._loop.remove_reader(self._pipe)
        self._loop.remove_writer(self._pipe)
        self._watch.close()
        os.close(self._pipe)
        try:
            code = self._process.wait(0 if self._exited else REAP_SECONDS)
        except subprocess.TimeoutExpired:  # it hangs in the kernel; `subprocess` reaps it later
            code = -signal.SIGKILL
        self.exit_code = code if code >= 0 else SIGNALLED - code
        self.ended.set_result(None)


# --- the system ------------------------------------------------------------------------------------------------


def _start(
    argv: list[str], cwd: str, environment: Mapping[str, str], terminal: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """A process in a session of its own, and the descriptor that its output is read from."""
    mine, theirs, path = _terminal() if terminal else (*os.pipe(), "")
    try:
        process = subprocess.Popen(  # noqa: S603 - running what the model asks for is what this is for
            [*OWN_TERMINAL, path, *argv] if terminal else argv,
            cwd=cwd,
            env=environment,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # no such shell, too long a command, a NUL in it
        os.close(mine)
        raise ToolFailed(f"exec_command failed: {argv[0]} cannot be started in {cwd}: {error}") from error
    finally:
        os.close(theirs)
    return process, mine


def _terminal() -> tuple[int, int, str]:
    """A new terminal: our side, the command's side, and its path."""
    import fcntl
    import struct
    import termios

    mine, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    return mine, theirs, os.ttyname(theirs)


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


class _ExitWatch:
    """Calls once when a process has ended, without reaping it where the system can tell. Mutable: it holds a handle."""

    def __init__(self, process: subprocess.Popen[bytes], ended: Callable[[], None]) -> None:
        self._process = process
        self._tell = ended
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not Linux, or an old or fenced one
            self._timer = self._loop.call_later(FIRST_LOOK_SECONDS, self._look, FIRST_LOOK_SECONDS)
        else:
            self._loop.add_reader(self._pidfd, self._ended)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _ended(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        self._tell()

    def _look(self, pause: float) -> None:
        if _has_ended(self._process):
            self._ended()
        else:
            self._timer = self._loop.call_later(pause, self._look, min(2 * pause, LONGEST_LOOK_SECONDS))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None  # macOS before Python 3.13: reaps it, which rule 2 can only regret
