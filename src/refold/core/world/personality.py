"""Personality: how the user wants to be spoken to, told in a message of its own (spec §7.2; docs/rules.md).

How the real program's snapshot spells it was not observed, so its hash stands under our own key.
"""

from __future__ import annotations

from typing import Any

from refold.core.templates import template
from refold.core.world.section import OWN, Fragment, Section, World, value_of
from refold.core.world.snapshot import fragment_hash

ID = f"{OWN}.personality"  # a hash of what is told
KIND_PERSONALITY = "personality.instructions"
TAGS = ("<personality_spec> ", " </personality_spec>")


class Alone(Fragment, frozen=True):
    """A fragment in a message of its own, its tags in the same part as its text."""

    @property
    def parts(self) -> list[tuple[str, str]]:
        before, after = self.tags or ("", "")
        return [(self.kind, f"{before}{self.text}{after}")]


def with_personality(world: World, spec: str) -> World:
    """The world with a personality; "" = none."""
    return world.with_section(ID, fragment_hash("developer", spec), spec) if spec else world


def _render(world: World, before: Any) -> list[Fragment]:
    holds = value_of(world.state, ID) is not None
    if not holds and before is None:
        return []
    text = template("personality") + world.texts[ID] if holds else template("personality_gone").strip()
    return [Alone("developer", KIND_PERSONALITY, text, TAGS)]


PERSONALITY = Section(ID, _render)
