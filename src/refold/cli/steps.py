"""Steps: what a turn is doing now, folded from its events, for a line that is rewritten and for a log."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from refold.core.items import Item, is_call, is_output
from refold.core.records import ItemRecorded, TurnEnded, TurnStarted, UsageCounted
from refold.session.events import (
    CompactionEnded,
    CompactionStarted,
    Event,
    PreviewDropped,
    SamplingStarted,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    Waiting,
)
from refold.views.calls import call_text
from refold.views.shown import clean, one_line

LABEL_CHARS = 400  # of a command or a line of its output: wider than any terminal
LOG_SECONDS = 30.0  # how often a log is told that a command still runs


class Step(NamedTuple):
    """What goes on: `head` and `tail` may be cut to make room, `clock` may not."""

    head: str
    clock: str = ""
    tail: str = ""

    @property
    def text(self) -> str:
        return self.head + self.clock + self.tail


class Steps:
    """Mutable: it follows a turn. `now` is a clock of seconds that only grows."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.tokens: int | None = None  # in the context, as it was last told
        self.begin()

    def begin(self) -> None:
        """Nothing goes on yet."""
        self._samplings = 0
        self._again = False  # the next sampling is the last one, asked once more
        self._sampling: float | None = None  # since when
        self._compacting: float | None = None
        self._waiting: tuple[float, Waiting] | None = None  # until when
        self._calls: dict[str, _Call] = {}

    def note(self, event: Event) -> None:
        """Follow an event."""
        match event:
            case TurnStarted() | TurnEnded():
                self.begin()
            case SamplingStarted():
                self._sample(event)
            case UsageCounted() | PreviewDropped():
                self._sampling = None
            case Waiting(seconds=seconds):
                self._waiting, self._again = (self._now() + seconds, event), self._compacting is None
            case CompactionStarted():
                self._compacting = self._now()
            case CompactionEnded(installed=installed, after=after):
                self._compacting = self._waiting = None
                self.tokens = after if installed else self.tokens
            case ToolStarted(call=call):
                self._run(call)
            case ItemRecorded(item=item) if is_call(item):  # hooks and questions come before it is started
                self._run(item)
            case ToolEnded(call=item) | ItemRecorded(item=item) if isinstance(event, ToolEnded) or is_output(item):
                self._calls.pop(str(item.get("call_id")), None)
            case ToolProgress(call=call, text=text) if known := self._calls.get(str(call.get("call_id"))):
                known.says(text)
            case _:
                pass

    def _run(self, call: Item) -> None:
        self._calls[str(call.get("call_id"))] = _Call(call, self._now())

    def _sample(self, event: SamplingStarted) -> None:
        self._waiting = None
        if event.kind == "turn":
            self._samplings += not self._again
            self._again, self._sampling, self.tokens = False, self._now(), event.tokens

    def current(self) -> Step | None:
        """What goes on now: a wait, else the call that runs longest, else a compaction, else a sampling."""
        now = self._now()
        if self._waiting is not None:
            until, event = self._waiting
            left = max(0, ceil(until - now))
            return Step(
                f"⟳ trying again in {left} s ({event.attempt} of {event.of})", tail=f": {one_line(event.reason)}"
            )
        if self._calls:
            first = next(iter(self._calls.values()))
            more = len(self._calls) - 1
            return first.step(now, f" (+{more})" if more else "")
        if self._compacting is not None:
            return Step("⇣ compacting", f" · {lasted(now - self._compacting)}")
        if self._sampling is not None:
            return Step(f"sampling {self._samplings}", f" · {lasted(now - self._sampling)}")
        return None

    def overdue(self) -> list[str]:
        """For a log: a line for each call that has run another half minute since it was last told of."""
        now = self._now()
        found = [call for call in self._calls.values() if now - call.told >= LOG_SECONDS]
        for call in found:
            call.told = now
        return [call.step(now).text for call in found]


class _Call:
    """A call that runs. Mutable: its newest line, and when a log was last told of it."""

    def __init__(self, call: Item, began: float) -> None:
        self._label = "▸ " + one_line(call_text(call), LABEL_CHARS)
        self._began = self.told = began
        self._last = ""

    def says(self, text: str) -> None:
        lines = [line for line in clean(text).splitlines() if line.strip()]
        self._last = one_line(lines[-1], LABEL_CHARS) if lines else self._last

    def step(self, now: float, more: str = "") -> Step:
        clock = f"{more} · {lasted(now - self._began)}"
        return Step(self._label, clock, f" · {self._last}" if self._last else "")


def lasted(seconds: float) -> str:
    """How long, in whole seconds: 41 s, 2 min 05 s, 1 h 02 min."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, of_hour = divmod(minutes, 60)
    if hours:
        return f"{hours} h {of_hour:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
