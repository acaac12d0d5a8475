"""Skills: the list of skills as one section of the world (spec §7.1; docs/skills.md).

The snapshot holds the list's text under the real program's key, so that both see whether it changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refold.core.fragments import tagged
from refold.core.jsonio import JSON, is_object
from refold.core.skill import KIND_SKILLS, Skill, without_markup
from refold.core.templates import template
from refold.core.world.section import Fragment, Section, World, value_of

ID = "host_skills"  # {"body": the list's text, "includeInstructions": true}; nothing without a list, see below
# The real program tells of its skills anew where a snapshot says something else of them than it would.
TAG = "skills_instructions"
LEAST_DESCRIPTION = 60  # characters; below that a description says little, so skills are left out instead
NAMED_LEFT_OUT = 20  # of those that have no room, so many are named


def with_skills(world: World, skills: Sequence[Skill], budget: int, *, told: bool = True) -> World:
    """The world with a list of these skills, which may take `budget` bytes; `told` false: the model is told of none."""
    body = list_text(skills, budget) if told else ""
    return world.with_section(ID, {"body": body, "includeInstructions": True} if body else None)


def lists_skills(state: JSON | None) -> bool:
    """Whether a snapshot holds a list of skills."""
    now = value_of(state, ID)
    return is_object(now) and bool(now.get("body"))


def list_text(skills: Sequence[Skill], budget: int) -> str:
    """What the model is told of skills, "" for none: a line for each, in the order given; the lines within `budget`
    bytes.

    Where that is too little, long descriptions are cut first, all to the same length; then the last skills are left
    out, which is said.
    """
    if not skills:
        return ""
    lines, left_out = _fitted(skills, budget)
    if left_out:
        names = ", ".join(skill.name for skill in left_out[:NAMED_LEFT_OUT])
        more = f" and {len(left_out) - NAMED_LEFT_OUT:,} more" if len(left_out) > NAMED_LEFT_OUT else ""
        lines.append(f"({len(left_out):,} skills have no room in this list: {names}{more})")
    return "\n" + template("skills") + "".join(f"{line}\n" for line in lines) + template("skills_use")


def _fitted(skills: Sequence[Skill], budget: int) -> tuple[list[str], Sequence[Skill]]:
    """The lines that fit, and the skills that have none."""
    longest = max(len(skill.description) for skill in skills)
    if _size(skills, longest) <= budget:
        return [_line(skill, longest) for skill in skills], ()
    low, high = LEAST_DESCRIPTION, longest  # the length that just fits lies between them
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(skills, middle) <= budget else (low, middle - 1)
    lines: list[str] = []
    for number, skill in enumerate(skills):
        budget -= len(_line(skill, low).encode()) + 1
        if budget < 0:
            return lines, skills[number:]
        lines.append(_line(skill, low))
    return lines, ()


def _size(skills: Sequence[Skill], most: int) -> int:
    return sum(len(_line(skill, most).encode()) + 1 for skill in skills)


def _line(skill: Skill, most: int) -> str:
    text = skill.description
    short = text if len(text) <= most else text[: most - 1].rstrip() + "…"
    return f"- {skill.name}: {without_markup(short)} (file: {without_markup(skill.path)})"


def _render(world: World, before: Any) -> list[Fragment]:
    had = lists_skills({ID: before})
    now = world.state.get(ID)
    body: str = now.get("body", "") if is_object(now) else ""
    if not body:
        gone = tagged(TAG, "\n" + template("skills_gone"))
        return [Fragment("developer", KIND_SKILLS, gone)] if had else []
    text = "\n" + template("skills_replace") + body.removeprefix("\n") if had else body
    return [Fragment("developer", KIND_SKILLS, tagged(TAG, text))]


SKILLS = Section(ID, _render)
