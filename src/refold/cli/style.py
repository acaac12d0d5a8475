"""Style: colours for people, never for pipes, never against NO_COLOR."""

from __future__ import annotations

import os
import sys
from typing import TextIO

CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
GAUGE_CELLS = 24
SMALL_CELLS = 10  # of a gauge that stands beside something


def colourful(stream: TextIO) -> bool:
    """Whether a stream wants colours: a terminal that is not dumb, and nobody said no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """The text in these styles, if the stream (default stdout) wants colours."""
    if not styles or not colourful(stream or sys.stdout):
        return text
    return f"\x1b[{';'.join(CODES[style] for style in styles)}m{text}\x1b[0m"


def gauge(used: int, window: int | None, limit: int | None, *, stream: TextIO | None = None) -> str:
    """How full the context window is: a bar with the place where compaction is due, and the numbers, in tokens."""
    if not window:
        return f"{used:,} tokens (context window unknown)"
    share = used / window
    colour = "red" if limit and used >= limit else "yellow" if share > 0.6 else "green"
    due = f", compaction at {limit:,}" if limit else ""
    bar = paint(_bar(used, window, limit, GAUGE_CELLS), colour, stream=stream)
    return f"{bar} {used:,} of {window:,} tokens ({share:.0%}{due})"


def small_gauge(used: int, window: int | None, limit: int | None) -> str:
    """The same in a few columns, without colours."""
    if not window:
        return f"{used:,} tokens"
    return f"{_bar(used, window, limit, SMALL_CELLS)} {used / window:.0%}"


def money(amount: float) -> str:
    """An amount in whatever money prices are told in, with as many digits as tell something."""
    return f"{amount:,.{2 if amount >= 1 or not amount else 4 if amount >= 0.01 else 6}f}"


def _bar(used: int, window: int, limit: int | None, size: int) -> str:
    filled = min(size, round(size * used / window))
    cells = ["█"] * filled + ["░"] * (size - filled)
    if limit:
        cells[min(size - 1, size * limit // window)] = "┃"
    return "".join(cells)
