"""Skills: the text of a skill that a message names is put before it, once a turn; what is wrong with skills is said.

It is context, not something that the user said: a compaction drops it, and it is put in again when it is named again.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.core.fragments import stored_kinds, turn_of
from refold.core.history import entry
from refold.core.items import Item, message_text
from refold.core.records import ItemRecorded
from refold.core.skill import KIND_SKILL, Skill, body_bytes
from refold.core.thread import Thread
from refold.core.world import World
from refold.core.world.plugins import ID as PLUGINS
from refold.core.world.skills import ID
from refold.session.events import Notice
from refold.session.scope import Scope


def say_of_skills(scope: Scope, world: World) -> None:
    """What is wrong with skills and plugins, to the person, once in a session."""
    for text in filter(None, [*world.texts.get(ID, "").split("\n"), *world.texts.get(PLUGINS, "").split("\n")]):
        if text not in scope.told_person:
            scope.told_person.add(text)
            scope.memory.feed.publish(Notice(text))


def tell_skills(scope: Scope, text: str) -> None:
    """Put the texts of the skills that this message names before it, but for those that this turn was told already."""
    told: Sequence[Item] = skills_named(scope, text)
    if told:
        scope.memory.record(*map(ItemRecorded, told))


def tokens_of_skills(scope: Scope, text: str) -> int:
    """About what these texts add to the context."""
    return sum(entry(item, "").tokens for item in skills_named(scope, text, quiet=True))


def skills_named(scope: Scope, text: str, *, quiet: bool = False) -> list[Item]:
    """A message for each skill that a message names; a person is told what is left out of it, unless `quiet`."""
    if "$" not in text:
        return []
    from refold.core.skill_text import named, skill_text
    from refold.observe.skills import read_body
    from refold.session.plugins import all_skills

    memory = scope.memory
    items: list[Item] = []
    for skill in named(text, all_skills(scope.surroundings, memory.config, scope.watch)):
        if _is_told(memory.thread, skill):
            continue
        contents, notice = read_body(skill, body_bytes(memory.profile.context_window))
        items.append(memory.stored([(KIND_SKILL, skill_text(skill, contents))]))
        if notice and not quiet:
            memory.feed.publish(Notice(notice))
    return items


def _is_told(thread: Thread, skill: Skill) -> bool:
    """Whether the history holds its text from this very turn."""
    from refold.core.skill_text import skill_start

    start, turn = skill_start(skill), thread.open_turn
    return any(
        entry.origin == "injected"
        and turn_of(entry.item) == turn
        and KIND_SKILL in stored_kinds(entry.item)
        and message_text(entry.item).startswith(start)
        for entry in reversed(thread.history)
    )
