"""Calls: a call and its result in words that a person reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.core.items import Item
    from refold.session.events import ToolEnded

LIMITED = re.compile(r"^Warning: truncated output \(original token count: (\d+)\)", re.MULTILINE)
OUTPUT_LINES = 4  # of a command's output, the last ones are shown
OUTPUT_CHARS = 160  # of each of them
COLLECTED = 1 << 20  # bytes of one output that are kept; of a longer one only both ends


def visible(text: str) -> str:
    """The text with everything that moves the cursor, hides or turns text spelled out; lines stay lines."""
    return "".join(one if one.isprintable() or one in "\t\n" else one.encode("unicode_escape").decode() for one in text)


def call_text(call: Item) -> str:
    """The command of exec_command, else the tool's name and arguments; nothing of it is hidden."""
    command = command_in(call)
    text = f"{call.get('name')} {call.get('arguments') or call.get('input') or ''}" if command is None else command
    return visible(text)


def command_in(call: Item) -> str | None:
    """The command that a call of exec_command asks for, exactly; None when it asks for none."""
    from refold.core.jsonio import load

    if call.get("name") != "exec_command":
        return None
    try:
        value: Any = load(str(call.get("arguments")).encode("utf-8", "replace"))[0]
    except ValueError:
        return None
    command = value.get("cmd") if isinstance(value, dict) else None
    return command if isinstance(command, str) else None


def result_lines(event: ToolEnded) -> list[tuple[str, str]]:
    """(text, look) of a result: the output's last lines, and how it ended."""
    from refold.core.truncate import tokens_for
    from refold.views.shown import clean

    code, seconds = event.details.get("exit_code"), event.details.get("duration")
    output = str(event.details.get("output", event.output))
    lines = [line for line in clean(output).splitlines() if line.strip()]
    shown = [(f"    {line[:OUTPUT_CHARS]}", "dim") for line in lines[-OUTPUT_LINES:]]
    result = "ok" if event.success and not code else f"exit {code}" if code is not None else "failed"
    told = result + (f", {seconds:.1f} s" if isinstance(seconds, float) else "")
    if len(lines) > OUTPUT_LINES and len(output) < COLLECTED:
        told += f", {len(lines) - OUTPUT_LINES:,} lines before"
    if limited := LIMITED.search(event.output):
        told += f"; limited for the model: {tokens_for(len(event.output)):,} of {int(limited[1]):,} tokens"
    return [*shown, (f"  {told}", "green" if result == "ok" else "red")]
