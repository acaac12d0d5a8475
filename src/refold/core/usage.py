"""Usage: what a provider says a response cost, in tokens (spec §1.6)."""

from __future__ import annotations

from typing import Any

import msgspec

from refold.core.jsonio import is_object


class Usage(msgspec.Struct, frozen=True, omit_defaults=False):
    """Tokens of one response or a sum of them. Cached tokens are part of `input_tokens`."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__),
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            *(getattr(self, name) - getattr(other, name) for name in self.__struct_fields__),
        )

    @property
    def uncached_input_tokens(self) -> int:
        """Input tokens that were not read from the provider's cache; never negative."""
        return max(0, self.input_tokens - self.cached_input_tokens)


def usage_from_api(value: Any) -> Usage | None:
    """The `usage` object of a Responses response, or None when there is none; missing details are 0."""
    if not is_object(value):
        return None

    def number(container: Any, key: str) -> int:
        found = container.get(key) if is_object(container) else None
        return int(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else 0

    inputs, outputs = value.get("input_tokens_details"), value.get("output_tokens_details")
    input_tokens, output_tokens = number(value, "input_tokens"), number(value, "output_tokens")
    return Usage(
        input_tokens=input_tokens,
        cached_input_tokens=number(inputs, "cached_tokens"),
        cache_write_input_tokens=number(inputs, "cache_write_tokens"),
        output_tokens=output_tokens,
        reasoning_output_tokens=number(outputs, "reasoning_tokens"),
        total_tokens=number(value, "total_tokens") or input_tokens + output_tokens,
    )


def usage_to_api(usage: Usage | None) -> dict[str, Any] | None:
    """The `usage` object of the Responses API; the opposite of `usage_from_api`."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_input_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
        "total_tokens": usage.total_tokens,
    }
