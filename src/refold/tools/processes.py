"""Processes: the commands of a session that go on after their call, by id, and what all its commands share."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from refold.errors import ToolFailed

if TYPE_CHECKING:
    from refold.core.permissions import EnvironmentPolicy
    from refold.tools.login import Logins
    from refold.tools.process import Process

MOST_RUNNING = 64  # commands at once; more is a loop that has lost them
FIRST_ID, IDS = 1000, 99_000  # ids of four or five digits, drawn anew each time: one from before a resume means nobody
BETWEEN_LOOKS_SECONDS = 0.005  # a process that is just becoming another program shows no environment meanwhile
BECOMING = (b"R", b"D")  # its state then; without either, a process has no environment for good
MOST_LOOKS = 100  # for marked processes at the end
MARK = "REFOLD_COMMANDS"  # a variable in each command's environment, by which even a daemon is found again


class Processes:
    """Mutable: it holds what runs. Close it when the session ends: nothing that its commands started outlives it,
    save a process that dropped the variable `REFOLD_COMMANDS` from its environment."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self.mark = ""  # the variable's value; empty until a command was started
        self.logins: Logins = {}
        # By shell and hidden names: a policy, and what commands see under it.
        self.environments: dict[tuple[str, tuple[str, ...]], tuple[EnvironmentPolicy, dict[str, str]]] = {}

    def marked(self, environment: dict[str, str]) -> dict[str, str]:
        """The environment with the variable by which its processes are found at the end."""
        self.mark = self.mark or os.urandom(8).hex()
        return {**environment, MARK: self.mark}

    def keep(self, process: Process, seed: int) -> int:
        """Let a command go on after its call. The id that `write_stdin` finds it by. Raises ToolFailed: too many."""
        running = [number for number, other in self._running.items() if not other.ended.done()]
        if len(running) >= MOST_RUNNING:
            raise ToolFailed(
                f"exec_command failed: {MOST_RUNNING} commands are running already; this one was stopped. "
                f"End one first: write_stdin with chars \\u0003 to one of {_listed(running)}"
            )
        number = FIRST_ID + seed % IDS
        while number in self._running:
            number = FIRST_ID + (number - FIRST_ID + 1) % IDS
        self._running[number] = process
        return number

    def find(self, number: int) -> Process:
        """The command with this id. Raises ToolFailed."""
        if number not in self._running:
            known = f"those that run: {_listed(list(self._running))}" if self._running else "none is running"
            raise ToolFailed(f"write_stdin failed: no command has the session ID {number} ({known})")
        return self._running[number]

    def forget(self, number: int) -> None:
        """A command whose exit the model was told."""
        self._running.pop(number, None)

    async def close(self) -> None:
        """End them all, and what they left behind."""
        for process in self._running.values():
            process.end()
        try:
            for process in self._running.values():
                await process.stop()
        finally:
            for process in self._running.values():
                process.kill()
            self._running = {}
            if self.mark:
                await kill_marked(f"{MARK}={self.mark}".encode())


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


async def kill_marked(mark: bytes, proc: Path = Path("/proc")) -> None:
    """End every process that carries a mark in its environment, where /proc tells: daemons among them."""
    for _ in range(MOST_LOOKS):
        if not _kill_what_shows(mark, proc):
            return
        await asyncio.sleep(BETWEEN_LOOKS_SECONDS)


def _kill_what_shows(mark: bytes, proc: Path) -> bool:
    """End those that carry the mark now. Whether to look again: one was found, or one does not show what it carries."""
    again = False
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is somebody else's
            environment = (folder / "environ").read_bytes()
            if mark in environment.split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                again = True  # it may have started another that was not looked at
            elif not environment:
                again |= (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] in BECOMING
    return again
