"""Order: the ordinals of a file's lines, and whether each follows the one before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.core.jsonio import JSON

LARGEST = 2**63 - 1  # that other programs read


def ordinal_in(value: JSON) -> int | None:
    """A line's own ordinal; None where it has none that every program reads."""
    told: Any = value.get("ordinal")
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= LARGEST else None


class Order:
    """Mutable: it has seen the lines before. `numbered`: whether they carry ordinals."""

    def __init__(self) -> None:
        self.numbered = False
        self.highest = -1
        self.last: int | None = None  # of the line before
        self.last_is_whole = False  # whether that line could be read
        self._lost = 0  # lines before this one that could not be read: each may have had an ordinal
        self._begun = False

    def lose(self, lines: int = 1) -> None:
        """Some lines could not be read."""
        self._lost += lines

    def follows(self, ordinal: object) -> bool:
        """Whether a line's ordinal is the next one, or has none where none have; such a line is done with."""
        if ordinal is None:
            return not self.numbered
        if type(ordinal) is not int or ordinal != self.highest + 1 or not self._begun:
            return False
        self.highest = self.last = ordinal
        self._lost = 0
        return True

    def look(self, value: JSON) -> Iterator[tuple[str, str]]:
        """What is odd about the next line's ordinal: kind and detail."""
        ordinal = ordinal_in(value)
        if ordinal is None:
            if "ordinal" in value:
                yield "ordinal_odd", f"{str(value['ordinal'])[:40]!r}"
            elif self.numbered:
                yield "ordinal_missing", ""
            self._lost += 1
            return
        if ordinal <= self.highest:
            yield ("ordinal_repeated" if ordinal == self.last else "ordinal_backwards"), ""
        elif self._begun and ordinal > self.highest + 1 + self._lost:
            yield "ordinal_gap", f"{self.highest + 1} to {ordinal - 1} are not there"
        self.numbered = self._begun = True
        self.highest = max(self.highest, ordinal)
        self.last, self._lost = ordinal, 0
