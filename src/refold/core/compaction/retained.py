"""Retained: what a checkpoint tells the real program of the newest messages and of each of its items (spec §8.3).

Rule 1: all of it comes from the history and from the newest checkpoint before it; nothing else is counted or stored.
Rule 2: numbers only grow, and an item that a checkpoint holds keeps its own, through resumes, forks and undos.
Rule 3: what cannot be vouched for is left out: the real program then assumes the worst.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast

import msgspec

from refold.core.fragments import Origin, origin_of, stored_kinds
from refold.core.history import Entry
from refold.core.items import OUTPUT_TYPE_OF, OUTPUT_TYPES, Item, content_parts, message_texts
from refold.core.jsonio import is_list, is_object
from refold.core.records import JSON, Compacted
from refold.core.truncate import tokens_for

if TYPE_CHECKING:
    from refold.core.thread import Thread

CONTEXT = "retained_context"
METADATA = "replacement_history_metadata"

RETAINED_MESSAGES = 8  # of people and of the model each: the real program keeps no more either
RETAINED_BYTES = 3_600  # of a message's text, as the real program
CUT = '<truncated omitted_approx_tokens="{}" />'  # stands in the middle of a longer one

SERVERS_PREFIX = "mcp__"  # how the names of the tools of MCP servers begin
ORIGINS: dict[str, Origin] = {"user": "typed", "assistant": "model"}  # of the messages of each role
CLOSING_TYPES = ("compaction", "compaction_summary", "context_compaction")


class Told(msgspec.Struct, frozen=True):
    """What the newest checkpoint told: of messages, of each item of the history that began with it, and its turn."""

    context: JSON | None = None  # None: it does not say
    metadata: tuple[JSON, ...] = ()  # beside the first entries of the history
    turn_id: str | None = None  # which had begun last


def told_by(checkpoint: Compacted, entries: int) -> Told:
    """What a checkpoint that left so many entries told; with a list of another length, nothing."""
    payload = checkpoint.payload
    context, metadata, resume = payload.get(CONTEXT), payload.get(METADATA), payload.get("resume_metadata")
    fits = is_list(metadata) and len(metadata) == entries and all(map(is_object, metadata))
    turn_id = resume.get("last_started_turn_id") if is_object(resume) else None
    if not fits or not is_object(context):
        return Told()
    return Told(context, tuple(cast("list[JSON]", metadata)), turn_id if isinstance(turn_id, str) else None)


def retained(thread: Thread, items: Sequence[Item], facts: JSON) -> JSON:
    """The two keys for a checkpoint with these items and facts: `replacement_history_metadata`, one object for each
    item, and `retained_context`, the newest messages of people and of the model (at most 8 each, of 3,600 bytes).

    None for a host without turns: no session that the real program could go on with (as in account.py).
    """
    if not thread.turns and (thread.retained is None or thread.retained.context is None):
        return {}
    counted = _count(thread)
    context = _context(thread, counted, facts.get("phase"))
    if facts.get("method") == "rollback":
        context = _without_undone(context, items)
    return {METADATA: _metadata(thread, counted, items, context, facts), CONTEXT: context}


# --- counting ------------------------------------------------------------------------------------------------------


class _Counted(msgspec.Struct, frozen=True):
    """A history's numbers. Places are indexes in the history; the ones before `known` were told of already."""

    told: Told
    known: int
    top: int  # the highest number of an item that was told of
    sampled: int  # up to which number a model had read by then
    first_order: int  # of the first place in `ordered`
    ordered: list[int]  # places that have an order: messages of people and the model, function calls
    others: list[int]  # places of all but function calls and outputs
    own: bool  # whether no search of the model or MCP server can have put in what others wrote

    def number(self, place: int) -> int:
        """What the real program calls history_sequence: from 1, in the order in which items came."""
        return self.top + 1 + place - self.known

    def order(self, place: int) -> int | None:
        at = bisect_left(self.ordered, place)
        return self.first_order + at if at < len(self.ordered) and self.ordered[at] == place else None


def _count(thread: Thread) -> _Counted:
    told, history = thread.retained or Told(), thread.history
    known = len(told.metadata)
    others: list[int] = []
    ordered: list[int] = []
    calls: list[Item] = []
    own = True
    for place, e in enumerate(islice(history, known, None), known):
        item = e.item
        kind = item["type"]
        if kind == "function_call_output":  # half of a long history: it is told from others first
            continue
        if kind == "function_call":
            ordered.append(place)
            calls.append(item)
        elif kind not in OUTPUT_TYPES:
            others.append(place)
            if e.origin == "typed" or (e.origin == "model" and kind == "message"):
                ordered.append(place)
            elif e.origin == "model":
                own = own and kind != "web_search_call"
    own = own and _is_own(calls) and all(one.get("model_search_state") == "unused" for one in told.metadata)
    turn_id = next((history[place].turn_id for place in others if history[place].origin == "typed"), None)
    return _Counted(
        told,
        known,
        top=_highest(told, "history_sequence"),
        sampled=_highest(told, "sampled_through_sequence"),
        first_order=_first_order(told, turn_id),
        ordered=ordered,
        others=others,
        own=own,
    )


