"""Active: what a resume of a file would find: its history, what in it is sent otherwise, or why there is no resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from refold.core.pairing import view_of
from refold.core.thread import Thread
from refold.errors import RolloutError, RolloutNotFound
from refold.rollout.blobs import MODES
from refold.rollout.lineage import active_lines

MODALITIES = ("text", "image", "audio")  # what a model cannot take is no fault of the file


class Point(msgspec.Struct, frozen=True):
    """Something about one record of the history: a finding's kind, the record's address, and what exactly."""

    kind: str
    address: str  # thread:ordinal
    detail: str = ""

    def ordinal_in(self, thread_id: str) -> int | None:
        """The record's ordinal where it stands in this thread's own file."""
        thread, _, ordinal = self.address.rpartition(":")
        return int(ordinal) if thread == thread_id and ordinal.isdecimal() else None


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume would begin with. `why`: what stands in its way; None = it resumes. Usage in tokens."""

    why: str | None = None
    base_missing: bool = False
    thread_id: str = ""
    items: int = 0
    typed: int = 0  # messages in it that people typed
    window: int = 0
    model: str | None = None
    cwd: str | None = None
    last_tokens: int | None = None
    total_tokens: int | None = None
    is_open: bool = False  # a turn has not ended
    unanswered: tuple[str, ...] = ()  # call ids
    points: tuple[Point, ...] = ()


def active_of(path: Path) -> Active:
    """Fold a file as a resume does (rollout/lineage.py); it costs as much. What stops that is a value here."""
    try:
        thread = Thread.replay(active_lines(path))
    except RolloutNotFound as error:
        return Active(why=str(error), base_missing=True)
    except RolloutError as error:
        return Active(why=str(error))
    return _active(thread, _obstacle(thread))


def _obstacle(thread: Thread) -> str | None:
    if thread.meta is None:
        return "no session_meta line in it"
    if thread.meta.history_mode not in MODES:
        return f"its history mode {thread.meta.history_mode!r} is not known"
    return None


def _active(thread: Thread, why: str | None) -> Active:
    settings = thread.settings or {}
    model, cwd = settings.get("model"), settings.get("cwd")
    usage = thread.last_usage if thread.usage_told or thread.counted is None else None
    points = tuple(_points(thread))
    return Active(
        why=why,
        thread_id=thread.id,
        items=len(thread.history),
        typed=sum(e.origin == "typed" for e in thread.history),
        window=thread.window.number,
        model=model if isinstance(model, str) else None,
        cwd=cwd if isinstance(cwd, str) else thread.meta.cwd if thread.meta else None,
        last_tokens=None if usage is None else usage.total_tokens,
        total_tokens=thread.total_usage.total_tokens,
        is_open=thread.open_turn is not None,
        unanswered=tuple(point.detail.split(" ")[0] for point in points if point.kind == "call_unanswered"),
        points=points,
    )


def _points(thread: Thread) -> Iterator[Point]:
    view = view_of(thread.history, MODALITIES)
    for call in view.unanswered:
        name = str(call.item.get("name") or call.item.get("type"))
        yield Point("call_unanswered", call.address, f"{call.item.get('call_id')} {name}")
    for output in view.orphans:
        yield Point("output_orphaned", output.address, str(output.item.get("call_id")))
    for odd in view.oddities:
        yield Point("call_odd", odd.address, f"{odd.call_id}: {odd.what}")
    for item_id in thread.steers:
        yield Point("steer_waiting", "", item_id)
