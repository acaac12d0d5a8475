"""Transcript: what happened in a session, record by record, each with its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from refold.core.fragments import origin_of
from refold.core.items import Item
from refold.core.records import (
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
    SteerQueued,
    TurnEnded,
    TurnStarted,
)
from refold.views.shown import clean, shown_text

RowKind: TypeAlias = Literal[
    "session", "turn", "user", "assistant", "reasoning", "call", "output", "context", "summary", "compaction", "note"
]


class Row(msgspec.Struct, frozen=True):
    """One line of the story: where it stands, what it is, and its text."""

    address: str
    kind: RowKind
    text: str
    title: str = ""


class Transcript(msgspec.Struct, frozen=True):
    """A whole session, and what of it this version could not read."""

    rows: tuple[Row, ...]
    unknown: dict[str, int]  # kinds of lines that were kept but not understood, with how often
    warnings: tuple[str, ...]  # damage: one line each


def transcript(lines: Iterable[Line]) -> Transcript:
    """Read a log as a story."""
    rows: list[Row] = []
    unknown: Counter[str] = Counter()
    warnings: list[str] = []
    thread_id = ""
    for line in lines:
        if line.warning:
            warnings.append(f"line {line.ordinal}: {line.warning}")
        match line.record:
            case SessionStarted(thread_id=found) as meta if not thread_id:
                thread_id = found
                rows.append(Row(_at(thread_id, line), "session", f"{meta.timestamp} in {meta.cwd}", found))
            case LineKept(type=kind):
                unknown[kind] += 1
            case _:
                row = _row(line.record, _at(thread_id, line))
                if row is not None:
                    rows.append(row)
    return Transcript(tuple(rows), dict(unknown), tuple(warnings))


def _at(thread_id: str, line: Line) -> str:
    return f"{thread_id}:{line.ordinal}"


def _row(record: Record, address: str) -> Row | None:
    match record:
        case ItemRecorded(item=item):
            return _item_row(item, address)
        case TurnStarted(turn_id=turn_id):
            return Row(address, "turn", "", f"turn {turn_id}")
        case TurnEnded(outcome=outcome, error=error, duration_ms=ms):
            text = f"{outcome} after {ms / 1000:.1f} s" + (f": {error}" if error else "")
            return Row(address, "note", clean(text), "turn ended")
        case Compacted():
            return Row(address, "compaction", _compaction_text(record), "context compacted")
        case CompactionAttempted(outcome=outcome, dropped=dropped) if outcome != "completed":
            return Row(address, "note", clean(f"{outcome} ({dropped} items left out)"), "compaction attempt failed")
        case RolledBack(turns=turns):
            return Row(address, "note", f"the last {turns} user turns no longer count", "rolled back")
        case SteerQueued(text=text):
            return Row(address, "note", clean(text), "steer waits")
        case EventKept(payload={"type": "error", "message": str(message)}):
            return Row(address, "note", clean(message), "error")
        case LineDamaged(why=why):
            return Row(address, "note", why, "damaged line")
        case _:
            return None


def _compaction_text(record: Compacted) -> str:
    kept = "no history list" if record.history is None else f"{len(record.history)} items"
    tokens = ""
    if "tokens_before" in record.facts:
        tokens = f", {record.facts['tokens_before']:,} → {record.facts['tokens_after']:,} tokens"
    window = f", window {record.window.number}" if record.window else ""
    return f"{kept}{tokens}{window}"


def _item_row(item: Item, address: str) -> Row:
    kind, text = str(item.get("type")), shown_text(item)
    if kind == "message":
        match origin_of(item):
            case "typed":
                return Row(address, "user", text)
            case "summary":
                return Row(address, "summary", text)
            case "model":
                return Row(address, "assistant", text)
            case _:
                return Row(address, "context", text, str(item.get("role")))
    if kind == "reasoning":
        return Row(address, "reasoning", text)
    if kind.endswith("_output"):
        return Row(address, "output", text, str(item.get("call_id") or ""))
    if kind.endswith("_call"):
        return Row(address, "call", text, str(item.get("call_id") or ""))
    return Row(address, "context", text, kind)
