"""Past: the last turns of a session that is gone on with, shortened for a screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold.views.calls import call_text

if TYPE_CHECKING:
    from refold.core.history import Entry

TURNS = 3
MOST_ENTRIES = 200  # a turn may be long: no more than these are looked at
MOST_LINES = 40
TEXT_LINES = 12  # of one message
OUTPUT_CHARS = 120
OUTPUT_LINES = 4
ENDED = re.compile(r"^Process exited with code (\d+)$", re.MULTILINE)


def past(history: Sequence[Entry]) -> list[tuple[str, str]]:
    """(text, look) of the last turns: what was said, answered and called."""
    told: list[list[tuple[str, str]]] = []
    turns = 0
    for entry in reversed(history[-MOST_ENTRIES:]):
        lines = _lines(entry)
        if sum(map(len, told)) + len(lines) > MOST_LINES:
            break
        told.append(lines)
        turns += entry.origin == "typed"
        if turns == TURNS:
            break
    shown = [line for lines in reversed(told) for line in lines]
    left_out = len(history) - len(told)
    return [(f"… {left_out:,} items before", "dim"), *shown] if left_out and shown else shown


def _lines(entry: Entry) -> list[tuple[str, str]]:
    from refold.views.shown import shown_text

    kind = str(entry.item.get("type"))
    if kind == "message":
        match entry.origin:
            case "typed":
                return _cut([("› " if not number else "  ") + line for number, line in _numbered(entry)], "green")
            case "model":
                return _cut([line for _, line in _numbered(entry)], "")
            case "summary":
                return [("⇣ a summary of what was before", "magenta")]
            case _:
                return []
    if kind.endswith("_call"):
        return _cut(["▸ " + call_text(entry.item).replace("\n", "\n  ")], "cyan")
    if kind.endswith("_output"):
        return _result(shown_text(entry.item))
    return []


def _result(text: str) -> list[tuple[str, str]]:
    """How a call ended, with the last lines of its output: of a command's without the header that the model reads."""
    from refold.views.shown import one_line

    head, _, body = text.partition("\nOutput:\n")
    ended = ENDED.search(head)
    code = ended[1] if ended else None
    lines = [line for line in (body if ended else text).splitlines() if line.strip()]
    shown = [("    " + one_line(line, OUTPUT_CHARS), "dim") for line in lines[-OUTPUT_LINES:]]
    end = {None: "", "0": "ok"}.get(code, f"exit {code}")
    more = f", {len(lines) - OUTPUT_LINES:,} lines before" if len(lines) > OUTPUT_LINES else ""
    return [*shown, (f"  {end}{more}", "green" if code == "0" else "red")] if end else shown


def _numbered(entry: Entry) -> list[tuple[int, str]]:
    from refold.views.shown import shown_text

    return list(enumerate(shown_text(entry.item).splitlines()))


def _cut(lines: list[str], look: str) -> list[tuple[str, str]]:
    if len(lines) <= TEXT_LINES:
        return [(line, look) for line in lines]
    half = TEXT_LINES // 2
    left_out = (f"  … {len(lines) - 2 * half:,} lines", "dim")
    return [*((line, look) for line in lines[:half]), left_out, *((line, look) for line in lines[-half:])]
