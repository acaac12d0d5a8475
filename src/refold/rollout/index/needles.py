"""Needles: the words that a search looks for, and the part of a text that shows them.

Every word has to stand in the same record, anywhere in it and in any case; `"…"` holds several words together.
"""

from __future__ import annotations

import re

import msgspec

BEFORE, AFTER = 40, 120  # characters that a snippet shows around the first word that was found
INDEXED_CHARS = 3  # that a word needs to be in an index of trigrams

_WILD = re.compile("([%_^])")
_WORDS = re.compile(r'"([^"]+)"|(\S+)')


class Needles(msgspec.Struct, frozen=True):
    """What is looked for, as it was typed."""

    words: tuple[str, ...]

    @property
    def indexed(self) -> str:
        """The query for an index of trigrams; empty where every word is too short for one."""
        quoted = ('"' + word.replace('"', '""') + '"' for word in self.words if len(word) >= INDEXED_CHARS)
        return " AND ".join(quoted)

    @property
    def patterns(self) -> list[str]:
        """What LIKE looks for, of the words that are too short for the index."""
        short = (word for word in self.words if len(word) < INDEXED_CHARS)
        return ["%" + _WILD.sub(r"^\1", word) + "%" for word in short]

    def stand_in(self, text: str) -> bool:
        folded = text.casefold()
        return all(word.casefold() in folded for word in self.words)

    def snippet(self, text: str) -> str:
        """The text around the first word in it."""
        found = self.marks.search(text)
        start = max(0, found.start() - BEFORE) if found else 0
        end = (found.end() if found else 0) + AFTER
        return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"

    @property
    def marks(self) -> re.Pattern[str]:
        """Finds the words in a text."""
        return re.compile(
            "|".join(re.escape(word) for word in sorted(self.words, key=len, reverse=True)), re.IGNORECASE
        )


def needles(text: str) -> Needles:
    """The words of a search. Empty where there is none in it."""
    cleaned = "".join(sign if sign.isprintable() else " " for sign in text)
    return Needles(tuple(phrase or word for phrase, word in _WORDS.findall(cleaned)))
