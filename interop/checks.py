"""Checks: what the real program and refold make of each other's sessions, one result for each thing that must hold."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from interop.compare import Differs, Played, compare, ids_in, is_context, without_context
from interop.ours import PROFILE, Ours
from interop.real import Real, copied
from interop.script import FULL, LIMIT, Turn, answer, calls
from refold.core.config import Config
from refold.core.records import LineDamaged
from refold.rollout import read_lines
from refold.session.clock import Clock
from refold.session.memory import Memory
from refold.session.session import Session


class Result(msgspec.Struct, frozen=True):
    """One check: its name, the first difference (None: it holds), and what was let through or found."""

    name: str
    problem: str | None = None
    note: str = ""


class Field:
    """One check's folder, work folder and programs. Mutable: it hands out fresh homes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        (self.work / ".git").mkdir(parents=True)  # a project of its own, whatever stands above it
        self._homes = itertools.count(1)

    def ours(self) -> Ours:
        return Ours(self.folder / f"refold-{next(self._homes)}", self.work)

    def real(self) -> Real:
        return Real(self.folder / f"real-{next(self._homes)}", self.work)

    def promised(self, writer: type[Ours] | type[Real], turn: Turn, rollout: Path) -> Played:
        """What the program that wrote a rollout sends when it goes on itself, on a copy in a fresh home."""
        program = self.ours() if writer is Ours else self.real()
        return program.play(turn, program.adopt(rollout))


def result(name: str, check: Callable[[], str]) -> Result:
    """The result of one check."""
    try:
        return Result(name, None, check())
    except Differs as difference:
        return Result(name, str(difference))
    except Exception as error:  # a check that cannot be made has failed, and the others go on
        return Result(name, f"{type(error).__name__}: {error}")


# --- sessions that one program writes ------------------------------------------------------------------------------

NEXT = Turn("and now the next thing", (calls("next", "echo next"), answer("next_end")))
CALLS = Turn("look around", (calls("c1", "echo one", "echo two", thought=True), calls("c2", "nope"), answer("c3")))
FULL_ANSWER = Turn("first message", (calls("f1", "echo one"), answer("f2", FULL)))
COMPACTED = Turn("second message", (answer("summary"), answer("s2")), LIMIT)
MID_TURN = Turn("third message", (calls("m1", "echo mid", tokens=FULL), answer("m2"), answer("m3")), LIMIT)
AT_ONCE = Turn("compact, then this", (answer("c_summary"), answer("c_end")), 1)

Program = Ours | Real


def with_calls(program: Program) -> Path:
    return program.play(CALLS).rollout


def with_compaction(program: Program) -> Path:
    return program.play(COMPACTED, program.play(FULL_ANSWER).rollout).rollout


def with_mid_turn_compaction(program: Program) -> Path:
    return program.play(MID_TURN, with_calls(program)).rollout


def with_two_compactions(program: Program) -> Path:
    return program.play(MID_TURN, with_compaction(program)).rollout


def undone(program: Ours, write: Callable[[Ours], Path] = with_compaction, turns: int | None = None) -> Path:
    """The newest compaction was undone, or the last `turns` turns."""
    rollout = write(program)
    with Memory.reopen(rollout, PROFILE, Config(), Clock()) as memory:
        memory.undo(turns)
    return rollout


def begun_as_fork(program: Ours) -> Path:
    parent = with_compaction(program)
    return program.play(Turn("the other way", (answer("fork"),)), parent, how=Session.fork).rollout


def with_steer(program: Ours) -> Path:
    return program.play(CALLS, at_call=lambda session: session.steer("only touch billing/")).rollout


def with_interrupt(program: Ours) -> Path:
    slow = Turn("wait for it", (calls("i1", "sleep 30"),))
    return program.play(slow, at_call=lambda session: session.interrupt()).rollout


def with_failure(program: Ours) -> Path:
    """A turn that failed, and one after it."""
    failing = Turn("this fails", (answer("x", FULL),))
    rollout = program.play(failing).rollout
    return program.play(Turn("this fails too", (), LIMIT), rollout, fails=True).rollout


