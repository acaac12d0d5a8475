"""Modes: the mode and the personality that a session goes on in: set, and read, from turn to turn (docs/rules.md)."""

from __future__ import annotations

from msgspec.structs import replace

from refold.core.config import Config
from refold.core.jsonio import JSON
from refold.core.modes import Manner, manner_of, mode_fault
from refold.core.world import World
from refold.core.world.mode import in_manner
from refold.core.world.personality import with_personality
from refold.errors import ConfigError
from refold.session.memory import Memory


def manner_in_force(memory: Memory) -> Manner:
    """What holds for the next turn: what is set, else what the last one went by."""
    return manner_with(memory.config, memory.thread.settings)


def manner_with(config: Config, last: JSON | None) -> Manner:
    """What holds with these settings after a turn with the turn context `last`."""
    return manner_of(
        config.collaboration_mode,
        config.collaboration_modes,
        config.personality,
        last,
        tell=config.include_collaboration_mode_instructions,
    )


def told_manner(world: World, manner: Manner, slug: str, told: JSON | None) -> World:
    """The world with the mode and the personality in it. `told`: the baseline, None = everything is told anew."""
    return with_personality(in_manner(world, manner, slug, told), manner.spec)


def use_mode(memory: Memory, name: str) -> None:
    """Go on in another mode, from the next turn on. Raises ConfigError for one that there is not."""
    fault = mode_fault(name, memory.config.collaboration_modes)
    if fault:
        raise ConfigError("collaboration_mode", fault)
    memory.config = replace(memory.config, collaboration_mode=name)


def use_personality(memory: Memory, text: str) -> None:
    """Be spoken to in another way, from the next turn on: `friendly`, `pragmatic`, a text of your own, or `none`."""
    memory.config = replace(memory.config, personality=text.strip() or "none")


class Manners:
    """What a session says of its mode and its personality: two attributes to read and to set.

    A turn that runs goes on as it began. Setting a mode raises ConfigError for one that there is not.
    """

    memory: Memory

    @property
    def collaboration_mode(self) -> str:
        """`default`, `plan`, or one of `[collaboration_modes]`."""
        return manner_in_force(self.memory).mode

    @collaboration_mode.setter
    def collaboration_mode(self, name: str) -> None:
        use_mode(self.memory, name)

    @property
    def personality(self) -> str:
        """`friendly`, `pragmatic`, a text, or `none`."""
        return manner_in_force(self.memory).personality or "none"

    @personality.setter
    def personality(self, text: str) -> None:
        use_personality(self.memory, text)
