"""Waiting times before a request is repeated; pure, the session does the waiting (spec §9.5)."""

from __future__ import annotations

from refold.errors import ModelError, ModelUnavailable

BACKOFF_START = 0.2  # seconds before the first repetition
BACKOFF_FACTOR = 2.0
JITTER = (0.9, 1.1)  # the range to draw a jitter from, so that many clients do not come back at the same moment
LONGEST_WAIT = 300.0  # seconds; as long as a silent stream is waited for. Who asks for more is not waited for.


def backoff(attempt: int, jitter: float = 1.0) -> float:
    """Seconds before repetition number `attempt`, the first being 1: 0.2, 0.4, 0.8 … up to LONGEST_WAIT, × jitter."""
    steps = min(max(attempt, 1) - 1, 30)  # 2**30 is far beyond the longest wait; a huge power would overflow
    return min(BACKOFF_START * BACKOFF_FACTOR**steps, LONGEST_WAIT) * jitter


def wait_before_retry(error: ModelError, attempt: int, jitter: float = 1.0) -> float:
    """Seconds to wait before repeating the request that met `error`.

    What the provider asked for is taken exactly, without jitter; otherwise the ordinary back-off. An asked wait above
    LONGEST_WAIT is returned as it is, but nobody should sit through it: ask `is_worth_retrying` first.
    """
    asked = error.retry_after if isinstance(error, ModelUnavailable) else None
    return backoff(attempt, jitter) if asked is None else asked


def is_worth_retrying(error: ModelError, longest: float = LONGEST_WAIT) -> bool:
    """Whether the same request may be answered after a wait of at most `longest` seconds."""
    if not isinstance(error, ModelUnavailable) or not error.retryable:
        return False
    return error.retry_after is None or error.retry_after <= longest
