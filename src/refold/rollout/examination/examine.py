"""Examine: one reading of a rollout file from its start that says what it is and everything that is odd in it.

Rule 1: whatever the bytes are, the answer is a value. Rule 2: what is held is a line, and small numbers beside it; the
history is folded as a resume folds it, and let go.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import msgspec

from refold.core.jsonio import JSON, dump, is_object
from refold.errors import RolloutCorrupt, RolloutError
from refold.rollout.blobs import BLOBS, MARK, MISSING, NUMBERED_MODES, BlobReader, folder_of
from refold.rollout.compressed import COMPRESSED, differs
from refold.rollout.examination.active import Active, Point, active_of
from refold.rollout.examination.findings import Finding, Findings, Place
from refold.rollout.examination.identity import Generation, Identity
from refold.rollout.examination.media import REPEATED, SMALLEST, Media
from refold.rollout.examination.order import Order, ordinal_in
from refold.rollout.examination.plain import plain_name
from refold.rollout.examination.shapes import record_and_oddities
from refold.rollout.examination.spelling import spelled, strictly
from refold.rollout.examination.turns import Turns
from refold.rollout.reader import is_zstd, open_rollout, raw_lines

COPIED = 1 << 20  # bytes of checkpoints that newer ones replaced, from which on they are worth a remark
NOT_READ = ("torn_line", "glued_lines", "not_json", "not_an_object")  # lines of which nothing counts
MOST_TYPES = 200  # of records and of items that are counted by name
STOPS_RESUME = (
    "meta_missing",
    "mode_unknown",
    "base_missing",
    "empty_file",
    "packed_cut",
    "line_too_long",
    "unreadable",
)


class Checkpoint(msgspec.Struct, frozen=True):
    """Where a checkpoint stands, how many items its history has (None: it has none), and its window's number."""

    line: int
    items: int | None
    window: int | None


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is and what was found in it; sizes in bytes."""

    path: str
    thread_id: str
    generation: Generation
    version: str  # of the program that began it; "" = it does not say
    history_mode: str
    started: str  # UTC, as the session_meta line says it, else the first record
    size: int  # on the disk
    is_compressed: bool
    is_numbered: bool  # its lines carry ordinals
    lines: int
    unread: int  # lines of which nothing counts
    metas: int  # session_meta lines
    records: dict[str, int]  # by type
    items: dict[str, int]  # by type; messages by role
    typed: int  # messages that people typed
    turns: dict[str, int]  # started, completed, failed, interrupted
    checkpoints: tuple[Checkpoint, ...]
    media: dict[str, int]  # count, bytes, repeats, repeated_bytes
    active: Active
    findings: tuple[Finding, ...]

    @property
    def is_damaged(self) -> bool:
        return any(one.is_damage for one in self.findings)

    @property
    def fixable(self) -> tuple[Finding, ...]:
        """What a repair mends."""
        return tuple(one for one in self.findings if one.about.fixed)


def examine(path: Path) -> Examination:
    """Examine a file. Raises RolloutNotFound, RolloutError only where it cannot be opened at all."""
    packed, size = is_zstd(path), path.stat().st_size
    active = active_of(path)
    reading = _Reading(active, BlobReader(folder_of(path)))
    reading.name(path, packed)
    reading.run(path)
    return reading.told(path, packed, size)


class _Reading:
    """One reading. Mutable: it has seen the lines before."""

    def __init__(self, active: Active, blobs: BlobReader) -> None:
        self.active, self.blobs = active, blobs
        self.findings = Findings()
        self.order, self.identity, self.turns = Order(), Identity(), Turns()
        self.media, self.beside = Media(), Media()  # in the file, and in blobs
        self.lines = self.unread = 0
        self.records: dict[str, int] = {}
        self.items: dict[str, int] = {}
        self.replaced = self.newest = 0  # bytes of checkpoint lines: those that newer ones replaced, and the newest
        self.wanted: dict[int, list[Point]] = {}
        for point in active.points:
            ordinal = point.ordinal_in(active.thread_id)
            if ordinal is None:
                self.findings.add(point.kind, Place(), f"{point.detail} {point.address}".strip())
            else:
                self.wanted.setdefault(ordinal, []).append(point)

    def name(self, path: Path, packed: bool) -> None:
        """Whether the file's name says what it holds."""
        named = path.suffix == COMPRESSED
        if packed:
            self.findings.add("compressed" if named else "packed_name", Place())
        elif named:
            self.findings.add("plain_name", Place())
        elif path.with_name(path.name + COMPRESSED).exists():
            self.findings.add("packed_copy", Place(), differs(path))

    def run(self, path: Path) -> None:
        raw, offset = b"", 0
        try:
            mark = _has_mark(path)
            with open_rollout(path) as file:
                for number, offset, raw in raw_lines(file, path):
                    if self.passes(raw):
                        continue
                    place = Place(number, offset)
                    if number == 1 and mark:
                        self.findings.add("byte_order_mark", place)
                    self.line(raw, place, shift=3 if number == 1 and mark else 0)
        except RolloutError as error:
            self.stop(error, Place(self.lines + 1, offset + len(raw)))
        if raw and not raw.endswith(b"\n") and self.order.last_is_whole:
            self.findings.add("no_line_end", Place(self.lines, offset))
        self.finish()

    def stop(self, error: RolloutError, place: Place) -> None:
        """The reading ends before the file does."""
        if not isinstance(error, RolloutCorrupt):
            kind = "unreadable"
        else:
            kind = "packed_cut" if error.line is None else "line_too_long"
        self.findings.add(kind, place, str(error))

    def passes(self, raw: bytes) -> bool:
        """Whether a line is in order as it stands, as most are: it is counted, and done with."""
        if (
            len(raw) >= SMALLEST
            or MARK in raw
            or raw[-2:] != b"}\n"
            or not self.identity.records
            or self.wanted
            or self.turns.several
        ):
            return False
        try:
            value = strictly(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        name = plain_name(value, raw)
        if (
            name is None
            or raw[:1] != b"{"
            or (self.wanted and self.is_wanted(value))
            or not self.order.follows(value.get("ordinal"))
        ):
            return False
        self.lines += 1
        self.identity.records += 1
        _count(self.records, name[0])
        if name[1]:
            _count(self.items, name[1])
        self.order.last_is_whole = True
        return True

    def is_wanted(self, value: JSON) -> bool:
        """Whether a finding about the history waits for a line, which is the next one, to tell its place."""
        ordinal = ordinal_in(value)
        return (self.lines + 1 if ordinal is None else ordinal) in self.wanted

    def line(self, raw: bytes, place: Place, shift: int) -> None:
        self.lines += 1
        value, faults = spelled(raw, place.offset + shift)
        for kind, detail in faults:
            self.findings.add(kind, place, detail)
        for size in self.media.look(raw):
            self.findings.add("media_large", place, f"{size:,} bytes")
        if value is not None:
            self.record(value, raw, place)
        elif raw.strip():
            self.unread += 1
            self.order.lose()
        self.order.last_is_whole = value is not None

    def record(self, value: JSON, raw: bytes, place: Place) -> None:
        add = self.findings.add
        for kind, detail in self.order.look(value):
            add(kind, place, detail)
        if MARK in raw and self.identity.mode == BLOBS:
            value, missing = self.blobs.whole(value)
            if missing is not None:
                add("blob_missing", place, missing.removeprefix(MISSING))
            for size in self.beside.look(dump(value)):
                add("media_large", place, f"{size:,} bytes")
        record, oddities = record_and_oddities(value)
        for kind, detail in oddities:
            add(kind, place, detail)
        for kind, detail in self.identity.look(value, record):
            add(kind, place, detail)
        self.order.numbered = self.order.numbered or self.identity.mode in NUMBERED_MODES
        for kind, where, detail in self.turns.look(record, place):
            add(kind, where, detail)
        self.count(value, raw)
        if self.wanted:
            ordinal = ordinal_in(value)
            for point in self.wanted.pop(place.line if ordinal is None else ordinal, ()):
                add(point.kind, place, point.detail)

    def count(self, value: JSON, raw: bytes) -> None:
        kind = str(value.get("type") or value.get("record_type") or "unknown")
        _count(self.records, kind)
        payload = value.get("payload")
        if kind == "compacted":
            self.replaced, self.newest = self.replaced + self.newest, len(raw)
        elif kind == "response_item" and is_object(payload):
            _count(self.items, _item_name(payload))
        elif payload is None and isinstance(value.get("type"), str):
            _count(self.items, _item_name(value))

    def finish(self) -> None:
        add = self.findings.add
        for kind, place, detail in self.turns.finish():
            add(kind, place, detail)
        for points in self.wanted.values():
            for point in points:
                add(point.kind, Place(), f"{point.detail} {point.address}")
        if self.replaced > COPIED:
            add("checkpoints_copied", Place(), f"{self.replaced:,} bytes in {len(self.turns.checkpoints) - 1}")
        if self.media.repeated > REPEATED:
            add("media_repeated", Place(), f"{self.media.repeated:,} bytes in {self.media.repeats} copies")
        if not self.lines and not any(one.is_damage for one in self.findings.listed()):
            add("empty_file", Place())
        elif self.identity.meta is None:
            add("meta_missing", Place())
        if self.active.base_missing:
            add("base_missing", Place(), self.active.why or "")
        found = {one.kind for one in self.findings.listed()}
        if self.active.why is not None and not found.intersection(STOPS_RESUME):
            add("not_resumed", Place(), self.active.why)

    def told(self, path: Path, packed: bool, size: int) -> Examination:
        meta, turns, media = self.identity.meta, self.turns, self.media
        return Examination(
            path=str(path),
            thread_id=meta.thread_id if meta else self.active.thread_id,
            generation=self.identity.generation,
            version=self.identity.version,
            history_mode=self.identity.mode,
            started=meta.timestamp if meta else self.identity.stamp,
            size=size,
            is_compressed=packed,
            is_numbered=self.order.numbered,
            lines=self.lines,
            unread=self.unread,
            metas=self.identity.metas,
            records=self.records,
            items=self.items,
            typed=turns.typed,
            turns={
                "started": turns.started,
                "completed": turns.completed,
                "failed": turns.failed,
                "interrupted": turns.interrupted,
            },
            checkpoints=tuple(Checkpoint(*one) for one in turns.checkpoints),
            media={
                "count": media.count + self.beside.count - self.beside.repeats,  # a blob is stored once
                "bytes": media.size + self.beside.size - self.beside.repeated,
                "repeats": media.repeats,
                "repeated_bytes": media.repeated,
            },
            active=self.active,
            findings=self.findings.listed(),
        )


def _has_mark(path: Path) -> bool:
    """Whether the text begins with a byte order mark. Raises RolloutError."""
    with open_rollout(path) as file:
        try:
            return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
        except Exception:
            return False  # what is wrong is said by the reading that follows


def _item_name(item: Any) -> str:
    kind = str(item.get("type"))
    return f"message:{item.get('role')}" if kind == "message" else kind


def _count(counts: dict[str, int], name: str) -> None:
    name = name[:80]
    if name not in counts and len(counts) >= MOST_TYPES:
        name = "others"
    counts[name] = counts.get(name, 0) + 1
