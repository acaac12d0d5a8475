"""Sections: a host's own parts of the world, looked at before each turn (docs/rules.md).

Rule 1: what a host's section does wrong costs a notice: the model goes on with what it was told of it last.
Rule 2: what one observed stands in the log as it will be read there: plain JSON, without nulls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from refold.core.jsonio import dump_strict, is_list, is_object, load, without_lone_surrogates
from refold.core.world import OWN, Fragment, World, value_of
from refold.core.world import Section as Told
from refold.errors import ConfigError
from refold.session.events import Notice
from refold.session.memory import Memory

OBSERVE_SECONDS = 5.0  # a turn waits no longer for one; what hangs is told again when it answers
TAKEN = frozenset(
    {"window", "switched", "permissions", "mcp", "collaboration_mode", "personality", "apps", "plugins"}
)  # refold's own, under the same key


class Section(Protocol):
    """One part of the world that a host tells the model of.

    `id`: a name of its own, under which the log holds what was observed. `observe`: what holds now, as JSON; None for
    nothing; it is called before each turn. `render`: what the model is told when that changed; `before` is what it was
    told last, None = nothing yet, or no more after a compaction; `now` is None when nothing holds any more.
    """

    id: str

    async def observe(self) -> Any: ...

    def render(self, now: Any, before: Any) -> Sequence[Fragment]: ...


def checked_sections(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Raises ConfigError for an id that is none, is refold's own, or is given twice."""
    known = set(TAKEN)
    for section in sections:
        if not section.id or section.id in known:
            why = "is refold's own, or given twice" if section.id else "is empty"
            raise ConfigError("sections", f"the id {section.id!r} {why}; choose another one")
        known.add(section.id)
    return tuple(sections)


async def with_own(
    world: World, memory: Memory, sections: Sequence[Section], seconds: float = OBSERVE_SECONDS
) -> World:
    """The world with what a host's sections see now, or what they told last where one fails or takes too long."""
    seen = await asyncio.gather(*(_seen(section, memory, seconds) for section in sections))
    for section, value in zip(sections, seen, strict=True):
        world = world.with_section(f"{OWN}.{section.id}", value)
    return world


async def _seen(section: Section, memory: Memory, seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return _plain(load(dump_strict(without_lone_surrogates(await section.observe())))[0])
    except TimeoutError:
        why = f"did not answer within {seconds:g} seconds"
    except Exception as error:
        why = f"failed: {type(error).__name__}: {error}"
    memory.feed.publish(Notice(f"section {section.id}: observing it {why}; the model is told nothing new of it"))
    return value_of(memory.thread.world, f"{OWN}.{section.id}")


def _plain(value: Any) -> Any:
    """The value without nulls in its objects: a merge patch could not hold them."""
    if is_object(value):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    return [_plain(inner) for inner in value] if is_list(value) else value


def rendered_by(memory: Memory, sections: Sequence[Section]) -> tuple[Told, ...]:
    """A host's sections as the world tells them."""
    return tuple(Told(f"{OWN}.{section.id}", _Rendered(memory, section)) for section in sections)


def as_rendered(world: World, baseline: Any, told: Sequence[Told]) -> World:
    """The world that was really told: a section that failed to tell what it saw is as it was told last."""
    for one in told:
        if isinstance(one.render, _Rendered) and one.render.failed:
            world = world.with_section(one.id, value_of(baseline, one.id))
    return world


class _Rendered:
    """What a host's section tells; a notice where it fails. Mutable: it knows whether it did."""

    def __init__(self, memory: Memory, section: Section) -> None:
        self._memory = memory
        self._section = section
        self.failed = False

    def __call__(self, world: World, before: Any) -> Sequence[Fragment]:
        now = value_of(world.state, f"{OWN}.{self._section.id}")
        if now is None and before is None:
            return ()
        try:
            return tuple(map(_checked, self._section.render(now, before)))
        except Exception as error:
            self.failed = True
            text = f"section {self._section.id}: telling it failed: {type(error).__name__}: {error}"
            self._memory.feed.publish(Notice(text))
            return ()


def _checked(told: Any) -> Fragment:
    """Raises TypeError for what is no Fragment of texts, for a role that tells context."""
    if not isinstance(told, Fragment):
        raise TypeError(f"render gave {type(told).__name__}, not a list of Fragment")
    texts: tuple[Any, ...] = (told.kind, told.text, *(told.tags or ()))
    if told.role not in ("developer", "user") or not all(isinstance(text, str) for text in texts):
        raise TypeError("a Fragment's role is developer or user, and its kind, text and tags are texts")
    return told
