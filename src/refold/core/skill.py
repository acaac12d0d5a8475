"""Skill: a folder with instructions for one kind of task: what is told of it, what a person may set of it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from refold.core.truncate import BYTES_PER_TOKEN

KIND_SKILLS = "host_skills.instructions"  # the real program's words for the list
KIND_SKILL = "skills.selected_skill_instructions"  # and for the text of one that a message named

LIST_SHARE = 50  # the list of skills takes at most one part in so many of the context window (2 %)
LIST_BYTES = 8_000  # of the list where the context window is unknown
LIST_TOKENS = 10_000  # the most that a person may set for the list
BODY_BYTES = 64 * 1024  # of one SKILL.md that a message names; the format's own advice is a third of that
BODY_SHARE = 8  # and at most one part in so many of the context window


class Skill(msgspec.Struct, frozen=True):
    """What the model is told of a skill: its name, what it is for, and where its SKILL.md lies (absolute)."""

    name: str
    description: str  # one line
    path: str


class SkillRule(msgspec.Struct, frozen=True, kw_only=True):
    """`[[skills.config]]`: a skill, by its name, its folder or its SKILL.md, that is left out (or, later, is not)."""

    name: str | None = None
    path: str | None = None
    enabled: bool = True

    def concerns(self, skill: Skill) -> bool:
        if self.path is None:
            return skill.name == self.name
        return skill.path in (self.path, f"{self.path.rstrip('/')}/SKILL.md")


class SkillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[skills]`: whether the model is told the list, how many tokens that may take (None = by the context window)."""

    include_instructions: bool = True
    max_context_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    config: tuple[SkillRule, ...] = ()

    def allows(self, skill: Skill) -> bool:
        """The last rule that concerns a skill counts."""
        return next((rule.enabled for rule in reversed(self.config) if rule.concerns(skill)), True)

    def list_bytes(self, context_window: int | None) -> int:
        """How many bytes the list may take, for a model with this context window (tokens)."""
        if self.max_context_tokens is not None:
            return min(self.max_context_tokens, LIST_TOKENS) * BYTES_PER_TOKEN
        return context_window * BYTES_PER_TOKEN // LIST_SHARE if context_window else LIST_BYTES


def body_bytes(context_window: int | None) -> int:
    """How many bytes of a SKILL.md the model is told at most."""
    return min(BODY_BYTES, context_window * BYTES_PER_TOKEN // BODY_SHARE) if context_window else BODY_BYTES


def without_markup(text: str) -> str:
    """A text of one line in which nothing begins or ends an element."""
    return text.replace("<", "&lt;").replace(">", "&gt;")