def _highest(told: Told, key: str) -> int:
    return max((_int(one.get(key)) for one in told.metadata), default=0)


def _is_own(calls: Sequence[Item]) -> bool:
    """Whether none of these calls was for an MCP server."""
    try:
        names = {call.get("namespace") or call.get("name") for call in calls}
    except TypeError:  # no text
        return False
    return not any(str(name).startswith(SERVERS_PREFIX) for name in names)


def _first_order(told: Told, turn_id: str | None) -> int:
    """The next order; a checkpoint that stood before a turn's message (the first since, in this turn) set one aside."""
    context = told.context or {}
    following = _int(context.get("next_order"))
    was_there = any(one.get("turn_id") == turn_id for one in _said(context, "user"))
    awaited = turn_id is not None and turn_id == told.turn_id and not was_there
    return max(0, following - awaited)


def _sampled(history: Sequence[Entry], counted: _Counted, place: int) -> int:
    """The number of the newest item that a model had read when the item at this place came."""
    while place >= counted.known and history[place].origin != "model":
        place -= 1
    if place < counted.known:
        return counted.sampled
    while place >= counted.known and history[place].origin == "model":
        place -= 1
    return counted.number(place)


# --- of each item --------------------------------------------------------------------------------------------------


def _metadata(thread: Thread, counted: _Counted, items: Sequence[Item], context: JSON, facts: JSON) -> list[JSON]:
    history = thread.history
    places = _places(history, counted, items)
    said = {str(one.get("message_id")): one for role in ORIGINS for one in _said(context, role)}
    sampled = _sampled(history, counted, len(history) - 1)
    number = counted.number(len(history))
    made: list[JSON] = []
    for item, place in zip(items, places, strict=True):
        if place is None:
            message = said.get(_name(item) or "")
            made.append(_of_new(item, number, counted, sampled, message, facts.get("comp_hash")))
            number += 1
            continue
        about = counted.told.metadata[place] if place < counted.known else _of_recorded(history, counted, place)
        source = about.get("retained_source")
        if is_object(source) and item != history[place].item:
            about = {**about, "retained_source": {**source, "complete": False}}
        made.append(about)
    if made:
        made[0] = {**made[0], "sampled_through_sequence": sampled}  # so that it is known from the first on
    return made


def _places(history: Sequence[Entry], counted: _Counted, items: Sequence[Item]) -> list[int | None]:
    """Where each item stands in the history; None for a new one. Often the last ones of both are the same."""
    same = 0
    for item, e in zip(reversed(items), reversed(history), strict=False):
        if item is not e.item:
            break
        same += 1
    first, end = items[: len(items) - same], len(history) - same
    wanted = {name for item in first if (name := _name(item))}
    spoken = all(item.get("type") not in OUTPUT_TYPE_OF and item.get("type") not in OUTPUT_TYPES for item in first)
    among = chain(range(counted.known), counted.others) if spoken else range(end)
    found = {name: place for place in among if (name := _name(history[place].item)) in wanted}
    return [*(found.get(_name(item) or "") for item in first), *range(end, len(history))]


def _of_recorded(history: Sequence[Entry], counted: _Counted, place: int) -> JSON:
    """Of an item that came since the checkpoint before."""
    e, order = history[place], counted.order(place)
    message = _message(e, order) if order is not None and e.item.get("type") == "message" else None
    return {
        "history_sequence": counted.number(place),
        "sampled_through_sequence": _sampled(history, counted, place),
        **_source(e.item, message),
        "client_authored": False,
        **({} if order is None else {"user_input_order": order}),
        **_vouched(counted.own, of_servers=e.origin == "typed"),
    }


def _of_new(item: Item, number: int, counted: _Counted, sampled: int, message: JSON | None, comp_hash: Any) -> JSON:
    """Of an item that the checkpoint itself brings: context, a summary, what only the provider can read; or a message
    that an undo brings back."""
    sealed = item.get("type") in CLOSING_TYPES
    return {
        "history_sequence": number,
        "sampled_through_sequence": sampled,
        **_source(item, message),
        "client_authored": False,
        **({"compaction_without_file_error_sources": True} if sealed and counted.own else {}),
        **({"compaction_model_hash": comp_hash} if sealed and comp_hash else {}),
        **({} if message is None else {"user_input_order": message.get("order")}),
        **_vouched(counted.own, of_servers=sealed or origin_of(item) == "summary"),
    }


def _vouched(own: bool, *, of_servers: bool) -> JSON:
    """That nothing in it comes from an MCP server (said where the real program says so), or from a search."""
    if not own:
        return {}
    return {**({"mcp_attribution": {"status": "none"}} if of_servers else {}), "model_search_state": "unused"}


