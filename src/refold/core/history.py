"""History: entries, and list → list passes over them (spec §3.2–3.5).

Rule 1: no pass mutates its input; what needs no change is shared. Rule 2: each pass is idempotent.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core.fragments import Origin, looks_like_context, looks_like_developer_context, origin_of, turn_of
from refold.core.items import (
    OUTPUT_TYPE_OF,
    OUTPUT_TYPES,
    Item,
    answers,
    is_call,
    message_text,
    message_texts,
    output_for,
)
from refold.core.jsonio import is_list, is_object, without_lone_surrogates
from refold.core.tokens import Sizes, measure
from refold.core.truncate import Budget, cut_middle, cut_parts

ABORTED = "aborted"  # the output of a call that never got one
SYNTHETIC_NAMESPACE = uuid.UUID("90d38d3e-6a5b-4d52-bfe2-2f1e634bfac4")  # of ids that must be the same in every prompt
OUTPUT_ID_PREFIX = {"function_call_output": "fco", "custom_tool_call_output": "ctco", "tool_search_output": "tso"}
OMITTED_MEDIA = {
    "input_image": ("image", "image content omitted because you do not support image input"),
    "input_audio": ("audio", "audio content omitted because you do not support audio input"),
}


class Entry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An item in a thread with what refold knows about it. Compared by identity, so that wires can cache its bytes.

    A long history is a hundred thousand of these: the cycle collector need not walk them, JSON holds no cycle.
    """

    item: Item
    origin: Origin
    sizes: Sizes
    address: str  # thread:ordinal of the record that brought it
    turn_id: str | None = None

    @property
    def tokens(self) -> int:
        return self.sizes.tokens


def entry(item: Item, address: str, turn_id: str | None = None) -> Entry:
    """Measure an item once. Half surrogate pairs become U+FFFD, as they do in the log: live == replayed."""
    try:
        sizes = measure(item)
    except UnicodeEncodeError:
        item = without_lone_surrogates(item)
        sizes = measure(item)
    return Entry(item, origin_of(item), sizes, address, turn_of(item) or turn_id)


# --- questions ---------------------------------------------------------------------------------------------


def is_user_turn(item: Item) -> bool:
    """Whether a person (or another agent) spoke here: a turn boundary (spec §3.4)."""
    return item.get("type") == "agent_message" or origin_of(item) in ("typed", "summary")


def unanswered(entries: Sequence[Entry]) -> list[Entry]:
    """Calls without an output of their kind anywhere in the list."""
    outputs = {(e.item["type"], _call_id(e.item)) for e in entries if e.item.get("type") in OUTPUT_TYPES}
    return [
        e for e in entries if is_call(e.item) and (OUTPUT_TYPE_OF[e.item["type"]], e.item["call_id"]) not in outputs
    ]


def _call_id(item: Item) -> str | None:
    call_id = item.get("call_id")
    return call_id if isinstance(call_id, str) else None


def last_assistant_text(items: Sequence[Item]) -> str:
    """The newest assistant message whose text is not blank, or ""."""
    for item in reversed(items):
        if item.get("type") == "message" and item.get("role") == "assistant":
            text = message_text(item)
            if text.strip():
                return text
    return ""


# --- passes ------------------------------------------------------------------------------------------------


def answer_calls(entries: Sequence[Entry]) -> list[Entry]:
    """Right after each unanswered call, an output `aborted` with an id that is the same in every prompt."""
    missing = {id(e) for e in unanswered(entries)}
    if not missing:
        return list(entries)
    result: list[Entry] = []
    for e in entries:
        result.append(e)
        if id(e) in missing:
            result.append(entry(_aborted_output(e.item), e.address, e.turn_id))
    return result


def _aborted_output(call: Item) -> Item:
    prefix = OUTPUT_ID_PREFIX[OUTPUT_TYPE_OF[call["type"]]]
    call_item_id = call.get("id")
    synthetic = None
    if call_item_id:
        synthetic = f"{prefix}_{uuid.uuid5(SYNTHETIC_NAMESPACE, f'{prefix}:{call_item_id}')}"
    return output_for(call, ABORTED, id=synthetic)


def drop_orphans(entries: Sequence[Entry]) -> list[Entry]:
    """Without the outputs whose call is not in the list (an output that the server made itself needs none)."""
    calls = {(OUTPUT_TYPE_OF[e.item["type"]], e.item["call_id"]) for e in entries if is_call(e.item)}

    def belongs(item: Item) -> bool:
        kind = item.get("type")
        if kind not in OUTPUT_TYPES or (kind, _call_id(item)) in calls:
            return True
        return kind == "tool_search_output" and (item.get("execution") == "server" or item.get("call_id") is None)

    return [e for e in entries if belongs(e.item)]