def killed_in_a_call(program: Ours) -> Path:
    """A file that ends behind a call, in the middle of a line."""
    rollout = with_calls(program)
    lines = rollout.read_bytes().splitlines(keepends=True)
    call = next(number for number, line in enumerate(lines) if b'"type":"function_call"' in line)
    rollout.write_bytes(b"".join(lines[: call + 1]) + lines[call + 1][:40])
    return rollout


# --- (a) the real program resumes what refold wrote ------------------------------------------------------------------

OURS: dict[str, Callable[[Ours], Path]] = {
    "tool calls": with_calls,
    "a compaction": with_compaction,
    "a compaction in mid-turn": with_mid_turn_compaction,
    "two compactions": with_two_compactions,
    "begun as a fork": begun_as_fork,
    "a steer": with_steer,
    "an interrupted turn": with_interrupt,
    "a failed turn": with_failure,
    "killed in a call": killed_in_a_call,
    "a compaction undone": undone,
    "a compaction in mid-turn undone": lambda ours: undone(ours, with_mid_turn_compaction),
    "the second of two undone": lambda ours: undone(ours, with_two_compactions),
    "an undo undone": lambda ours: undone(ours, undone),
    "a turn taken back": lambda ours: undone(ours, with_two_compactions, 1),
}


RULES = {
    "Only touch billing/.\n": "AGENTS.md",
    "Only touch shipping/.\n": "AGENTS.md has changed",
    None: "AGENTS.md has gone",
}


def real_resumes_ours(field: Field, write: Callable[[Ours], Path], turn: Turn = NEXT) -> str:
    rollout = write(field.ours())
    real = field.real()
    sent = real.play(turn, real.adopt(rollout))
    return compare(field.promised(Ours, turn, rollout), sent, ids_in(rollout))


def real_resumes_child(field: Field) -> str:
    """What refold wrote is the child that it began for a session of the real program."""

    def write(ours: Ours) -> Path:
        return ours.play(COMPACTED, with_calls(field.real()), how=Session.resume).rollout

    return real_resumes_ours(field, write)


def real_forks_ours(field: Field) -> str:
    rollout = with_compaction(field.ours())
    real = field.real()
    sent = real.play(NEXT, real.adopt(rollout), verb="fork")
    return compare(field.promised(Ours, NEXT, rollout), sent, ids_in(rollout))


def rules_change(field: Field, program: type[Ours] | type[Real], then: str | None) -> str:
    """AGENTS.md is there when one program begins, and is another one (None: gone) when the other goes on."""
    rules = field.work / "AGENTS.md"
    rules.write_text("Only touch billing/.\n")
    writer, taker = (field.ours(), field.real()) if program is Ours else (field.real(), field.ours())
    rollout = with_calls(writer)
    rules.write_text(then) if then is not None else rules.unlink()
    promised = field.promised(program, NEXT, rollout)
    sent = taker.play(NEXT, taker.adopt(rollout))
    return compare(promised, sent, ids_in(rollout))


# --- (b) refold resumes what the real program wrote ------------------------------------------------------------------

THEIRS: dict[str, Callable[[Real], Path]] = {
    "tool calls": with_calls,
    "a compaction": with_compaction,
    "a compaction in mid-turn": with_mid_turn_compaction,
    "two compactions": with_two_compactions,
}


def ours_resumes_real(field: Field, write: Callable[[Real], Path], *, in_place: bool) -> str:
    rollout = write(field.real())
    before = rollout.read_bytes()
    promised = field.promised(Real, NEXT, rollout)
    known = ids_in(rollout)
    ours = field.ours()
    sent = ours.play(NEXT, rollout) if in_place else ours.play(NEXT, rollout, how=Session.resume)
    after = rollout.read_bytes()
    if not in_place and after != before:
        raise Differs(f"{rollout.name} was only to be read, and has changed")
    if in_place and not after.startswith(before):
        raise Differs(f"{rollout.name} was only to be appended to, and has changed")
    return compare(promised, sent, known)


# --- (c) ten hand-overs in one thread --------------------------------------------------------------------------------

