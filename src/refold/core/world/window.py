"""Window: what a token budget tells of the context window, and how to go about it (oracle §13)."""

from __future__ import annotations

from typing import Any

from refold.core.fragments import KIND_CONTEXT_WINDOW, KIND_WINDOW_GUIDANCE, tagged
from refold.core.jsonio import JSON, is_object
from refold.core.records import Window
from refold.core.world.section import OWN, Fragment, Section, World, value_of

GUIDANCE_ID = "context_window_guidance"  # the real program's name for it
WINDOW_ID = f"{OWN}.window"


def in_window(world: World, window: Window, guidance: str) -> World:
    """The world with what a token budget tells of it: which window this is, and how to go about it ("" = nothing)."""
    ids = {"first_id": window.first_id, "id": window.id, "previous_id": window.previous_id}
    told = {"number": window.number, **{key: value for key, value in ids.items() if value}}
    return world.with_section(GUIDANCE_ID, guidance).with_section(WINDOW_ID, told)


def window_told(state: JSON | None) -> Window | None:
    """The window that a snapshot tells of."""
    told = value_of(state, WINDOW_ID)
    if not is_object(told) or not isinstance(told.get("number"), int):
        return None
    return Window(told["number"], told.get("id"), told.get("first_id"), told.get("previous_id"))


def _render_guidance(world: World, before: Any) -> list[Fragment]:
    now = world.state.get(GUIDANCE_ID)
    return [Fragment("developer", KIND_WINDOW_GUIDANCE, tagged(GUIDANCE_ID, f"\n{now}\n"))] if now else []


def _render_window(world: World, before: Any) -> list[Fragment]:
    window = window_told(world.state)
    if window is None:
        return []
    named = (("First", window.first_id), ("Current", window.id), ("Previous", window.previous_id))
    lines = ["Agent name: /root", *(f"{which} context window id: {one}" for which, one in named if one)]
    text = "\n" + "\n".join(lines) + "\n"
    return [Fragment("developer", KIND_CONTEXT_WINDOW, text, ("<context_window>", "</context_window>"))]


GUIDANCE = Section(GUIDANCE_ID, _render_guidance)
WINDOW = Section(WINDOW_ID, _render_window)
