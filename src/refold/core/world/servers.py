"""Servers: what MCP servers say of how their tools are meant to be used (docs/mcp.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.core.fragments import KIND_SERVERS, tagged
from refold.core.jsonio import JSON, is_object
from refold.core.skill import without_markup
from refold.core.templates import template
from refold.core.truncate import Budget, cut_middle
from refold.core.world.section import OWN, Fragment, Section, World, value_of

ID = f"{OWN}.mcp"  # server → its text
TAG = "mcp_instructions"
MOST = Budget("bytes", 8 * 1024)  # of one server's text: it stands in every request


def servers_state(instructions: Mapping[str, str]) -> JSON | None:
    """The section's snapshot; None where no server says anything."""
    texts = {name: cut_middle(text.strip(), MOST) for name, text in instructions.items() if text.strip()}
    return texts or None


def _render(world: World, before: Any) -> list[Fragment]:
    now = value_of(world.state, ID)
    if not now and not before:
        return []
    texts = now if is_object(now) else {}
    said = "".join(f"\n## {without_markup(name)}\n{_quoted(text)}\n" for name, text in texts.items())
    return [
        Fragment("developer", KIND_SERVERS, tagged(TAG, "\n" + template("servers" if said else "servers_gone") + said))
    ]


def _quoted(text: str) -> str:
    """A server's words: they can end no element, begin none, and not speak in another server's name."""
    return "\n".join(f"  {line}" for line in without_markup(text).splitlines())


SERVERS = Section(ID, _render)
