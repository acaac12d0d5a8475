"""Command hooks: the commands of `[hooks]` as a Hook: what they are told, and what becomes of what they answer.

Rule 1: they are run one after the other, in their order; each is told the arguments as the one before left them.
Rule 2: a command before a call that could not look (not started, out of time, killed) keeps the call from running;
        whatever else goes wrong with a command is a Notice that names it, and the turn goes on.
"""

from __future__ import annotations

import json

import msgspec

from refold.core.compaction.due import Due
from refold.core.hook_answer import HookAnswer, HookEvent, answer_of
from refold.core.hook_settings import HookCommand
from refold.core.items import Item, Part
from refold.core.jsonio import JSON, dump, is_object
from refold.core.records import TurnEnded
from refold.errors import CompactionBlocked, ToolFailed, TurnRefused
from refold.session.events import Notice
from refold.session.hook_process import run_hook
from refold.session.hooks import Hook
from refold.session.memory import Memory
from refold.tools import ToolResult

SHOWN_CHARS = 60  # of a command, in a notice


class CommandHooks(Hook):
    """Runs the configured commands in a session's folder (`cwd`, absolute)."""

    def __init__(self, memory: Memory, cwd: str) -> None:
        self._memory = memory
        self._cwd = cwd

    async def before_turn(self, text: str) -> None:
        """Raises TurnRefused when a command refuses the message."""
        for command in self._memory.config.hooks.user_prompt_submit:
            answer = await self._answer("UserPromptSubmit", command, {"prompt": text})
            if answer.refused is not None:
                raise TurnRefused(f"a UserPromptSubmit hook refused the message: {answer.refused}")

    async def before_tool(self, call: Item) -> Item | None:
        """The call with the arguments that the commands want, if any does. Raises ToolFailed when one refuses."""
        asked, name = call, str(call.get("name"))
        for command in self._memory.config.hooks.pre_tool_use:
            if not command.concerns(name):
                continue
            answer = await self._answer("PreToolUse", command, _told_of(asked))
            if answer.refused is not None:
                raise ToolFailed(f"a PreToolUse hook refused {name}: {answer.refused}")
            if not answer.decided:
                raise ToolFailed(f"{name} was not run: a PreToolUse hook that has to look at it first could not")
            if answer.updated is not None:
                asked = _with_input(asked, answer.updated)
        return None if asked is call else asked

    async def after_tool(self, call: Item, result: ToolResult) -> ToolResult | None:
        """The result with what the commands have to say to the model, if any does."""
        told = {**_told_of(call), "tool_response": _response(result)}
        changed: ToolResult | None = None
        for command in self._memory.config.hooks.post_tool_use:
            if not command.concerns(str(call.get("name"))):
                continue
            answer = await self._answer("PostToolUse", command, told)
            if answer.refused is not None:
                changed = _with_remark(changed or result, f"a PostToolUse hook says: {answer.refused}")
        return changed

    async def after_turn(self, ended: TurnEnded) -> None:
        """The turn has ended: what a command says against that is told the person."""
        told = {"turn_id": ended.turn_id, "outcome": ended.outcome, "last_assistant_message": ended.last_message}
        for command in self._memory.config.hooks.stop:
            answer = await self._answer("Stop", command, told)
            if answer.refused is not None:
                self._notice(f"a Stop hook says: {answer.refused}")

    async def before_compaction(self, why: Due) -> str | None:
        """What the commands want kept, a paragraph each. Raises CompactionBlocked: one says no, or could not look."""
        kept: list[str] = []
        for command in self._memory.config.hooks.pre_compact:
            if command.concerns(_trigger(why)):
                answer = await self._answer("PreCompact", command, _told_of_compaction(why))
                _check(answer, "PreCompact")
                kept += [answer.text] if answer.text else []
        return "\n\n".join(kept) or None

    async def after_compaction(self, why: Due, summary: str | None) -> str | None:
        """The summary as the commands leave it, if any changes it. Raises CompactionBlocked."""
        changed: str | None = None
        for command in self._memory.config.hooks.post_compact:
            if command.concerns(_trigger(why)):
                told = {**_told_of_compaction(why), "summary": summary if changed is None else changed}
                answer = await self._answer("PostCompact", command, told)
                _check(answer, "PostCompact")
                changed = answer.text or changed
        return changed

    async def _answer(self, event: HookEvent, command: HookCommand, told: JSON) -> HookAnswer:
        """Run one command; what went wrong with it is told at once."""
        path, turn_id = self._memory.path, self._memory.thread.open_turn
        said = {
            "session_id": self._memory.id,
            "transcript_path": str(path) if path else None,
            "cwd": self._cwd,
            "hook_event_name": event,
            "turn_id": turn_id,
            **told,
        }
        ended = await run_hook(command.command, dump(said) + b"\n", self._cwd, command.timeout)
        answer = answer_of(ended, event)
        if answer.trouble:
            self._notice(f"{event} hook `{_shown(command.command)}` {answer.trouble}")
        return answer

    def _notice(self, text: str) -> None:
        self._memory.feed.publish(Notice(text))


# --- a compaction, in the words of hooks ---------------------------------------------------------------------------


def _trigger(why: Due) -> str:
    return "manual" if why.reason == "user_requested" else "auto"


def _told_of_compaction(why: Due) -> JSON:
    return {"trigger": _trigger(why), "reason": why.reason, "phase": why.phase, "tokens": why.tokens}


def _check(answer: HookAnswer, event: HookEvent) -> None:
    if answer.refused is not None:
        raise CompactionBlocked(f"a {event} hook said no: {answer.refused}")
    if not answer.decided:
        raise CompactionBlocked(f"a {event} hook that has to look at it first could not")


# --- a call and its result, in the words of hooks ------------------------------------------------------------------


def _told_of(call: Item) -> JSON:
    return {"tool_name": call.get("name"), "tool_input": _input_of(call), "tool_use_id": call.get("call_id")}


def _input_of(call: Item) -> JSON:
    """A call's arguments as an object, read as its tool will read them; what is none, under the name that it has."""
    if call.get("type") == "custom_tool_call":
        return {"input": call.get("input")}
    arguments = call.get("arguments")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = None
    return value if is_object(value) else {"arguments": arguments}


def _with_input(call: Item, updated: JSON) -> Item:
    if call.get("type") == "custom_tool_call":
        return {**call, "input": str(updated.get("input", ""))}
    return {**call, "arguments": dump(updated).decode()}


def _response(result: ToolResult) -> JSON:
    """A result for a command: the text that the model will read, whether it worked, a command's exit code."""
    code = {"exit_code": result.details["exit_code"]} if "exit_code" in result.details else {}
    return {"output": _text_of(result.output), "success": result.success, **code}


def _text_of(output: str | list[Part]) -> str:
    if isinstance(output, str):
        return output
    return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in output)


def _with_remark(result: ToolResult, remark: str) -> ToolResult:
    if isinstance(result.output, str):
        return msgspec.structs.replace(result, output=f"{result.output.rstrip()}\n\n{remark}".lstrip())
    return msgspec.structs.replace(result, output=[*result.output, {"type": "input_text", "text": remark}])


def _shown(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"
