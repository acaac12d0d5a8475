"""Pairing: a growing history as a provider may be sent it; the history itself stays as it is (spec §3.2, case S34).

Rule 1: every call is answered, every output has its call, every call id is used once, no medium the model cannot take.
Rule 2: one new entry costs the same whatever stands before it; read in pieces or at once, the view is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from refold.core.history import Entry, entry
from refold.core.items import OUTPUT_TYPE_OF, Item, is_call, is_output, output_for
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
        self._ids: set[str] = set()  # of recorded items
        self._uses: dict[str, int] = {}  # call id → calls that had it
        self._derived: dict[str, str] = {}  # an id that a call is sent under → the one it was recorded with
        self._asked: set[_Key] = set()
        self._waiting: dict[_Key, list[Entry]] = {}
        self._given_up: dict[_Key, list[Entry]] = {}
        self._early: dict[_Key, list[Entry]] = {}  # outputs that stand before their call, until a user speaks
        self._orphans: list[Entry] = []
        self._made_up: dict[Entry, Entry] = {}  # call → its made-up output, the same in every prompt
        self._settled: set[Entry] = set()  # calls whose made-up output stands in `entries`
        self._made_ids: dict[str, Entry] = {}  # id of a made-up output → its call
        self._changed: dict[Entry, Entry | None] = {}  # made-up outputs in `entries` that are another one now, or gone

    def take(self, e: Entry) -> None:
        """Read the next entry."""
        self.count += 1
        kind = e.item.get("type")
        if kind == "message":  # most are
            if (self._waiting or self._early) and e.origin in ("typed", "summary"):
                self._give_up()
            self._append(e)
        elif is_call(e.item):
            self._take_call(e)
        elif is_output(e.item):
            self._take_output(e)
        elif kind != "additional_tools":  # tools are a fact of now: each request tells its own
            if kind == "agent_message":
                self._give_up()
            self._append(e)

    def sendable(self) -> list[Entry]:
        """The view, with a made-up output right behind each call that waits."""
        if self._changed:
            changed, self._changed = self._changed, {}
            now = (_resolved(e, changed) for e in self.entries)
            self.entries = [e for e in now if e is not None]
        if not self._waiting:
            return self.entries
        return self._answered(self.entries, self._all_waiting())

    @property
    def sendable_tokens(self) -> int:
        return self.tokens + sum(self._made_up_for(call).tokens for call in self._all_waiting())

    @property
    def unanswered(self) -> list[Entry]:
        """The calls whose output is made up, as they are sent."""
        return [call for calls in self._given_up.values() for call in calls] + [*self._all_waiting()]

    @property
    def orphans(self) -> list[Entry]:
        """The outputs without a call; they are not sent."""
        return self._orphans + [e for early in self._early.values() for e in early]

    # --- calls ---------------------------------------------------------------------------------------------

    def _take_call(self, e: Entry) -> None:
        call_id = e.item["call_id"]
        key = (OUTPUT_TYPE_OF[e.item["type"]], call_id)
        self._asked.add(key)
        uses = self._uses[call_id] = self._uses.get(call_id, 0) + 1
        if uses > 1:
            again = self._free_id(call_id, uses)
            self.oddities.append(Oddity(e.address, call_id, f"its id was used before: sent as {again}"))
            e = _with_call_id(e, again)
        e = self._add(e)
        early = _pop_first(self._early, key) if self._early else None
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
        self._derived[again] = call_id
        return again

    def _all_waiting(self) -> Iterator[Entry]:
        return (call for calls in self._waiting.values() for call in calls)

    def _give_up(self) -> None:
        """No output will come for what still waits: a user went on. (Should one come, it counts.)"""
        self._orphans += [e for early in self._early.values() for e in early]
        self._early = {}
        calls = set(self._all_waiting())
        first = len(self.entries)
        left = len(calls)
        while left:
            first -= 1
            left -= self.entries[first] in calls
        self.entries[first:] = self._answered(self.entries[first:], calls)
        self.tokens += sum(self._made_up_for(call).tokens for call in calls)
        self._settled |= calls
        for key, waiting in self._waiting.items():
            self._given_up.setdefault(key, []).extend(waiting)
        self._waiting = {}

    def _answered(self, entries: list[Entry], calls: Iterable[Entry]) -> list[Entry]:
        """The entries, with a made-up output behind each of these calls."""
        unanswered, sent = set(calls), list[Entry]()
        for e in entries:
            sent.append(e)
            if e in unanswered:
                sent.append(self._made_up_for(e))
        return sent

    def _made_up_for(self, call: Entry) -> Entry:
        answer = self._made_up.get(call)
        if answer is None:
            item = _aborted_output(call.item)
            if item.get("id") in self._ids:
                item = _without_id(item)
            elif "id" in item:
                self._made_ids[item["id"]] = call
            answer = self._made_up[call] = entry(item, call.address, call.turn_id)
        return answer

    # --- outputs -------------------------------------------------------------------------------------------

    def _take_output(self, e: Entry) -> None:
        kind, call_id = e.item["type"], e.item.get("call_id")
        named = call_id if isinstance(call_id, str) else ""
        call = self._claimed(kind, named)
        if call is not None:
            self._append_output(e, call)
        elif kind == "tool_search_output" and (e.item.get("execution") == "server" or call_id is None):
            self._append(e)  # the server made it itself
        elif (kind, self._derived.get(named, named)) in self._asked:
            self.oddities.append(Oddity(e.address, named, "a second output for its call: not sent"))
        elif named in self._uses:
            self.oddities.append(Oddity(e.address, named, "an output of another kind than its call: not sent"))
        else:
            self._early.setdefault((kind, named), []).append(e)

    def _claimed(self, kind: str, call_id: str) -> Entry | None:
        """The call that an output of this kind and id answers; it waits no longer."""
        exactly = call_id if call_id in self._derived else None  # it names one call of several
        key = (kind, self._derived.get(call_id, call_id))
        call = _pop_first(self._waiting, key, exactly)
        if call is None:
            call = _pop_first(self._given_up, key, exactly)
            if call is not None:
                answer = self._made_up_for(call)
                self._changed[answer] = None
                self._settled.discard(call)
                self.tokens -= answer.tokens
        return call

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
                e = entry(_without_id(e.item), e.address, e.turn_id)
            elif item_id in self._made_ids:
                self._renounce(self._made_ids.pop(item_id))
            self._ids.add(item_id)
        self.entries.append(e)
        self.tokens += e.tokens
        return e

    def _renounce(self, call: Entry) -> None:
        """A recorded item has the id that a made-up output was sent under: what was sent has been recorded again."""
        answer = self._made_up.pop(call)
        self._made_up[call] = mended = entry(_without_id(answer.item), answer.address, answer.turn_id)
        if call in self._settled:
            self._changed[answer] = mended
            self.tokens += mended.tokens - answer.tokens


def view_of(entries: Iterable[Entry], modalities: Sequence[str]) -> View:
    """The view of a whole history."""
    view = View(modalities)
    for e in entries:
        view.take(e)
    return view


def for_prompt(entries: Iterable[Entry], modalities: Sequence[str]) -> list[Entry]:
    """A history as a model may be sent it."""
    return list(view_of(entries, modalities).sendable())


def _pop_first(groups: dict[_Key, list[Entry]], key: _Key, call_id: str | None = None) -> Entry | None:
    """Take the first entry of a group, or the one that is sent under this call id."""
    group = groups.get(key)
    if not group:
        return None
    place = 0
    if call_id is not None:
        place = next((index for index, e in enumerate(group) if e.item.get("call_id") == call_id), -1)
    if place < 0:
        return None
    found = group.pop(place)
    if not group:
        del groups[key]
    return found


def _resolved(e: Entry, changed: dict[Entry, Entry | None]) -> Entry | None:
    now: Entry | None = e
    while now is not None and now in changed:
        now = changed[now]
    return now


def _without_id(item: Item) -> Item:
    return {key: value for key, value in item.items() if key != "id"}


def _with_call_id(e: Entry, call_id: str) -> Entry:
    return entry({**e.item, "call_id": call_id}, e.address, e.turn_id)


def _aborted_output(call: Item) -> Item:
    prefix = OUTPUT_ID_PREFIX[OUTPUT_TYPE_OF[call["type"]]]
    call_item_id = call.get("id")
    synthetic = None
    if isinstance(call_item_id, str) and call_item_id:
        synthetic = f"{prefix}_{uuid.uuid5(SYNTHETIC_NAMESPACE, f'{prefix}:{call_item_id}')}"
    return output_for(call, ABORTED, id=synthetic)


# --- media ---------------------------------------------------------------------------------------------------


def _holds(item: Item, notes: dict[str, str]) -> bool:
    """Whether an item holds a medium that these notes are about; asked of every entry, so it is quick to say no."""
    body = item.get("content") or item.get("output")
    if is_list(body):
        for part in body:
            if is_object(part) and part.get("type") in MEDIA and part["type"] in notes:
                return True
    return "result" in item and _is_picture(item, notes)


def _is_picture(item: Item, notes: dict[str, str]) -> bool:
    return item.get("type") == "image_generation_call" and "input_image" in notes and bool(item["result"])


def _without_media(e: Entry, notes: dict[str, str]) -> Entry:
    """The entry with a short text in place of each medium that the model cannot take."""
    changed: Item = {}
    for key in ("content", "output"):
        parts = e.item.get(key)
        if is_list(parts):
            changed[key] = [_without_medium(part, notes) for part in parts]
    if "result" in e.item and _is_picture(e.item, notes):
        changed["result"] = ""
    return entry({**e.item, **changed}, e.address, e.turn_id)


def _without_medium(part: Any, notes: dict[str, str]) -> Any:
    note = notes.get(str(part.get("type"))) if is_object(part) else None
    return part if note is None else {"type": "input_text", "text": note}
