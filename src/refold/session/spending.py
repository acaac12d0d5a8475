"""Spending: holds a turn to the limits that were set (core/limits.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from refold.core.limits import check_steps, check_usage
from refold.errors import BudgetExhausted
from refold.session.memory import Memory


class Spending:
    """What one turn has used. Mutable: it counts its steps."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._before = memory.thread.total_usage
        self._steps = 0

    def step(self) -> None:
        """One more request goes out. Raises BudgetExhausted when none may."""
        limits, used = self._memory.config.limits, self._memory.thread.total_usage
        check_steps(limits, self._steps)
        check_usage(limits, self._memory.config.model_price, turn=used - self._before, session=used)
        self._steps += 1


@asynccontextmanager
async def in_time(seconds: float | None) -> AsyncGenerator[None]:
    """Raises BudgetExhausted when what is inside takes longer; it is cancelled then."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if seconds is None or not limit.expired():
            raise
        raise BudgetExhausted("seconds of this turn", seconds, seconds) from None
