"""Mend: the lines of a damaged rollout as they should stand; the reader folds both to the same history.

Rule 1: a line that is in order stays as it is, byte for byte; what can be read of any other is kept.
Rule 2: addresses stay. Where a line is lost a remark takes its place, and an ordinal changes only where it has to: it
is missing, odd, or not above those before it.
Rule 3: what is left out of a request anyway (calls without outputs, outputs without calls) is no damage, and stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from refold.core.jsonio import JSON, dump, is_list, is_object, load
from refold.core.lines import encode
from refold.core.lines.read import record_of
from refold.core.records import LineDamaged, SessionStarted
from refold.errors import UnusableItem
from refold.rollout.examination.order import ordinal_in
from refold.rollout.examination.shapes import misfit
from refold.rollout.examination.spelling import ENDS, parts_of, spelled

LOST = frozenset({"torn_line", "not_json", "not_an_object"})
REWRITTEN = frozenset({"invalid_utf8", "half_surrogate", "loose_json"})
METADATA = "replacement_history_metadata"

_NUMBERED = re.compile(rb'\{"timestamp":"[^"]*","ordinal":(\d{1,18}),')
_STAMPED = re.compile(rb'\{"timestamp":"[^"]*",')


class Mender:
    """Mutable: it has mended the lines before. `done`: of each kind of finding, how often it was mended."""

    def __init__(self, *, numbered: bool, from_start: bool = False) -> None:
        self.done: dict[str, int] = {}
        self.renumbered = 0  # lines whose ordinal is another one now
        self.lines = 0  # that were given
        self.found_meta = False  # whether a session's identity stood in a line that could not be read
        self._numbered = numbered  # whether the file's lines have ordinals
        self._numbering = from_start  # whether a line must have one from here on
        self._highest = -1
        self._remarks: list[bytes] = []  # that wait: the next line says whether there is room for them
        self._stamp = ""
        self._is_replaced = False  # whether the first line was lost, and the identity stands in its place

    def begin(self, meta: SessionStarted) -> Iterator[bytes]:
        """The identity of a session whose own is lost; it takes the first line's place, if that cannot be read."""
        self._count("meta_missing")
        self._stamp, self._is_replaced = meta.timestamp, True
        ordinal = 0 if self._numbered else None
        data, _, _ = encode(meta, thread_id=meta.thread_id, turn_id=None, timestamp=meta.timestamp, ordinal=ordinal)
        self._highest = 0
        yield from self._give(data[:-1])

    def mend(self, raw: bytes, offset: int) -> Iterator[bytes]:
        """What should stand in a line's place: nothing, or lines, each with its end."""
        found = spelled(raw, offset)
        kinds = {kind for kind, _ in found.faults}
        for kind in kinds & {"crlf", "spaces_around"} | kinds & REWRITTEN:
            self._count(kind)
        if "blank_line" in kinds:
            yield from self._blank()
        elif found.value is not None:
            body = raw.strip(ENDS)
            yield from self._record(found.value, dumped(found.value) if kinds & REWRITTEN else body)
        elif "glued_lines" in kinds:
            self._count("glued_lines")
            for part in parts_of(raw.strip(ENDS)):
                yield from self._part(part)
        else:
            (kind, detail) = next((one for one in found.faults if one[0] in LOST), ("not_json", ""))
            yield from self._lose(kind, detail)
        self._is_replaced = False

    def finish(self) -> Iterator[bytes]:
        """What still waits for its place."""
        yield from self._give_remarks(None)

    def _count(self, kind: str) -> None:
        self.done[kind] = self.done.get(kind, 0) + 1

    def _give(self, body: bytes) -> Iterator[bytes]:
        self.lines += 1
        yield body + b"\n"

    def _blank(self) -> Iterator[bytes]:
        if self._numbered:
            self._count("blank_line")
        else:
            yield from self._give(b"")  # it counts in the addresses of those behind it

    def _part(self, part: bytes) -> Iterator[bytes]:
        try:
            value, _ = load(part)
        except ValueError as error:  # how deep it may be depends on who reads it
            yield from self._lose("not_json", str(error))
            return
        try:
            is_strict = is_object(msgspec.json.decode(part))
        except (msgspec.DecodeError, UnicodeDecodeError):
            is_strict = False
        self.found_meta = self.found_meta or isinstance(record_of(value), SessionStarted)
        yield from self._record(value, part if is_strict else dumped(value))

    def _record(self, value: JSON, body: bytes) -> Iterator[bytes]:
        stamp = value.get("timestamp")
        self._stamp = stamp if isinstance(stamp, str) else self._stamp
        mended = self._checkpoint(value)
        if mended is not value:
            value, body = mended, dumped(mended)
        own = ordinal_in(value)
        self._numbering = self._numbering or own is not None or (self._numbered and "ordinal" in value)
        yield from self._give_remarks(own)
        if self._numbering:
            body = self._in_order(value, body, own)
        elif "ordinal" in value:
            self._count("ordinal_odd")
            self.renumbered += 1
            body = dumped({key: part for key, part in value.items() if key != "ordinal"})
        yield from self._give(body)

    def _in_order(self, value: JSON, body: bytes, own: int | None) -> bytes:
        if own is not None and own > self._highest:
            self._highest = own
            return body
        kind = "ordinal_odd" if "ordinal" in value else "ordinal_missing"
        self._count(kind if own is None else "ordinal_backwards")
        self.renumbered += 1
        self._highest += 1
        return with_ordinal(value, body, self._highest)

    def _checkpoint(self, value: JSON) -> JSON:
        payload = value.get("payload")
        if value.get("type") != "compacted" or not is_object(payload):
            return value
        history, kept = payload.get("replacement_history"), payload
        if is_list(history) and not all(map(is_object, history)):
            self._count("checkpoint_items")
            items = [item for item in history if is_object(item)]
            kept = {**payload, "replacement_history": items}
        if misfit(payload) is not None or (kept is not payload and METADATA in kept):  # it told of each item in order
            self._count("checkpoint_metadata")
            kept = {key: part for key, part in kept.items() if key != METADATA}
        return value if kept is payload else {**value, "payload": kept}

    def _lose(self, kind: str, detail: str) -> Iterator[bytes]:
        self._count(kind)
        if self._is_replaced:
            return
        remark = LineDamaged(f"{kind}: {detail}")
        if self._numbered:
            ordinal = 0  # it is given one when it finds its place
            self._remarks.append(encode(remark, thread_id="", turn_id=None, timestamp=self._stamp, ordinal=ordinal)[0])
        else:
            data, _, _ = encode(remark, thread_id="", turn_id=None, timestamp=self._stamp, ordinal=None)
            yield from self._give(data[:-1])

    def _give_remarks(self, following: int | None) -> Iterator[bytes]:
        """Those that wait, as far as there is room before the next line's ordinal."""
        waiting, self._remarks = self._remarks, []
        for data in waiting:
            if following is not None and self._highest + 1 >= following:
                return
            self._highest += 1
            self._numbering = True
            yield from self._give(with_ordinal({}, data[:-1], self._highest))


def with_ordinal(value: JSON, body: bytes, ordinal: int) -> bytes:
    """A line with another ordinal: its text otherwise as it stood, where it begins as both programs write it."""
    number = str(ordinal).encode()
    if (seen := _NUMBERED.match(body)) is not None:
        found = body[: seen.start(1)] + number + body[seen.end(1) :]
        if load(found)[0].get("ordinal") == ordinal:  # else it says one twice, and the last one counts
            return found
    seen = _STAMPED.match(body)
    if seen is not None and "ordinal" not in value:
        return seen[0] + b'"ordinal":' + number + b"," + body[seen.end() :]
    rest = {key: part for key, part in value.items() if key not in ("timestamp", "ordinal")}
    return dumped({"timestamp": value.get("timestamp", ""), "ordinal": ordinal, **rest})


def dumped(value: Any) -> bytes:
    """A value that was read, as strict JSON."""
    try:
        return dump(value)
    except (OverflowError, UnusableItem):  # a number beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
