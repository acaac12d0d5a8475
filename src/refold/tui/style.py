"""Style: pieces of a line with their looks, and how they become escape codes or a prompt_toolkit style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples

Fragment: TypeAlias = tuple[str, str]  # a look's name ("" = plain), and text without line ends or control characters
Row: TypeAlias = Sequence[Fragment]

CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}
CLASS = "look-"  # prompt_toolkit has classes of its own, also one named `bold`
RULES = {CLASS + name: name if name in ("bold", "dim") else f"ansi{name}" for name in CODES}


def escaped(row: Row, *, colours: bool) -> str:
    """The row's text for a terminal; without colours, the text alone."""
    if not colours:
        return "".join(text for _, text in row)
    return "".join(f"\x1b[{CODES[look]}m{text}\x1b[0m" if look in CODES and text else text for look, text in row)


def classes(row: Row) -> StyleAndTextTuples:
    """The row as prompt_toolkit wants it."""
    return [(f"class:{CLASS}{look}" if look else "", text) for look, text in row]
