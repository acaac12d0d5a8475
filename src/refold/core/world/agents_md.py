"""AGENTS.md: the rules of the user and of the project, told as the user's own words (spec §7.2, oracle §8)."""

from __future__ import annotations

from typing import Any

from refold.core.fragments import AGENTS_MD_HEAD, KIND_AGENTS_MD, NO_LONGER_APPLY, REPLACES
from refold.core.jsonio import JSON, is_object
from refold.core.world.section import Fragment, Section, World

ID = "agents_md"  # {} or {"directory", "text"}


def _render(world: World, before: Any) -> list[Fragment]:
    now: JSON = world.state.get(ID) or {}
    had = is_object(before) and bool(before.get("text"))
    if not now.get("text"):
        gone = f"{AGENTS_MD_HEAD}\n\n<INSTRUCTIONS>\n{NO_LONGER_APPLY}\n</INSTRUCTIONS>"
        return [Fragment("user", KIND_AGENTS_MD, gone)] if had else []
    text = (REPLACES if had else "") + now["text"]
    head = f"{AGENTS_MD_HEAD} for {now['directory']}"
    return [Fragment("user", KIND_AGENTS_MD, f"{head}\n\n<INSTRUCTIONS>\n{text}\n</INSTRUCTIONS>")]


AGENTS_MD = Section(ID, _render)
