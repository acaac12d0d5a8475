"""World: the rules and surroundings in force, rendered whole or by difference (spec §7, oracle §8; docs/rules.md).

A world is a snapshot of plain JSON per section, in the shapes of the real program, and texts beside it. One file a
section; SECTIONS is the order in which they are told.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.core.jsonio import JSON
from refold.core.world.agents_md import AGENTS_MD
from refold.core.world.apps import APPS
from refold.core.world.developer import DEVELOPER
from refold.core.world.environment import ENVIRONMENT, environment_state, escaped
from refold.core.world.mode import MODE
from refold.core.world.model import MODEL_SWITCH, in_model
from refold.core.world.permissions import PERMISSIONS, permissions_state, permissions_text
from refold.core.world.personality import PERSONALITY
from refold.core.world.plugins import PLUGINS
from refold.core.world.section import (
    OWN,
    Fragment,
    Section,
    World,
    ids_in,
    messages,
    render_sections,
    value_of,
    with_value,
)
from refold.core.world.servers import SERVERS, servers_state
from refold.core.world.skills import SKILLS
from refold.core.world.snapshot import diff_patch, fragment_hash, merge_patch
from refold.core.world.window import GUIDANCE, WINDOW, in_window, window_told

__all__ = [
    "OWN",
    "SECTIONS",
    "Fragment",
    "Section",
    "World",
    "diff_patch",
    "environment_state",
    "escaped",
    "fragment_hash",
    "ids_in",
    "in_model",
    "in_window",
    "make_world",
    "merge_patch",
    "messages",
    "permissions_state",
    "permissions_text",
    "render",
    "servers_state",
    "value_of",
    "window_told",
    "with_value",
]

# The real program's order (spec §7.1), developer's and user's parts apart: the switch of models first, then what the
# developer wrote, then by section. A host's own come last.
SECTIONS: tuple[Section, ...] = (
    MODEL_SWITCH,
    DEVELOPER,
    GUIDANCE,
    AGENTS_MD,
    SKILLS,
    PERMISSIONS,
    MODE,
    ENVIRONMENT,
    APPS,
    PLUGINS,
    SERVERS,
    WINDOW,
    PERSONALITY,
)


def make_world(*, permissions: str, environment: JSON, agents_md: JSON) -> World:
    """The world of the three sections that every session has; `agents_md` is `{}` or `{"directory", "text"}`."""
    state: JSON = {"agents_md": agents_md, "environments": environment, "permissions": permissions_state(permissions)}
    return World(state, {"permissions": permissions})


def render(world: World, baseline: JSON | None, own: Iterable[Section] = ()) -> list[Fragment]:
    """What the model must be told: everything when `baseline` is None, else each section that changed since.

    `own`: a host's sections, behind the others.
    """
    return render_sections((*SECTIONS, *own), world, baseline)
