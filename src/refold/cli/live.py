"""Live: a turn as a person watches it: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import re
import sys

from refold.cli.style import gauge, paint
from refold.core.items import Item, message_text
from refold.core.jsonio import load
from refold.core.records import ItemRecorded, TurnEnded
from refold.core.truncate import tokens_for
from refold.session.events import (
    CompactionEnded,
    CompactionStarted,
    Event,
    Notice,
    PreviewDropped,
    TextPreview,
    ToolEnded,
    ToolStarted,
    Waiting,
)
from refold.session.session import Session
from refold.views.shown import clean

LIMITED = re.compile(r"^Warning: truncated output \(original token count: (\d+)\)", re.MULTILINE)
NOTICEABLE_SECONDS = 1.0  # a shorter wait before a request is sent again is not worth a line
COLLECTED = 1 << 20  # bytes of one output that are kept
OUTPUT_LINES = 4  # of a command's output, the last ones are shown


class LiveView:
    """Mutable: it remembers what it has already printed of the answer that is being written."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._streamed = ""

    def begin(self) -> None:
        profile = self._session.model.profile
        self._say(f"session {self._session.id} · {profile.slug} · turn {self._session.memory.thread.turns + 1}", "dim")

    def show(self, event: Event) -> None:
        match event:
            case TextPreview(text=text):
                self._stream(clean(text))
            case PreviewDropped() if self._streamed:
                self._streamed = ""
                print(paint(" [broken off]", "dim"), flush=True)
            case ItemRecorded(item={"type": "message", "role": "assistant"} as item):
                self._finish(clean(message_text(item)))
            case ToolStarted(call=call):
                self._say("▸ " + command_of(call).replace("\n", "\n  "), "cyan")
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
            case TurnEnded():
                self._ended(event)
            case _:
                pass

    def _stream(self, text: str) -> None:
        self._streamed += text
        sys.stdout.write(text)
        sys.stdout.flush()

    def _finish(self, text: str) -> None:
        """The record is the truth: print what was not streamed, or all of it when the stream said something else."""
        rest = text.removeprefix(self._streamed) if text.startswith(self._streamed) else "\n" + text
        sys.stdout.write(rest + "\n")
        sys.stdout.flush()
        self._streamed = ""

    def _tool_ended(self, event: ToolEnded) -> None:
        code, seconds = event.details.get("exit_code"), event.details.get("duration")
        shown = str(event.details.get("output", event.output))
        lines = [line for line in clean(shown).splitlines() if line.strip()]
        for line in lines[-OUTPUT_LINES:]:
            self._say(f"    {line[:160]}", "dim")
        result = "ok" if event.success and not code else f"exit {code}" if code is not None else "failed"
        took = f", {seconds:.1f} s" if isinstance(seconds, float) else ""
        whole = len(shown) < COLLECTED  # of a longer output only both ends were kept
        more = f", {len(lines) - OUTPUT_LINES:,} lines before" if len(lines) > OUTPUT_LINES and whole else ""
        limited = LIMITED.search(event.output)
        cut = (
            f"; limited for the model: {tokens_for(len(event.output)):,} of {int(limited[1]):,} tokens"
            if limited
            else ""
        )
        self._say(f"  {result}{took}{more}{cut}", "green" if result == "ok" else "red")

    def _compacted(self, event: CompactionEnded) -> None:
        refused = event.error or "the summary would have been larger"
        what = "compacted" if event.installed else f"not compacted: {refused}"
        left_out = f", {event.dropped} items did not fit into the request" if event.dropped else ""
        self._say(f"⇣ {what}: {event.before:,} → {event.after:,} tokens{left_out}", "magenta")

    def _ended(self, event: TurnEnded) -> None:
        memory = self._session.memory
        bar = gauge(memory.tokens, memory.profile.context_window, memory.profile.compact_limit, stream=sys.stderr)
        used = memory.thread.total_usage
        self._say(
            f"{event.outcome} in {event.duration_ms / 1000:.1f} s · {used.total_tokens:,} tokens used so far", "dim"
        )
        print(bar, file=sys.stderr, flush=True)

    def _say(self, text: str, style: str) -> None:
        if self._streamed and sys.stdout.isatty():
            print(flush=True)  # the rest of the answer goes on below; a pipe gets it in one piece
        print(paint(clean(text), style, stream=sys.stderr), file=sys.stderr, flush=True)


def command_of(call: Item) -> str:
    """A call as a person reads it: the command of exec_command, else the tool's name and arguments."""
    command = command_in(call)
    return clean(
        f"{call.get('name')} {call.get('arguments') or call.get('input') or ''}" if command is None else command
    )


def command_in(call: Item) -> str | None:
    """The command that a call of exec_command asks for, exactly; None when it asks for none."""
    if call.get("name") != "exec_command":
        return None
    try:
        value, _ = load(str(call.get("arguments")).encode("utf-8", "replace"))
    except ValueError:
        return None
    command = value.get("cmd") if isinstance(value, dict) else None
    return command if isinstance(command, str) else None
