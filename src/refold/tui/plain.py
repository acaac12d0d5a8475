"""Plain: lines in, lines out, for dumb terminals and pipes: no escape codes, no cursor, the same commands."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from refold.errors import RefoldError
from refold.tui.board import Board, State, toolbar
from refold.tui.choice import fitting, row
from refold.tui.surface import Person

if TYPE_CHECKING:
    from refold.core.permissions import Question, Verdict
    from refold.rollout.catalogue import Summary
    from refold.tui.history import SaidBefore

READ_BYTES = 65_536
WIDTH = 100  # columns; what stands behind it may not be as wide, and cannot be asked
PICK_ROWS = 20
PROMPT = "› "


class Plain:
    """Mutable: lines that were read and not yet used, and what was printed last."""

    def __init__(self, board: Board, source: TextIO, target: TextIO) -> None:
        self._board = board
        self._number = source.fileno()
        self._target = target
        self._is_person = source.isatty()  # from a pipe each line is a turn, and none is a steer
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._answers: asyncio.Queue[str] | None = None  # where lines go while something is asked
        self._rest = b""
        self._open_line = False
        self._told: State | None = None
        self._quiet = asyncio.Event()
        self._closed = asyncio.Event()

    # --- out -------------------------------------------------------------------------------------------------------

    def say(self, text: str, look: str = "") -> None:
        from refold.views.shown import clean

        self._write(("\n" if self._open_line else "") + clean(text) + "\n")

    def said(self, text: str) -> None:
        if not self._is_person:  # whoever typed it sees it already
            self.say(PROMPT + text.replace("\n", "\n  "))

    def part(self, text: str) -> None:
        if text:
            self._write(text)

    def end_part(self) -> None:
        if self._open_line:
            self._write("\n")

    def changed(self) -> None:
        """The prompt, and what a toolbar would say, when there is nothing to wait for."""
        state = self._board.state
        if state == self._told:
            return
        self._told = state
        if state == "idle":
            self._quiet.set()
            if self._is_person:
                self.say("[" + "".join(text for _, text in toolbar(self._board, time.monotonic(), WIDTH)) + "]")
                self._write(PROMPT)
        else:
            self._quiet.clear()
            self._open_line = self._open_line and state != "working"  # the person ended the prompt's line

    def _write(self, text: str) -> None:
        self._target.write(text)
        self._target.flush()
        self._open_line = not text.endswith("\n")

    # --- in --------------------------------------------------------------------------------------------------------

    def remember(self, file: SaidBefore) -> None:
        return

    async def painted(self) -> None:
        return

    async def listen(self, person: Person) -> None:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(signal.SIGINT, person.stop)
        if self._is_person:
            loop.add_reader(self._number, self._read)
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._give(person))
                await self._closed.wait()
                reading.cancel()
        finally:
            if self._is_person:
                loop.remove_reader(self._number)

    def close(self) -> None:
        self.end_part()
        self._closed.set()

    async def _give(self, person: Person) -> None:
        message: list[str] = []
        while (line := await self._next()) is not None:
            message.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                text, message = "\n".join(message), []
                person.entered(text)
                if self._is_person and self._board.state == "idle":
                    self._write(PROMPT)
        await self._until_quiet()
        person.leave()

    async def _next(self) -> str | None:
        await self._until_quiet()
        if not self._is_person:
            while self._lines.empty():
                await asyncio.to_thread(self._read)
        return await self._lines.get()

    async def _until_quiet(self) -> None:
        if not self._is_person:
            await self._quiet.wait()

    def _read(self) -> None:
        """Lines of what can be read now; at the end of it, None."""
        try:
            more = os.read(self._number, READ_BYTES)
        except OSError:  # the terminal is gone
            more = b""
        *lines, self._rest = (self._rest + more).split(b"\n")
        if not more and self._rest:
            lines, self._rest = [self._rest], b""
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if self._answers is not None:
                self._answers.put_nowait(text)
            else:
                self._lines.put_nowait(text)
        if not more:
            if self._is_person:
                asyncio.get_running_loop().remove_reader(self._number)
            self._lines.put_nowait(None)

    # --- questions -------------------------------------------------------------------------------------------------

    async def ask(self, question: Question) -> Verdict:
        if not self._target.isatty():
            raise RefoldError("nobody sees the question: standard output is no terminal")
        await asyncio.sleep(0.05)  # what was typed before is read, as a steer
        from refold.views.questions import AGAIN, asked_lines, choices, verdict

        for text, look in asked_lines(question):
            self.say(text, look)
        self._answers = asyncio.Queue()
        try:
            while True:
                self._write(choices(question) + " ")
                given = verdict(await self._answers.get(), question)
                self._open_line = False
                if given is not None:
                    return given
                self.say(AGAIN)
        finally:
            self._answers = None

    async def pick(self, found: Sequence[Summary]) -> Summary | None:
        if not self._is_person:  # its lines are messages, and none is read before this one is done
            raise RefoldError("nobody can pick: standard input is no terminal; name a session: /resume ID")
        self._answers, fit = asyncio.Queue(), list(found)
        try:
            while True:
                for number, one in enumerate(fit[:PICK_ROWS], 1):
                    self.say(f"{number:>3}  {row(one, WIDTH - 5)}")
                self._write(f"{len(fit)} of {len(found)} sessions; a number, words to filter, or nothing for none: ")
                answer = (await self._answers.get()).strip()
                self._open_line = False
                if not answer:
                    return None
                if answer.isdecimal() and 1 <= int(answer) <= min(len(fit), PICK_ROWS):
                    return fit[int(answer) - 1]
                fit = fitting(found, answer)
        finally:
            self._answers = None
