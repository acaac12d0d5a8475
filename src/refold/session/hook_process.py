"""Hook process: one hook's command, from its start until it is reaped.

Rule 1: it gets its input on stdin and the session's own environment: it is the user's command, not the model's.
Rule 2: its shell is reaped last; until then its id cannot become somebody else's, and signals reach only its group.
Rule 3: at its time-out, and when whoever waits for it is cancelled, its whole group is ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import suppress

from refold.core.hook_answer import HookEnded

MOST_OUTPUT = 1 << 16  # bytes of stdout, and of stderr, that are kept; the rest is read and forgotten
TERM_SECONDS = 0.5  # what it gets to tidy up between SIGTERM and SIGKILL
QUIET_SECONDS = 0.25  # how long output is read on after its exit, where a process in the background holds the pipe
FIRST_LOOK_SECONDS = 0.001  # how soon it is looked whether it has exited,
LONGEST_LOOK_SECONDS = 0.05  # and how rarely, when it takes its time
REAP_SECONDS = 1.0  # a killed shell that is not gone by then hangs in the kernel
READ_BYTES = 1 << 16  # what a pipe holds


async def run_hook(command: str, said: bytes, cwd: str, seconds: float) -> HookEnded:
    """Run shell text in a folder with this on its stdin. It never raises for what the command does."""
    try:
        child = _Child(command, said, cwd)
    except (OSError, ValueError) as error:  # no such folder, too long a command, a NUL in it
        return HookEnded(unable=f"could not be started in {cwd}: {error}")
    try:
        async with asyncio.timeout(seconds):
            await child.ends()
    except TimeoutError:
        await child.stop()
        return HookEnded(unable=f"did not end within {seconds:g} s")
    except asyncio.CancelledError:
        await child.stop()
        raise
    finally:
        code = child.close()
    return HookEnded(exit_code=code, out=child.kept(1), err=child.kept(2), cut=child.cut)


class _Child:
    """Mutable because it is a process; `close` it whatever happens."""

    def __init__(self, command: str, said: bytes, cwd: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = subprocess.Popen(  # noqa: S603 - running what the user configured is what this is for
            ["/bin/sh", "-c", command],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._unsaid = memoryview(said)
        self._kept = {1: bytearray(), 2: bytearray()}
        self.cut = False  # it said more on stdout than was kept
        self._drained: asyncio.Future[None] = self._loop.create_future()  # nobody holds a writing end any more
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin = self._process.stdin.fileno()
        self._open = {1: self._process.stdout.fileno(), 2: self._process.stderr.fileno()}
        for number in (self._stdin, *self._open.values()):
            os.set_blocking(number, False)
        self._loop.add_writer(self._stdin, self._write)
        for name, number in self._open.items():
            self._loop.add_reader(number, self._read, name)

    async def ends(self) -> None:
        """Until it has exited and what it said is read."""
        pause = FIRST_LOOK_SECONDS
        while not self._has_exited():
            if self._drained.done():
                await asyncio.sleep(pause)
            else:
                await asyncio.wait((self._drained,), timeout=pause)
                pause = FIRST_LOOK_SECONDS if self._drained.done() else pause
            pause = min(2 * pause, LONGEST_LOOK_SECONDS)
        await asyncio.wait((self._drained,), timeout=QUIET_SECONDS)

    async def stop(self) -> None:
        """End its group: ask, wait a little, kill. Cancelled meanwhile, it kills at once."""
        try:
            self._signal(signal.SIGTERM)
            async with asyncio.timeout(TERM_SECONDS):
                await self.ends()
        except TimeoutError:
            pass
        finally:
            self._signal(signal.SIGKILL)

    def close(self) -> int:
        """Let go of the pipes and reap the shell; the exit code."""
        if not self._has_exited():
            self._signal(signal.SIGKILL)
        self._stop_talking()
        for number in self._open.values():
            self._loop.remove_reader(number)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        try:
            return self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:  # `subprocess` reaps it later
            return -signal.SIGKILL

    def kept(self, name: int) -> str:
        """What was kept of stdout (1) or stderr (2)."""
        return self._kept[name].decode("utf-8", "replace")

    def _has_exited(self) -> bool:
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._process.poll() is not None  # macOS before Python 3.13: reaps it, which rule 2 can only regret

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # only the ended shell is left
            os.killpg(self._process.pid, number)

    def _write(self) -> None:
        try:
            self._unsaid = self._unsaid[os.write(self._stdin, self._unsaid) :]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self._unsaid = self._unsaid[:0]
        if not self._unsaid:
            self._stop_talking()

    def _stop_talking(self) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.closed:  # afterwards its number may be another file's
            self._loop.remove_writer(self._stdin)
            self._process.stdin.close()

    def _read(self, name: int) -> None:
        try:
            chunk = os.read(self._open[name], READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            kept = self._kept[name]
            self.cut = self.cut or (name == 1 and len(kept) + len(chunk) > MOST_OUTPUT)
            kept += chunk[: MOST_OUTPUT - len(kept)]
            return
        self._loop.remove_reader(self._open.pop(name))
        if not self._open:
            self._drained.set_result(None)
