"""Screenshots: the pictures of docs/chat.md, taken of the real chat in a PTY: `python -m bench.screenshots`."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from html import escape
from pathlib import Path

import pexpect
import pyte

from refold.core.config import Config
from refold.core.items import message
from refold.core.profile import Profile
from refold.session.clock import Clock
from refold.session.memory import Memory
from refold.testing import Reply, ResponsesServer, call_reply, text_reply, usage

DOCS = Path(__file__).parent.parent / "docs"
ROWS, COLUMNS = 24, 88
CELL, LINE, EDGE = 8.4, 18, 12  # pixels
PAPER, INK = "#16181d", "#d7dae0"
INKS = {"red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "magenta": "#c678dd", "cyan": "#56b6c2"}
DIM = 2  # the look that pyte does not know; it is written as a colour of our own
SECONDS = 20  # that nothing here needs
TESTS = "for i in 1 2 3 4 5 6; do echo tests/test_$i.py ......; sleep 0.4; done; echo 48 passed in 2.41s"
ANSWER = (
    "The tests pass. What changed:\n\n"
    "- `billing/invoice.py`: rounding happens **once**, on the sum\n"
    "- `tests/test_invoice.py`: the case from your report\n\n"
    "```python\ntotal = round(sum(line.amount for line in lines), 2)\n```"
)


EARLIER = (
    ("blog", "Write the post about rounding in invoices"),
    ("shop", "Why does the import of orders take an hour?"),
    ("blog", "Make the index load without scripts"),
    ("shop", "Add an index on invoices.customer"),
)


class Camera:
    """A chat at a terminal, and what is on its screen. Mutable."""

    def __init__(self, place: Path, *words: str) -> None:
        environ = {**os.environ, "REFOLD_HOME": str(place / "home"), "HOME": str(place), "TERM": "xterm-256color"}
        environ["NO_PROXY"] = "127.0.0.1"
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        command = ["-m", "refold", "chat", *words]
        self._chat = pexpect.spawn(
            sys.executable, command, cwd=str(place / "shop"), env=environ, dimensions=(ROWS, COLUMNS)
        )

    def types(self, text: str) -> None:
        self._chat.send(text.encode())

    def until(self, holds: Callable[[str], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not holds("\n".join(self._screen.display)):
            assert time.monotonic() < end, "\n".join(self._screen.display)
            self._look()

    def take(self, name: str) -> None:
        self._look()
        (DOCS / f"chat-{name}.svg").write_text(svg(self._screen), encoding="utf-8")
        print(DOCS / f"chat-{name}.svg")

    def close(self) -> None:
        self._chat.kill(signal.SIGKILL)
        self._chat.wait()
        self._chat.close()

    def _look(self) -> None:
        try:
            data = self._chat.read_nonblocking(65_536, timeout=0.1)
        except pexpect.TIMEOUT:
            return
        self._stream.feed(data.replace(b"\x1b[2m", b"\x1b[90m").replace(b"\x1b[0;2m", b"\x1b[0;90m"))


def svg(screen: pyte.Screen) -> str:
    """The screen's rows down to its last one that is not empty, as a picture with selectable text."""
    rows = [number for number in range(screen.lines) if screen.display[number].strip()]
    count = max(rows, default=0) + 1
    width, height = COLUMNS * CELL + 2 * EDGE, count * LINE + 2 * EDGE
    lines = [_row(screen, number) for number in range(count)]
    cursor = (
        f'<rect x="{EDGE + screen.cursor.x * CELL:.1f}" y="{EDGE + screen.cursor.y * LINE + 2}" '
        f'width="{CELL}" height="{LINE - 3}" fill="{INK}" opacity="0.6"/>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
            f'<g font-family="monospace" font-size="14" fill="{INK}" xml:space="preserve" style="white-space:pre">',
            *(line for line in lines if line),
            "</g>",
            cursor,
            "</svg>\n",
        ]
    )


