"""Findings: what an examination found, one entry for the same thing however often it stands in the file.

Rule 1: what is held is bounded: so many entries of a kind, so many places of an entry; everything is counted.
"""

from __future__ import annotations

import msgspec

from refold.rollout.examination.kinds import KINDS, Kind

MOST_OF_A_KIND = 100  # entries; those beyond are counted in one that names no detail
MOST_PLACES = 5  # of an entry
LONGEST_DETAIL = 300  # characters


class Place(msgspec.Struct, frozen=True):
    """Where a line begins: its number from 1, and bytes before it (0 and 0: not in this file, or the whole of it)."""

    line: int = 0
    offset: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found: its kind's name, what exactly, how often, and where first."""

    kind: str
    detail: str
    count: int
    places: tuple[Place, ...]

    @property
    def about(self) -> Kind:
        return KINDS[self.kind]

    @property
    def is_damage(self) -> bool:
        return self.about.is_damage


class Findings:
    """Mutable: it grows line by line, to a bounded size."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], list[Place]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._kinds: dict[str, int] = {}

    def add(self, kind: str, place: Place, detail: str = "") -> None:
        """Raises KeyError for a kind that is not known."""
        key = (KINDS[kind].name, detail[:LONGEST_DETAIL])
        if key not in self._counts and self._kinds.get(kind, 0) >= MOST_OF_A_KIND:
            key = (kind, "and others")
        if key not in self._counts:
            self._counts[key] = 0
            self._places[key] = []
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
        self._counts[key] += 1
        if len(self._places[key]) < MOST_PLACES and (place.line or not self._places[key]):
            self._places[key].append(place)

    def listed(self) -> tuple[Finding, ...]:
        """Damage first, each in the order of the file; what belongs to no line comes first."""
        found = [
            Finding(kind=kind, detail=detail, count=self._counts[kind, detail], places=tuple(places))
            for (kind, detail), places in self._places.items()
        ]
        return tuple(sorted(found, key=lambda one: (not one.is_damage, one.places[0].line)))
