"""Status: one line at the bottom of a terminal that says what goes on now, is rewritten in place and leaves no trace.

Rule 1: it is drawn on a terminal that can erase a line, nowhere else: a pipe, a log and a dumb terminal never see it.
Rule 2: whoever prints a line hides it first.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from refold.cli.steps import Step
from refold.cli.style import paint

ERASE = "\r\x1b[K"
USUAL_COLUMNS = 80  # of a terminal that does not say
LEAST_TEXT = 40  # columns that the step keeps beside a gauge
LEAST_TAIL = 8  # columns below which a piece of a line of output tells nothing


class StatusLine:
    """Mutable: what stands on the terminal now, and for how many questions it is held back."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._drawn = ""
        self._held = 0
        self.works = _can_erase(self._stream)

    @property
    def is_drawn(self) -> bool:
        return bool(self._drawn)

    @property
    def columns(self) -> int:
        """How wide the terminal is at this moment."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or USUAL_COLUMNS
        except (OSError, ValueError):
            return USUAL_COLUMNS

    def show(self, text: str) -> None:
        """Draw a line that fits (`laid_out`), in the place of what stands there; an empty one hides it."""
        if not text or self._held:
            self.hide()
        elif self.works and text != self._drawn:
            self._write(ERASE + paint(_encodable(text, self._stream), "dim", stream=self._stream))
            self._drawn = text

    def hide(self) -> None:
        """Erase it, so that a line can be printed."""
        if self._drawn:
            self._drawn = ""
            self._write(ERASE)

    @contextmanager
    def held(self) -> Generator[None]:
        """Hidden, whatever is shown meanwhile: a person is asked something on this terminal."""
        self.hide()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone: the turn goes on without it
            self.works = False


def laid_out(step: Step, gauge: str, columns: int) -> str:
    """A step in one line of a terminal, the gauge at its right if there is room; the last column stays free."""
    room = columns - 1
    beside = room - width_of(gauge) - 2
    if not gauge or beside < LEAST_TEXT:
        return _step_in(step, room)
    text = _step_in(step, beside)
    return text + " " * (room - width_of(text) - width_of(gauge)) + gauge


def _step_in(step: Step, room: int) -> str:
    if width_of(step.text) <= room:
        return step.text
    tail_needs = min(width_of(step.tail), room // 2)
    head = cut_to(step.head, max(0, room - width_of(step.clock) - tail_needs)) + step.clock
    left = room - width_of(head)
    return cut_to(head, room) + (cut_to(step.tail, left) if left >= LEAST_TAIL else "")


def width_of(text: str) -> int:
    """How many columns a text takes; a sign that joins others is counted too, as some terminals do."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def cut_to(text: str, columns: int) -> str:
    """As much of a text as fits, with … where something is missing."""
    if width_of(text) <= columns:
        return text
    kept, used = "", 1
    for char in text:
        used += _columns_of(char)
        if used > columns:
            break
        kept += char
    return kept + "…" if columns > 0 else ""


def _columns_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _can_erase(stream: TextIO) -> bool:
    return not stream.closed and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _encodable(text: str, stream: TextIO) -> str:
    """With `?` for what the terminal cannot show: an escape in its place would be wider."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
