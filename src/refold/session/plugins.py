"""Plugins: what the plugins in use give a session: skills, a line each for the model, servers that may be started.

Whoever has none pays for two looks at folders that are not there: what reads plugins is imported when there are any.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold.core.config import Config
from refold.core.jsonio import JSON
from refold.core.mcp import McpServer
from refold.core.skill import Skill
from refold.core.world import World
from refold.core.world.plugins import ID, with_plugins
from refold.core.world.skills import with_skills
from refold.observe import Surroundings, Watch
from refold.observe.skills import skills_of

if TYPE_CHECKING:
    from refold.observe.plugins import Plugins


def plugins_of(config: Config, home: str | None, watch: Watch) -> Plugins | None:
    """The plugins in use; None where nothing names one and no folder may hold any. `home`: refold's folder."""
    tops = _tops(home)
    if not config.plugins and not any(map(os.path.isdir, tops)):
        return None
    from refold.observe.plugins import find_plugins

    return find_plugins(config.plugins, tops, watch)


def _tops(home: str | None) -> list[str]:
    """Where plugins may lie that nobody named: in refold's folder, in the real program's (only read)."""
    codex = os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")  # noqa: PTH111 - never raises
    return [*([f"{home}/plugins"] if home else []), f"{codex}/plugins"]


def all_skills(where: Surroundings, config: Config, watch: Watch) -> Sequence[Skill]:
    """The skills in force: the project's and the user's, then those of the plugins."""
    found = plugins_of(config, where.home, watch)
    return (*skills_of(where, watch).skills, *(_allowed(where, found) if found else ()))


def with_plugins_seen(world: World, where: Surroundings, config: Config, watch: Watch, told: JSON | None) -> World:
    """The world with the plugins in use and their skills in the list of skills; notices stand as a text beside them.

    `told`: the baseline.
    """
    found = plugins_of(config, where.home, watch)
    if found is None:
        return with_plugins(world, (), told)
    if skills := _allowed(where, found):
        budget = where.skills.list_bytes(where.context_window)
        listed = (*skills_of(where, watch).skills, *skills)
        world = with_skills(world, listed, budget, told=where.skills.include_instructions)
    world = with_plugins(world, found.plugins, told)
    return World(world.state, {**world.texts, ID: "\n".join(found.notices)}) if found.notices else world


def _allowed(where: Surroundings, found: Plugins) -> list[Skill]:
    return [skill for skill in found.skills if where.skills.allows(skill)]


def servers_with_plugins(config: Config, home: str | None) -> dict[str, McpServer]:
    """The servers that a session connects to: those of the settings, then those of plugins that the settings name.

    Of two with the same name the settings' one counts.
    """
    found = plugins_of(config, home, Watch()) if config.plugins else None
    plugins = found.plugins if found else ()
    theirs = {name: one for plugin in plugins if plugin.trusted for name, one in plugin.servers.items()}
    return {**theirs, **config.mcp_servers}
