"""Reading: a damaged rollout through all that reads one: resume, show, context, sent, doctor; and gone on with."""

from __future__ import annotations

import shutil
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parent))
from damage import Counting, Step, damaged
from legal import faults

from refold.core.config import Config
from refold.core.items import message
from refold.core.jsonio import dump
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.thread import Thread, same_state
from refold.core.wire import Identity, Wire
from refold.errors import RefoldError
from refold.rollout import read_lines
from refold.rollout.examination import examine, plan_repair, repair
from refold.rollout.reader import find_line
from refold.session.memory import Memory, read_thread
from refold.views.context import context
from refold.views.sent import sent
from refold.views.transcript import Story

PROFILE = Profile(slug="m", context_window=50_000)
OTHER = Provider(id="other", name="Other", base_url="http://127.0.0.1:1", env_key=None)
IDENTITY = Identity(thread_id="soak")
NEW_ID = "0190cccc-0000-7000-8000-000000000001"
T = TypeVar("T")
MOST_SECONDS = 5.0  # of the processor, for one file below 200 kB; the slowest of hundreds took a tenth of one
MEASURED = 40  # one in so many: measuring memory makes it slow
MOST_MEMORY = 30  # times the file's size, beside what is loaded once; the most of hundreds was ten times
NUMBERING = {"ordinal_odd", "ordinal_missing"}  # of a file that mixes lines with and without: either is right
LOADED = 8 << 20  # bytes


class Reading:
    """One damaged file. Mutable: it counts what it did; `items` are lines."""

    def __init__(self, number: int, home: Path) -> None:
        self.items = self.requests = 0
        self._home = home
        self._undoes = number % 3 == 0
        self._measured = number % MEASURED == 0

    def play(self, steps: list[Step]) -> None:
        self._home.mkdir(parents=True)
        raw = damaged(steps)
        packed = any(what == "compress" for what, _ in steps)
        path = self._home / f"rollout-2026-05-04T12-00-00-{NEW_ID}.jsonl{'.zst' if packed else ''}"
        path.write_bytes(raw)
        began = time.process_time()
        if self._measured:
            tracemalloc.start()
        try:
            self._read(path)
            peak = tracemalloc.get_traced_memory()[1] if self._measured else 0
        finally:
            tracemalloc.stop()
        assert path.read_bytes() == raw, "looking at a file changed it"
        size = sum(len(line) for line in raw.split(b"\n")) if not packed else 20 * len(raw)
        assert peak < LOADED + MOST_MEMORY * size, "looking at a file takes too much memory"
        self._go_on(path)
        self._mend(path)
        assert time.process_time() - began < MOST_SECONDS, "a file takes too long"

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, path: Path) -> None:
        """Resume, show, context."""
        thread = _thread(path)
        story, problem = Story(), None
        try:
            for line in read_lines(path):
                self.items += 1
                story.add(line)
        except RefoldError as error:
            problem = _one_line(error)
        told = story.transcript()
        for row in told.rows:
            dump(row)
            assert "\n" not in row.title, "a title of several lines"
        for number in (0, 1, len(told.rows)):
            _or_error(lambda at=number: find_line(path, at))
        _or_error(lambda: [one.request.body() for one in sent(read_lines(path))])
        if thread is None:
            return
        assert problem is None or thread.meta is not None
        context(thread, PROFILE)
        base = thread.base_instructions
        raw = (
            Wire(OTHER, PROFILE).request(prompt_from(thread.history, PROFILE, base_instructions=base), IDENTITY).body()
        )
        self.requests += 1
        found = faults(raw, OTHER)
        assert not found, f"a request holds {found[0]}"
        if problem is None and thread.meta is not None and "history_base" not in thread.meta.payload:
            whole = Thread.replay(read_lines(path))
            assert same_state(whole, thread), "read from its end it is something else than read whole"

    def _go_on(self, path: Path) -> None:
        """It is resumed in place: what stood there stays, and what is live is read again."""
        thread = _thread(path)
        if thread is None or thread.meta is None:
            return
        copy = self._home / "copy" / path.name
        copy.parent.mkdir()
        shutil.copy(path, copy)
        try:
            memory = Memory.reopen(copy, PROFILE, Config(), Counting())
        except RefoldError as error:
            _one_line(error)
            return
        if self._undoes:
            _or_error(memory.undo)
        memory.add(message("user", ["go on"]))
        memory.close()
        assert memory.path is not None
        if memory.path == copy:
            assert memory.path.read_bytes().startswith(path.read_bytes()), "what stood in the file was changed"
        again = read_thread(memory.path)
        assert same_state(again, memory.thread), "gone on with, it reads as something else than what is live"
        newest = again.history[-1].item
        assert newest.get("content") == [{"type": "input_text", "text": "go on"}], "what was said is not the newest"

    def _mend(self, path: Path) -> None:
        """Doctor: what it finds, and its repaired copy, which can be resumed."""
        try:
            found = examine(path)
            dump(found)
            plan = plan_repair(found, new_id=NEW_ID, home=self._home / "mended")
            if not plan.done:
                return
            done = repair(found, plan)
        except RefoldError as error:
            _one_line(error)
            return
        assert done.target.exists(), "a repaired file is not there"
        again = examine(done.target)
        left = {one.kind for one in again.fixable} - NUMBERING
        assert not left, f"repaired, it still has {sorted(left)[0]}"


def _thread(path: Path) -> Thread | None:
    return _or_error(lambda: read_thread(path, headless=True))


def _or_error(act: Callable[[], T]) -> T | None:
    """What it gives; None where it raises an error that says in one line what is wrong."""
    try:
        return act()
    except RefoldError as error:
        _one_line(error)
        return None


def _one_line(error: Any) -> str:
    text = str(error)
    assert text, "an error without a word"
    assert "\n" not in text, "an error of several lines"
    return text
