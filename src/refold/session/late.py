"""Late: a log that is behind its disk: it is tried again by and by, and whoever listens is told how it goes.

Rule 1: nobody waits for it: each record tries too, and the timer is for the time between records.
Rule 2: what nobody listened to is told when somebody does: as the next turn begins, say.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from refold.core.compaction.carried import CARRIED, carried
from refold.core.records import Compacted
from refold.session.beginning import inheritance

if TYPE_CHECKING:
    from refold.session.memory import Memory

FIRST_SECONDS = 1.0  # a moment's fault is over then
LONGEST_SECONDS = 60.0  # a person who made room should not have to wait longer


class Late:
    """Mutable: it holds the timer, and how long that waits next (seconds)."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._seconds = FIRST_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def follow(self) -> None:
        """Tell what happened, and see to it that it is tried again."""
        memory = self._memory
        if memory.store.is_lost:
            _begin_anew(memory)
        if memory.feed.is_heard:
            for fact in memory.store.take_facts():
                memory.feed.publish(fact)
        if memory.store.behind is None:
            self.stop()
            self._seconds = FIRST_SECONDS
        elif self._timer is None:
            self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a host without a loop: its next record tries, and its end
        self._timer = loop.call_later(self._seconds * self._memory.clock.jitter(), self._try)
        self._seconds = min(2 * self._seconds, LONGEST_SECONDS)

    def _try(self) -> None:
        self._timer = None
        self._memory.store.sync()
        self.follow()


def follow(memory: Memory) -> None:
    """Something happened to the log's file: tell it, and see to it that what waits is tried again."""
    memory.late = memory.late or Late(memory)
    memory.late.follow()


def keep(memory: Memory) -> None:
    """Ask the disk to keep everything that was recorded, and tell when it does not."""
    memory.store.sync()
    if memory.store.has_facts:
        follow(memory)


def _begin_anew(memory: Memory) -> None:
    """The lines so far are lost with their file: begin another one with what the session still holds."""
    thread = memory.thread
    assert thread.meta is not None
    memory.store.begin_anew(thread.meta, thread.meta_ordinal)
    checkpoint, *later = inheritance(thread)
    assert isinstance(checkpoint, Compacted)
    told = carried(thread, settings=checkpoint.settings)
    told[CARRIED].pop("known", None)  # what requests refer to is lost as well: it is recorded anew when it is needed
    memory.record(replace(checkpoint, facts={**checkpoint.facts, **told}), *later)
