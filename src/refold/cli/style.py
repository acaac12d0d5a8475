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
    filled = min(GAUGE_CELLS, round(GAUGE_CELLS * used / window))
    cells = ["█"] * filled + ["░"] * (GAUGE_CELLS - filled)
    if limit:
        cells[min(GAUGE_CELLS - 1, GAUGE_CELLS * limit // window)] = "┃"
    share = used / window
    colour = "red" if limit and used >= limit else "yellow" if share > 0.6 else "green"
    due = f", compaction at {limit:,}" if limit else ""
    return f"{paint(''.join(cells), colour, stream=stream)} {used:,} of {window:,} tokens ({share:.0%}{due})"
