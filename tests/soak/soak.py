"""Soak: random and mutated items through record → prompt → request → record, or damaged rollouts through all that reads
them, session after session.

`python tests/soak/soak.py [rollouts] --seconds 600`: the first line tells the seed; a failure tells its session and the
steps that are enough for it, and `--seed SEED --session NUMBER` plays that session again.

Rule 1: a session is made from its seed, its number and the files in tests/data, whatever the clock says.
Rule 2: nothing that goes wrong is passed over; it is told, and the next session begins.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parent))
from damage import damage_of
from odd_items import Draw
from reading import Reading
from sitting import Sitting, Step, steps_of

SHOWN_CHARS = 1_000  # of one step in a report; the whole step comes back with seed and session

PATIENCE = 120.0  # seconds that no session needs: what takes longer hangs, and shows where


class Game(NamedTuple):
    """What is played: the steps of a session, who plays them, and what is said of one."""

    name: str
    steps: Callable[[Draw], list[Step]]
    player: Callable[[int, Path], Sitting | Reading]


ITEMS = Game("items", steps_of, Sitting)
ROLLOUTS = Game("rollouts", damage_of, Reading)
GAMES = {game.name: game for game in (ITEMS, ROLLOUTS)}

# --- many sessions ---------------------------------------------------------------------------------------------------


class Failure(msgspec.Struct, frozen=True):
    """A session that went wrong: what, where, and the steps that are enough for it."""

    seed: int
    session: int
    what: str
    steps: tuple[Step, ...]
    game: str = ITEMS.name

    def __str__(self) -> str:
        words = "" if self.game == ITEMS.name else f"{self.game} "
        again = f"{self.what}\n  again: python tests/soak/soak.py {words}--seed {self.seed} --session {self.session}"
        return "\n".join((again, "  enough for it:", *(f"    {what} {_shown(given)}" for what, given in self.steps)))


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, bytes) else json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text):,} characters)"


class Tally:
    """What was done so far. Mutable."""

    def __init__(self) -> None:
        self.sessions = self.items = self.requests = self.failed = 0
        self.failures: dict[str, Failure] = {}  # by what went wrong, the first of its kind

    def __str__(self) -> str:
        done = f"{self.sessions:,} sessions, {self.items:,} items, {self.requests:,} requests"
        return f"{done}, {self.failed:,} failed" if self.failed else done


def soak(
    seed: int, sessions: Iterable[int], tell: Callable[[Tally], None] = lambda _: None, game: Game = ITEMS
) -> Tally:
    """Play these sessions of a seed; `tell` is called after each one."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        home = Path(name) / "home"
        for number in sessions:
            steps = game.steps(Draw(f"{seed}:{number}"))
            what = _played(game, number, steps, home, tally)
            tally.sessions += 1
            if what is not None:
                tally.failed += 1
                if what not in tally.failures:
                    tally.failures[what] = Failure(
                        seed, number, what, tuple(_shrunk(game, number, steps, home, what)), game.name
                    )
            tell(tally)
    return tally


def _played(game: Game, number: int, steps: list[Step], home: Path, tally: Tally | None = None) -> str | None:
    """Play a session; what went wrong, and where if it is an exception, or None."""
    shutil.rmtree(home, ignore_errors=True)
    sitting = game.player(number, home)
    try:
        sitting.play(steps)
    except AssertionError as error:
        return str(error)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "refold" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the soak itself"
        return f"{type(error).__name__} in {place}"
    finally:
        sitting.close()
        if tally is not None:
            tally.items += sitting.items
            tally.requests += sitting.requests
    return None


def _shrunk(game: Game, number: int, steps: list[Step], home: Path, what: str) -> list[Step]:
    """Fewer steps, then simpler items, that go wrong in the same way."""
    size = len(steps)
    while size := size // 2:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if _played(game, number, fewer, home) == what:
                steps = fewer
            else:
                start += size
    for index, (way, given) in enumerate(steps):
        for key in list(given) if isinstance(given, dict) else ():
            without = {name: value for name, value in given.items() if name != key}
            for simpler in (without, {**given, key: "x"}):
                less = [*steps[:index], (way, simpler), *steps[index + 1 :]]
                if _played(game, number, less, home) == what:
                    steps, given = less, simpler
                    break
    return steps


# --- from a shell ----------------------------------------------------------------------------------------------------


class Progress:
    """How far it is: one line that is written over on a terminal, a line a minute elsewhere. Failures are told at once.

    Mutable: it knows what it told.
    """

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 60.0
        self._next = self._every
        self._told = 0  # failures

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def __call__(self, tally: Tally) -> None:
        for failure in list(tally.failures.values())[self._told :]:
            self.end()
            print(f"\n{failure}", flush=True)
        self._told = len(tally.failures)
        if self.elapsed >= self._next:
            self._next = self.elapsed + self._every
            self._write(f"{self.elapsed:,.0f} of {self._seconds:,.0f} s: {tally}")

    def end(self) -> None:
        if self._terminal:
            self._write("")

    def _write(self, line: str) -> None:
        print(f"\r\x1b[K{line}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Plays random sessions until the time is up; 1 when one went wrong.")
    parser.add_argument("game", nargs="?", choices=GAMES, default=ITEMS.name, help="odd items, or damaged rollouts")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--seed", type=int, help="what the sessions are made from (another one each time)")
    parser.add_argument("--session", type=int, help="play only this session of the seed")
    options = parser.parse_args(words)
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    progress = Progress(options.seconds)

    def until_the_time_is_up() -> Iterator[int]:
        number = 0
        while progress.elapsed < options.seconds:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            yield number
            number += 1
        faulthandler.cancel_dump_traceback_later()

    sessions = until_the_time_is_up() if options.session is None else [options.session]
    tally = soak(seed, sessions, progress, GAMES[options.game])
    progress.end()
    ways = f", in {len(tally.failures):,} ways" if tally.failed else ""
    print(f"{progress.elapsed:,.0f} s: {tally}{ways}")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
