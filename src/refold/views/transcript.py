"""Transcript: what happened in a session, record by record, each with its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from refold.core.compaction.shadow import shadows_of
from refold.core.fragments import SUMMARY_MARK, origin_of
from refold.core.items import HISTORY_TYPES, Item
from refold.core.records import (
    Compacted,
    CompactionAttempted,
    EventKept,
    ItemRecorded,
    Line,
    LineDamaged,
    LineKept,
    Named,
    Pinned,
    Record,
    RolledBack,
    RuleDropped,
    SessionStarted,
    SteerQueued,
    TurnEnded,
    TurnStarted,
    Unpinned,
)
from refold.views.shown import clean, one_line, shown_text

RowKind: TypeAlias = Literal[
    "session", "turn", "user", "assistant", "reasoning", "call", "output", "context", "summary", "compaction", "note"
]


DAMAGED = "damaged line"  # the title of a row for a line that is not a record

# What this version knows, though it shows only some of it: the rest repeats what an item says, or tells of progress.
KNOWN_ITEMS = HISTORY_TYPES | {"ghost_snapshot", "configuration_update", "compaction_trigger"}
KNOWN_EVENTS = frozenset(
    """
    agent_message agent_reasoning agent_reasoning_raw_content background_event collab_agent_interaction_end
    collab_agent_spawn_end collab_close_end collab_waiting_end context_compacted dynamic_tool_call_request
    dynamic_tool_call_response entered_review_mode error exec_command_begin exec_command_end exited_review_mode
    guardian_assessment image_generation_end item_completed item_started mcp_tool_call_begin mcp_tool_call_end
    patch_apply_begin patch_apply_end plan_update stream_error sub_agent_activity thread_goal_updated
    thread_name_updated thread_settings_applied token_count turn_diff undo_completed user_message view_image_tool_call
    warning web_search_begin web_search_end
    """.split()  # noqa: SIM905 (a list of words reads better than a list of strings)
)


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
    """Read a log as a story. Raises what reading raises."""
    told = Story()
    for line in lines:
        told.add(line)
    return told.transcript()


class Story:
    """Mutable: a transcript that grows line by line, so that what was read of a file that breaks off is not lost."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._unknown: Counter[str] = Counter()
        self._warnings: list[str] = []
        self._thread_id = ""

    def add(self, line: Line) -> None:
        if line.warning:
            self._warnings.append(one_line(line.warning))
        kind = unknown_kind(line.record)
        if kind is not None:
            self._unknown[one_line(kind)] += 1
        if isinstance(line.record, SessionStarted):
            if self._thread_id:
                return  # copied ancestry, or written again by a resume
            self._thread_id = line.record.thread_id
        row = _row(line.record, f"{self._thread_id}:{line.ordinal}")
        if row is not None:
            self._rows.append(Row(clean(row.address), row.kind, clean(row.text), one_line(row.title)))

    def transcript(self) -> Transcript:
        return Transcript(tuple(self._rows), dict(self._unknown), tuple(self._warnings))


def unknown_kind(record: Record) -> str | None:
    """What this version does not understand of a record: the type of its item, event or line; None if it does."""
    match record:
        case LineKept(type="response_item" | "event_msg", payload={"type": str(kind)}):
            return kind
        case LineKept(type="refold", payload={"kind": str(kind)}):
            return f"refold {kind}"
        case LineKept(type=kind):
            return kind
        case ItemRecorded(item=item) if str(item.get("type")) not in KNOWN_ITEMS:
            return str(item.get("type"))
        case EventKept(payload=payload) if str(payload.get("type")) not in KNOWN_EVENTS:
            return str(payload.get("type"))
        case _:
            return None


def _row(record: Record, address: str) -> Row | None:
    match record:
        case SessionStarted(thread_id=thread_id):
            return Row(address, "session", f"{record.timestamp} in {record.cwd}", thread_id)
        case ItemRecorded(item=item):
            return _item_row(item, address)
        case TurnStarted(turn_id=turn_id):
            return Row(address, "turn", "", turn_id)
        case TurnEnded(outcome=outcome, error=error, duration_ms=ms):
            text = f"{outcome} after {ms / 1000:.1f} s" + (f": {error}" if error else "")
            return Row(address, "note", text, "turn ended")
        case Compacted(facts={"method": "undo", "undoes": str(undone)}):
            return Row(address, "compaction", _compaction_text(record), f"undo of {undone}")
        case Compacted(facts={"method": "shadow"}):
            return Row(address, "compaction", _compaction_text(record), "an outline took an encrypted item's place")
        case Compacted(facts={"method": "fork"}):
            return Row(address, "compaction", _compaction_text(record), "history taken over")
        case Compacted(facts={"method": "rollback"}):
            return Row(address, "compaction", _compaction_text(record), "turns undone")
        case Compacted():
            return Row(address, "compaction", _compaction_text(record), "context compacted")
        case CompactionAttempted(outcome=outcome, dropped=dropped) if outcome != "completed":
            return Row(address, "note", f"{outcome} ({dropped} items left out)", "compaction attempt failed")
        case RolledBack(turns=turns):
            return Row(address, "note", f"the last {turns} user turns no longer count", "rolled back")
        case SteerQueued(text=text):
            return Row(address, "note", text, "steer waits")
        case Pinned(address=pinned, text=text):
            return Row(address, "note", text, f"pinned, of {pinned}")
        case Unpinned(address=pinned):
            return Row(address, "note", record.text or "all of it", f"no longer pinned, of {pinned}")
        case RuleDropped(address=said, text=text):
            return Row(address, "note", text, f"no longer kept before others, of {said}")
        case Named(name=name):
            return Row(address, "note", name or "no name any more", "named")
        case EventKept(payload={"type": "error", "message": str(message)}):
            return Row(address, "note", message, "error")
        case LineDamaged(why=why):
            return Row(address, "note", why, DAMAGED)
        case _:
            return None


def _compaction_text(record: Compacted) -> str:
    kept = "no history list" if record.history is None else f"{len(record.history)} items"
    tokens = ""
    match record.facts:
        case {"tokens_before": int(before), "tokens_after": int(after)}:
            tokens = f", {before:,} → {after:,} tokens"
    window = f", window {record.window.number}" if record.window else ""
    window += _shadow_text(record)
    summary = f"\n{clean(record.message.removeprefix(SUMMARY_MARK))}" if record.message else ""
    return f"{kept}{tokens}{window}{summary}"


def _shadow_text(record: Compacted) -> str:
    """Who can read the encrypted item, and that an outline of it is kept."""
    shadows = shadows_of(record)
    if not shadows:
        return ""
    shadow = next(iter(shadows.values()))
    maker = f" by {one_line(shadow.provider)}" if shadow.provider else ""
    return f", encrypted{maker}" + (f"; its outline, never sent:\n{clean(shadow.text)}" if shadow.text else "")


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
