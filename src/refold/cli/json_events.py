"""JSON events: a turn for programs, in the event lines of the real program's `exec --json`, and refold's own types.

Its types: thread.started, turn.started, item.started, item.completed, turn.completed, turn.failed, error.
refold's own: refold.compaction.started, refold.compaction.completed, refold.turn.interrupted; refold.tool.started and
refold.tool.completed for calls that are not commands.
"""

from __future__ import annotations

import shlex
import sys
from typing import Any

from refold.cli.live import command_in
from refold.core.items import Item, message_text
from refold.core.jsonio import dump
from refold.core.records import ItemRecorded, TurnEnded, TurnStarted
from refold.session.events import (
    CompactionEnded,
    CompactionStarted,
    Event,
    Notice,
    ToolEnded,
    ToolStarted,
    Waiting,
)
from refold.session.session import Session
from refold.tools.commands import Arguments, command_line
from refold.views.shown import shown_text

JSON = dict[str, Any]


class JsonView:
    """Mutable: it numbers the items and remembers which call has which number."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next = 0
        self._calls: dict[str, str] = {}

    def begin(self) -> None:
        self._print({"type": "thread.started", "thread_id": self._session.id})

    def show(self, event: Event) -> None:
        for line in self._lines(event):
            self._print(line)

    def _lines(self, event: Event) -> list[JSON]:
        match event:
            case TurnStarted():
                return [{"type": "turn.started"}]
            case ItemRecorded(item={"type": "message", "role": "assistant"} as item):
                return [self._item("agent_message", text=message_text(item))]
            case ItemRecorded(item={"type": "reasoning", "summary": [_, *_]} as item):
                return [self._item("reasoning", text=shown_text(item))]
            case ToolStarted(call=call):
                return [self._tool_started(call)]
            case ToolEnded():
                return [self._tool_ended(event)]
            case Waiting(attempt=attempt, of=of, reason=reason, level="stream"):
                return [{"type": "error", "message": f"Reconnecting... {attempt}/{of} ({reason})"}]
            case Notice(text=text):
                return [self._item("error", message=text)]
            case CompactionStarted() | CompactionEnded():
                return [_compaction(event)]
            case TurnEnded():
                return self._ended(event)
            case _:
                return []

    def _new_id(self) -> str:
        self._next += 1
        return f"item_{self._next - 1}"

    def _item(self, kind: str, **fields: Any) -> JSON:
        return {"type": "item.completed", "item": {"id": self._new_id(), "type": kind, **fields}}

    def _tool_started(self, call: Item) -> JSON:
        command = command_in(call)
        if command is None:
            return {"type": "refold.tool.started", **_called(call)}
        item_id = self._calls[str(call.get("call_id"))] = self._new_id()
        told = {"command": _shell_line(command), "aggregated_output": "", "exit_code": None, "status": "in_progress"}
        return {"type": "item.started", "item": {"id": item_id, "type": "command_execution", **told}}

    def _tool_ended(self, event: ToolEnded) -> JSON:
        call, details = event.call, event.details
        code = details.get("exit_code")
        status = "completed" if event.success and not code else "failed"
        command = command_in(call)
        if command is None:
            return {"type": "refold.tool.completed", **_called(call), "output": event.output, "status": status}
        item_id = self._calls.pop(str(call.get("call_id")), None) or self._new_id()
        output = details.get("output", event.output)
        told = {"command": _shell_line(command), "aggregated_output": output, "exit_code": code, "status": status}
        return {"type": "item.completed", "item": {"id": item_id, "type": "command_execution", **told}}

    def _ended(self, event: TurnEnded) -> list[JSON]:
        if event.outcome == "completed":
            used = self._session.memory.thread.total_usage
            usage = {
                "input_tokens": used.input_tokens,
                "cached_input_tokens": used.cached_input_tokens,
                "cache_write_input_tokens": used.cache_write_input_tokens,
                "output_tokens": used.output_tokens,
                "reasoning_output_tokens": used.reasoning_output_tokens,
            }
            return [{"type": "turn.completed", "usage": usage}]
        message = event.error or event.outcome
        first: JSON = {"type": "error", "message": message}
        if event.outcome == "interrupted":
            first = {"type": "refold.turn.interrupted", "turn_id": event.turn_id}
        return [first, {"type": "turn.failed", "error": {"message": message}}]

    def _print(self, line: JSON) -> None:
        sys.stdout.write(dump(line).decode() + "\n")
        sys.stdout.flush()


def _called(call: Item) -> JSON:
    arguments = call.get("arguments", call.get("input"))
    return {"call_id": call.get("call_id"), "tool": call.get("name"), "arguments": arguments}


def _shell_line(command: str) -> str:
    return shlex.join(command_line(Arguments(cmd=command)))


def _compaction(event: CompactionStarted | CompactionEnded) -> JSON:
    if isinstance(event, CompactionStarted):
        told: JSON = {"reason": event.reason, "phase": event.phase, "tokens": event.tokens, "limit": event.limit}
        return {"type": "refold.compaction.started", **told}
    return {
        "type": "refold.compaction.completed",
        "installed": event.installed,
        "tokens_before": event.before,
        "tokens_after": event.after,
        "limit": event.limit,
        "items_dropped": event.dropped,
        "made_room": event.made_room,
    }
