"""Judge: sessions that both programs play from their beginning; what they send after a compaction must be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from interop.checks import FULL_ANSWER, MID_TURN, Field, Result, result
from interop.compare import Differs, compare
from interop.ours import Ours
from interop.real import Real
from interop.script import FULL, LIMIT, Turn, answer, calls

HEARD = Turn("go on", (answer("heard"),))
COMPACTS = Turn("and now", (answer("summary"), answer("after")), LIMIT)


def first(said: str) -> Turn:
    return Turn(said, (answer("first", FULL),))


THOUGHTFUL = Turn("think, then look", (calls("t1", "echo one", "echo two", thought=True), answer("t2", FULL)))
AGAIN = Turn("compact again", (answer("again_summary"), answer("again")), LIMIT)
FULL_AGAIN = Turn("fill it", (answer("full_again", FULL),))
IN_ITS_MIDDLE = Turn(
    "look, then on",
    (calls("i1", "echo deep", tokens=FULL), answer("i_summary"), calls("i2", "echo on"), answer("i3")),
    LIMIT,
)

SESSIONS: dict[str, tuple[Turn, ...]] = {
    "a call before it": (FULL_ANSWER, COMPACTS),
    "reasoning and two calls before it": (THOUGHTFUL, COMPACTS),
    "in the middle of a turn": (HEARD, MID_TURN),
    "in the middle of a turn that goes on with a call": (HEARD, IN_ITS_MIDDLE),
    "several users' messages": (HEARD, first("and this"), COMPACTS),
    "two, one after the other": (FULL_ANSWER, COMPACTS, FULL_AGAIN, AGAIN),
    "a message that must be cut": (first("x" * 100_000), COMPACTS),
    "a message of three-byte characters that must be cut": (first("文" * 30_000), COMPACTS),
    "an older message that has no room": (Turn("y" * 60_000, (answer("y"),)), first("z" * 60_000), COMPACTS),
    "with AGENTS.md": (FULL_ANSWER, COMPACTS),
    "a blank line and markup in what was said": (first("one\n\n<b>two</b> & three\n"), COMPACTS),
}
RULES = {"with AGENTS.md": "Only touch billing/.\n"}


def judged(field: Callable[[], Field]) -> Iterator[Result]:
    """One check for each session."""
    for name, turns in SESSIONS.items():
        yield result(f"equal after a compaction: {name}", lambda name=name, turns=turns: _equal(field(), name, turns))


def _equal(field: Field, name: str, turns: tuple[Turn, ...]) -> str:
    if name in RULES:
        (field.work / "AGENTS.md").write_text(RULES[name])
    ours, real = field.ours(), field.real()
    places: dict[Ours | Real, Path | None] = {ours: None, real: None}
    compactions = 0
    for turn in turns:
        played = {program: program.play(turn, place) for program, place in places.items()}
        places = {program: one.rollout for program, one in played.items()}
        compare(played[ours], played[real], frozenset())
        compactions += turn.limit is not None
    if not compactions:
        raise Differs("no turn of this session compacts")
    return f"{sum(len(turn.replies) for turn in turns)} requests"
