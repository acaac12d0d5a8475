"""Limits: what a turn or a session may use at most, and what tokens cost; a typed stop when it is used up."""

from __future__ import annotations

from typing import Annotated

import msgspec

from refold.core.records import Rendering
from refold.core.usage import Usage
from refold.errors import BudgetExhausted

PER_TOKENS = 1_000_000  # prices are told for so many tokens


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """`[compaction]`: what is done beside the real program's own settings.

    `fallback`: where the provider does not compact, or cannot, it is asked for a summary once. `outline`: where no
    summary can be had of what fits, the facts that the log holds take its place, without a model.

    `model`, `provider`, `effort`: who is asked for a summary; None = as the session. `keep_tools`: the request for a
    summary names the session's tools, so that it begins as the samplings do. `rendering`: how it tells the history.

    `pin_percent`: how much of the context window pinned texts may take, together (docs/pins.md).
    """

    fallback: bool = True
    outline: bool = False
    model: str | None = None
    provider: str | None = None
    effort: str | None = None
    keep_tools: bool = False
    rendering: Rendering = "structured"
    pin_percent: Annotated[float, msgspec.Meta(ge=0, le=50)] = 1


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """`[features.token_budget]`: a full window ends without a request (docs/token-budget.md). Texts are at most
    2,000 bytes; an empty one is none."""

    enabled: bool = False
    reminder_threshold_tokens: int | None = None  # so many left: the model is told, once in a window
    reminder_message_template: str | None = None  # {n_remaining} is how many
    guidance_message: str | None = None
    auto_compact_fallback_prompt: str | None = None  # said at the limit; the window then ends at limit + buffer
    auto_compact_fallback_buffer_tokens: int | None = None

    @property
    def buffer(self) -> int:
        """Tokens above the limit that a window may hold: none without the prompt that says so."""
        return (self.auto_compact_fallback_buffer_tokens or 0) if self.auto_compact_fallback_prompt else 0


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """`[features]`: of the real program's, those that refold has."""

    token_budget: TokenBudget = TokenBudget()


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens cost, in whatever money the limits are in too."""

    input: float
    output: float
    cached_input: float | None = None  # None: as much as other input

    def of(self, usage: Usage) -> float:
        """What this usage cost. Cached tokens are part of the input."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        fresh = usage.input_tokens - cached
        cached_price = self.input if self.cached_input is None else self.cached_input
        return (fresh * self.input + cached * cached_price + usage.output_tokens * self.output) / PER_TOKENS


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """None = no limit. Money counts only where the price is known."""

    turn_steps: int | None = None  # requests to the model
    turn_seconds: float | None = None
    turn_tokens: int | None = None  # input and output, of all requests, compactions too
    turn_cost: float | None = None
    session_tokens: int | None = None
    session_cost: float | None = None


def check_steps(limits: Limits, steps: int) -> None:
    """Raises BudgetExhausted when no further request may go out in this turn."""
    _check("steps of this turn", steps, limits.turn_steps)


def check_usage(limits: Limits, price: Price | None, *, turn: Usage, session: Usage) -> None:
    """Raises BudgetExhausted when what was used so far leaves nothing for another request."""
    _check("tokens of this turn", turn.total_tokens, limits.turn_tokens)
    _check("tokens of this session", session.total_tokens, limits.session_tokens)
    if price is not None:
        _check("cost of this turn", price.of(turn), limits.turn_cost)
        _check("cost of this session", price.of(session), limits.session_cost)


def _check(what: str, used: float, limit: float | None) -> None:
    if limit is not None and used >= limit:
        raise BudgetExhausted(what, used, limit)
