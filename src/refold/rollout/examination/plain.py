"""Plain: the lines that need no second look, told apart quickly; they are most of a file."""

from __future__ import annotations

from typing import Any

from refold.core.items import HISTORY_TYPES
from refold.rollout.examination.shapes import KEPT_EVENTS, KEPT_TYPES

ITEMS = HISTORY_TYPES - {"message", "agent_message"}
TYPES = KEPT_TYPES | {"turn_context"}
EVENTS = KEPT_EVENTS - {"token_count", "error", "stream_error"}
NOTHING: dict[str, Any] = {}
ENVELOPE = b'"trigger_turn"'  # in what one agent says to another


def plain_name(value: Any, raw: bytes) -> tuple[str, str] | None:
    """The record's type and, of an item, the item's; None for a line that has to be looked at.

    A plain line has an envelope, a shape that is known, and neither begins, ends nor changes anything but the history.
    """
    if not isinstance(value, dict) or not isinstance(value.get("timestamp"), str):
        return None
    payload, beside = value.get("payload"), value.get("metadata", NOTHING)
    if not isinstance(payload, dict) or not isinstance(beside, dict):
        return None
    if not isinstance(beside.get("fallback_token_limit_override", 0), int):
        return None
    kind, own = value.get("type"), payload.get("type")
    if kind == "response_item":
        if own == "message":
            is_said = payload.get("role") == "assistant" and ENVELOPE not in raw
            return (kind, "message:assistant") if is_said else None
        return (kind, own) if isinstance(own, str) and own in ITEMS and "role" not in payload else None
    if kind == "event_msg":
        is_plain = isinstance(own, str) and (
            own in EVENTS or (own == "token_count" and _is_counted(payload.get("info")))
        )
        return (kind, "") if is_plain else None
    return (kind, "") if isinstance(kind, str) and kind in TYPES else None


def _is_counted(info: Any) -> bool:
    """Whether these are tokens as both programs tell them."""
    if not isinstance(info, dict):
        return info is None
    for key in ("last_token_usage", "total_token_usage"):
        told = info.get(key)
        if not isinstance(told, dict) or any(type(count) is not int for count in told.values()):
            return False
    return True
