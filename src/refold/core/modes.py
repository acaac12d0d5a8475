"""Modes: how a session works with its user and how it speaks: what a person sets of it, what holds, what the log says.

Rule 1: what is set holds; where nothing is set, what the session's last turn went by.
Rule 2: the log says it in the real program's words, and what it has no word for under `refold`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from refold.core.jsonio import JSON, is_object
from refold.core.templates import template

DEFAULT, PLAN = "default", "plan"
KNOWN = (DEFAULT, PLAN)  # the real program has no others: a mode of one's own is its `default` with another text
STYLES = ("friendly", "pragmatic", "none")  # the real program's personalities
OWN = "refold"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """`[collaboration_modes.NAME]`: what the model is told in this mode."""

    instructions: str = ""


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """What holds: the mode by its name, the text that the model is told of it ("" = nothing), the personality as it
    was set, and its text. `stated`: whether the log says the mode; `unknown`: a mode that nobody defined any more."""

    mode: str = DEFAULT
    body: str = ""
    told: bool = True  # the model is told of modes
    configured: bool = False  # a person wrote the mode's text
    stated: bool = False
    personality: str | None = None
    spec: str = ""
    unknown: str | None = None

    @property
    def kind(self) -> str:
        """The mode in the real program's words."""
        return self.mode if self.mode in KNOWN else DEFAULT

    def settings(self, slug: str, effort: str | None) -> JSON:
        """What a turn context says of it, in the real program's shape."""
        told: JSON = {}
        if self.personality in STYLES:
            told["personality"] = self.personality
        if self.stated:
            inner = {"model": slug, "reasoning_effort": effort, "developer_instructions": self.body or None}
            told["collaboration_mode"] = {"mode": self.kind, "settings": inner}
        return told

    @property
    def own_settings(self) -> JSON:
        """What a turn context says of it under `refold`."""
        told: JSON = {} if self.personality is None else {"personality": self.personality}
        return {**told, "collaboration_mode": self.mode} if self.mode not in KNOWN else told


def mode_names(modes: Iterable[str]) -> list[str]:
    """The modes that there are: the two that every session has, then those that were set."""
    return [*KNOWN, *(name for name in modes if name not in KNOWN)]


def mode_fault(name: str, modes: Mapping[str, Mode]) -> str | None:
    """Why a session cannot work in the mode of this name."""
    known = mode_names(modes)
    if name not in known:
        return f"there is no mode {name!r}; there are {', '.join(known)}, and [collaboration_modes.NAME] makes one"
    return None


def modes_fault(modes: Mapping[str, Mode]) -> tuple[str, str] | None:
    """The name of a mode that cannot be used as it is set, and why."""
    for name, mode in modes.items():
        if not _NAME.fullmatch(name):
            return name, "must be named with at most 64 letters, digits, _ and -"
        if name not in KNOWN and not mode.instructions.strip():
            return name, "needs instructions: what the model is told in this mode"
    return None


def manner_of(
    mode: str | None, modes: Mapping[str, Mode], personality: str | None, last: JSON | None, *, tell: bool = True
) -> Manner:
    """What holds with these settings after a turn with the turn context `last`. `tell` false: no mode is told."""
    before, own = last or {}, (last or {}).get(OWN)
    own = own if is_object(own) else {}
    name = mode or _mode_in(before, own)
    unknown = name if name is not None and mode_fault(name, modes) else None
    chosen = DEFAULT if name is None or unknown else name
    written = (modes.get(chosen) or Mode()).instructions.strip()
    given: Any = personality if personality is not None else own.get("personality")
    style = given.strip() if isinstance(given, str) and given.strip() else None
    return Manner(
        mode=chosen,
        body=_body(chosen, written) if tell else "",
        told=tell,
        configured=bool(written),
        stated=name is not None,
        personality=style,
        spec=_spec(style),
        unknown=unknown,
    )


def _mode_in(before: JSON, own: JSON) -> str | None:
    """The mode that a turn context says."""
    stated = before.get("collaboration_mode")
    kind = stated.get("mode") if is_object(stated) else None
    name = own.get("collaboration_mode") or kind
    return name if isinstance(name, str) else None


def _body(name: str, written: str) -> str:
    text = written or (template("mode_plan").strip() if name == PLAN else "")
    return template("mode").format(name=name, instructions=text) if text else ""


def _spec(style: str | None) -> str:
    if style is None or style == "none":
        return ""
    return template(f"personality_{style}").strip() if style in STYLES else style
