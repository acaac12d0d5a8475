"""Prompt: what one sampling request says; computed from a thread each time, never stored (spec §3.2, §5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core.history import Entry, Pairing, for_prompt
from refold.core.items import Item, spelled
from refold.core.profile import Profile
from refold.core.tokens import estimate, utf8_len
from refold.core.truncate import tokens_for


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Input entries, base instructions, tools and schema of one request; `tokens` is its estimate without schemas."""

    entries: tuple[Entry, ...]
    tokens: int
    base_instructions: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    parallel_tool_calls: bool = False
    output_schema: dict[str, Any] | None = None

    @property
    def input(self) -> list[Item]:
        """The items as a host may send them: what only the log needs is left out."""
        return [spelled(entry.item) for entry in self.entries]


def prompt_from(
    history: Sequence[Entry],
    profile: Profile,
    *,
    base_instructions: str | None,
    tools: Sequence[dict[str, Any]] = (),
    output_schema: dict[str, Any] | None = None,
) -> Prompt:
    """Project a history: repaired for this model, with these tools."""
    entries = tuple(for_prompt(history, profile.input_modalities))
    return Prompt(
        entries=entries,
        tokens=estimate((entry.sizes for entry in entries), base_instructions),
        base_instructions=base_instructions,
        tools=tuple(tools),
        parallel_tool_calls=bool(tools) and profile.supports_parallel_tool_calls,
        output_schema=output_schema,
    )


class Projection:
    """The same as `prompt_from`, for a history that grows: after k new entries it costs k, not the whole history.

    Mutable: it remembers how far it has read. A history that needs a repair is projected from scratch.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._history: list[Entry] = []
        self._pairing = Pairing(profile.input_modalities)
        self._tokens = 0

    def prompt(
        self, history: list[Entry], *, base_instructions: str | None, tools: Sequence[dict[str, Any]] = ()
    ) -> Prompt:
        """Project a history that is the list seen last time, longer, or another one."""
        if history is not self._history or len(history) < self._pairing.count:
            self._history, self._pairing, self._tokens = history, Pairing(self.profile.input_modalities), 0
        for entry in history[self._pairing.count :]:
            self._pairing.take(entry)
            self._tokens += entry.tokens
        if self._pairing.needs_repair:
            return prompt_from(history, self.profile, base_instructions=base_instructions, tools=tools)
        return Prompt(
            entries=tuple(history),
            tokens=self._tokens + tokens_for(utf8_len(base_instructions or "")),
            base_instructions=base_instructions,
            tools=tuple(tools),
            parallel_tool_calls=bool(tools) and self.profile.supports_parallel_tool_calls,
        )
