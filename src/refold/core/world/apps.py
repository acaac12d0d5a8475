"""Apps: services that MCP servers reach and a message can name, as `[$name](app://name)` (docs/mcp.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.core.fragments import tagged
from refold.core.jsonio import JSON, is_object
from refold.core.skill import without_markup
from refold.core.templates import template
from refold.core.world.section import OWN, Fragment, Section, World, value_of

ID = f"{OWN}.apps"  # name → what it is for, in a line
THEIRS = "apps_instructions"  # the real program's snapshot only says whether it told of them
TAG = "apps_instructions"
KIND_APPS = "apps.instructions"  # the real program's word
MOST = 300  # characters of one description


def with_apps(world: World, apps: Mapping[str, str], told: JSON | None = None) -> World:
    """The world with these apps: name → what it is for. `told`: the baseline, or None."""
    lines = {name: " ".join(text.split())[:MOST] for name, text in apps.items()}
    if not lines:
        return world.with_section(THEIRS, False) if value_of(told, ID) is not None else world
    return world.with_section(THEIRS, True).with_section(ID, lines)


def _render(world: World, before: Any) -> list[Fragment]:
    now = value_of(world.state, ID)
    if now is None and before is None:
        return []
    apps = now if is_object(now) else {}
    lines = "".join(f"- {without_markup(f'{name}: {text}' if text else name)}\n" for name, text in apps.items())
    text = template("apps") + lines if lines else template("apps_gone")
    return [Fragment("developer", KIND_APPS, tagged(TAG, f"\n{text}"))]


APPS = Section(ID, _render)
