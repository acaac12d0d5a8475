"""Talk: the way from the command line into the chat, short, because a person waits for the prompt.

The chat is another face: it is named here as text, and loaded when it is called. What it is opened with (settings,
tools) is found out after its prompt is there, in a thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

FACE, OPENING = "refold.tui.chat", "refold.tui.opening"


def talk(
    *,
    reference: str | None = None,
    last: bool = False,
    pick: bool = False,
    in_place: bool = False,
    model: str | None = None,
    settings: tuple[str, ...] = (),
    cwd: str | None = None,
    allow_exec: bool = False,
) -> int:
    """Talk until the person leaves; the exit code. Raises ConfigError, RolloutError."""
    opening = import_module(OPENING)

    def prepare() -> Any:
        from refold.cli.options import command_tools, folder, settings_from

        home, config = settings_from(settings)
        tools, approve, notice = command_tools(config, allow_exec)
        return opening.Opening(home, config, tools, approve is not None, folder(cwd), model, notice)

    return import_module(FACE).chat(prepare, opening.First(reference, last, pick, in_place))
