"""Measure: one figure of several peers, the least disturbed round of each: what a machine does besides only adds."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.peers import PEERS, History, Peer
from refold.testing import Reply, ResponsesServer, call_reply, text_reply, usage

ROUNDS = 5
USAGE = usage(100, 10)
OURS, BARE = PEERS[0].name, PEERS[1].name


class Budget(msgspec.Struct, frozen=True):
    """What design.md §9 asks of a figure: at most so much, and at most so many times the bare loop's. `or_times`: where
    the machine's own part is larger, so many times a peer's will do instead (docs/decisions/0019)."""

    most: float | None = None
    times_bare: float | None = None
    or_times: tuple[str, float] | None = None

    def told(self, unit: str) -> str:
        limits = [f"≤ {self.most:g} {unit}"] if self.most is not None else []
        limits += [f"≤ {self.times_bare:g} × bare"] if self.times_bare is not None else []
        instead = [f"or {self.or_times[1]:g} × {self.or_times[0]}"] if self.or_times is not None else []
        return " ".join([", ".join(limits), *instead])

    def held(self, figures: dict[str, float]) -> bool:
        ours = figures[OURS]
        if self.or_times is not None and ours <= self.or_times[1] * figures.get(self.or_times[0], 0.0):
            return True
        within = self.most is None or ours <= self.most
        return within and (self.times_bare is None or ours <= self.times_bare * figures[BARE])


class Row(msgspec.Struct, frozen=True):
    """One figure of each peer that was measured."""

    what: str
    unit: str
    figures: dict[str, float]
    budget: Budget = Budget()

    def __str__(self) -> str:
        cells = [f"{self.figures[peer.name]:,.1f}" if peer.name in self.figures else "–" for peer in PEERS]
        ratio = f"{self.figures[OURS] / self.figures[BARE]:.2f} ×" if BARE in self.figures else "–"
        budget = self.budget.told(self.unit)
        verdict = f"{budget}{'' if self.budget.held(self.figures) else ' **missed**'}"
        return f"| {self.what}, {self.unit} | {' | '.join(cells)} | {ratio} | {verdict} |"


NAMES = " | ".join(peer.name for peer in PEERS)
TABLE = f"| what | {NAMES} | ratio to bare | budget |\n| --- |{' ---: |' * (len(PEERS) + 1)} --- |"


def peers() -> list[Peer]:
    return [peer for peer in PEERS if peer.installed()]


def lowest(
    measure: Callable[[Peer], float], *, rounds: int = ROUNDS, among: Sequence[Peer] | None = None
) -> dict[str, float]:
    """The lowest figure of each peer; they take turns, so that none has the machine's better half. Slow ones once."""
    turns = peers() if among is None else among
    found: dict[str, list[float]] = {peer.name: [] for peer in turns}
    for number in range(rounds):
        for peer in turns:
            if number == 0 or not peer.slow:
                found[peer.name].append(measure(peer))
    return {name: min(figures) for name, figures in found.items()}


def timed(command: list[str]) -> float:
    """Milliseconds of one process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


# A process's peak is at least that of its parent when it started: so a small one starts it.
PEAK = """
import os, sys
quiet = os.open(os.devnull, os.O_RDWR)
moves = [(os.POSIX_SPAWN_DUP2, quiet, number) for number in (0, 1, 2)]
_, status, used = os.wait4(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=moves), 0)
assert status == 0
print(used.ru_maxrss)
"""


class Arrivals:
    """A script that notes when each request comes. It answers with `calls` calls, then with a text.

    For every process anew: it counts by what the request holds, from the outputs that the history had.
    """

    def __init__(self, name: str = "nop", arguments: dict[str, Any] | None = None, calls: int = 0) -> None:
        self._call = call_reply(name, arguments or {}, usage=USAGE)
        self._calls = calls
        self._arrivals: list[float] = []
        self._known: int | None = None
        self.server = ResponsesServer(self, log=False)

    def __call__(self, request: Any) -> Reply:
        self._arrivals.append(time.perf_counter())
        outputs = request.body.count(b'"function_call_output"')
        if self._known is None:
            self._known = outputs
        return self._call if outputs - self._known < self._calls else text_reply("done", usage=USAGE)

    def first(self, peer: Peer, folder: Path, history: History | None = None) -> float:
        """Milliseconds from the start of the process to its first request."""
        start = peer.turn(self.server.url, folder, history)
        self._arrivals, self._known = [], None
        began = time.perf_counter()
        start.run()
        return (self._arrivals[0] - began) * 1000

    def gap(self, peer: Peer, folder: Path, history: History | None = None) -> float:
        """Milliseconds from one request to the next: the median of a process."""
        self.first(peer, folder, history)
        return statistics.median(b - a for a, b in itertools.pairwise(self._arrivals)) * 1000

    def peak(self, peer: Peer, folder: Path, history: History | None = None) -> float:
        """Peak resident memory of one process and its children, in MiB."""
        start = peer.turn(self.server.url, folder, history)
        self._arrivals, self._known = [], None
        done = subprocess.run(
            [sys.executable, "-S", "-c", PEAK, *start.words], env=start.environ, check=True, capture_output=True
        )
        return int(done.stdout) / 1024
