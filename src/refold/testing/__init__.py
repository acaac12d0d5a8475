"""Fakes that tests, examples and benchmarks share; shipped, so that a host can test its own agent with them.

Public names: ScriptedModel (a Model without a network), ResponsesServer and LoggedRequest (a scripted provider that
speaks real HTTP on loopback), Reply and its builders text_reply, call_reply, usage, read_script (JSON scripts).
From a shell: `python -m refold.testing.server SCRIPT.json`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.model.scripted import ScriptedModel
    from refold.testing.builders import Reply, call_reply, read_script, text_reply, usage
    from refold.testing.server import LoggedRequest, ResponsesServer

__all__ = [
    "LoggedRequest",
    "Reply",
    "ResponsesServer",
    "ScriptedModel",
    "call_reply",
    "read_script",
    "text_reply",
    "usage",
]

_HOME = {
    "LoggedRequest": "refold.testing.server",
    "ResponsesServer": "refold.testing.server",
    "ScriptedModel": "refold.model.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "refold.testing.builders")), name)
