"""Pairing: a growing history as a provider may be sent it; the history itself stays as it is (spec §3.2, case S34).

Rule 1: every call is answered, every output has its call, every call id is used once, no medium the model cannot take.
Rule 2: one new entry costs the same whatever stands before it; read in pieces or at once, the view is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from refold.core.history import Entry, entry
from refold.core.items import OUTPUT_TYPE_OF, OUTPUT_TYPES, Item, is_call, output_for
from refold.core.jsonio import is_list, is_object

ABORTED = "aborted"  # the output of a call that never got one
SYNTHETIC_NAMESPACE = uuid.UUID("90d38d3e-6a5b-4d52-bfe2-2f1e634bfac4")  # of ids that must be the same in every prompt
OUTPUT_ID_PREFIX = {"function_call_output": "fco", "custom_tool_call_output": "ctco", "tool_search_output": "tso"}
OMITTED_MEDIA = {
    "input_image": ("image", "image content omitted because you do not support image input"),
    "input_audio": ("audio", "audio content omitted because you do not support audio input"),
}
MEDIA = tuple(OMITTED_MEDIA)

_Key = tuple[str, str]  # an output's type and its call id


class Oddity(msgspec.Struct, frozen=True):
    """Something that is sent otherwise than it was recorded: the record's address, its call id, and what was done."""

    address: str
    call_id: str
    what: str


class View:
    """What of a history is sent. Mutable: it has read `count` entries.

    A call that waits for its output gets one made up at its place; once a user has spoken it is given up, and the
    made-up output stays until a real one comes after all. An output belongs to the oldest call of its id that waits.
    """

    def __init__(self, modalities: Sequence[str]) -> None:
        self.count = 0
        self.tokens = 0  # of `entries`, estimated
        self.entries: list[Entry] = []  # without outputs for the calls that still wait
        self.oddities: list[Oddity] = []
        self._notes = {kind: note for kind, (modality, note) in OMITTED_MEDIA.items() if modality not in modalities}
        self._ids: set[str] = set()
        self._uses: dict[str, int] = {}  # call id → calls that had it
        self._waiting: dict[_Key, list[Entry]] = {}
        self._given_up: dict[_Key, list[Entry]] = {}
        self._early: dict[_Key, list[Entry]] = {}  # outputs that stand before their call
        self._made_up: dict[Entry, Entry] = {}  # call → its made-up output, the same in every prompt

    def take(self, e: Entry) -> None:
        """Read the next entry."""
        self.count += 1
        if is_call(e.item):
            self._take_call(e)
        elif e.item.get("type") in OUTPUT_TYPES:
            self._take_output(e)
        elif e.item.get("type") != "additional_tools":  # tools are a fact of now: each request tells its own
            if self._waiting and (e.origin in ("typed", "summary") or e.item.get("type") == "agent_message"):
                self._give_up()
            self._append(e)

    def sendable(self) -> list[Entry]:
        """The view, with a made-up output right behind each call that waits."""
        if not self._waiting:
            return self.entries
        waiting = {call for calls in self._waiting.values() for call in calls}
        sent: list[Entry] = []
        for e in self.entries:
            sent.append(e)
            if e in waiting:
                sent.append(self._made_up_for(e))
        return sent

    @property
    def sendable_tokens(self) -> int:
        waiting = (call for calls in self._waiting.values() for call in calls)
        return self.tokens + sum(self._made_up_for(call).tokens for call in waiting)

    @property
    def unanswered(self) -> list[Entry]:
        """The calls whose output is made up, as they are sent."""
        groups = (*self._given_up.values(), *self._waiting.values())
        return [call for calls in groups for call in calls]

    @property
    def orphans(self) -> list[Entry]:
        """The outputs without a call; they are not sent."""
        return [e for early in self._early.values() for e in early]

    # --- calls ---------------------------------------------------------------------------------------------

    def _take_call(self, e: Entry) -> None:
        call_id, kind = e.item["call_id"], OUTPUT_TYPE_OF[e.item["type"]]
        uses = self._uses[call_id] = self._uses.get(call_id, 0) + 1
        if uses > 1:
            again = self._free_id(call_id, uses)
            self.oddities.append(Oddity(e.address, call_id, f"its id was used before: sent as {again}"))
            e = _with_call_id(e, again)
        e = self._add(e)
        key = (kind, call_id)
        early = _pop_first(self._early, key)
        if early is None:
            self._waiting.setdefault(key, []).append(e)
        else:
            self.oddities.append(Oddity(early.address, call_id, "an output before its call: sent behind it"))
            self._append_output(early, e)

    def _free_id(self, call_id: str, uses: int) -> str:
        """An id for the n-th call of one id; what was sent may be recorded again, so it may be taken."""
        again = call_id
        while again in self._uses:
            again = f"call_{uuid.uuid5(SYNTHETIC_NAMESPACE, f'{call_id}:{uses}').hex}"
            uses += 1
        self._uses[again] = 1
        return again

    def _give_up(self) -> None:
        """No output will come for what still waits: a user went on. (Should one come, it counts.)"""
        for key, calls in self._waiting.items():
            for call in calls:
                answer = self._made_up_for(call)
                self.entries.insert(_index_from_end(self.entries, call) + 1, answer)
                self.tokens += answer.tokens
            self._given_up.setdefault(key, []).extend(calls)
        self._waiting = {}

    def _made_up_for(self, call: Entry) -> Entry:
        answer = self._made_up.get(call)
        if answer is None:
            answer = self._made_up[call] = entry(_aborted_output(call.item), call.address, call.turn_id)
        return answer

    # --- outputs -------------------------------------------------------------------------------------------

    def _take_output(self, e: Entry) -> None:
        kind, call_id = e.item["type"], e.item.get("call_id")
        key = (kind, call_id if isinstance(call_id, str) else "")
        call = _pop_first(self._waiting, key)
        if call is None:
            call = _pop_first(self._given_up, key)
            if call is not None:
                answer = self._made_up_for(call)
                del self.entries[_index_from_end(self.entries, answer)]
                self.tokens -= answer.tokens
        if call is not None:
            self._append_output(e, call)
        elif kind == "tool_search_output" and (e.item.get("execution") == "server" or call_id is None):
            self._append(e)  # the server made it itself
        elif isinstance(call_id, str) and call_id in self._uses:
            self.oddities.append(Oddity(e.address, call_id, "a second output for its call: not sent"))
        else:
            self._early.setdefault(key, []).append(e)

    def _append_output(self, e: Entry, call: Entry) -> None:
        self._append(e if e.item.get("call_id") == call.item["call_id"] else _with_call_id(e, call.item["call_id"]))

    def _append(self, e: Entry) -> None:
        if self._notes and _holds(e.item, self._notes):
            e = _without_media(e, self._notes)
        self._add(e)

    def _add(self, e: Entry) -> Entry:
        item_id = e.item.get("id")
        if isinstance(item_id, str):
            if item_id in self._ids:  # providers refuse the second item of one id
                e = entry({key: value for key, value in e.item.items() if key != "id"}, e.address, e.turn_id)
            self._ids.add(item_id)
        self.entries.append(e)
        self.tokens += e.tokens
        return e


