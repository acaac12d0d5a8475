"""JSON events: a turn for programs, in the event lines of the real program's `exec --json`, and refold's own types.

Its types: thread.started, turn.started, item.started, item.completed, turn.completed, turn.failed, error.
refold's own: refold.compaction.started, refold.compaction.completed, refold.turn.interrupted; refold.tool.started and
refold.tool.completed for calls that are not commands; refold.tool.progress for any call; refold.log.waiting,
refold.log.caught_up and refold.log.changed for what happens to the session's file.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from refold.core.items import Item, message_text
from refold.core.jsonio import dump
from refold.core.records import ItemRecorded, TurnEnded, TurnStarted
from refold.session.events import (
    CompactionEnded,
    CompactionStarted,
    Event,
    LogCaughtUp,
    LogChanged,
    LogWaits,
    Notice,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    Waiting,
)
from refold.session.session import Session
from refold.tools.commands import shell_of
from refold.views.calls import arguments_of, command_in
from refold.views.shown import shown_text

JSON = dict[str, Any]


class JsonView:
    """Mutable: it numbers the items and remembers which call has which number, and which command goes on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next = 0
        self._calls: dict[str, str] = {}
        self._running: dict[Any, tuple[str, str, str]] = {}  # by session id: item id, command, output so far

    def begin(self) -> None:
        self._print({"type": "thread.started", "thread_id": self._session.id})

    def watching(self) -> AbstractContextManager[None]:
        """A program is told what happens, not that nothing does."""
        return nullcontext()

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
            case ToolProgress(call=call, text=text):
                return [self._progress(call, text)]
            case ToolEnded():
                return self._tool_ended(event)
            case Waiting(attempt=attempt, of=of, reason=reason, level="stream"):
                return [{"type": "error", "message": f"Reconnecting... {attempt}/{of} ({reason})"}]
            case Notice(text=text):
                return [self._item("error", message=text)]
            case LogWaits() | LogCaughtUp() | LogChanged():
                return [_log(event)]
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
        return {"type": "item.started", "item": _execution(item_id, command, "", None, "in_progress")}

    def _progress(self, call: Item, text: str) -> JSON:
        item_id = self._calls.get(str(call.get("call_id")))
        about = {"call_id": call.get("call_id"), "tool": call.get("name"), **({"item_id": item_id} if item_id else {})}
        return {"type": "refold.tool.progress", **about, "text": text}

    def _tool_ended(self, event: ToolEnded) -> list[JSON]:
        call, details = event.call, event.details
        command = command_in(call)
        if command is None:
            status = "completed" if event.success and not details.get("exit_code") else "failed"
            ended = {"type": "refold.tool.completed", **_called(call), "output": event.output, "status": status}
            return [ended, *self._went_on(call, details)]
        item_id = self._calls.pop(str(call.get("call_id")), None) or self._new_id()
        output = str(details.get("output", event.output))
        if details.get("session_id") is not None:  # it goes on: so does its item
            self._running[details["session_id"]] = (item_id, command, output)
            return []
        return [_executed(item_id, command, output, details.get("exit_code"), event.success)]

    def _went_on(self, call: Item, details: dict[str, Any]) -> list[JSON]:
        """The end of a command's item, when this call of write_stdin saw the command's end."""
        number = arguments_of(call).get("session_id")
        if not isinstance(number, int | float) or number not in self._running:
            return []
        item_id, command, before = self._running.pop(number)
        output, code = before + str(details.get("output", "")), details.get("exit_code")
        if code is not None:
            return [_executed(item_id, command, output, code, code == 0)]
        self._running[number] = (item_id, command, output)
        return []

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


def _execution(item_id: str, command: str, output: str, code: int | None, status: str) -> JSON:
    told = {"command": _shell_line(command), "aggregated_output": output, "exit_code": code, "status": status}
    return {"id": item_id, "type": "command_execution", **told}


def _executed(item_id: str, command: str, output: str, code: int | None, success: bool) -> JSON:
    status = "completed" if success and not code else "failed"
    return {"type": "item.completed", "item": _execution(item_id, command, output, code, status)}


def _shell_line(command: str) -> str:
    return shlex.join([shell_of(None), "-lc", command])


def _log(event: LogWaits | LogCaughtUp | LogChanged) -> JSON:
    told: JSON = {"path": str(event.path), "message": str(event)}
    match event:
        case LogWaits(why=why, records=records, size=size):
            return {"type": "refold.log.waiting", **told, "why": why, "records": records, "bytes": size}
        case LogCaughtUp(records=records):
            return {"type": "refold.log.caught_up", **told, "records": records}
        case LogChanged(what=what):
            return {"type": "refold.log.changed", **told, "what": what}


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
