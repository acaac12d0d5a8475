"""Earlier: what an older summary or outline still adds to a new outline.

Rule 1: a line whose record the new outline reads again is left to it, so an outline of the same history adds nothing.
Rule 2: what this leaves can be read again and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from refold.core.compaction.outline.quote import shortened, size, visible

TITLE = "Outline of the log: each line names its record."
THREADS = "Threads: "  # then `short = whole, …`
HEADING = "## Earlier"
_MORE = re.compile(r"\(\d+\+? more\)")
_LEFT_OUT = re.compile(r"\((\d{1,18}) lines left out\)")
_ADDRESS = re.compile(r"\[([^\s\]]+)\] ")


def names_in(earlier: str) -> dict[str, str]:
    """The short names of threads that an outline explains: short → whole."""
    lines = earlier.split("\n", 2)
    if lines[0] != TITLE or len(lines) < 2 or not lines[1].startswith(THREADS):
        return {}
    pairs = (pair.partition(" = ") for pair in lines[1].removeprefix(THREADS).split(", "))
    return {short: whole for short, _, whole in pairs if short and whole}


def rest_of(
    earlier: str,
    headings: Sequence[str],
    is_read_again: Callable[[str, str], bool],
    limit: int,
) -> list[str]:
    """The lines that are worth keeping, in at most `limit` bytes with a line end each; headings one level down.

    `is_read_again(heading, address)` says of a line with that address whether the new outline has that record.
    """
    names = names_in(earlier)
    lines = _without_frame([line for raw in earlier.splitlines() if (line := visible(raw).rstrip())])
    known = {name: name for name in headings} | {f"#{name}": name for name in headings}
    kept: list[str] = []
    heading = ""
    for line in lines:
        if line in known:
            heading, line = known[line], f"#{known[line]}"
        elif _LEFT_OUT.fullmatch(line):
            heading = ""  # what comes after it stood under another one
        elif heading and (address := _whole(line, names)) is not None and is_read_again(heading, address):
            continue
        kept.append(line)
    return _cut(_without_empty(kept, {f"#{name}" for name in headings}), limit)


def _without_frame(lines: list[str]) -> list[str]:
    """Without the first lines of an outline: what it says about itself."""
    if lines[:1] != [TITLE]:
        return lines
    lines = lines[2:] if lines[1:2] and lines[1].startswith(THREADS) else lines[1:]
    return lines[1:] if lines[:1] == [HEADING] else lines


def _whole(line: str, names: Mapping[str, str]) -> str | None:
    """The address that a line begins with, spelled out."""
    found = _ADDRESS.match(line)
    if found is None:
        return None
    thread, colon, ordinal = found[1].rpartition(":")
    return f"{names.get(thread, thread)}{colon}{ordinal}"


def _without_empty(lines: Sequence[str], headings: set[str]) -> list[str]:
    """Without headings under which nothing is left but a count."""
    kept: list[str] = []
    held: list[str] = []  # a heading and its counts, until a line of content comes
    for line in lines:
        if line in headings:
            held = [line]
        elif held and _MORE.fullmatch(line):
            held.append(line)
        else:
            kept += [*held, line]
            held = []
    return kept


def _cut(lines: list[str], limit: int) -> list[str]:
    """The lines, or the first and the last of them around a count of those between."""
    if sum(size(line) + 1 for line in lines) <= limit:
        return lines
    room = limit - len(f"({len(lines)} lines left out)\n") - 12  # counts of earlier cuts are added up
    head, used = 0, 0
    while head < len(lines) and used + size(lines[head]) + 1 <= room // 2:
        used += size(lines[head]) + 1
        head += 1
    tail = len(lines)
    while tail > head and used + size(lines[tail - 1]) + 1 <= room:
        used += size(lines[tail - 1]) + 1
        tail -= 1
    if head == 0 and tail == len(lines):
        first = [shortened(line, limit - 1) for line in lines[:1]]
        return [line for line in first if line]
    gone = sum(int(found[1]) if (found := _LEFT_OUT.fullmatch(line)) else 1 for line in lines[head:tail])
    return [*lines[:head], f"({gone} lines left out)", *lines[tail:]]
