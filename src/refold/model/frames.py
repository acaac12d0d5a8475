"""Frames: what is said over a WebSocket: a whole request, or only what the provider does not hold yet (oracle §12).

Rule 1: the rest is left out when the provider holds exactly it: the same fields, the same entries, its own output.
When in doubt, everything is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from refold.core.history import Entry
from refold.core.items import OPENAI_ONLY_KEYS, Item
from refold.core.jsonio import dump
from refold.core.wire import Request, client_metadata

INPUT = b'"input":['
METADATA = b',"client_metadata":'  # no JSON string can hold it: its quotes would be escaped there


class Said(NamedTuple):
    """What the provider holds of a thread: the request that it completed last, and what it answered."""

    fixed: tuple[bytes, ...]
    entries: tuple[Entry, ...]
    response_id: str
    output: tuple[Item, ...] = ()


def said(request: Request, response_id: str | None, output: Sequence[Item]) -> Said | None:
    """What the provider holds after it completed a request; None when nothing can be added to that."""
    if response_id is None or request.identity is None:
        return None
    return Said(_fixed(request), request.entries, response_id, tuple(output))


def prepared(request: Request, response_id: str | None) -> Said | None:
    """What the provider holds after the warm-up for this request."""
    return None if response_id is None else Said(_fixed(request), (), response_id)


def rest(held: Said | None, request: Request) -> list[bytes] | None:
    """The items that the provider does not hold yet; None when the request must be sent whole."""
    if held is None or request.identity is None or _fixed(request) != held.fixed:
        return None
    known, answered = len(held.entries), len(held.output)
    if request.entries[:known] != held.entries:
        return None
    new = request.since(known)
    if len(new) <= answered or not all(map(_is_same, new, held.output)):
        return None
    return new[answered:]


def frame(request: Request, held: Said | None) -> str:
    """The text of one `response.create`: what is new, or everything."""
    new = rest(held, request)
    if held is None or new is None:
        return _create(request, b"", request.parts, request.tail)
    previous = b'"previous_response_id":' + dump(held.response_id) + b","
    return _create(request, previous, new, request.tail)


def warm_up_frame(request: Request) -> str:
    """The text of a `response.create` that generates nothing: base instructions and tools, before the first request."""
    assert request.identity is not None
    metadata = b""
    if METADATA in request.tail:
        told = client_metadata(msgspec.structs.replace(request.identity, request_kind="prewarm"))
        metadata = METADATA + dump(told)
    tail = _settings(request) + b',"generate":false' + metadata + b"}"
    return _create(request, b"", request.base, tail)


def is_compaction(request: Request) -> bool:
    """Whether a summary is asked for."""
    return request.identity is not None and request.identity.request_kind == "compaction"


def _create(request: Request, previous: bytes, items: Sequence[bytes], tail: bytes) -> str:
    head = b'{"type":"response.create",' + request.head[1:].removesuffix(INPUT)
    return b"".join((head, previous, INPUT, b",".join(items), tail)).decode()


def _fixed(request: Request) -> tuple[bytes, ...]:
    """All of a request but its entries and its metadata."""
    return (request.head, _settings(request), *request.base)


def _settings(request: Request) -> bytes:
    settings, found, _ = request.tail.rpartition(METADATA)
    return settings if found else request.tail[:-1]  # a provider may be told none


def _is_same(sent: bytes, received: Item) -> bool:
    """Whether an item that would be sent is one that the provider made; an id that one of them lacks tells nothing."""
    mine: Item = msgspec.json.decode(sent)
    ignored: set[str] = set(OPENAI_ONLY_KEYS)
    if not (mine.get("id") and received.get("id")):
        ignored.add("id")
    return _without(mine, ignored) == _without(received, ignored)


def _without(item: Item, keys: set[str]) -> Item:
    return {key: value for key, value in item.items() if key not in keys}
