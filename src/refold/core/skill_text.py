"""Skill text: which skills a message names, and how the text of one stands in the conversation (spec §7.2)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from refold.core.skill import Skill, without_markup

# Variables of a shell that people write about; a skill of that name is named by a link only.
SHELL_VARIABLES = frozenset("PATH HOME USER SHELL PWD TMPDIR TEMP TMP LANG TERM XDG_CONFIG_HOME".split())  # noqa: SIM905

# --- which skills a message names -------------------------------------------------------------------------------------

_LINK = re.compile(r"\[\$([^\]\n]{1,64})\][ \t]*\(([^()\n]+)\)")


def named(text: str, skills: Sequence[Skill]) -> list[Skill]:
    """The skills that a message names, in its order, each once: as `$name`, or as the link `[$name](PATH)`.

    A link counts by its path, its SKILL.md or that one's folder, and not by its name. A name ends where letters,
    digits, `-` and `_` end.
    """
    if "$" not in text:
        return []
    found: dict[Skill, int] = {}
    linked: set[str] = set()
    for link in _LINK.finditer(text):
        linked.add(link[1])
        path = link[2].strip().removeprefix("skill://").replace("\\", "/").rstrip("/")
        hit = next((one for one in skills if path in (one.path, one.path.rpartition("/")[0])), None)
        if hit is not None:
            found.setdefault(hit, link.start())
    plain = _LINK.sub(lambda link: " " * len(link[0]), text)
    for skill in skills:
        if f"${skill.name}" not in plain or skill.name in linked or skill.name in SHELL_VARIABLES or skill in found:
            continue
        hit = re.search(rf"(?<![A-Za-z0-9_$\\])\${re.escape(skill.name)}(?![A-Za-z0-9_-]|:[A-Za-z0-9_])", plain)
        if hit is not None:
            found[skill] = hit.start()
    return sorted(found, key=found.__getitem__)


# --- what the model is told -------------------------------------------------------------------------------------------

_OWN_TAG = re.compile(r"<(?=\s*+/?\s*+(?:skill|skills_instructions)\b)", re.IGNORECASE)


def skill_text(skill: Skill, contents: str) -> str:
    """The text of a skill that a message named, as the real program writes it (spec §7.2).

    It stands in an element of its own, which it cannot end.
    """
    inside = _OWN_TAG.sub("&lt;", contents)
    return f"{skill_start(skill)}{inside}\n</skill>"


def skill_start(skill: Skill) -> str:
    """How the text of this skill begins, and of no other."""
    return f"<skill>\n<name>{skill.name}</name>\n<path>{without_markup(skill.path)}</path>\n"
