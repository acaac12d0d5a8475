"""refold: long-running agent sessions with a memory that survives.

The map of the house (imports go one way only):

    errors                      every exception, named by who must act
    core/                       pure: items, records, thread, prompt, wire, tokens, truncation, compaction
    model/ rollout/ tools/ observe/   the edges: network, disk, processes, surroundings
    session/                    Memory (log + thread + compaction) and Session (… + model + tools + the turn loop)
    views/                      what a log shows: transcript, context
    cli/                        the command line
    testing/                    shipped: a scripted model and a scripted provider on loopback

Start at `Session.start(model=…, tools=[…])`, or at `Memory.open(folder)` if you have a loop of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.core.config import Config
    from refold.core.limits import Limits, Price
    from refold.core.permissions import Question, Verdict
    from refold.core.profile import Profile, Provider
    from refold.core.truncate import Budget
    from refold.errors import RefoldError
    from refold.model.responses import ResponsesModel
    from refold.model.scripted import ScriptedModel
    from refold.session.hooks import Hook
    from refold.session.memory import Memory
    from refold.session.session import Session, TurnResult
    from refold.tools.commands import exec_command
    from refold.tools.functions import image, tool
    from refold.tools.images import view_image

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Config",
    "Hook",
    "Limits",
    "Memory",
    "Price",
    "Profile",
    "Provider",
    "Question",
    "RefoldError",
    "ResponsesModel",
    "ScriptedModel",
    "Session",
    "TurnResult",
    "Verdict",
    "__version__",
    "exec_command",
    "image",
    "tool",
    "view_image",
]

# Each public name and the module it lives in; loaded when it is first used, so that `import refold` costs nothing.
_HOMES = {
    "Budget": "refold.core.truncate",
    "Config": "refold.core.config",
    "Hook": "refold.session.hooks",
    "Limits": "refold.core.limits",
    "Memory": "refold.session.memory",
    "Price": "refold.core.limits",
    "Profile": "refold.core.profile",
    "Provider": "refold.core.profile",
    "Question": "refold.core.permissions",
    "RefoldError": "refold.errors",
    "ResponsesModel": "refold.model.responses",
    "ScriptedModel": "refold.model.scripted",
    "Session": "refold.session.session",
    "TurnResult": "refold.session.session",
    "Verdict": "refold.core.permissions",
    "exec_command": "refold.tools.commands",
    "image": "refold.tools.functions",
    "tool": "refold.tools.functions",
    "view_image": "refold.tools.images",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
