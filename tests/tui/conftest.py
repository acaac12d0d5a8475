"""A person at a real terminal: `refold chat` in a PTY, what is on the screen, and every byte that it sent."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest

import refold
from refold.core.config import Config
from refold.core.items import message
from refold.core.profile import Profile
from refold.session.clock import Clock
from refold.session.memory import Memory
from refold.testing import ResponsesServer

SOURCE = str(Path(refold.__file__).parents[1])
MODEL = "mock-tokens"
FOREIGN = ("REFOLD_", "CODEX_", "OPENAI_", "NO_COLOR", "FORCE_COLOR")
PATIENCE = 20  # seconds that nothing here needs
PROMPT = "›"


class Terminal:
    """Someone at a terminal. Mutable: the screen, and all that was sent to it."""

    def __init__(self, process: pexpect.spawn, rows: int, columns: int) -> None:
        self.process = process
        self.sent = b""
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)

    # --- looks ---

    @property
    def rows(self) -> list[str]:
        """What is on the screen now."""
        return [row.rstrip() for row in self.screen.display]

    @property
    def text(self) -> str:
        """The scrollback and the screen."""
        above = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return "\n".join([*above, *self.rows])

    @property
    def toolbar(self) -> str:
        """The last row that holds something."""
        return next((row for row in reversed(self.rows) if row), "")

    @property
    def inputs(self) -> str:
        """The rows of the input line."""
        rows = [row for row in self.rows if row][:-1]
        start = max((number for number, row in enumerate(rows) if row.startswith(PROMPT)), default=len(rows))
        return "\n".join(rows[start:])

    def look(self, seconds: float = 0.05) -> None:
        """Take in what comes within so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._take(left)

    def _take(self, seconds: float) -> None:
        """Take in what comes next, if it comes within so many seconds."""
        with suppress(pexpect.TIMEOUT):
            data = self.process.read_nonblocking(65_536, timeout=seconds)
            self.sent += data
            self._stream.feed(data)

    def until(self, holds: Callable[[], Any], what: object = "") -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"it never came: {what}\n{self.text}"
            try:
                self._take(0.05)
            except pexpect.EOF:
                assert holds(), f"it ended before: {what}\n{self.text}"

    def sees(self, text: str) -> None:
        self.until(lambda: text in self.text, text)

    def sees_toolbar(self, text: str) -> None:
        self.until(lambda: text in self.toolbar, f"toolbar {text}")

    def is_ready(self) -> None:
        """A session is open and nothing runs."""
        self.until(lambda: self.toolbar.startswith("idle"), "idle")

    # --- does ---

    def types(self, text: str) -> None:
        self.process.send(text.encode())

    def says(self, text: str) -> None:
        self.types(text + "\r")

    def resizes(self, rows: int, columns: int) -> None:
        self.look()
        self.screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def ends(self) -> int:
        """The exit code, when the program has ended by itself."""
        with suppress(pexpect.EOF):
            self.until(lambda: not self.process.isalive(), "its end")
            self.look()
        self.process.wait()
        assert self.process.exitstatus is not None
        return self.process.exitstatus


class Place:
    """A home, a folder to work in, and an environment without anything of the developer's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.work = folder / "w"
        self.work.mkdir()
        self.opened: list[Terminal] = []
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)} | {
            "HOME": str(folder),
            "REFOLD_HOME": str(self.home),
            "PYTHONPATH": SOURCE,
            "NO_PROXY": "127.0.0.1",
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
        }

    def connect(self, server: ResponsesServer, extra: str = "", retries: int = 0) -> None:
        """Let the configured provider be a scripted one, and its model known."""
        self.home.mkdir(exist_ok=True)
        catalogue = {"models": [{"slug": slug, "context_window": 272_000} for slug in (MODEL, "other-model")]}
        (self.folder / "models.json").write_text(json.dumps(catalogue))
        (self.home / "config.toml").write_text(
            f'model = "{MODEL}"\nmodel_provider = "x"\nmodel_catalog_json = "{self.folder}/models.json"\n{extra}\n'
            f'[model_providers.x]\nname = "scripted"\nbase_url = "{server.url}"\n'
            f"request_max_retries = 0\nstream_max_retries = {retries}\n",
            encoding="utf-8",
        )

    def chat(self, *words: str, rows: int = 24, columns: int = 100, **environ: str) -> Terminal:
        """`refold chat …` at a terminal; its environment with these changes."""
        return self.refold("chat", *words, rows=rows, columns=columns, **environ)

    def refold(self, *words: str, rows: int = 24, columns: int = 100, **environ: str) -> Terminal:
        return self._terminal([sys.executable, "-m", "refold", *words], rows, columns, environ)

    def shell(self, script: str, term: str) -> Terminal:
        """A shell at a terminal that runs a script."""
        return self._terminal(["/bin/sh", "-c", script], 24, 100, {"TERM": term})

    def _terminal(self, command: list[str], rows: int, columns: int, environ: dict[str, str]) -> Terminal:
        process = pexpect.spawn(
            command[0],
            command[1:],
            cwd=str(self.work),
            env={**self.environ, **environ},  # type: ignore[arg-type]
            dimensions=(rows, columns),
            timeout=PATIENCE,
        )
        process.delaybeforesend = None
        process.ptyproc.delayafterclose = process.ptyproc.delayafterterminate = 0.01
        terminal = Terminal(process, rows, columns)
        self.opened.append(terminal)
        return terminal

    def session(self, *texts: str, hour: int = 1) -> str:
        """A session in which these were said and answered, last written at so many hours; its id."""
        profile = Profile(slug=MODEL, context_window=272_000)
        cwd = str(self.work)
        with Memory.new(self.home, profile, Config(), Clock(), cwd=cwd, instructions=None) as memory:
            memory.add([message(role, [text]) for text in texts for role in ("user", "assistant")])
            assert memory.path is not None
            os.utime(memory.path, (hour * 3600.0, hour * 3600.0))
            return memory.id

    def close(self) -> None:
        for terminal in self.opened:
            if terminal.process.isalive():
                terminal.process.kill(signal.SIGKILL)
                terminal.process.wait()
            terminal.process.close()

    def rollouts(self) -> list[Path]:
        """The sessions' files, oldest first."""
        return sorted(self.home.glob("sessions/*/*/*/*"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()
