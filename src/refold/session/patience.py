"""Patience: how often one request is asked again, and after how long (spec §9.5, oracle §6)."""

from __future__ import annotations

import asyncio

from refold.core.profile import Provider
from refold.errors import ModelError, ModelUnavailable
from refold.model import HasSecondWay, Model
from refold.model.retry import backoff, is_worth_retrying, wait_before_retry
from refold.session.clock import Clock
from refold.session.events import Waiting
from refold.session.memory import Memory


async def outlast(error: Exception, patience: Patience, model: Model, memory: Memory) -> None:
    """Wait as patience says, and tell of it; without any left, take the model's second way if it has one.

    Raises the error when neither helps.
    """
    waiting = patience.wait(error)
    if waiting is not None:
        memory.feed.publish(waiting)
        await asyncio.sleep(waiting.seconds)
        return
    is_lost = isinstance(error, ModelUnavailable)
    if not (is_lost and isinstance(model, HasSecondWay) and model.fall_back(memory.id)):
        raise error
    patience.renew()


class Patience:
    """Two budgets: a request that was refused before it streamed is sent again `request_max_retries` times; each time
    that is used up, or a stream broke, counts against `stream_max_retries`. Where nobody could be reached at all, the
    first budget is all. Mutable: it counts.
    """

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._requests = 0
        self._streams = 0

    def wait(self, error: Exception) -> Waiting | None:
        """What to wait before asking again after this error; None when there is no more patience, or no point.

        An error that is not the provider's (an answer that cannot be used) counts as a broken stream.
        """
        longest = self._provider.longest_wait_ms / 1000
        if isinstance(error, ModelError) and not is_worth_retrying(error, longest):
            return None
        if isinstance(error, ModelUnavailable) and error.request_level:
            if self._requests < self._provider.request_max_retries:
                self._requests += 1
                return self._waiting("request", self._requests, self._provider.request_max_retries, error)
            if not error.reached:
                return None  # nobody answers at that address: it will not come back within seconds
            self._requests = 0
        if self._streams >= self._provider.stream_max_retries:
            return None
        self._streams += 1
        return self._waiting("stream", self._streams, self._provider.stream_max_retries, error)

    def renew(self) -> None:
        """The request has changed: its counts start anew."""
        self._requests = self._streams = 0

    def _waiting(self, level: str, attempt: int, of: int, error: Exception) -> Waiting:
        jitter = self._clock.jitter()
        known = isinstance(error, ModelError)
        seconds = wait_before_retry(error, attempt, jitter) if known else backoff(attempt, jitter)
        return Waiting(attempt, of, seconds, str(error), "request" if level == "request" else "stream")