def _row(screen: pyte.Screen, number: int) -> str:
    """One text per stretch of the same look, each at its own column and as wide as its cells."""
    texts: list[str] = []
    x = 0
    while x < screen.columns:
        cell, start = screen.buffer[number][x], x
        text = ""
        while x < screen.columns and _look_of(screen.buffer[number][x]) == _look_of(cell):
            text += screen.buffer[number][x].data
            x += 1
        if text := text.rstrip():
            look = f' fill="{_look_of(cell)[0]}"' + (' font-weight="bold"' if cell.bold else "")
            at = f'x="{EDGE + start * CELL:.1f}" y="{EDGE + number * LINE + 14}"'
            texts.append(f'<text {at} textLength="{len(text) * CELL:.1f}"{look}>{escape(text)}</text>')
    return "".join(texts)


def _look_of(cell: pyte.screens.Char) -> tuple[str, bool]:
    return {**INKS, "brightblack": "#7f848e"}.get(cell.fg, INK), cell.bold


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for folder in ("home", "shop", "blog"):
            (place / folder).mkdir()
        with ResponsesServer(script()) as server:
            _configure(place, server.url)
            _work(place)
            _question(place)
            _picker(place)


def _work(place: Path) -> None:
    chat = Camera(place, "--allow-exec")
    chat.until(lambda text: "idle" in text)
    chat.types("Invoices are off by a cent. Find out why and mend it.\r")
    chat.until(lambda text: "test_3" in text)
    chat.types("only touch billing/, please\r")
    chat.until(lambda text: "queued" in text and "test_5" in text)
    chat.types("and then")
    chat.until(lambda text: "and then" in text)
    chat.take("steer")
    chat.until(lambda text: "2))" in text or ", 2)" in text)
    chat.until(lambda text: "idle" in text)
    chat.take("answer")
    chat.close()


def _question(place: Path) -> None:
    chat = Camera(place, "--ask", "untrusted")
    chat.until(lambda text: "idle" in text)
    chat.types("Commit that, and tell me what is next.\r")
    chat.until(lambda text: "Allow it?" in text)
    chat.types("n not yet, run the tests first")
    chat.until(lambda text: "first" in text)
    chat.take("question")
    chat.close()


def _picker(place: Path) -> None:
    for folder, text in EARLIER:
        where = str(place / folder)
        profile = Profile(slug="gpt-5.5")
        with Memory.new(place / "home", profile, Config(), Clock(), cwd=where, instructions=None) as memory:
            memory.add([message("user", [text]), message("assistant", ["Done."])])
    for number, path in enumerate(sorted((place / "home").glob("sessions/*/*/*/*"))):
        written = datetime(2026, 2, 3 + number, 9 + number, 7 * number).timestamp()
        os.utime(path, (written, written))
    chat = Camera(place, "--pick")
    chat.until(lambda text: "sessions" in text)
    chat.types("in")
    chat.until(lambda text: "› in" in text)
    chat.types("\x1b[B")
    chat.until(lambda text: text.count("▸") == 1 and not text.startswith("▸"))
    chat.take("picker")
    chat.close()


def script() -> list[Reply]:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "**Running the tests first**"}]}
    tests = call_reply("exec_command", {"cmd": TESTS}, usage=usage(14_200, 60))
    return [
        Reply(items=(thought, *tests.items), usage=tests.usage),
        text_reply(ANSWER, usage=usage(15_900, 210)),
        Reply(
            items=(
                message("assistant", ["The change is ready."]),
                *call_reply("exec_command", {"cmd": "git add -A && git commit -m 'Round invoices once'"}).items,
            ),
            usage=usage(16_300, 80),
        ),
        text_reply("Not committed."),
    ]


def _configure(place: Path, url: str) -> None:
    catalogue = {"models": [{"slug": "gpt-5.5", "context_window": 272_000}]}
    (place / "models.json").write_text(json.dumps(catalogue))
    (place / "home" / "config.toml").write_text(
        f'model = "gpt-5.5"\nmodel_provider = "x"\nmodel_catalog_json = "{place}/models.json"\n'
        f'[model_providers.x]\nname = "scripted"\nbase_url = "{url}"\n'
    )


if __name__ == "__main__":
    main()
