"""Mode: how the session works with its user (`collaboration_mode`), and when that is over (spec §7.2; docs/rules.md).

Two parts of a snapshot belong to it: one in the real program's shape, and ours, which says whose words were told.
"""

from __future__ import annotations

from typing import Any

from refold.core.fragments import tagged
from refold.core.jsonio import JSON, is_object
from refold.core.modes import DEFAULT, Manner
from refold.core.templates import template
from refold.core.world.section import OWN, Fragment, Section, World, value_of
from refold.core.world.snapshot import fragment_hash

THEIRS = "collaboration_mode"  # {"mode": default or plan, "model", "instructions": a hash of what is told}
ID = f"{OWN}.collaboration_mode"  # {"name", "instructions": the same hash}
TAG = "collaboration_mode"
KIND_MODE = "collaboration_mode.instructions"  # the real program's word


def in_manner(world: World, manner: Manner, slug: str, told: JSON | None) -> World:
    """The world with the mode in it, where there is something to tell of it, or was. `told`: the baseline.

    Where the real program told the same mode its words for it hold, unless a person wrote others.
    """
    if not manner.told:
        return world
    before, own = value_of(told, THEIRS), value_of(told, ID)
    if not is_object(own) or not is_object(before) or before.get("instructions") != own.get("instructions"):
        kind = (before.get("mode") if is_object(before) else before) or DEFAULT
        if kind == manner.mode and not manner.configured and (before or not manner.body):
            return world
    mark = fragment_hash("developer", tagged(TAG, manner.body))
    theirs = {"mode": manner.kind, "model": slug, "instructions": mark}
    return world.with_section(THEIRS, theirs).with_section(ID, {"name": manner.mode, "instructions": mark}, manner.body)


def _render(world: World, before: Any) -> list[Fragment]:
    now = world.state.get(THEIRS)
    if not is_object(now) or (
        is_object(before) and all(before.get(key) == now[key] for key in ("mode", "instructions"))
    ):
        return []  # another model alone is told nothing of it
    body = world.texts.get(ID) or template("mode_over")
    return [Fragment("developer", KIND_MODE, tagged(TAG, body))]


MODE = Section(THEIRS, _render)
