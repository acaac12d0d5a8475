"""Crowd: many sessions at once in one process, each turn with a tool call: what is lost, leaked, used, and how fast.

`python -m bench.crowd [--sessions 1000] [--turns 20] [--shared]` prints a markdown table. The provider is the scripted
server in a process of its own. Each session has its own model, as `Session.start` gives it; `--shared`: one for all.

How memory is measured: resident pages of this process, after a full garbage collection and after the allocator gave
back what it could; once with every session open and nothing said, once after all turns, idle. From the latter the
items are taken off: the sizes that `sys.getsizeof` tells of each history's dicts, lists and texts, each object once.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from refold import Profile, Provider, ResponsesModel, Session, tool
from refold.core.records import ItemRecorded, RequestSent, TurnEnded, TurnStarted, UsageCounted
from refold.core.thread import Thread, same_state
from refold.rollout import read_lines
from refold.session.memory import read_thread
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage

MOST_KIB = 200  # for an idle session, beside its items
DESCRIPTORS_EACH = 3  # a log, a connection, and one to spare
TABLE = "| what | figure | budget |\n| --- | ---: | --- |"
CALL = call_reply("nop", {}, usage=usage(100, 10))
DONE = text_reply("done", usage=usage(120, 10))


@tool
async def nop() -> str:
    """Does nothing."""
    return "ok"


# --- the provider ---------------------------------------------------------------------------------------------------


def answer(request: LoggedRequest) -> Reply:
    """A call to what a person said, a text to the call's output."""
    output, said = request.body.rfind(b'"type":"function_call_output"'), request.body.rfind(b'"role":"user"')
    return DONE if output > said else CALL


