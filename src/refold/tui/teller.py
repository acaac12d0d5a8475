"""Teller: a turn's events as a person follows them: lines for the surface, and what the board says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from refold.core.items import Item, message_text
from refold.core.records import ItemRecorded, TurnEnded, TurnStarted, UsageCounted
from refold.session.events import (
    CompactionEnded,
    CompactionStarted,
    Event,
    LogCaughtUp,
    LogChanged,
    LogWaits,
    Notice,
    PreviewDropped,
    ReasoningPreview,
    SamplingStarted,
    TextPreview,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    Waiting,
)
from refold.tui.board import Board, Running
from refold.tui.surface import Surface
from refold.views.calls import call_text, result_shown
from refold.views.shown import clean, one_line, shown_text

if TYPE_CHECKING:
    from refold.session.session import Session

NOTICEABLE_SECONDS = 1.0  # a shorter wait before a request is sent again is not worth a line
LONGEST_THOUGHT = 2_000  # characters: only the newest line is shown
LONGEST_PROGRESS = 4_000  # characters: only the newest lines are shown


class Teller:
    """Mutable: it remembers what it has already shown of the answer that is being written."""

    def __init__(self, session: Session, surface: Surface, board: Board, clock: Callable[[], float]) -> None:
        self._session = session
        self._surface = surface
        self._board = board
        self._clock = clock
        self._streamed = ""
        board.queued = dict(session.memory.thread.steers)
        self.count()

    def count(self) -> None:
        """What the context holds now, and what was used so far."""
        memory, board = self._session.memory, self._board
        board.model, board.window, board.limit = (
            memory.profile.slug,
            memory.profile.context_window,
            memory.profile.compact_limit,
        )
        board.used, board.total = memory.tokens, memory.thread.total_usage.total_tokens
        self._surface.changed()

    def show(self, event: Event) -> None:
        match event:
            case TextPreview(text=text):
                self._stream(clean(text))
            case ReasoningPreview(text=text):
                self._board.thought = (self._board.thought + clean(text))[-LONGEST_THOUGHT:]
            case ToolProgress(call=call, text=text):
                self._progress(call, text)
            case PreviewDropped():
                self._drop()
            case ItemRecorded(item=item):
                self._item(item)
                self.count()
            case ToolStarted() | ToolEnded():
                self._tool(event)
            case CompactionStarted() | CompactionEnded():
                self._compaction(event)
                self.count()
            case Notice(text=text):
                self._surface.say(f"• {text}", "yellow")
            case LogWaits() | LogCaughtUp() | LogChanged():
                self._surface.say(f"• {clean(str(event))}", "yellow")
            case TurnStarted() | SamplingStarted() | Waiting() | TurnEnded():
                self._goes_on(event)
            case UsageCounted():
                self.count()
            case _:
                return
        self._surface.changed()

    # --- what is being written -----------------------------------------------------------------------------------

    def _stream(self, text: str) -> None:
        self._board.thought = ""
        self._streamed += text
        self._surface.part(text)

    def _drop(self) -> None:
        self._board.thought = ""
        if self._streamed:
            self._streamed = ""
            self._surface.part(" [broken off]")
            self._surface.end_part()

    def _item(self, item: Item) -> None:
        kind, item_id = item.get("type"), str(item.get("id"))
        if item_id in self._board.queued:
            del self._board.queued[item_id]
            self._surface.said(message_text(item))
        elif kind == "message" and item.get("role") == "assistant":
            self._finish(clean(message_text(item)))
        elif kind == "reasoning":
            self._board.thought = ""
            summary = one_line(shown_text(item).replace("*", ""))
            if not summary.startswith("[not shown"):
                self._surface.say(f"∴ {summary}", "dim")

    def _finish(self, text: str) -> None:
        """The record is the truth: show what was not streamed, or all of it when the stream said something else."""
        rest = text.removeprefix(self._streamed) if text.startswith(self._streamed) else "\n" + text
        self._streamed = ""
        self._surface.part(rest)
        self._surface.end_part()

    # --- tools -----------------------------------------------------------------------------------------------------

    def _tool(self, event: ToolStarted | ToolEnded) -> None:
        call_id, what = str(event.call.get("call_id")), call_text(event.call)
        if isinstance(event, ToolStarted):
            self._board.running[call_id] = Running(one_line(what), self._clock())
            self._surface.say("▸ " + what.replace("\n", "\n  "), "cyan")
            return
        self._board.running.pop(call_id, None)
        if self._board.running:  # several at once: which one this is
            self._surface.say(f"▸ {one_line(what, 100)}:", "dim")
        shown = result_shown(event.output, event.details, success=event.success)
        for line in shown.lines:
            self._surface.say(f"    {line}", "dim")
        self._surface.say(f"  {shown.end}", "green" if shown.well else "red")

    def _progress(self, call: Item, text: str) -> None:
        call_id = str(call.get("call_id"))
        if running := self._board.running.get(call_id):
            self._board.running[call_id] = running._replace(said=clean(text)[-LONGEST_PROGRESS:])

    # --- the turn --------------------------------------------------------------------------------------------------

    def _goes_on(self, event: TurnStarted | SamplingStarted | Waiting | TurnEnded) -> None:
        board, now = self._board, self._clock()
        match event:
            case TurnStarted():
                board.state, board.since = "working", now
            case SamplingStarted() if board.state == "waiting":
                board.state = "working"
            case Waiting(attempt=attempt, of=of, seconds=seconds, reason=reason, level=level):
                board.state, board.until = "waiting", now + seconds
                if level == "stream" or seconds >= NOTICEABLE_SECONDS:
                    line = f"⟳ trying again in {seconds:.1f} s ({attempt} of {of}): {one_line(reason)}"
                    self._surface.say(line, "yellow")
            case TurnEnded(outcome=outcome, duration_ms=ms):
                self._drop()
                board.running.clear()
                if outcome == "interrupted":
                    self._surface.say(f"interrupted after {ms / 1000:.1f} s", "yellow")
                self.count()
            case _:
                pass

    def _compaction(self, event: CompactionStarted | CompactionEnded) -> None:
        if isinstance(event, CompactionStarted):
            self._board.state = "compacting"
            at = f" (limit {event.limit:,})" if event.limit else ""
            self._surface.say(f"⇣ compacting: {event.tokens:,} tokens{at}", "magenta")
            return
        self._board.state = "working"
        refused = one_line(event.error or "the summary would have been larger")
        what = "compacted" if event.installed else f"not compacted: {refused}"
        left_out = f", {event.dropped} items did not fit into the request" if event.dropped else ""
        self._surface.say(f"⇣ {what}: {event.before:,} → {event.after:,} tokens{left_out}", "magenta")
