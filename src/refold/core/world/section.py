"""Section: one part of the world, and what is told of it: a fragment, or several.

Rule 1: rendering is a pure function of what holds now and of what the model was told last.
Rule 2: a section is told whole whenever it changed; only approved command prefixes are told by what came to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from refold.core.fragments import stored_message
from refold.core.items import Item, Role
from refold.core.jsonio import JSON, is_object

OWN = "refold"  # sections that only refold has stand under this key of a snapshot, for the real program skips it
_OWN_START = f"{OWN}."


class Fragment(msgspec.Struct, frozen=True):
    """One rendered message part of injected context; with `tags` before and after it a message of its own."""

    role: Role
    kind: str
    text: str
    tags: tuple[str, str] | None = None  # parts of their own

    @property
    def parts(self) -> list[tuple[str, str]]:
        texts = (self.text,) if self.tags is None else (self.tags[0], self.text, self.tags[1])
        return [(self.kind, text) for text in texts]


class World(msgspec.Struct, frozen=True):
    """What is in force now: a snapshot by section id, and texts that a snapshot does not hold, or only a hash of."""

    state: JSON
    texts: dict[str, str] = {}

    def with_section(self, section_id: str, value: Any, text: str | None = None) -> World:
        """The world with one more section. `value`: its snapshot, without nulls; None takes the section away."""
        texts = self.texts if text is None else {**self.texts, section_id: text}
        return World(with_value(self.state, section_id, value), texts)


class Section(msgspec.Struct, frozen=True):
    """One part of the world.

    `id`: its key in the snapshot, `refold.NAME` for one that only refold has. `render` gives what the model is told
    when the section's snapshot is not what it was; its second argument is the one that was told last, None = never
    told. It is asked for a section that is not there any more, too: `value_of(world.state, id)` is None then.
    """

    id: str
    render: Callable[[World, Any], Sequence[Fragment]]


# --- snapshots -----------------------------------------------------------------------------------------------


def value_of(state: JSON | None, section_id: str) -> Any:
    """A section's part of a snapshot; None where it has none."""
    if not section_id.startswith(_OWN_START):
        return (state or {}).get(section_id)
    own = (state or {}).get(OWN)
    return own.get(section_id.removeprefix(_OWN_START)) if is_object(own) else None


def with_value(state: JSON, section_id: str, value: Any) -> JSON:
    """The snapshot with a section's part set, or (None) without it."""
    if section_id.startswith(_OWN_START):
        own = state.get(OWN)
        inner = with_value(own if is_object(own) else {}, section_id.removeprefix(_OWN_START), value)
        return with_value(state, OWN, inner or None)
    rest = {key: other for key, other in state.items() if key != section_id}
    return rest if value is None else {**rest, section_id: value}


def ids_in(state: JSON | None) -> list[str]:
    """The ids of the sections that a snapshot, or a patch of one, speaks of."""
    found = [key for key in state or {} if key != OWN]
    own = (state or {}).get(OWN)
    return found + [_OWN_START + key for key in (own if is_object(own) else {})]


# --- rendering -------------------------------------------------------------------------------------------------


def render_sections(sections: Iterable[Section], world: World, baseline: JSON | None) -> list[Fragment]:
    """What the model must be told: everything when `baseline` is None, else each section that changed since.

    What is for the developer role comes first, in the order of the sections; then what stands alone; then the user's.
    """
    found: list[Fragment] = []
    for section in sections:
        before = value_of(baseline, section.id)
        if baseline is None or before != value_of(world.state, section.id):
            found += section.render(world, before)
    return sorted(found, key=_place)


def _place(fragment: Fragment) -> tuple[bool, bool]:
    return fragment.role != "developer", fragment.tags is not None


def messages(fragments: Sequence[Fragment], ids: Iterable[str], turn_id: str | None) -> list[Item]:
    """Fragments as stored messages: neighbours of one role share a message; `ids` are used in order."""
    groups: list[tuple[Role, list[tuple[str, str]]]] = []
    closed = True
    for fragment in fragments:
        if groups and groups[-1][0] == fragment.role and not closed and not fragment.tags:
            groups[-1][1].extend(fragment.parts)
        else:
            groups.append((fragment.role, fragment.parts))
        closed = fragment.tags is not None
    return [
        stored_message(role, parts, id=item_id, turn_id=turn_id)
        for (role, parts), item_id in zip(groups, ids, strict=False)
    ]
