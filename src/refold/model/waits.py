"""Waits: how long a provider asks to wait, in headers or in words (spec §9.4)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WAIT = re.compile(
    r"(?:try again in|retry after)\s*(?:(\d+)\s*h(?:ours?)?\s*)?(?:(\d+)\s*m(?!s)(?:in(?:ute)?s?)?\s*)?"
    r"(?:(\d+(?:\.\d+)?)\s*(ms|seconds?|s)\b)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\s*\d+(?:\.\d+)?\s*")


def asked_wait(headers: Mapping[str, str], now: float | None) -> float | None:
    """Seconds that the headers ask to wait; None when they do not, or not understandably."""
    millis, wait = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    if _NUMBER.fullmatch(millis):
        return float(millis) / 1000
    if _NUMBER.fullmatch(wait):
        return float(wait)
    if not wait or now is None:
        return None
    from email.utils import parsedate_to_datetime  # dates are rare, and this import is not small

    try:
        return max(0.0, parsedate_to_datetime(wait).timestamp() - now)
    except ValueError:
        return None


def written_wait(text: str) -> float | None:
    """Seconds of the first “try again in 1m2.5s”; None when there is none."""
    match = _WAIT.search(text)
    if match is None or not any(match.groups()):
        return None
    hours, minutes, number, unit = match.groups()
    seconds = float(number or 0) / (1000 if unit and unit.lower() == "ms" else 1)
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds
