"""Calls: what a call of the model asks for, as a person reads it."""

from __future__ import annotations

from typing import Any

from refold.core.items import Item
from refold.core.jsonio import load
from refold.views.shown import clean


def command_of(call: Item) -> str:
    """A call as a person reads it: the command of exec_command, else the tool's name and arguments."""
    command = command_in(call)
    return clean(
        f"{call.get('name')} {call.get('arguments') or call.get('input') or ''}" if command is None else command
    )


def command_in(call: Item) -> str | None:
    """The command that a call of exec_command asks for, exactly; None when it asks for none."""
    command = arguments_of(call).get("cmd") if call.get("name") == "exec_command" else None
    return command if isinstance(command, str) else None


def arguments_of(call: Item) -> dict[str, Any]:
    """A call's arguments as an object; empty when they are none."""
    try:
        value, _ = load(str(call.get("arguments")).encode("utf-8", "replace"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