def view_of(entries: Iterable[Entry], modalities: Sequence[str]) -> View:
    """The view of a whole history."""
    view = View(modalities)
    for e in entries:
        view.take(e)
    return view


def for_prompt(entries: Iterable[Entry], modalities: Sequence[str]) -> list[Entry]:
    """A history as a model may be sent it."""
    return list(view_of(entries, modalities).sendable())


def _pop_first(groups: dict[_Key, list[Entry]], key: _Key) -> Entry | None:
    group = groups.get(key)
    if not group:
        return None
    first = group.pop(0)
    if not group:
        del groups[key]
    return first


def _index_from_end(entries: list[Entry], wanted: Entry) -> int:
    index = len(entries) - 1
    while entries[index] is not wanted:
        index -= 1
    return index


def _with_call_id(e: Entry, call_id: str) -> Entry:
    return entry({**e.item, "call_id": call_id}, e.address, e.turn_id)


def _aborted_output(call: Item) -> Item:
    prefix = OUTPUT_ID_PREFIX[OUTPUT_TYPE_OF[call["type"]]]
    call_item_id = call.get("id")
    synthetic = None
    if call_item_id:
        synthetic = f"{prefix}_{uuid.uuid5(SYNTHETIC_NAMESPACE, f'{prefix}:{call_item_id}')}"
    return output_for(call, ABORTED, id=synthetic)


# --- media ---------------------------------------------------------------------------------------------------


def _holds(item: Item, notes: dict[str, str]) -> bool:
    """Whether an item holds a medium that these notes are about; asked of every entry, so it is quick to say no."""
    for key in ("content", "output"):
        parts = item.get(key)
        if is_list(parts):
            for part in parts:
                if is_object(part) and part.get("type") in MEDIA and part["type"] in notes:
                    return True
    return item.get("type") == "image_generation_call" and "input_image" in notes and bool(item.get("result"))


def _without_media(e: Entry, notes: dict[str, str]) -> Entry:
    """The entry with a short text in place of each medium that the model cannot take."""
    changed: Item = {}
    for key in ("content", "output"):
        parts = e.item.get(key)
        if is_list(parts):
            changed[key] = [_without_medium(part, notes) for part in parts]
    if e.item.get("type") == "image_generation_call":
        changed["result"] = ""
    return entry({**e.item, **changed}, e.address, e.turn_id)


def _without_medium(part: Any, notes: dict[str, str]) -> Any:
    note = notes.get(str(part.get("type"))) if is_object(part) else None
    return part if note is None else {"type": "input_text", "text": note}
