"""Cells: how many columns a text takes in a terminal, and where it has to be cut or wrapped for that."""

from __future__ import annotations

import unicodedata

WRAPPED_CHARS = 20_000  # of a longer line only the end is laid out: it is longer than any screen


def cells(text: str) -> int:
    """Columns; wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(sign: str) -> int:
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def fitted(text: str, width: int) -> str:
    """The text, or its beginning and `…`, in at most `width` columns."""
    if cells(text) <= width:
        return text
    kept, room = "", width - 1
    for sign in text[: max(0, width)]:
        room -= _columns(sign)
        if room < 0:
            break
        kept += sign
    return kept + "…" if width > 0 else ""


def wrapped(text: str, width: int) -> list[str]:
    """The rows that a terminal of `width` columns shows of a line: it breaks anywhere."""
    text = text.expandtabs()[-WRAPPED_CHARS:]
    if width < 2:
        return [text]
    if text.isascii():
        return [text[start : start + width] for start in range(0, len(text), width)]
    rows, row, taken = [], "", 0
    for sign in text:
        size = _columns(sign)
        if taken + size > width:
            rows.append(row)
            row, taken = "", 0
        row, taken = row + sign, taken + size
    return [*rows, row]