THREAD = (
    Turn("one: begin", (calls("t1", "echo one", thought=True), answer("t1_end"))),
    Turn("two: full after this", (calls("t2", "echo two", "echo three"), answer("t2_end", FULL))),
    Turn("three: compacts before it", (answer("t3_summary"), calls("t3", "echo four"), answer("t3_end")), LIMIT),
    Turn(
        "four: compacts in its middle",
        (calls("t4", "echo five", tokens=FULL), answer("t4_summary"), answer("t4_end")),
        LIMIT,
    ),
    Turn("five: goes on", (calls("t5", "echo six"), answer("t5_end"))),
    Turn("six: goes on", (answer("t6_end"),)),
    Turn("seven: full after this", (calls("t7", "echo seven"), answer("t7_end", FULL))),
    Turn("eight: compacts before it", (answer("t8_summary"), calls("t8", "echo eight"), answer("t8_end")), LIMIT),
    Turn(
        "nine: compacts in its middle",
        (calls("t9", "echo nine", "echo ten", tokens=FULL), answer("t9_summary"), answer("t9_end")),
        LIMIT,
    ),
    Turn("ten: goes on", (calls("t10", "echo eleven", thought=True), answer("t10_end"))),
    Turn("eleven: ends", (answer("t11_end"),)),
)


def hand_overs(field: Field, begins: str) -> Iterator[Result]:
    """Eleven turns on one file, by turns; each is compared with what the program before would have sent."""
    real = field.real()
    ours = Ours(real.home, field.work)  # one home: refold goes on in the real program's very file
    programs: list[Program] = [ours, real] if begins == "refold" else [real, ours]
    rollout = programs[0].play(THREAD[0]).rollout
    for number, turn in enumerate(THREAD[1:], 1):
        writer, taker = programs[(number - 1) % 2], programs[number % 2]

        def hand_over(writer: Program = writer, taker: Program = taker, turn: Turn = turn) -> str:
            known = ids_in(rollout)
            promised = field.promised(type(writer), turn, rollout)
            return compare(promised, taker.play(turn, rollout), known)

        to = "real → refold" if isinstance(taker, Ours) else "refold → real"
        yield result(f"begun by {begins}, hand-over {number}: {to}", hand_over)
    yield result(f"begun by {begins}: the file is whole", lambda: _whole(rollout))


def _whole(rollout: Path) -> str:
    lines = list(read_lines(rollout))
    for before, line in itertools.pairwise(lines):
        if line.warning or isinstance(line.record, LineDamaged):
            raise Differs(f"line {line.ordinal}: {line.warning}")
        if line.ordinal != before.ordinal + 1:
            raise Differs(f"ordinal {line.ordinal} after {before.ordinal}")
    return f"{len(lines)} lines, ordinals without a gap"


# --- (d) a refold file that ends between the lines of a checkpoint ---------------------------------------------------


def cut_checkpoint(field: Field, keep: int, program: str) -> str:
    """A file cut `keep` lines behind its last `compacted` line, against the whole checkpoint.

    refold must not notice. The real program may tell surroundings a second time; nothing else may differ.
    """
    rollout = with_compaction(field.ours())
    lines = rollout.read_bytes().splitlines(keepends=True)
    at = max(number for number, line in enumerate(lines) if json.loads(line)["type"] == "compacted")
    behind = [json.loads(line)["type"] for line in lines[at + 1 : at + 3]]
    if behind != ["world_state", "turn_context"]:
        raise Differs(f"behind the checkpoint stand {behind}")
    whole, cut = (_shortened(rollout, lines[:end], field) for end in (at + 3, at + 1 + keep))
    promised = field.promised(Ours, NEXT, whole)
    known = ids_in(cut)
    if program == "refold":
        return compare(promised, field.promised(Ours, NEXT, cut), known)
    sent = field.promised(Real, NEXT, cut)
    note = compare(without_context(promised), without_context(sent), known)
    more = _context(sent) - _context(promised)
    return ", ".join(filter(None, (note, f"{more} context items more than refold sends")))


def _context(played: Played) -> int:
    return sum(map(is_context, played.requests[0]))


