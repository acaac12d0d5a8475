"""Aside: work on large inputs, done in a thread, so that nobody else's stream waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from refold.server.incoming import Given

LARGE = 1 << 20  # bytes: reading as many takes some 20 ms; below, a thread would cost more than it spares
T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """What `work` gives, which reads so many bytes."""
    return work() if size <= LARGE else await asyncio.to_thread(work)


def size_of(items: Iterable[Given]) -> int:
    """Bytes of items as they came."""
    return sum(len(given.raw) for given in items)
