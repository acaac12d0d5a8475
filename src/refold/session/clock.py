"""Clock: time, ids and randomness, given to whatever needs them so that tests can fix them."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime


class Clock:
    """The real one. A test passes a subclass. Mutable: ids of one millisecond must still grow."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> datetime:
        """Local time with its zone."""
        return datetime.now().astimezone()

    def timestamp(self) -> str:
        """UTC, RFC 3339 with milliseconds, as every log line begins."""
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def seconds(self) -> int:
        """Seconds since 1970."""
        return int(time.time())

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""
        return time.monotonic()

    def jitter(self) -> float:
        """A factor in [0.9, 1.1) for back-off."""
        return 0.9 + 0.2 * random.random()  # noqa: S311 (spreads retries, protects nothing)

    def uuid(self) -> str:
        """A UUID v7: time-ordered, and growing even inside one millisecond."""
        stamp = max(time.time_ns() // 244, self._last + 1)  # 12 bits of sub-milliseconds: about 244 ns a step
        self._last = stamp
        millis, fraction = divmod(stamp * 244, 1_000_000)
        chance = int.from_bytes(os.urandom(8)) >> 2
        digits = f"{millis << 80 | 0x7 << 76 | (fraction * 4096 // 1_000_000) << 64 | 0b10 << 62 | chance:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.uuid()}"

    def chunk_id(self) -> str:
        """Six hex digits that name one piece of command output."""
        return os.urandom(3).hex()
