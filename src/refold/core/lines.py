"""Lines: record → JSON line(s) and back; the one place that knows a rollout's spelling (docs/rollout.md)."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from refold.core.fragments import origin_of
from refold.core.items import HISTORY_TYPES, Item, message_text, message_texts
from refold.core.jsonio import dump_strict, is_list, is_object, load
from refold.core.records import (
    JSON,
    Compacted,
    CompactionAttempted,
    EventKept,
    ItemRecorded,
    Line,
    LineDamaged,
    LineKept,
    Record,
    RolledBack,
    SessionStarted,
    SettingsApplied,
    SteerQueued,
    TurnEnded,
    TurnStarted,
    UsageCounted,
    Window,
    WorldObserved,
)
from refold.core.usage import Usage

# --- record → lines ------------------------------------------------------------------------------------


def encode(
    record: Record, *, thread_id: str, turn_id: str | None, timestamp: str, ordinal: int | None
) -> tuple[bytes, int, int]:
    """The record's line(s) as bytes, the place of the record's own line among them, and how many lines there are.

    `ordinal` is the first line's; None for a file that has no ordinals. Raises what `dump_strict` raises.
    """
    bodies, own = _bodies(record, thread_id, turn_id)
    lines: list[bytes] = []
    for offset, (kind, payload, metadata) in enumerate(bodies):
        line: JSON = {"timestamp": timestamp}
        if ordinal is not None:
            line["ordinal"] = ordinal + offset
        line["type"], line["payload"] = kind, payload
        if metadata is not None:
            line["metadata"] = metadata
        lines.append(dump_strict(line) + b"\n")
    return b"".join(lines), own, len(lines)


_IMAGE_PATH = re.compile(r'<image name=\[Image #\d+\] path="(.*)">')
_Body = tuple[str, Any, JSON | None]


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
        case CompactionAttempted():
            return [("refold", {"kind": "compaction_attempted", **msgspec.to_builtins(record)}, None)], 0
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
    """What was said, for views: a local image by its path, the rest of the text."""
    texts = message_texts(item)
    images: list[JSON] = [{"type": "local_image", "path": m[1]} for m in map(_IMAGE_PATH.fullmatch, texts) if m]
    if images:
        texts = [text for text in texts if not _IMAGE_PATH.fullmatch(text) and text != "</image>"]
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
    window = record.window
    return {
        **record.payload,
        "message": record.message,
        **({} if record.history is None else {"replacement_history": list(record.history)}),
        **({} if window is None else _window_payload(window)),
        "compaction_response_id": record.response_id,
        "refold": {
            **record.facts,
            "addresses": list(record.addresses),
            "world": record.world,
            "turn_context": record.settings,
            **({"steers": record.steers} if record.steers is not None else {}),
        },
    }


def _window_payload(window: Window) -> JSON:
    return {
        "window_number": window.number,
        "first_window_id": window.first_id,
        "previous_window_id": window.previous_id,
        "window_id": window.id,
    }


# --- line → record ---------------------------------------------------------------------------------------


# How a line begins that no fold looks into: mirrors and accounts are a third of a file.
_UNFOLDED = re.compile(
    rb'\{"timestamp":"[^"]*","ordinal":(\d{1,18}),"type":"(?:event_msg","payload":\{"type":"item_completed|token_usage_record)"'
)


def unfolded(raw: bytes) -> int | None:
    """The ordinal of a whole line that no fold looks into; None for every other line."""
    seen = _UNFOLDED.match(raw)
    return int(seen[1]) if seen and raw.endswith((b"}}\n", b"}}")) else None


def decode(raw: bytes, line_number: int) -> Line | None:
    """The record of one line, without its line end; None for a blank line. Never raises: damage is a record too."""
    raw = raw.strip(b" \t\r\n")
    if not raw:
        return None
    try:
        value, warning = load(raw)
    except ValueError as error:
        return Line(line_number, LineDamaged(_one_line(error)), warning=f"not JSON: {_one_line(error)}")
    if not is_object(value):
        return Line(line_number, LineDamaged("not a JSON object"), warning="not a JSON object")
    ordinal = value.get("ordinal")
    stamp = value.get("timestamp")
    return Line(
        ordinal if isinstance(ordinal, int) and not isinstance(ordinal, bool) else line_number,
        _record(value),
        stamp if isinstance(stamp, str) else "",
        warning,
    )


def has_ordinal(raw: bytes) -> bool:
    """Whether a line carries an ordinal, so that lines after it must carry one too."""
    try:
        value, _ = load(raw.strip(b" \t\r\n"))
    except ValueError:
        return False
    return is_object(value) and isinstance(value.get("ordinal"), int)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _record(line: JSON) -> Record:
    kind, payload = line.get("type"), line.get("payload")
    if not is_object(payload):
        return _bare(line)
    try:
        match kind:
            case "response_item":
                return _item_record(payload, line.get("metadata"))
            case "event_msg":
                return _event_record(payload)
            case "session_meta":
                return _meta_record(payload)
            case "compacted":
                return _compacted_record(payload)
            case "turn_context":
                return SettingsApplied(payload)
            case "world_state" if is_object(payload.get("state")):
                return WorldObserved(bool(payload.get("full")), payload["state"])
            case "refold":
                return _refold_record(payload)
            case _:
                return LineKept(str(kind), payload)
    except (msgspec.ValidationError, TypeError, ValueError, KeyError, OverflowError):
        return LineKept(str(kind), payload)  # a known type in an unknown shape is kept, not guessed at


def _bare(line: JSON) -> Record:
    """A line of the first generation (2025): no envelope, the item or the metadata itself."""
    kind = line.get("type")
    if isinstance(kind, str) and kind in HISTORY_TYPES:
        return ItemRecorded({key: value for key, value in line.items() if not (key == "id" and value is None)})
    named = isinstance(line.get("id"), str) and line["id"] != ""
    if "type" not in line and named and "timestamp" in line:
        return _meta_record(line)
    if kind == "session_meta" and named:
        return _meta_record({key: value for key, value in line.items() if key != "type"})
    return LineKept(str(kind or line.get("record_type") or "unknown"), line)


def _item_record(payload: JSON, metadata: Any) -> Record:
    if payload.get("type") == "ghost_snapshot":
        return LineKept("response_item", payload)
    extra = metadata if is_object(metadata) else None
    limit = extra.get("fallback_token_limit_override") if extra else None
    return ItemRecorded(payload, limit if isinstance(limit, int) else None, extra)


def _meta_record(payload: JSON) -> SessionStarted:
    base = payload.get("base_instructions", payload.get("instructions"))
    text = base.get("text") if is_object(base) else base
    window = payload.get("context_window")
    known = {"session_id", "id", "timestamp", "cwd", "model_provider", "base_instructions", "history_mode"}
    thread_id = payload.get("id") or payload.get("session_id")
    if not isinstance(thread_id, str):
        raise ValueError("a session without an id")
    return SessionStarted(
        thread_id=thread_id,
        timestamp=str(payload.get("timestamp") or ""),
        cwd=str(payload.get("cwd") or ""),
        provider=str(payload.get("model_provider") or ""),
        base_instructions=text if isinstance(text, str) else None,
        window_id=window.get("window_id") if is_object(window) else None,
        forked_from=payload.get("forked_from_id"),
        history_mode=str(payload.get("history_mode") or "legacy"),
        payload={key: value for key, value in payload.items() if key not in known},
    )


_COMPACTED_KEYS = frozenset(
    {
        "message",
        "replacement_history",
        "window_number",
        "first_window_id",
        "previous_window_id",
        "window_id",
        "compaction_response_id",
        "refold",
    }
)


_CHECKPOINT_STATE = frozenset({"addresses", "world", "turn_context", "steers"})


def _compacted_record(payload: JSON) -> Compacted:
    history = payload.get("replacement_history")
    ours = payload.get("refold")
    own: JSON = ours if is_object(ours) else {}
    number = payload.get("window_number")
    ids = (payload.get("window_id"), payload.get("first_window_id"), payload.get("previous_window_id"))
    window = Window(number, *(None if one is None else str(one) for one in ids)) if isinstance(number, int) else None
    steers = own.get("steers")
    items = None
    if is_list(history):
        items = tuple(item for item in history if is_object(item) and item.get("type") != "ghost_snapshot")
    return Compacted(
        message=str(payload.get("message") or ""),
        history=items,
        window=window,
        addresses=tuple(str(address) for address in own.get("addresses") or ()),
        world=_object(own.get("world")),
        settings=_object(own.get("turn_context")),
        steers={str(key): str(text) for key, text in steers.items()} if is_object(steers) else None,
        facts={key: value for key, value in own.items() if key not in _CHECKPOINT_STATE},
        response_id=payload.get("compaction_response_id"),
        payload={key: value for key, value in payload.items() if key not in _COMPACTED_KEYS},
    )


def _event_record(payload: JSON) -> Record:
    match payload.get("type"):
        case "task_started" | "turn_started":
            return TurnStarted(
                str(payload.get("turn_id") or ""), _int(payload.get("started_at")), payload.get("model_context_window")
            )
        case "task_complete" | "turn_complete":
            error = payload.get("error")
            return _turn_ended(payload, "failed" if error else "completed", error)
        case "turn_aborted":
            return _turn_ended(payload, "interrupted", None)
        case "token_count" if is_object(payload.get("info")):
            info = payload["info"]
            last = msgspec.convert(info.get("last_token_usage") or {}, Usage, strict=False)
            total = msgspec.convert(info.get("total_token_usage") or {}, Usage, strict=False)
            return UsageCounted(last, total, info.get("model_context_window"))
        case "thread_rolled_back":
            return RolledBack(_int(payload.get("num_turns")))
        case _:
            return EventKept(payload)


def _turn_ended(payload: JSON, outcome: Any, error: Any) -> TurnEnded:
    return TurnEnded(
        turn_id=payload.get("turn_id"),
        outcome=outcome,
        last_message=payload.get("last_agent_message"),
        error=str(error.get("message") or "") or None if is_object(error) else None,
        started_at=_int(payload.get("started_at")),
        completed_at=_int(payload.get("completed_at")),
        duration_ms=_int(payload.get("duration_ms")),
    )


def _object(value: Any) -> JSON | None:
    return value if is_object(value) else None


def _int(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _refold_record(payload: JSON) -> Record:
    match payload.get("kind"):
        case "steer_queued":
            return SteerQueued(str(payload["item_id"]), str(payload["text"]))
        case "compaction_attempted":
            return msgspec.convert({k: v for k, v in payload.items() if k != "kind"}, CompactionAttempted)
        case _:
            return LineKept("refold", payload)
