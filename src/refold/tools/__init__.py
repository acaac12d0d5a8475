"""EDGE, processes: tools. A Tool takes a call's arguments and gives back what the model will read.

Public names: Tool (protocol), ToolContext, ToolResult, Toolbox; tool (decorator), image; exec_command, write_stdin,
view_image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from refold.core.items import Part
from refold.core.permissions import Confinement
from refold.core.truncate import Budget
from refold.tools.processes import Processes

if TYPE_CHECKING:
    from refold.tools.commands import exec_command, write_stdin
    from refold.tools.functions import FunctionTool, image, tool
    from refold.tools.images import view_image
    from refold.tools.toolbox import Toolbox

__all__ = [
    "FunctionTool",
    "Tool",
    "ToolContext",
    "ToolResult",
    "Toolbox",
    "exec_command",
    "image",
    "tool",
    "view_image",
    "write_stdin",
]


def _unheard(text: str) -> None:
    """Progress that nobody listens to."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a call may know about the session that makes it."""

    call_id: str
    cwd: str  # absolute path
    policy: Budget = Budget("tokens", 10_000)  # the model's truncation policy, after configuration
    new_id: str = "000000"  # six hex digits, unique enough to name a chunk of output
    modalities: tuple[str, ...] = ("text", "image")  # what the model can take in
    processes: Processes = msgspec.field(default_factory=Processes)  # the session's running commands
    confinement: Confinement = Confinement()  # how a command may run
    progress: Callable[[str], None] = _unheard  # tells whoever watches how far the call is


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gave.

    `output` goes to the model (text, or content parts). `success` false marks a failure that the model should see.
    `shaped`: already within the recording budget, not to be cut again. `details` is for programs and people (exit code,
    whole output kept, duration in seconds); the model never sees it.
    """

    output: str | list[Part]
    success: bool = True
    shaped: bool = False
    details: dict[str, Any] = {}


class Tool(Protocol):
    """Something that the model may call.

    `spec` is the entry of the request's `tools` array. `parallel` false means: never beside another call.
    `needs_approval` true means: where a person wants to be asked, asked before each call.
    `run` gets the decoded JSON arguments; it raises ToolFailed with a text for the model when it cannot do what was
    asked. When its task is cancelled it must leave no process behind.
    """

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> dict[str, Any]: ...

    @property
    def parallel(self) -> bool: ...

    @property
    def needs_approval(self) -> bool: ...

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult: ...


# Each name that is loaded when it is first used, and the module it lives in.
_HOMES = {
    "FunctionTool": "refold.tools.functions",
    "Toolbox": "refold.tools.toolbox",
    "exec_command": "refold.tools.commands",
    "image": "refold.tools.functions",
    "tool": "refold.tools.functions",
    "view_image": "refold.tools.images",
    "write_stdin": "refold.tools.commands",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = import_module(_HOMES[name])
    return getattr(found, name)
