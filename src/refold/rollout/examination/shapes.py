"""Shapes: what is odd about one record that could be read: types nobody knows, values of another kind than usual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.core.items import HISTORY_TYPES, Item
from refold.core.jsonio import JSON, is_list, is_object
from refold.core.lines.read import record_of
from refold.core.records import LineKept, Record

GHOST = "ghost_snapshot"
READ_TYPES = frozenset(  # record types whose payload is understood
    {"session_meta", "response_item", "event_msg", "compacted", "inter_agent_communication", "turn_context"}
)
KEPT_TYPES = frozenset(  # known, and kept as they are
    {"inter_agent_communication_metadata", "token_usage_record", "retained_context"}
    | {"security_risk_score", "realtime_item"}
)
KNOWN_TYPES = READ_TYPES | KEPT_TYPES | {"world_state", "refold"}
REFOLD_KINDS = frozenset(  # of them, one that is kept has an unknown shape
    {"steer_queued", "pinned", "unpinned", "rule_dropped", "compaction_attempted", "known", "request_sent", "named"}
)
REMARK = "line_damaged"  # what a repair leaves in the place of a line that could not be read
READ_EVENTS = frozenset(
    {"task_started", "turn_started", "task_complete", "turn_complete", "turn_aborted", "thread_rolled_back"}
)
KEPT_EVENTS = frozenset(
    """
    token_count item_completed item_started item_updated user_message agent_message agent_reasoning
    agent_reasoning_raw_content thread_settings_applied thread_goal_updated thread_name_updated context_compacted
    entered_review_mode exited_review_mode patch_apply_begin patch_apply_end mcp_tool_call_begin mcp_tool_call_end
    web_search_begin web_search_end image_generation_end sub_agent_activity exec_command_begin exec_command_end
    guardian_assessment collab_agent_spawn_end collab_agent_interaction_end collab_waiting_end collab_close_end
    collab_agent_waiting_end collab_agent_close_end dynamic_tool_call_request dynamic_tool_call_response
    view_image_tool_call undo_completed error warning stream_error plan_update turn_diff background_event
    """.split()  # noqa: SIM905 (a list of words reads better than a list of strings)
)
KNOWN_EVENTS = READ_EVENTS | KEPT_EVENTS
OLD_EVENTS = {"turn_started": "task_started", "turn_complete": "task_complete"}
LEFT_OUT = frozenset({"configuration_update", "compaction_trigger"})
WINDOW_IDS = ("window_id", "first_window_id", "previous_window_id")

Oddities = Iterator[tuple[str, str]]  # kind and detail


def record_and_oddities(value: JSON) -> tuple[Record, list[tuple[str, str]]]:
    """The record of a line's object as the reader has it, and what is odd about its shape."""
    record = record_of(value)
    found = list(_envelope(value))
    payload = value.get("payload")
    if not is_object(payload):
        kept = isinstance(record, LineKept)
        return record, [*found, ("unknown_record" if kept else "bare_record", _bare_name(value, record))]
    kind = value.get("type")
    known = isinstance(kind, str) and kind in KNOWN_TYPES and kind not in KEPT_TYPES
    if isinstance(record, LineKept) and known and not _is_kept_on_purpose(str(kind), payload):
        return record, [*found, ("unknown_shape", str(kind))]
    return record, [*found, *_payload(kind, payload, isinstance(record, LineKept))]


def _envelope(value: JSON) -> Oddities:
    if not isinstance(value.get("timestamp"), str) and "payload" in value:
        yield "timestamp_missing", ""
    metadata = value.get("metadata")
    if metadata is not None and not is_object(metadata):
        yield "odd_value", "metadata"
    elif metadata is not None:
        limit = metadata.get("fallback_token_limit_override")
        if limit is not None and not isinstance(limit, int):
            yield "odd_value", "metadata.fallback_token_limit_override"


def _bare_name(value: JSON, record: Record) -> str:
    told = value.get("type") or value.get("record_type")
    return str(told)[:80] if told else "session_meta" if not isinstance(record, LineKept) else "without a type"


def _is_kept_on_purpose(kind: str, payload: JSON) -> bool:
    """Whether a known record is kept without being read because that is what is done with it."""
    if kind == "refold":
        return str(payload.get("kind")) not in REFOLD_KINDS
    return kind == "world_state" or payload.get("type") == GHOST


