"""Page: facts as sections of whole lines, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from refold.core.compaction.outline.earlier import HEADING, THREADS, TITLE, names_in, rest_of
from refold.core.compaction.outline.fact import Fact, Found
from refold.core.compaction.outline.facts import Facts, facts_of
from refold.core.compaction.outline.quote import one_line, shortened, size
from refold.core.history import Entry
from refold.core.truncate import BYTES_PER_TOKEN

EARLIER_PART = 3  # the older summary gets at most a third: it is already a summary
SHORT_ID = 8  # characters of a thread's id that stand in a line, where they are enough
WHOLE_ID = 12  # an id that is no longer is not shortened
LONGEST_ADDRESS = 120  # bytes; real ones have 36 + 1 + the digits
SHORTEST_LINE = 32  # bytes of words that a line may use in the smallest budget
SHORTEST_FACT = 16  # bytes: no budget shows more facts than so many fit into it
NO_ADDRESS = "?"


class Kind(msgspec.Struct, frozen=True):
    """One section: the facts it shows, its share of the budget in percent, the longest line in bytes."""

    field: str
    heading: str
    share: int
    longest: int
    newest_last: bool = False  # shown in the order of the log, kept from its end
    superseded: bool = False  # a new one says what holds now; the older outline's goes


KINDS = (
    Kind("goals", "## Goals", 25, 400, newest_last=True),
    Kind("steers", "## Steers", 10, 400, newest_last=True),
    Kind("decisions", "## Decisions stated", 12, 300),
    Kind("plan", "## Open plan items", 10, 240, superseded=True),
    Kind("files", "## Files touched", 13, 240),
    Kind("commands", "## Commands", 12, 320),
    Kind("errors", "## Last errors", 10, 600),
    Kind("last", "## Doing last", 8, 800, superseded=True),
)
LONGEST_GOAL = 2_000  # bytes of the first and of the newest goal: what the work is about
HEADINGS = (HEADING, *(kind.heading for kind in KINDS))


class _Filled(msgspec.Struct, frozen=True):
    """A section as it fits: its lines, the bytes they use with their line ends, how many facts are left out."""

    lines: tuple[str, ...] = ()
    cost: int = 0
    left_out: int = 0


def outline(history: Sequence[Entry], budget: int, *, earlier: str = "") -> str:
    """What happened, by rules and without a model, in at most `budget` tokens (UTF-8 bytes / 4, rounded up).

    Sections in a fixed order, empty ones left out: what is left of `earlier` (a summary or an older outline; without
    one the newest summary in the history), goals, steers, decisions, open plan items, files, commands, errors, what
    was being done last. Each line quotes or names and begins with `[thread:ordinal]`; long thread ids are shortened
    and explained in the second line. `(N more)` tells how many lines had no room. "" when there is nothing to tell.
    """
    limit = budget * BYTES_PER_TOKEN
    if limit <= 0:
        return ""
    facts = facts_of(history, enough=limit // SHORTEST_FACT + 1)
    earlier = earlier or facts.summary
    kept = rest_of(earlier, HEADINGS, _read_again(facts), budget // EARLIER_PART * BYTES_PER_TOKEN - len(HEADING) - 1)
    names = _names(facts.threads, names_in(earlier), kept)
    frame = [TITLE, *_explained(names, limit)]
    if len(frame) == 1:
        names = {}
    before = [HEADING, *kept] if kept else []
    room = limit + 1 - sum(size(line) + 1 for line in (*frame, *before))  # the last line end is not written
    sections = [line for filled in _filled(facts, names, room) for line in filled.lines]
    body = [*before, *sections]
    text = "\n".join([*frame, *body])
    return text if body and size(text) <= limit else ""


def _found(facts: Facts, kind: Kind) -> Found:
    return getattr(facts, kind.field)


def _read_again(facts: Facts) -> Callable[[str, str], bool]:
    """Whether the new outline has the record of a line, or says something newer in its place."""
    addresses = {kind.heading: {fact.address for fact in _found(facts, kind).facts} for kind in KINDS}
    superseded = {kind.heading for kind in KINDS if kind.superseded and addresses[kind.heading]}
    return lambda heading, address: heading in superseded or address in addresses.get(heading, ())


# --- addresses -----------------------------------------------------------------------------------------------


def _names(threads: Iterable[str], told: Mapping[str, str], kept: Sequence[str]) -> dict[str, str]:
    """Long thread ids and their short names; a name in an older outline's line means what it meant there."""
    names = {whole: short for short, whole in told.items() if any(f"[{short}:" in line for line in kept)}
    taken = set(names.values())
    for thread in threads:
        whole = one_line(thread)
        if whole in names or len(whole) <= WHOLE_ID:
            continue
        length = SHORT_ID
        while whole[:length] in taken and length < len(whole):
            length += 1
        names[whole] = whole[:length]
        taken.add(whole[:length])
    return names


