"""Windows: what a compaction item stands for, and what of a request the model is told in its place.

Rule 1: an item that was made inside an answer stands for everything before it; one that was asked for stands for the
items that were compacted, where exactly these still stand before it. What people said stays readable beside it.
Rule 2: instructions (system and developer messages) are never in a compaction: they stay where they stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from refold.core.compaction import remote
from refold.core.compaction.replacement import fitting
from refold.core.compaction.shadow import SEALED_TYPES
from refold.core.fragments import SUMMARY_MARK
from refold.core.history import entry
from refold.core.items import Item, user_message
from refold.core.jsonio import dump
from refold.core.profile import FALLBACK_CONTEXT_WINDOW
from refold.server.incoming import Given
from refold.server.seal import KeyRing, is_ours, unreadable

INSTRUCTING = frozenset({"system", "developer"})


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """What a token holds: a text, how and when it was made, and which items (number and SHA-256) it stands for."""

    text: str
    method: str
    model: str
    at: int  # seconds since 1970
    count: int
    sha256: str
    is_inline: bool = False  # made inside an answer


_read = msgspec.json.Decoder(Sealed).decode


def fingerprint(items: Sequence[Given]) -> str:
    """By what items are known again: what they say, whatever the order of their keys."""
    digest = sha256()
    for given in items:
        digest.update(msgspec.json.encode(given.item, order="deterministic"))
        digest.update(b"\n")
    return digest.hexdigest()


def seal(sealed: Sealed, keys: KeyRing, tenant: str) -> str:
    """The `encrypted_content` of a compaction item."""
    return keys.seal(dump(msgspec.to_builtins(sealed)), tenant)


def opened(items: Sequence[Given], keys: KeyRing, tenant: str, *, window: int | None, keeps: bool) -> list[Given]:
    """The items as the model is told them: each compaction item as its summary. Raises RequestRefused for one that does
    not open; with `keeps`, one that no gateway of refold made is left as it is."""
    told: list[Given] = []
    for place, given in enumerate(items):
        token = given.item.get("encrypted_content")
        if given.item.get("type") not in SEALED_TYPES or (keeps and not (isinstance(token, str) and is_ours(token))):
            told.append(given)
            continue
        sealed = _open(given.item, keys, tenant)
        if _stands_for(sealed, items[:place]):
            told = kept_of(items[:place], window)
        told.append(Given.of(user_message(SUMMARY_MARK + sealed.text)))
    return told


def _stands_for(sealed: Sealed, before: Sequence[Given]) -> bool:
    """Whether a compaction item stands for all that is before it."""
    return sealed.is_inline or (sealed.count == len(before) > 0 and fingerprint(before) == sealed.sha256)


def _open(item: Item, keys: KeyRing, tenant: str) -> Sealed:
    token, name = item.get("encrypted_content"), item.get("id")
    item_id = name if isinstance(name, str) and name.replace("_", "").replace("-", "").isalnum() else None
    if not isinstance(token, str):
        raise unreadable(item_id)
    try:
        return _read(keys.open(token, tenant, item_id=item_id))
    except msgspec.DecodeError:
        raise unreadable(item_id) from None


def kept_of(items: Sequence[Given], window: int | None) -> list[Given]:
    """What stays readable of items that were compacted: instructions, and what people said, newest first within a
    budget; in their order."""
    known = {id(given.item): given for given in items}
    said = remote.retained(
        [entry(given.item, str(place)) for place, given in enumerate(items)],
        fitting(remote.RETAINED_TOKENS, window or FALLBACK_CONTEXT_WINDOW),
    )
    placed: list[tuple[int, Given]] = [
        (place, given) for place, given in enumerate(items) if given.item.get("role") in INSTRUCTING
    ]
    placed += [(int(place), known.get(id(item)) or Given.of(item)) for item, place in said]
    return [given for _, given in sorted(placed, key=lambda one: one[0])]


def trailing_messages(items: Sequence[Given]) -> int:
    """How many of the last items are what somebody just said: they are answered, not compacted."""
    count = 0
    for given in reversed(items):
        if given.item.get("type") != "message" or given.item.get("role") == "assistant":
            break
        count += 1
    return count
