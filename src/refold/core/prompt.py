"""Prompt: what one sampling request says; computed from a thread each time, never stored (spec §3.2, §5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core.history import Entry
from refold.core.items import Item, spelled
from refold.core.pairing import View, view_of
from refold.core.profile import Profile
from refold.core.tokens import utf8_len
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
    return _prompt(view_of(history, profile.input_modalities), profile, base_instructions, tools, output_schema)


class Projection:
    """The same as `prompt_from`, for a history that grows: after k new entries it costs k, not the whole history.

    Mutable: it remembers how far it has read.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._history: list[Entry] = []
        self._view = View(profile.input_modalities)

    def prompt(
        self,
        history: list[Entry],
        *,
        base_instructions: str | None,
        tools: Sequence[dict[str, Any]] = (),
        output_schema: dict[str, Any] | None = None,
    ) -> Prompt:
        """Project a history that is the list seen last time, longer, or another one."""
        if history is not self._history or len(history) < self._view.count:
            self._history, self._view = history, View(self.profile.input_modalities)
        for entry in history[self._view.count :]:
            self._view.take(entry)
        return _prompt(self._view, self.profile, base_instructions, tools, output_schema)


def _prompt(
    view: View,
    profile: Profile,
    base_instructions: str | None,
    tools: Sequence[dict[str, Any]],
    output_schema: dict[str, Any] | None,
) -> Prompt:
    return Prompt(
        entries=tuple(view.sendable()),
        tokens=view.sendable_tokens + tokens_for(utf8_len(base_instructions or "")),
        base_instructions=base_instructions,
        tools=tuple(tools),
        parallel_tool_calls=bool(tools) and profile.supports_parallel_tool_calls,
        output_schema=output_schema,
    )