def serve() -> None:
    """Be the provider until nobody holds standard input open any more."""
    _allow_descriptors()
    with ResponsesServer(answer, log=False) as server:
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def provider() -> Iterator[Provider]:
    """The scripted provider, in a process of its own."""
    words = [sys.executable, "-m", "bench.crowd", "--serve"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Provider(id="crowd", name="crowd", base_url=process.stdout.readline().strip(), env_key=None)
        finally:
            process.stdin.close()
            process.wait(10)


# --- what is measured -----------------------------------------------------------------------------------------------


class Figures(msgspec.Struct):
    """What one crowd took. Bytes and seconds; `wrong` names the sessions whose log is not what it must be."""

    sessions: int
    turns: int
    fresh: int = 0  # resident bytes of all sessions before anything was said
    idle: int = 0  # after all turns
    items: int = 0  # of which are items
    seconds: float = 0.0
    slowest: float = 0.0  # of all turns
    cpu: float = 0.0
    records: int = 0
    wrong: list[str] = []
    descriptors: tuple[int, int, int] = (0, 0, 0)  # before, with all sessions idle, after
    children: tuple[int, int] = (0, 0)

    def rows(self) -> Iterator[str]:
        done, kib = self.sessions * self.turns, self.sessions * 1024
        expected = self.sessions * lines_of(self.turns)
        fresh, beside = self.fresh / kib, (self.idle - self.items) / kib
        before, idle, after = self.descriptors
        offspring = self.children[1] - self.children[0]
        most = f"≤ {MOST_KIB}"
        what = f"{self.sessions:,} sessions × {self.turns} turns, one call each: total time"
        yield _row(f"{what}, s", f"{self.seconds:,.1f}")
        yield _row("turns per second", f"{done / self.seconds:,.0f}")
        yield _row("slowest turn, s", f"{self.slowest:,.1f}")
        yield _row("processor time of this process per turn (two requests), ms", f"{self.cpu / done * 1000:,.1f}")
        yield _row("records in the logs", f"{self.records:,}", f"{expected:,}", self.records == expected)
        yield _row("sessions whose log is not what it must be", f"{len(self.wrong)}", "0", not self.wrong)
        yield _row("memory of a session before its first turn, KiB", f"{fresh:,.0f}", most, fresh <= MOST_KIB)
        yield _row("memory of an idle session beside its items, KiB", f"{beside:,.0f}", most, beside <= MOST_KIB)
        yield _row("its items, KiB", f"{self.items / kib:,.0f}")
        yield _row("descriptors with all sessions idle", f"{idle:,}")
        yield _row("descriptors left over", f"{after - before}", "0", after <= before)
        yield _row("child processes left over", f"{offspring}", "0", offspring <= 0)


def _row(what: str, figure: str, budget: str = "", held: bool = True) -> str:
    return f"| {what} | {figure} | {budget}{'' if held else ' **missed**'} |"


KINDS_PER_TURN: dict[type[Any], int] = {
    TurnStarted: 1,
    TurnEnded: 1,
    RequestSent: 2,
    UsageCounted: 2,
    ItemRecorded: 4,  # what was said, the call, its output, the answer
}
FIRST_ITEMS = 2  # the rules in force and the environment, told in the first turn
ONCE = 4  # session_meta, the world, and the two values that every request refers to
MORE_PER_TURN = 3  # its settings, and the two mirrors of what was said and answered


def lines_of(turns: int) -> int:
    """Records of a session with so many turns."""
    return ONCE + FIRST_ITEMS + turns * (sum(KINDS_PER_TURN.values()) + MORE_PER_TURN)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> int:
    """Child processes of this one, dead or alive."""
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def resident() -> int:
    """Bytes of this process in memory, without what is only not given back yet."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def size_of(value: Any, seen: set[int]) -> int:
    """Bytes of a JSON value all the way down; what was seen already costs nothing."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(size_of(one, seen) for one in inside)


def is_whole(path: Path, live: Thread, turns: int) -> tuple[int, bool]:
    """How many records a log holds, and whether they are those of `turns` turns and make up the live thread."""
    records = [line.record for line in read_lines(path)]
    counted = Counter(type(record) for record in records)
    expected = {kind: count * turns for kind, count in KINDS_PER_TURN.items()}
    expected[ItemRecorded] += FIRST_ITEMS
    whole = all(counted[kind] == count for kind, count in expected.items())
    completed = all(record.outcome == "completed" for record in records if isinstance(record, TurnEnded))
    return len(records), whole and completed and same_state(read_thread(path), live)


# --- the crowd ------------------------------------------------------------------------------------------------------


async def crowd(provider: Provider, home: Path, figures: Figures, *, shared: bool) -> None:
    """All sessions, open at the same time."""
    profile = Profile(slug="crowd", context_window=100_000_000)
    async with AsyncExitStack() as stack:
        warm = Session.start(model=ResponsesModel(profile, provider), tools=[nop], cwd=home, home=home / "warm")
        async with warm:  # imports, caches: of the process, not of a session
            await warm.send("hi")
        one = ResponsesModel(profile, provider)
        begun = resident()
        sessions: list[Session] = []
        for _ in range(figures.sessions):
            model = one if shared else ResponsesModel(profile, provider)
            session = Session.start(model=model, tools=[nop], cwd=home, home=home)
            sessions.append(await stack.enter_async_context(session))
        figures.fresh = resident() - begun

        async def talk(session: Session) -> None:
            for number in range(figures.turns):
                began = time.perf_counter()
                result = await session.send(f"turn {number}")
                assert (result.outcome, result.text) == ("completed", "done")
                figures.slowest = max(figures.slowest, time.perf_counter() - began)

        began, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(talk, sessions))
        figures.seconds, figures.cpu = time.perf_counter() - began, time.process_time() - used

        figures.idle = resident() - begun
        before, _, after = figures.descriptors
        figures.descriptors = (before, descriptors(), after)
        seen: set[int] = set()
        figures.items = sum(size_of(entry.item, seen) for s in sessions for entry in s.memory.thread.history)
    for session in sessions:
        assert session.path is not None
        count, whole = is_whole(session.path, session.memory.thread, figures.turns)
        figures.records += count
        figures.wrong += [] if whole else [session.id]


def measured(sessions: int, turns: int, *, shared: bool = False) -> Figures:
    """The figures of one crowd."""
    figures = Figures(sessions, turns)
    with provider() as asked, tempfile.TemporaryDirectory() as folder:
        before, offspring = descriptors(), children()
        asyncio.run(crowd(asked, Path(folder), figures, shared=shared))
        figures.descriptors = (before, figures.descriptors[1], descriptors())
        figures.children = (offspring, children())
    return figures


def _allow_descriptors(needed: int = 1 << 20) -> None:
    """Raise the soft limit of open files as far as needed and possible, and say so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    print(f"open files: the soft limit is raised from {soft:,} to {most:,}", file=sys.stderr)


def rows() -> Iterator[str]:
    """The figures of the design's crowd: 1,000 sessions, 20 turns."""
    _allow_descriptors(DESCRIPTORS_EACH * 1_000 + 200)
    yield from measured(1_000, 20).rows()


def main() -> None:
    """Many sessions at once in one process, each turn with a tool call; prints a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=main.__doc__)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--shared", action="store_true", help="one model for all sessions")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    _allow_descriptors(DESCRIPTORS_EACH * options.sessions + 200)
    figures = measured(options.sessions, options.turns, shared=options.shared)
    print("\n".join([TABLE, *figures.rows()]))
    for name in figures.wrong:
        print(f"not what it must be: {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
