"""Prompt: what one sampling request says; computed from a thread each time, never stored (spec §3.2, §5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core.history import Entry, for_prompt
from refold.core.items import Item, spelled
from refold.core.profile import Profile
from refold.core.tokens import estimate


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Input entries, base instructions, tools and schema of one request."""

    entries: tuple[Entry, ...]
    base_instructions: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    parallel_tool_calls: bool = False
    output_schema: dict[str, Any] | None = None

    @property
    def input(self) -> list[Item]:
        """The items as a host may send them: what only the log needs is left out."""
        return [spelled(entry.item) for entry in self.entries]

    @property
    def tokens(self) -> int:
        """The estimate of this prompt in tokens, base instructions included, tool schemas not."""
        return estimate((entry.sizes for entry in self.entries), self.base_instructions)


def prompt_from(
    history: Sequence[Entry],
    profile: Profile,
    *,
    base_instructions: str | None,
    tools: Sequence[dict[str, Any]] = (),
    output_schema: dict[str, Any] | None = None,
) -> Prompt:
    """Project a history: repaired for this model, with these tools."""
    return Prompt(
        entries=tuple(for_prompt(history, profile.input_modalities)),
        base_instructions=base_instructions,
        tools=tuple(tools),
        parallel_tool_calls=bool(tools) and profile.supports_parallel_tool_calls,
        output_schema=output_schema,
    )
