"""Windows: what a compaction item stands for, and what of a request the model is told in its place.

Rule 1: an item that was made inside an answer stands for everything before it, save what that answer was to: this is
told behind it. One that was asked for stands for the items that were compacted, where exactly these still stand before
it.
Rule 2: what people said stays readable beside an item, as much as the item says: the same each time.
Rule 3: instructions (system and developer messages) are never in a compaction: they stay where they stood.
Rule 4: however many items there are, each is looked at a few times only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from refold.core.compaction import remote
from refold.core.compaction.replacement import fitting
from refold.core.compaction.shadow import SEALED_TYPES
from refold.core.fragments import SUMMARY_MARK, origin_of
from refold.core.history import Entry, entry
from refold.core.items import OUTPUT_TYPE_OF, OUTPUT_TYPES, Item, user_message
from refold.core.jsonio import dump
from refold.core.profile import FALLBACK_CONTEXT_WINDOW
from refold.server.incoming import Given
from refold.server.seal import KeyRing, is_ours, unreadable

if TYPE_CHECKING:
    from hashlib import _Hash as HASH

INSTRUCTING = frozenset({"system", "developer"})
SAID = frozenset({"message", "agent_message"})  # of other items nothing stays readable


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """What a token holds: a text, how and when it was made, and which items (number and SHA-256) it stands for."""

    text: str
    method: str
    model: str
    at: int  # seconds since 1970
    count: int
    sha256: str
    is_inline: bool = False  # made inside an answer
    kept: int | None = None  # tokens of what stays readable beside it; None: of an older gateway
    tail: int = 0  # how many items stood behind what it stands for, and their SHA-256: they were answered
    tail_sha256: str = ""


_read = msgspec.json.Decoder(Sealed).decode


def fingerprint(items: Sequence[Given]) -> str:
    """By what items are known again: what they say, whatever the order of their keys."""
    digest = sha256()
    _feed(digest, items)
    return digest.hexdigest()


def _feed(digest: HASH, items: Sequence[Given]) -> None:
    for given in items:
        digest.update(msgspec.json.encode(given.item, order="deterministic"))
        digest.update(b"\n")


def seal(sealed: Sealed, keys: KeyRing, tenant: str) -> str:
    """The `encrypted_content` of a compaction item."""
    return keys.seal(dump(msgspec.to_builtins(sealed)), tenant)


def opened(items: Sequence[Given], keys: KeyRing, tenant: str, *, window: int | None, keeps: bool) -> list[Given]:
    """The items as the model is told them: each compaction item as its summary. Raises RequestRefused for one that does
    not open; with `keeps`, one that no gateway of refold made is left as it is."""
    found: dict[int, Sealed] = {}
    for place, given in enumerate(items):
        token = given.item.get("encrypted_content")
        if given.item.get("type") in SEALED_TYPES and not (keeps and not (isinstance(token, str) and is_ours(token))):
            found[place] = _open(given.item, keys, tenant)
    told: list[Given] = []
    last = _last_that_stands(items, found)
    if last is not None:
        sealed = found[last]
        tail = _tail_of(sealed, items[:last])
        told = kept_of(items[: last - len(tail)], budget_for(window) if sealed.kept is None else sealed.kept)
        told += [_summary(sealed), *tail]
    for place in range(0 if last is None else last + 1, len(items)):
        told.append(_summary(found[place]) if place in found else items[place])
    return told


def _last_that_stands(items: Sequence[Given], found: Mapping[int, Sealed]) -> int | None:
    """The place of the last compaction item that stands for all that is before it."""
    last = max((place for place, sealed in found.items() if sealed.is_inline), default=None)
    digest, read = sha256(), 0
    for place, sealed in found.items():
        if place > (last or 0) and sealed.count == place:
            _feed(digest, items[read:place])
            read = place
            if digest.hexdigest() == sealed.sha256:
                last = place
    return last


def _tail_of(sealed: Sealed, before: Sequence[Given]) -> Sequence[Given]:
    """What of the items before it a compaction item does not stand for, where exactly these still stand there."""
    tail = before[len(before) - sealed.tail :] if 0 < sealed.tail <= len(before) else ()
    return tail if tail and fingerprint(tail) == sealed.tail_sha256 else ()


def _summary(sealed: Sealed) -> Given:
    return Given.of(user_message(SUMMARY_MARK + sealed.text))


def _open(item: Item, keys: KeyRing, tenant: str) -> Sealed:
    token, name = item.get("encrypted_content"), item.get("id")
    item_id = name if isinstance(name, str) and name.replace("_", "").replace("-", "").isalnum() else None
    if not isinstance(token, str):
        raise unreadable(item_id)
    try:
        return _read(keys.open(token, tenant, item_id=item_id))
    except msgspec.DecodeError:
        raise unreadable(item_id) from None


def budget_for(window: int | None, threshold: int | None = None) -> int:
    """Tokens of what people said that stay readable beside a compaction: at most half of the window, and of the
    threshold that a client set: more would be above it again at once."""
    return fitting(fitting(remote.RETAINED_TOKENS, window or FALLBACK_CONTEXT_WINDOW), threshold)


def kept_of(items: Sequence[Given], budget: int) -> list[Given]:
    """What stays readable of items that were compacted: instructions, and what people said, newest first within a
    budget (tokens); in their order."""
    known = {id(given.item): given for given in items}
    said = remote.retained([_entry(given.item, str(place)) for place, given in enumerate(items)], budget)
    placed: list[tuple[int, Given]] = [
        (place, given) for place, given in enumerate(items) if given.item.get("role") in INSTRUCTING
    ]
    placed += [(int(place), known.get(id(item)) or Given.of(item)) for item, place in said]
    return [given for _, given in sorted(placed, key=lambda one: one[0])]


def _entry(item: Item, address: str) -> Entry:
    """An entry; measured only where it may stay, so that large outputs cost nothing."""
    return entry(item, address) if item.get("type") in SAID else Entry(item, origin_of(item), 0, address)


# --- what is answered, not compacted -----------------------------------------------------------------------


def unanswered(items: Sequence[Given], most: int) -> int:
    """How many of the last items the model has not answered: what somebody just said, and outputs with their calls,
    where these items have at most so many tokens."""
    count = _count(items, _is_said)
    start = len(items) - _count(items, lambda item: _is_said(item) or item.get("type") in OUTPUT_TYPES)
    if start == len(items) - count:
        return count
    start = _with_calls(items, start)
    if start is None or sum(entry(given.item, "").tokens for given in items[start:]) > most:
        return count
    return len(items) - start


def _with_calls(items: Sequence[Given], start: int) -> int | None:
    """Where the calls begin whose outputs stand from a place on, with what was thought before them; None where a call
    is not there."""
    open_calls: set[tuple[str, str]] = set()
    for place in range(len(items) - 1, -1, -1):
        item = items[place].item
        kind, name = str(item.get("type")), str(item.get("call_id"))
        if place < start and not open_calls and kind != "reasoning":
            return place + 1
        if kind in SEALED_TYPES:
            return None
        if kind in OUTPUT_TYPES:
            open_calls.add((kind, name))
        open_calls.discard((OUTPUT_TYPE_OF.get(kind, ""), name))
    return None if open_calls else 0


def _is_said(item: Item) -> bool:
    return item.get("type") == "message" and item.get("role") != "assistant"


def _count(items: Sequence[Given], is_one: Callable[[Item], bool]) -> int:
    """How many of the last items are of a kind."""
    return next((number for number, given in enumerate(reversed(items)) if not is_one(given.item)), len(items))
