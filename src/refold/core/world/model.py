"""Model: which model goes on, and what it goes by where the session was begun by another (spec §7.2, oracle §5)."""

from __future__ import annotations

from typing import Any

from refold.core.fragments import KIND_MODEL_SWITCH, tagged
from refold.core.jsonio import JSON
from refold.core.templates import template
from refold.core.world.section import OWN, Fragment, Section, World, value_of

ID = "model"
SWITCHED_ID = f"{OWN}.switched"  # the model that a switch was told of: its instructions go on to hold


def in_model(world: World, slug: str, instructions: str, told: JSON | None, former: str | None) -> World:
    """The world as it is told to a model: one that took over from another is told its own instructions.

    `told`: the baseline. `former`: the model of the last turn, where the baseline does not say; None = there was none.
    """
    before = (told or {}).get(ID) or former
    switched = slug if before and before != slug else value_of(told, SWITCHED_ID)
    return world.with_section(ID, slug).with_section(SWITCHED_ID, switched, instructions)


def _render(world: World, before: Any) -> list[Fragment]:
    if value_of(world.state, SWITCHED_ID) is None:
        return []
    body = template("model_switch").format(instructions=world.texts.get(SWITCHED_ID, ""))
    return [Fragment("developer", KIND_MODEL_SWITCH, tagged("model_switch", f"\n{body}"))]


MODEL_SWITCH = Section(SWITCHED_ID, _render)
