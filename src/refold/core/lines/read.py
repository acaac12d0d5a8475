"""Read: a line as the record that it holds. Never raises: damage is a record too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from refold.core.items import HISTORY_TYPES, AgentEnvelope, agent_message
from refold.core.jsonio import is_list, is_object, load
from refold.core.records import (
    JSON,
    Compacted,
    CompactionAttempted,
    EventKept,
    ItemRecorded,
    Known,
    Line,
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
from refold.core.usage import Usage

# How a line begins that no fold looks into, or that counts tokens: mirrors and counts are the half of a file.
_SKIMMED = re.compile(
    rb'\{"timestamp":"[^"]*","ordinal":(\d{1,18}),"type":"(?:token_usage_record"'
    rb'|event_msg","payload":\{"type":"(?:item_completed"|(token_count","info":\{)))'
)

# How a line begins that says nothing beyond the history: all but the events named here, checkpoints and our own lines.
_BEFORE = (
    rb'\{"timestamp":"[^"]*",(?:"ordinal":\d{1,18},)?"type":"(?:(?:response_item|world_state|session_meta%s'
    rb'|token_usage_record|retained_context|inter_agent_communication\w*)"|event_msg","payload":\{"type":"'
    rb'(?!(?:task_started|turn_started|thread_name_updated|%sthread_rolled_back)"))'
)
_PASSED = re.compile(_BEFORE % (b"", b"task_complete|turn_complete|turn_aborted|token_count|"))
_UNCOUNTED = re.compile(_BEFORE % (b"|turn_context", b""))
_ORDINAL = re.compile(rb'\{"timestamp":"[^"]*","ordinal":(\d{1,18}),')


LONGEST_COUNT = 1_200  # bytes, more than is usual; a longer one may be nested too deeply


class _Info(msgspec.Struct):
    last_token_usage: Usage
    total_token_usage: Usage
    model_context_window: Any = None


class _Payload(msgspec.Struct):
    type: str
    info: _Info


class _Count(msgspec.Struct):
    timestamp: str
    ordinal: int
    type: str
    payload: _Payload


_as_count = msgspec.json.Decoder(_Count).decode


def mattering(lines: list[bytes], *, only_counts: bool = False) -> list[bytes]:
    """Those of the lines before a checkpoint that may still matter behind it; or only those that are counted."""
    begins = (_UNCOUNTED if only_counts else _PASSED).match
    return [raw for raw in lines if begins(raw) is None]


def ordinal_of(raw: bytes) -> int | None:
    """The ordinal that a line begins with, as the real program and refold write it; None where it does not."""
    seen = _ORDINAL.match(raw)
    return int(seen[1]) if seen else None


def skimmed(raw: bytes) -> int | Line | None:
    """What a fold needs of a whole line, the quick way: the ordinal alone of one that it does not look into, the record
    of a usual count of tokens; None: it is to be decoded."""
    seen = _SKIMMED.match(raw)
    if seen is None or not raw.endswith((b"}}\n", b"}}")):
        return None
    return int(seen[1]) if seen[2] is None else _count(raw)


def _count(raw: bytes) -> Line | None:
    if len(raw) > LONGEST_COUNT:
        return None
    try:
        line = _as_count(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if line.type != "event_msg" or line.payload.type != "token_count":  # a line may say its keys twice
        return None
    info = line.payload.info
    return Line(
        line.ordinal,
        UsageCounted(info.last_token_usage, info.total_token_usage, info.model_context_window),
        line.timestamp,
    )


def decode(raw: bytes, line_number: int, whole: Callable[[JSON], tuple[JSON, str | None]] | None = None) -> Line | None:
    """The record of one line, without its line end; None for a blank line. Never raises: damage is a record too.

    `whole` puts texts back in the place of references, and tells what is missing, if anything is.
    """
    raw = raw.strip(b" \t\r\n")
    if not raw:
        return None
    try:
        value, warning = load(raw)
    except ValueError as error:
        return Line(line_number, LineDamaged(_one_line(error)), warning=f"not JSON: {_one_line(error)}")
    if not is_object(value):
        return Line(line_number, LineDamaged("not a JSON object"), warning="not a JSON object")
    if whole is not None:
        value, missing = whole(value)
        warning = warning or missing
    ordinal = _own_ordinal(value)
    stamp = value.get("timestamp")
    return Line(
        line_number if ordinal is None else ordinal,
        record_of(value),
        stamp if isinstance(stamp, str) else "",
        warning,
    )


def has_ordinal(raw: bytes) -> bool:
    """Whether a line carries an ordinal, so that lines after it must carry one too."""
    try:
        value, _ = load(raw.strip(b" \t\r\n"))
    except ValueError:
        return False
    return is_object(value) and _own_ordinal(value) is not None


def _own_ordinal(line: JSON) -> int | None:
    ordinal = line.get("ordinal")
    return ordinal if isinstance(ordinal, int) and not isinstance(ordinal, bool) else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def record_of(line: JSON) -> Record:
    """The record that a line's object holds. Never raises: what is not known is kept whole."""
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
            case "inter_agent_communication":
                return ItemRecorded(agent_message(msgspec.convert(payload, AgentEnvelope)))
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


_CHECKPOINT_STATE = frozenset({"addresses", "world", "turn_context", "steers", "pins", "dropped_rules"})


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
        pins=_texts(own.get("pins")),
        dropped_rules=_texts(own.get("dropped_rules")),
        facts={key: value for key, value in own.items() if key not in _CHECKPOINT_STATE},
        response_id=payload.get("compaction_response_id"),
        payload={key: value for key, value in payload.items() if key not in _COMPACTED_KEYS},
    )


def _texts(value: Any) -> tuple[JSON, ...] | None:
    """Texts with their addresses, as they are; None where a checkpoint does not say."""
    if not is_list(value):
        return None
    told = (one for one in value if is_object(one))
    return tuple(one for one in told if isinstance(one.get("address"), str) and isinstance(one.get("text"), str))


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
        case "thread_name_updated":
            return Named(str(payload.get("thread_name") or ""), str(payload.get("thread_id") or "") or None)
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
        case "pinned":
            return Pinned(str(payload["address"]), str(payload["text"]))
        case "unpinned":
            text = payload.get("text")
            return Unpinned(str(payload["address"]), None if text is None else str(text))
        case "rule_dropped":
            return RuleDropped(str(payload["address"]), str(payload["text"]))
        case "named":
            return Named(str(payload["name"]))
        case "compaction_attempted":
            return msgspec.convert({k: v for k, v in payload.items() if k != "kind"}, CompactionAttempted)
        case "known":
            return Known(str(payload["hash"]), payload["value"])
        case "request_sent":
            told = {key: value for key, value in payload.items() if key != "request"}
            return msgspec.convert({**told, "kind": payload["request"]}, RequestSent)
        case _:
            return LineKept("refold", payload)