def _payload(kind: Any, payload: JSON, is_kept: bool) -> Oddities:
    match kind:
        case "response_item":
            yield from item_oddities(payload)
        case "event_msg":
            yield from _event(payload)
        case "session_meta":
            yield from _meta(payload)
        case "compacted":
            yield from _checkpoint(payload)
        case "world_state" if not is_object(payload.get("state")):
            yield "world_unreadable", ""
        case "refold" if is_kept and payload.get("kind") != REMARK:
            yield "unknown_record", f"refold {str(payload.get('kind'))[:60]}"
        case "world_state" | "refold":
            pass
        case _:
            if not isinstance(kind, str) or kind not in KNOWN_TYPES:
                yield "unknown_record", str(kind)[:80]


def item_oddities(item: Item) -> Oddities:
    """Of an item: a type that no history holds."""
    kind = item.get("type")
    if kind == GHOST:
        yield "ghost_snapshot", ""
    elif item.get("role") == "system":
        yield "item_left_out", "system message"
    elif not isinstance(kind, str) or kind not in HISTORY_TYPES:
        left_out = isinstance(kind, str) and kind in LEFT_OUT
        yield ("item_left_out" if left_out else "unknown_item"), str(kind)[:80]


def _event(payload: JSON) -> Oddities:
    kind = payload.get("type")
    if not isinstance(kind, str) or kind not in KNOWN_EVENTS:
        yield "unknown_event", str(kind)[:80]
    elif kind in OLD_EVENTS:
        yield "old_spelling", f"{kind} for {OLD_EVENTS[kind]}"
    elif kind == "token_count" and payload.get("info") is not None and not is_object(payload["info"]):
        yield "odd_value", "token_count.info"
    elif kind == "thread_rolled_back":
        turns = payload.get("num_turns")
        if not isinstance(turns, int) or turns < 1:
            yield "odd_value", "thread_rolled_back.num_turns"


def _meta(payload: JSON) -> Oddities:
    if not isinstance(payload.get("id"), str) and isinstance(payload.get("session_id"), str):
        yield "old_spelling", "session_id for id"
    if "instructions" in payload and "base_instructions" not in payload:
        yield "old_spelling", "instructions for base_instructions"
    base = payload.get("history_base")
    if base is not None and not _is_base(base):
        yield "odd_value", "session_meta.history_base"


def _is_base(base: Any) -> bool:
    return (
        is_object(base)
        and isinstance(base.get("thread_id"), str)
        and isinstance(base.get("end_ordinal_exclusive"), int)
        and base["end_ordinal_exclusive"] > 0
    )


def _checkpoint(payload: JSON) -> Oddities:
    history = payload.get("replacement_history")
    if not is_list(history):
        if history is not None:
            yield "odd_value", "compacted.replacement_history"
        yield "checkpoint_message_only", f"{len(str(payload.get('message') or '')):,} characters"
    else:
        yield from _replacement(history)
    if (why := misfit(payload)) is not None:
        yield "checkpoint_metadata", why
    number = payload.get("window_number")
    if number is not None and not isinstance(number, int):
        yield "odd_value", "compacted.window_number"
    for key in WINDOW_IDS:
        if payload.get(key) is not None and not isinstance(payload[key], str):
            yield "odd_value", f"compacted.{key}"
    yield from _own(payload.get("refold"), history)


def misfit(payload: JSON) -> str | None:
    """Why a checkpoint's `replacement_history_metadata` makes the real program skip it; None where it does not."""
    told = payload.get("replacement_history_metadata")
    if told is None:
        return None
    history = payload.get("replacement_history")
    if not is_list(told) or not is_list(history):
        return "no list" if is_list(history) else "no history that it could belong to"
    return None if len(told) == len(history) else f"{len(told)} for {len(history)} items"


def _replacement(history: list[Any]) -> Oddities:
    strangers = sum(not is_object(item) for item in history)
    if strangers:
        yield "checkpoint_items", f"{strangers} of {len(history)}"
    for item in history:
        if is_object(item):
            yield from item_oddities(item)


def _own(own: Any, history: Any) -> Oddities:
    """Of what refold itself says in a checkpoint."""
    if not is_object(own):
        if own is not None:
            yield "odd_value", "compacted.refold"
        return
    kept = [item for item in history if is_object(item) and item.get("type") != GHOST] if is_list(history) else []
    addresses = own.get("addresses")
    if is_list(addresses) and len(addresses) != len(kept):
        yield "checkpoint_addresses", f"{len(addresses)} for {len(kept)} items"
    for key, fits in (("addresses", is_list), ("steers", is_object), ("pins", is_list), ("dropped_rules", is_list)):
        if own.get(key) is not None and not fits(own[key]):
            yield "odd_value", f"compacted.refold.{key}"
    for key in ("world", "turn_context"):
        if own.get(key) is not None and not is_object(own[key]):
            yield "odd_value", f"compacted.refold.{key}"
