"""Quote: words of the log on one line, without what moves a cursor, cut in the middle to so many bytes."""

from __future__ import annotations

import re

from refold.core.truncate import well_formed

CUT = "…"
_JOINERS = "\u200c\u200d"  # not printable, but words and emoji fall apart without them
_ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")


def visible(text: str) -> str:
    """The text with terminal escapes left out and everything else that is not printable as a blank."""
    if text.isprintable():
        return text
    text = _ESCAPES.sub("", well_formed(text))
    return "".join(one if one.isprintable() or one in _JOINERS else " " for one in text)


def one_line(text: str) -> str:
    """The visible words of a text, one blank between them."""
    return " ".join(visible(text).split())


def size(text: str) -> int:
    """Bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def shortened(text: str, limit: int) -> str:
    """A text of at most `limit` bytes: itself, or two thirds of the limit from its start and the rest from its end."""
    if size(text) <= limit:
        return text
    raw = text.encode("utf-8", "replace")
    keep = limit - size(CUT)
    if keep <= 0:
        return ""
    tail = keep // 3
    head = raw[: keep - tail].decode("utf-8", "ignore")
    return head.rstrip() + CUT + raw[len(raw) - tail :].decode("utf-8", "ignore").lstrip()
