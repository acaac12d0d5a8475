"""Plugins: the folders with skills and MCP servers that are in use, told by name (docs/skills.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refold.core.fragments import tagged
from refold.core.jsonio import JSON, is_list
from refold.core.plugin import Plugin
from refold.core.skill import without_markup
from refold.core.templates import template
from refold.core.world.section import OWN, Fragment, Section, World, value_of

ID = f"{OWN}.plugins"  # the lines that are told
THEIRS = "plugins_instructions"  # the real program's snapshot only says whether it told of them
TAG = "plugins_instructions"
KIND_PLUGINS = "plugins.instructions"
MOST_CHARS = 300  # of one description
MOST_PLUGINS = 50  # that are told one by one; of the others their number


def with_plugins(world: World, plugins: Sequence[Plugin], told: JSON | None = None) -> World:
    """The world with these plugins in use. `told`: the baseline, or None."""
    if not plugins:
        return world.with_section(THEIRS, False) if value_of(told, ID) is not None else world
    lines = [_line(plugin) for plugin in plugins[:MOST_PLUGINS]]
    if len(plugins) > MOST_PLUGINS:
        lines.append(f"({len(plugins) - MOST_PLUGINS:,} more)")
    return world.with_section(THEIRS, True).with_section(ID, lines)


def _line(plugin: Plugin) -> str:
    text = plugin.description
    about = text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1].rstrip() + "…"
    brings = [f"{len(plugin.skills):,} skills"] if plugin.skills else []
    brings += [f"MCP servers {', '.join(plugin.servers)}"] if plugin.servers and plugin.trusted else []
    return without_markup(
        f"- {plugin.name}" + (f": {about}" if about else "") + (f" ({'; '.join(brings)})" if brings else "")
    )


def _render(world: World, before: Any) -> list[Fragment]:
    now = value_of(world.state, ID)
    if now is None and before is None:
        return []
    lines = "".join(f"{line}\n" for line in now) if is_list(now) else ""
    text = template("plugins") + lines + template("plugins_use") if lines else template("plugins_gone")
    return [Fragment("developer", KIND_PLUGINS, tagged(TAG, f"\n{text}"))]


PLUGINS = Section(ID, _render)
