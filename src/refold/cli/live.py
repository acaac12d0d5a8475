"""Live: a turn as a person watches it: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from refold.cli.status import StatusLine, laid_out
from refold.cli.steps import Steps
from refold.cli.style import gauge, money, paint, small_gauge
from refold.core.items import message_text
from refold.core.records import ItemRecorded, TurnEnded
from refold.session.events import (
    CompactionEnded,
    CompactionStarted,
    Event,
    LogCaughtUp,
    LogChanged,
    LogWaits,
    Notice,
    PreviewDropped,
    TextPreview,
    ToolEnded,
    ToolStarted,
    Waiting,
)
from refold.session.session import Session
from refold.views.calls import call_text, result_shown
from refold.views.shown import clean

NOTICEABLE_SECONDS = 1.0  # a shorter wait before a request is sent again is not worth a line
TICK_SECONDS = 0.25  # a second must not be skipped; what is over sooner is not worth a flicker


class LiveView:
    """Mutable: it remembers what it has already printed of the answer that is being written, and what goes on."""

    def __init__(self, session: Session, status: StatusLine | None = None) -> None:
        self._session = session
        self._status = status or StatusLine()
        self._steps = Steps(time.monotonic)
        self._used = session.memory.thread.total_usage  # before the turn that runs
        self._streamed = ""
        self._tick: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        profile = self._session.model.profile
        self._say(f"session {self._session.id} · {profile.slug} · turn {self._session.memory.thread.turns + 1}", "dim")

    @contextmanager
    def watching(self) -> Generator[None]:
        """Inside, a terminal shows what goes on and how long already; a log is told now and then."""
        self._steps.begin()
        self._wait_for_tick()
        try:
            yield
        finally:
            if self._tick is not None:
                self._tick.cancel()
            self._status.hide()

    def show(self, event: Event) -> None:
        self._steps.note(event)
        was_drawn = self._status.is_drawn
        self._print(event)
        if was_drawn and not isinstance(event, TextPreview | PreviewDropped | ItemRecorded):
            self._draw()  # not at once after stdout was printed to: by way of `tee` that reaches the terminal late

    def _print(self, event: Event) -> None:
        match event:
            case TextPreview(text=text):
                self._stream(clean(text))
            case PreviewDropped() if self._streamed:
                self._streamed = ""
                self._write(paint(" [broken off]", "dim") + "\n")
            case ItemRecorded(item={"type": "message", "role": "assistant"} as item):
                self._finish(clean(message_text(item)))
            case ToolStarted(call=call):
                self._say("▸ " + call_text(call).replace("\n", "\n  "), "cyan")
            case ToolEnded():
                self._tool_ended(event)
            case Waiting(attempt=attempt, of=of, seconds=seconds, reason=reason, level=level):
                if level == "stream" or seconds >= NOTICEABLE_SECONDS:
                    self._say(f"⟳ trying again in {seconds:.1f} s ({attempt} of {of}): {reason}", "yellow")
            case CompactionStarted(tokens=tokens, limit=limit):
                at = f" (limit {limit:,})" if limit else ""
                self._say(f"⇣ compacting: {tokens:,} tokens{at}", "magenta")
            case CompactionEnded():
                self._compacted(event)
            case Notice(text=text):
                self._say(f"• {text}", "yellow")
            case LogWaits() | LogCaughtUp() | LogChanged():
                self._say(f"• {event}", "yellow")
            case TurnEnded():
                self._ended(event)
            case _:
                pass

    # --- what goes on -------------------------------------------------------------------------------------------

    def _wait_for_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        self._wait_for_tick()
        if self._status.works:
            self._draw()
        else:
            for line in self._steps.overdue():
                self._say(f"    {line}", "dim")

    def _draw(self) -> None:
        """Bring the status line up to date. It stays away while an answer is being written."""
        step = None if self._streamed else self._steps.current()
        self._status.show(laid_out(step, self._small_gauge(), self._status.columns) if step else "")

    def _small_gauge(self) -> str:
        profile, tokens = self._session.memory.profile, self._steps.tokens
        return "" if tokens is None else small_gauge(tokens, profile.context_window, profile.compact_limit)

    # --- lines --------------------------------------------------------------------------------------------------

    def _stream(self, text: str) -> None:
        self._streamed += text
        self._write(text)

    def _finish(self, text: str) -> None:
        """The record is the truth: print what was not streamed, or all of it when the stream said something else."""
        rest = text.removeprefix(self._streamed) if text.startswith(self._streamed) else "\n" + text
        self._write(rest + "\n")
        self._streamed = ""

    def _write(self, text: str) -> None:
        self._status.hide()
        sys.stdout.write(text)
        sys.stdout.flush()

    def _tool_ended(self, event: ToolEnded) -> None:
        shown = result_shown(event.output, event.details, success=event.success)
        for line in shown.lines:
            self._say(f"    {line}", "dim")
        self._say(f"  {shown.end}", "green" if shown.well else "red")

    def _compacted(self, event: CompactionEnded) -> None:
        refused = event.error or "the summary would have been larger"
        what = "compacted" if event.installed else f"not compacted: {refused}"
        left_out = f", {event.dropped} items did not fit into the request" if event.dropped else ""
        self._say(f"⇣ {what}: {event.before:,} → {event.after:,} tokens{left_out}", "magenta")

    def _ended(self, event: TurnEnded) -> None:
        memory = self._session.memory
        profile, total = memory.profile, memory.thread.total_usage
        turn, self._used = total - self._used, total
        told = [
            f"{event.outcome} in {event.duration_ms / 1000:.1f} s",
            f"{turn.input_tokens:,} tokens in ({turn.cached_input_tokens:,} cached), {turn.output_tokens:,} out",
            f"session {total.total_tokens:,} tokens",
        ]
        if (price := memory.config.model_price) is not None:
            told.append(f"cost {money(price.of(turn))}, session {money(price.of(total))}")
        self._say(" · ".join(told), "dim")
        print(
            gauge(memory.tokens, profile.context_window, profile.compact_limit, stream=sys.stderr),
            file=sys.stderr,
            flush=True,
        )

    def _say(self, text: str, style: str) -> None:
        self._status.hide()
        if self._streamed and sys.stdout.isatty():
            print(flush=True)  # the rest of the answer goes on below; a pipe gets it in one piece
        print(paint(clean(text), style, stream=sys.stderr), file=sys.stderr, flush=True)
