"""Marks: Markdown made visible line by line, while the answer is still being written; no character is lost."""

from __future__ import annotations

import re

from refold.tui.style import Fragment

FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^#{1,6} ")
INLINE = re.compile(r"(`[^`]+`)|(\*\*[^*]+\*\*)")


class Marks:
    """Mutable: it knows whether the next line stands in a block of code."""

    def __init__(self) -> None:
        self._fence = ""

    def reset(self) -> None:
        """An answer ended: the next one begins outside of code."""
        self._fence = ""

    def row(self, line: str) -> list[Fragment]:
        """One whole line of the answer."""
        if fence := FENCE.match(line):
            if not self._fence:
                self._fence = fence[1]
            elif fence[1] == self._fence:
                self._fence = ""
            return [("dim", line)]
        if self._fence:
            return [("cyan", line)]
        if HEADING.match(line):
            return [("bold", line)]
        return _inline(line)


def _inline(line: str) -> list[Fragment]:
    row: list[Fragment] = []
    at = 0
    for found in INLINE.finditer(line):
        row.append(("", line[at : found.start()]))
        row.append(("cyan" if found[1] else "bold", found[0]))
        at = found.end()
    row.append(("", line[at:]))
    return [one for one in row if one[1]]
