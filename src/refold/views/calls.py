"""Calls: a call and its result in words that a person reads; nothing that a call asks for is hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from refold.core.items import Item
from refold.core.jsonio import JSON, is_object, load
from refold.core.truncate import tokens_for
from refold.views.shown import as_seen

LIMITED = re.compile(r"^Warning: truncated output \(original token count: (\d+)\)", re.MULTILINE)
OUTPUT_LINES = 4  # of a command's output, the last ones are shown
OUTPUT_CHARS = 160  # of each of them
COLLECTED = 1 << 20  # bytes of one output that are kept; of a longer one only both ends


class Shown(NamedTuple):
    """A result: the last lines of its output, how it ended, and whether that is well."""

    lines: list[str]
    end: str
    well: bool


def visible(text: str) -> str:
    """The text with everything that moves the cursor, hides or turns text spelled out; lines stay lines."""
    return "".join(one if one.isprintable() or one in "\t\n" else one.encode("unicode_escape").decode() for one in text)


def visible_line(text: str) -> str:
    """The same on one line: its line ends are spelled out, too."""
    return visible(text).replace("\n", "\\n")


def call_text(call: Item) -> str:
    """The command of exec_command, else the tool's name and arguments; nothing of it is hidden."""
    command = command_in(call)
    text = f"{call.get('name')} {call.get('arguments') or call.get('input') or ''}" if command is None else command
    return visible(text)


def command_in(call: Item) -> str | None:
    """The command that a call of exec_command asks for, exactly; None when it asks for none."""
    command = arguments_of(call).get("cmd") if call.get("name") == "exec_command" else None
    return command if isinstance(command, str) else None


def arguments_of(call: Item) -> JSON:
    """A call's arguments as an object, as some servers send it or as JSON text; empty when they are none."""
    value: Any = call.get("arguments")
    if isinstance(value, str):
        try:
            value, _ = load(value.encode("utf-8", "replace"))
        except ValueError:
            return {}
    return value if is_object(value) else {}


def result_shown(output: str, details: Mapping[str, Any], *, success: bool) -> Shown:
    """A result, from what the model reads of it and the facts beside that."""
    code, seconds, told = details.get("exit_code"), details.get("duration"), str(details.get("output", output))
    lines = [line for line in as_seen(told).splitlines() if line.strip()]
    well = success and not code
    end = "ok" if well else f"exit {code}" if code is not None else "failed"
    if details.get("session_id") is not None:
        end, well = "goes on in the background", True
    end += f", {seconds:.1f} s" if isinstance(seconds, float) else ""
    if len(lines) > OUTPUT_LINES and len(told) < COLLECTED:
        end += f", {len(lines) - OUTPUT_LINES:,} lines before"
    if limited := LIMITED.search(output):
        end += f"; limited for the model: {tokens_for(len(output)):,} of {int(limited[1]):,} tokens"
    return Shown([line[:OUTPUT_CHARS] for line in lines[-OUTPUT_LINES:]], end, well)