def _shortened(rollout: Path, lines: list[bytes], field: Field) -> Path:
    copy = copied(rollout, field.folder / f"cut-{len(lines)}")
    copy.write_bytes(b"".join(lines))
    return copy


# --- (e) what a checkpoint tells of messages, in the next one of the other program -----------------------------------


def carried_on(writer: Program, taker: Program, write: Callable[[Any], Path]) -> str:
    """The messages that a checkpoint tells of stand first in the other program's next one, under the same names and
    numbers; so do the items that both hold."""
    rollout = taker.play(AT_ONCE, taker.adopt(write(writer))).rollout
    before, after = _checkpoints(rollout)[-2:]
    if "guardian_history" in after:
        raise Differs("the whole history was kept for a reviewer: the checkpoint before was not trusted")
    carried = 0
    for role in ("user_messages", "assistant_messages"):
        told, kept = (one["retained_context"][role] for one in (before, after))
        if kept[: len(told)] != told:
            raise Differs(f"{role}:\n{json.dumps(told)}\n{json.dumps(kept)}")
        carried += len(told)
    told, kept = (dict(_numbered(one)) for one in (before, after))
    for name in told.keys() & kept.keys():
        if told[name] != kept[name]:
            raise Differs(f"{name}: {told[name]}, then {kept[name]}")
    return f"{carried} messages, {len(told.keys() & kept.keys())} items"


def _checkpoints(rollout: Path) -> list[Any]:
    lines = map(json.loads, rollout.read_text(encoding="utf-8").splitlines())
    return [line["payload"] for line in lines if line["type"] == "compacted"]


def _numbered(checkpoint: Any) -> Iterator[tuple[str, Any]]:
    """Each item's id, with its number, its order and the message that it is."""
    keys = ("history_sequence", "user_input_order", "retained_source")
    both = zip(checkpoint["replacement_history"], checkpoint["replacement_history_metadata"], strict=True)
    return ((item["id"], [about.get(key) for key in keys]) for item, about in both)


CARRIED: dict[str, Callable[[Any], Path]] = {
    "a compaction": with_compaction,
    "two compactions": with_two_compactions,
    "a compaction in mid-turn": with_mid_turn_compaction,
}


# --- all of them -----------------------------------------------------------------------------------------------------


def checks(folder: Path) -> Iterator[Result]:
    """Every check, in its own folder under `folder`."""
    numbers = itertools.count(1)

    def field() -> Field:
        return Field(folder / str(next(numbers)))

    for name, write in OURS.items():
        yield result(f"real resumes refold's: {name}", lambda write=write: real_resumes_ours(field(), write))
    yield result(
        "real resumes refold's: a compaction, and compacts at once",
        lambda: real_resumes_ours(field(), with_two_compactions, AT_ONCE),
    )
    for name, theirs in THEIRS.items():
        for way in ("a child", "in place"):
            yield result(
                f"refold resumes real's: {name} ({way})",
                lambda theirs=theirs, way=way: ours_resumes_real(field(), theirs, in_place=way == "in place"),
            )
    yield result("real resumes refold's child of real's", lambda: real_resumes_child(field()))
    yield result("real forks refold's: a compaction", lambda: real_forks_ours(field()))
    for then, change in RULES.items():
        for writer, way in ((Ours, "real resumes refold's"), (Real, "refold resumes real's")):
            yield result(f"{way}: {change}", lambda writer=writer, then=then: rules_change(field(), writer, then))
    for name, write in CARRIED.items():
        for by, to in (("refold", "real"), ("real", "refold")):

            def carries(write: Callable[[Any], Path] = write, by: str = by) -> str:
                place = field()
                programs: tuple[Program, Program] = (place.ours(), place.real())
                return carried_on(*(programs if by == "refold" else programs[::-1]), write)

            yield result(f"{to} carries {by}'s messages on: {name}", carries)
    for begins in ("refold", "real"):
        yield from hand_overs(field(), begins)
    for keep, place in enumerate(("right behind compacted", "between world_state and turn_context")):
        for program in ("refold", "real"):
            name = f"cut {place}: {program} goes on"
            yield result(name, lambda keep=keep, program=program: cut_checkpoint(field(), keep, program))