def strip_modalities(entries: Sequence[Entry], modalities: Sequence[str]) -> list[Entry]:
    """Media that the model cannot take become a short text."""
    notes = {kind: note for kind, (modality, note) in OMITTED_MEDIA.items() if modality not in modalities}
    return [_without_media(e, notes) for e in entries] if notes else list(entries)


def _without_media(e: Entry, notes: dict[str, str]) -> Entry:
    changed: Item = {}
    for key in ("content", "output"):
        parts = e.item.get(key)
        if is_list(parts):
            told = [_without_medium(part, notes) for part in parts]
            if any(new is not old for new, old in zip(told, parts, strict=True)):
                changed[key] = told
    if e.item.get("type") == "image_generation_call" and "input_image" in notes and e.item.get("result"):
        changed["result"] = ""
    return entry({**e.item, **changed}, e.address, e.turn_id) if changed else e


def _without_medium(part: Any, notes: dict[str, str]) -> Any:
    note = notes.get(str(part.get("type"))) if is_object(part) else None
    return part if note is None else {"type": "input_text", "text": note}


def for_prompt(entries: Sequence[Entry], modalities: Sequence[str]) -> list[Entry]:
    """The history as a model may be sent it: every call answered, no orphan, no medium it cannot take (spec §3.2)."""
    return strip_modalities(drop_orphans(answer_calls(entries)), modalities)


class Pairing:
    """Whether a growing history may be sent as it is. Mutable: it has read `count` entries.

    `needs_repair` is true while a call waits for its output, and for good once `for_prompt` must change an entry.
    """

    def __init__(self, modalities: Sequence[str]) -> None:
        self.count = 0
        self._notes = {kind: note for kind, (modality, note) in OMITTED_MEDIA.items() if modality not in modalities}
        self._calls: set[tuple[str, str | None]] = set()
        self._answered: set[tuple[str, str | None]] = set()
        self._waiting: set[tuple[str, str | None]] = set()
        self._changed = False

    @property
    def needs_repair(self) -> bool:
        return self._changed or bool(self._waiting)

    def take(self, e: Entry) -> None:
        """Read the next entry."""
        self.count += 1
        item = e.item
        if is_call(item):
            key = (OUTPUT_TYPE_OF[item["type"]], item["call_id"])
            self._calls.add(key)
            if key not in self._answered:
                self._waiting.add(key)
        elif item.get("type") in OUTPUT_TYPES:
            answer = (item["type"], _call_id(item))
            self._answered.add(answer)
            self._waiting.discard(answer)
            self._changed = self._changed or answer not in self._calls
        if self._notes and not self._changed:
            self._changed = _without_media(e, self._notes) is not e


def cut_output(item: Item, budget: Budget) -> Item:
    """A tool output within a budget (bytes or tokens): text is cut in its middle, parts as spec §2.5 says."""
    if item.get("type") not in ("function_call_output", "custom_tool_call_output"):
        return item
    output = item.get("output")
    cut = cut_parts(output, budget) if is_list(output) else cut_middle(str(output or ""), budget)
    return item if cut == output else {**item, "output": cut}


def drop_oldest(entries: Sequence[Entry]) -> list[Entry]:
    """Without the first entry and, if it is one half of a pair, without its other half (spec §3.3)."""
    if not entries:
        return []
    first, rest = entries[0].item, list(entries[1:])
    for index, other in enumerate(rest):
        if answers(other.item, first) or answers(first, other.item):
            del rest[index]
            break
    return rest


def drop_user_turns(entries: Sequence[Entry], turns: int) -> list[Entry]:
    """Without the last `turns` user turns and the context that was injected for them (spec §3.5)."""
    boundaries = [index for index, e in enumerate(entries) if is_user_turn(e.item)]
    if turns <= 0 or not boundaries:
        return list(entries)
    cut = boundaries[max(0, len(boundaries) - turns)]
    while cut > boundaries[0] and _is_context(entries[cut - 1]):
        cut -= 1
    return list(entries[:cut])


def _is_context(e: Entry) -> bool:
    role = e.item.get("role")
    if role == "developer":
        return any(looks_like_developer_context(text) for text in message_texts(e.item))
    return role == "user" and (e.origin == "injected" or any(looks_like_context(t) for t in message_texts(e.item)))