def _source(item: Item, message: JSON | None) -> JSON:
    """Which of the retained messages an item is; nothing where it is none."""
    name = _name(item)
    if message is None or name is None or not message.get("text"):
        return {}
    named = {"message_id": name, "turn_id": message.get("turn_id"), "role": item.get("role")}
    about = {"id": named, "revision": message.get("revision"), "complete": message.get("complete")}
    return {"retained_source": about}


# --- of messages ---------------------------------------------------------------------------------------------------


def _context(thread: Thread, counted: _Counted, phase: Any) -> JSON:
    told = counted.told.context
    missing = told is None and thread.retained is not None  # a checkpoint before this one did not say what it left out
    before = told or {}
    made: JSON = {
        "verified_answers": before.get("verified_answers") or [],
        "incomplete": before.get("incomplete") is True,
    }
    for role, origin in ORIGINS.items():
        messages = [*_said(before, role), *_newest(thread.history, counted, origin)]
        lacks = missing or before.get(f"{role}_messages_incomplete") is True or len(messages) > RETAINED_MESSAGES
        made[f"{role}_messages"] = messages[-RETAINED_MESSAGES:]
        made[f"{role}_messages_incomplete"] = lacks
    made["next_order"] = counted.first_order + len(counted.ordered) + _is_awaited(thread, phase)
    return made


def _newest(history: Sequence[Entry], counted: _Counted, origin: Origin) -> list[JSON]:
    """The newest messages with a text, of people or of the model, in order; one too many if there are more."""
    places = (place for place in reversed(counted.others) if history[place].origin == origin)
    orders = ((place, order) for place in places if (order := counted.order(place)) is not None)
    made = (_message(history[place], order) for place, order in orders)
    return list(islice((message for message in made if message["text"]), RETAINED_MESSAGES + 1))[::-1]


def _is_awaited(thread: Thread, phase: Any) -> bool:
    """Whether the open turn's message is still to come: its order is set aside."""
    turn_id = thread.open_turn
    if phase != "pre_turn" or turn_id is None:
        return False
    return next((e.turn_id != turn_id for e in reversed(thread.history) if e.origin == "typed"), True)


def _message(e: Entry, order: int) -> JSON:
    """A message as `retained_context` holds it: its text within a limit, and whether that is all of it."""
    item = e.item
    text, whole = within("\n".join(message_texts(item)))
    kinds = stored_kinds(item)
    stated = e.origin == "model" or (bool(kinds) and all(str(kind).startswith("user.") for kind in kinds))
    only_text = all(isinstance(part.get("text"), str) for part in content_parts(item))
    message_id, turn_id, phase = _name(item), e.turn_id or "", item.get("phase")
    return {
        "revision": revision_of(message_id, turn_id, text),
        "order": order,
        "turn_id": turn_id,
        "message_id": message_id,
        "text": text,
        "complete": whole and stated and only_text and message_id is not None,
        **({"phase": phase} if isinstance(phase, str) else {}),
    }


def within(text: str) -> tuple[str, bool]:
    """A text within the limit (bytes), and whether it is whole: else its beginning, a mark and its end."""
    data = text.encode("utf-8", "replace")
    over = len(data) - RETAINED_BYTES
    if over <= 0:
        return text, True
    mark = CUT.format(tokens_for(over))
    room = RETAINED_BYTES - len(mark)
    head, tail = data[: room // 2], data[len(data) - (room - room // 2) :]
    return head.decode(errors="ignore") + mark + tail.decode(errors="ignore"), False


def revision_of(message_id: str | None, turn_id: str, text: str) -> str:
    """The name of a message's state. The same message has the same one in every checkpoint."""
    seed = repr((message_id, turn_id, text if message_id is None else ""))
    digest = bytearray(hashlib.sha256(seed.encode("utf-8", "replace")).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80  # a UUID of version 8: made in a way of one's own
    digest[8] = digest[8] & 0x3F | 0x80
    told = digest.hex()
    return f"retained_{told[:8]}-{told[8:12]}-{told[12:16]}-{told[16:20]}-{told[20:]}"


def _without_undone(context: JSON, items: Sequence[Item]) -> JSON:
    """Without the messages after the newest one that is still there."""
    there = {name for item in items if (name := _name(item))}
    said = {role: _said(context, role) for role in ORIGINS}
    still = (_int(one.get("order")) for told in said.values() for one in told if str(one.get("message_id")) in there)
    last = max(still, default=-1)
    kept = {role: [one for one in told if _int(one.get("order")) <= last] for role, told in said.items()}
    return context | {f"{role}_messages": told for role, told in kept.items()}


def _said(context: Mapping[str, Any], role: str) -> list[JSON]:
    """The messages of people ("user") or of the model ("assistant") that a checkpoint told of."""
    told = context.get(f"{role}_messages")
    return [one for one in told if is_object(one)] if is_list(told) else []


def _name(item: Item) -> str | None:
    found = item.get("id")
    return found if isinstance(found, str) else None


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0
