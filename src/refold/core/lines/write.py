"""Write: a record as the line(s) that hold it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from refold.core.fragments import origin_of, typed_parts
from refold.core.items import Item, message_text
from refold.core.jsonio import CHECKPOINT_LEVELS, MAX_DEPTH, dump_strict
from refold.core.records import (
    JSON,
    Compacted,
    CompactionAttempted,
    EventKept,
    ItemRecorded,
    Known,
    LineDamaged,
    LineKept,
    Named,
    Pinned,
    Record,
    RequestSent,
    RolledBack,
    RuleDropped,
    SessionStarted,
    SettingsApplied,
    SteerQueued,
    TurnEnded,
    TurnStarted,
    Unpinned,
    UsageCounted,
    Window,
    WorldObserved,
)


def encode(
    record: Record,
    *,
    thread_id: str,
    turn_id: str | None,
    timestamp: str,
    ordinal: int | None,
    dump: Callable[[JSON, int], bytes] | None = None,
) -> tuple[bytes, int, int]:
    """The record's line(s) as bytes, the place of the record's own line among them, and how many lines there are.

    `ordinal` is the first line's; None for a file that has no ordinals. `dump` makes a line of an object and the levels
    that it may have; it is `dump_strict` unless something of it is stored elsewhere. Raises what `dump_strict` raises.
    """
    bodies, own = _bodies(record, thread_id, turn_id)
    levels = MAX_DEPTH if isinstance(record, Compacted) else MAX_DEPTH - CHECKPOINT_LEVELS
    lines: list[bytes] = []
    for offset, (kind, payload, metadata) in enumerate(bodies):
        line: JSON = {"timestamp": timestamp}
        if ordinal is not None:
            line["ordinal"] = ordinal + offset
        line["type"], line["payload"] = kind, payload
        if metadata is not None:
            line["metadata"] = metadata
        raw = dump_strict(line, levels=levels) if dump is None else dump(line, levels)
        lines.append(raw + b"\n")
    return b"".join(lines), own, len(lines)


_Body = tuple[str, Any, JSON | None]
BESIDE_HISTORY = ("replacement_history_metadata", "guardian_history", "retained_context")  # in the real program's order


def _bodies(record: Record, thread_id: str, turn_id: str | None) -> tuple[list[_Body], int]:
    match record:
        case ItemRecorded():
            return _item_bodies(record, thread_id, turn_id)
        case SessionStarted():
            return [("session_meta", _meta_payload(record), None)], 0
        case Compacted():
            return [("compacted", _compacted_payload(record), None)], 0
        case WorldObserved(full=full, state=state):
            return [("world_state", {"full": full, "state": state}, None)], 0
        case SettingsApplied(settings=settings):
            return [("turn_context", settings, None)], 0
        case SteerQueued(item_id=item_id, text=text):
            return [("refold", {"kind": "steer_queued", "item_id": item_id, "text": text}, None)], 0
        case Pinned(address=address, text=text):
            return [("refold", {"kind": "pinned", "address": address, "text": text}, None)], 0
        case Unpinned(address=address, text=text):
            told = {} if text is None else {"text": text}
            return [("refold", {"kind": "unpinned", "address": address, **told}, None)], 0
        case RuleDropped(address=address, text=text):
            return [("refold", {"kind": "rule_dropped", "address": address, "text": text}, None)], 0
        case Named(name=name):
            return [("refold", {"kind": "named", "name": name}, None)], 0
        case CompactionAttempted():
            return [("refold", {"kind": "compaction_attempted", **msgspec.to_builtins(record)}, None)], 0
        case Known(hash=digest, value=value):
            return [("refold", {"kind": "known", "hash": digest, "value": value}, None)], 0
        case RequestSent():
            told = {key: value for key, value in msgspec.to_builtins(record).items() if value}
            return [("refold", {**told, "kind": "request_sent", "request": record.kind}, None)], 0
        case LineKept(type=kind, payload=payload):
            return [(kind, payload, None)], 0
        case LineDamaged(why=why):
            return [("refold", {"kind": "line_damaged", "why": why}, None)], 0
        case _:
            return [("event_msg", _event_payload(record), None)], 0


def _event_payload(record: Record) -> JSON:
    match record:
        case TurnStarted(turn_id=turn, started_at=at, context_window=window):
            return {"type": "task_started", "turn_id": turn, "started_at": at, "model_context_window": window}
        case TurnEnded(outcome="interrupted"):
            return {"type": "turn_aborted", "turn_id": record.turn_id, "reason": "interrupted", **_times(record)}
        case TurnEnded():
            failed = record.outcome == "failed"
            error = {"error": {"message": record.error or "", "codex_error_info": "other"}} if failed else {}
            told = {"turn_id": record.turn_id, "last_agent_message": record.last_message}
            return {"type": "task_complete", **told, **error, **_times(record)}
        case UsageCounted(last=last, total=total, context_window=window):
            counts = {"total_token_usage": total, "last_token_usage": last, "model_context_window": window}
            return {"type": "token_count", "info": counts, "rate_limits": None}
        case RolledBack(turns=turns):
            return {"type": "thread_rolled_back", "num_turns": turns}
        case EventKept(payload=payload):
            return payload
        case _:
            raise TypeError(f"no line for {type(record).__name__}")


def _times(record: TurnEnded) -> JSON:
    return {"started_at": record.started_at, "completed_at": record.completed_at, "duration_ms": record.duration_ms}


def _item_bodies(record: ItemRecorded, thread_id: str, turn_id: str | None) -> tuple[list[_Body], int]:
    """The item's line, with the mirror that the real program's thread views read for what was said."""
    item, metadata = record.item, record.metadata
    if metadata is None and record.limit is not None:
        metadata = {"client_authored": False, "fallback_token_limit_override": record.limit}
    own: _Body = ("response_item", item, metadata)
    said = _mirror(item)
    if said is None:
        return [own], 0
    event: JSON = {"type": "item_completed", "thread_id": thread_id, "turn_id": turn_id, "item": said}
    mirror: _Body = ("event_msg", event, None)
    return ([own, mirror], 0) if item.get("role") == "user" else ([mirror, own], 1)


def _mirror(item: Item) -> JSON | None:
    if item.get("type") != "message":
        return None
    if item.get("role") == "assistant":
        content = [{"type": "Text", "text": message_text(item)}]
        return {"type": "AgentMessage", "id": item.get("id"), "content": content}
    if item.get("role") == "user" and origin_of(item) == "typed":
        return {"type": "UserMessage", "id": item.get("id"), "content": _said(item)}
    return None


def _said(item: Item) -> list[JSON]:
    """What was said, for views: local images by their paths, then the text."""
    texts, paths = typed_parts(item)
    images: list[JSON] = [{"type": "local_image", "path": path} for path in paths]
    return [*images, {"type": "text", "text": "".join(texts), "text_elements": []}]


def _meta_payload(record: SessionStarted) -> JSON:
    base = None if record.base_instructions is None else {"text": record.base_instructions}
    known: JSON = {
        "session_id": record.thread_id,
        "id": record.thread_id,
        **({"forked_from_id": record.forked_from} if record.forked_from else {}),
        "timestamp": record.timestamp,
        "cwd": record.cwd,
        "originator": "refold",
        "source": "exec",
        "model_provider": record.provider,
        "base_instructions": base,
        "history_mode": record.history_mode,
        **({"context_window": {"window_id": record.window_id}} if record.window_id else {}),
    }
    return {**known, **record.payload}


def _compacted_payload(record: Compacted) -> JSON:
    window, payload = record.window, record.payload
    return {
        "message": record.message,
        **({} if record.history is None else {"replacement_history": list(record.history)}),
        **{key: payload[key] for key in BESIDE_HISTORY if key in payload},
        **({} if window is None else _window_payload(window)),
        "compaction_response_id": record.response_id,
        **{key: value for key, value in payload.items() if key not in BESIDE_HISTORY},
        "refold": {
            **record.facts,
            "addresses": list(record.addresses),
            "world": record.world,
            "turn_context": record.settings,
            **({"steers": record.steers} if record.steers is not None else {}),
            **({"pins": list(record.pins)} if record.pins is not None else {}),
            **({"dropped_rules": list(record.dropped_rules)} if record.dropped_rules is not None else {}),
        },
    }


def _window_payload(window: Window) -> JSON:
    return {
        "window_number": window.number,
        "first_window_id": window.first_id,
        "previous_window_id": window.previous_id,
        "window_id": window.id,
    }