def _explained(names: Mapping[str, str], limit: int) -> list[str]:
    """The line that explains the short names; none where it would use much of the budget."""
    line = THREADS + ", ".join(f"{short} = {whole}" for whole, short in names.items())
    return [line] if names and size(line) <= limit // 4 else []


def _address(address: str, names: Mapping[str, str]) -> str:
    thread, colon, ordinal = one_line(address).rpartition(":")
    return shortened(f"{names.get(thread, thread)}{colon}{ordinal}", LONGEST_ADDRESS) or NO_ADDRESS


# --- sections ------------------------------------------------------------------------------------------------


def _filled(facts: Facts, names: Mapping[str, str], room: int) -> list[_Filled]:
    """Each section within its part of `room` bytes, which those that are not empty share; what one does not use goes
    to the next, and at the end to those that need it."""
    full = [(kind, found) for kind in KINDS if (found := _found(facts, kind)).facts]
    shares = sum(kind.share for kind, _ in full)
    parts = [room * kind.share // shares for kind, _ in full]
    done: list[_Filled] = []
    spare = 0
    for (kind, found), part in zip(full, parts, strict=True):
        done.append(_fill(found, kind, names, part, part + spare))
        spare += part - done[-1].cost
    for index, (kind, found) in enumerate(full):
        if done[index].left_out:
            allowance = done[index].cost + spare
            done[index] = _fill(found, kind, names, parts[index], allowance)
            spare = allowance - done[index].cost
    return done


def _fill(found: Found, kind: Kind, names: Mapping[str, str], part: int, allowance: int) -> _Filled:
    """The section with as many facts as it may show."""
    facts = found.facts
    more = size(_more(len(facts), found.unread)) + 1
    used = len(kind.heading) + 1
    chosen: dict[int, str] = {}
    for index in _order(facts, kind):
        line = _line(facts[index], kind, names, _longest(kind, index, len(facts), part))
        cost = size(line) + 1
        is_all = len(chosen) + 1 == len(facts) and not found.unread
        if used + cost + (0 if is_all else more) > allowance:
            break
        chosen[index] = line
        used += cost
    if not chosen:
        return _Filled(left_out=len(facts))
    left_out = len(facts) - len(chosen)
    lines = [kind.heading, *(chosen[index] for index in sorted(chosen))]
    if left_out or found.unread:
        # Where they would stand: at the end what is older, in the order of the log between the first goal and the rest.
        gap = len(lines) if not kind.newest_last else 2 if 0 in chosen else 1
        lines.insert(gap, _more(left_out, found.unread))
    return _Filled(tuple(lines), sum(size(line) + 1 for line in lines), left_out)


def _more(count: int, unread: bool) -> str:
    return f"({count}{'+' if unread else ''} more)"


def _order(facts: Sequence[Fact], kind: Kind) -> Iterable[int]:
    """In which order facts get their place. Of goals: the newest, the first, then back from the newest."""
    if not kind.newest_last:
        return range(len(facts))
    if kind.field != "goals" or len(facts) < 2:
        return range(len(facts) - 1, -1, -1)
    return (len(facts) - 1, 0, *range(len(facts) - 2, 0, -1))


def _longest(kind: Kind, index: int, count: int, part: int) -> int:
    """Bytes of words that a line may use: at most half of its section's part, so that two lines fit."""
    longest = LONGEST_GOAL if kind.field == "goals" and index in (0, count - 1) else kind.longest
    return max(SHORTEST_LINE, min(longest, part // 2 - SHORTEST_LINE))


def _line(fact: Fact, kind: Kind, names: Mapping[str, str], longest: int) -> str:
    ending = one_line(fact.ending)
    if ending:
        ending = " " + shortened(ending, longest * 2 // 3)
    words = shortened(one_line(fact.text), max(longest - size(ending), longest // 3))
    return f"[{_address(fact.address, names)}] {words}{ending}"
