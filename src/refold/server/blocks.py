"""Event: one event of a response stream, with its bytes as they came, so that it can be passed on unchanged.

An event is passed on when all of it is there: a client never gets half of one, even where the upstream dies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from refold.core.jsonio import dump, is_object, load
from refold.errors import BadModelStream
from refold.model.sse import LARGEST_EVENT

DONE = "[DONE]"  # how some servers end a stream, after the last event
ENDS = frozenset({"response.completed", "response.done", "response.failed", "response.incomplete", "error"})

_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LONGEST_END = 4  # bytes of an empty line and the line end before it


class _Typed(msgspec.Struct):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed).decode


class Event(NamedTuple):
    """`raw`: the whole block of a stream of server-sent events, with the empty line behind it; `data`: its JSON text.

    A block without data (a comment that keeps a connection open) has the type "". `more`: the next one is there
    already, so that both can go out at once.
    """

    type: str
    data: bytes
    raw: bytes
    more: bool = False

    def message(self) -> dict[str, Any]:
        """The event as JSON; {} for what is none."""
        try:
            value, _ = load(self.data)
        except ValueError:
            return {}
        return value if is_object(value) else {}


def event_of(message: dict[str, Any]) -> Event:
    """An event of our own."""
    data, name = dump(message), str(message["type"])
    return Event(name, data, b"event: %b\ndata: %b\n\n" % (name.encode(), data))


class EventCutter:
    """Cuts a stream of bytes into events. Mutable: it holds what is not whole yet, and forgets it at the end."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._seen = 0  # bytes of it in which no event ends
        self._has_cr = False  # whether it may hold line ends other than a line feed, which take longer to find

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that a chunk completes. Raises BadModelStream for one that is too large."""
        held = self._held
        held += chunk
        self._has_cr = self._has_cr or b"\r" in chunk
        events: list[Event] = []
        start = 0
        for end in self._ends(max(0, self._seen - _LONGEST_END)):
            if events:
                events[-1] = events[-1]._replace(more=True)
            events.append(_read(bytes(held[start:end])))
            start = end
        if start:
            del held[:start]
            self._has_cr = self._has_cr and b"\r" in held
        self._seen = len(held)
        if self._seen > LARGEST_EVENT:
            raise BadModelStream(f"stream disconnected: one event is larger than {LARGEST_EVENT:,} bytes")
        return events

    def _ends(self, place: int) -> Iterator[int]:
        """Where events end, looked for from a place on."""
        held = self._held
        if self._has_cr:
            last = len(held) - 1 if held.endswith(b"\r") else len(held)  # a line feed may belong to it
            yield from (found.end() for found in _END.finditer(held, place, last))
            return
        while (found := held.find(b"\n\n", place)) >= 0:
            yield (place := found + 2)


def _read(raw: bytes) -> Event:
    name, pieces = "", []
    for line in raw.splitlines():
        if line.startswith(b"data:"):
            pieces.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
    data = b"\n".join(pieces)
    if not pieces:
        return Event("", b"", raw)
    if data.strip() == DONE.encode():
        return Event(DONE, data, raw)
    return Event(name or _type_of(data), data, raw)


def _type_of(data: bytes) -> str:
    """The type that an event's JSON tells; a bare error object is an error."""
    try:
        kind = _typed(data).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "unreadable"
    return kind or ("error" if b'"error"' in data else "unreadable")
