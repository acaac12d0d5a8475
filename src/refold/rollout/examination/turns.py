"""Turns: which turns of a file began and ended, whether they lie across each other, and what was undone or failed.

Rule 1: what is held is a number for the history and one place for each turn that has not ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.fragments import origin_of, turn_of
from refold.core.history import is_user_turn
from refold.core.records import (
    Compacted,
    CompactionAttempted,
    ItemRecorded,
    Record,
    RequestSent,
    RolledBack,
    TurnEnded,
    TurnStarted,
    WorldObserved,
)
from refold.rollout.examination.findings import Place

MOST_OPEN = 1_000  # turns that have not ended; of more the oldest are told at once

Found = Iterator[tuple[str, Place, str]]  # kind, place, detail


class Turns:
    """Mutable: it has seen the records before."""

    def __init__(self) -> None:
        self.started = self.completed = self.failed = self.interrupted = 0
        self.typed = 0  # messages that people typed, in the whole file
        self.checkpoints: list[tuple[int, int | None, int | None]] = []  # line, items, window number
        self._open: dict[str, Place] = {}  # turns that have not ended, oldest first
        self._newest = ""
        self._overlapping: set[str] = set()  # open turns that were told of already
        self._boundaries = 0  # messages in the history now that a rollback counts
        self._world = False  # whether what the model was last told is known

    @property
    def several(self) -> bool:
        """Whether more than one turn has not ended: then every item is looked at for whose it is."""
        return len(self._open) > 1

    def look(self, record: Record, place: Place) -> Found:
        """What the next record shows."""
        match record:
            case ItemRecorded(item=item):
                kind = item.get("type")
                if kind == "message" or kind == "agent_message":
                    self._boundaries += is_user_turn(item)
                    self.typed += origin_of(item) == "typed"
                if self.several:
                    yield from self._seen(turn_of(item), place)
            case TurnStarted(turn_id=turn_id):
                yield from self._start(turn_id, place)
            case TurnEnded():
                yield from self._end(record, place)
            case Compacted():
                self._install(record, place)
            case WorldObserved(full=full):
                if not full and not self._world:
                    yield "world_patch", place, ""
                self._world = self._world or full
            case RolledBack(turns=turns):
                if turns > self._boundaries:
                    yield "rollback_beyond", place, f"{turns} of {self._boundaries}"
                self._boundaries = max(0, self._boundaries - max(0, turns))
            case CompactionAttempted(method=method, outcome=outcome) if outcome != "completed":
                yield "compaction_failed", place, f"{method}: {outcome}"
            case RequestSent(without_media=True):
                yield "media_left_out", place, ""
            case _:
                pass

    def finish(self) -> Found:
        """What shows at the end of the file."""
        for turn_id, place in self._open.items():
            yield ("turn_open" if turn_id == self._newest else "turn_never_ended"), place, turn_id

    def _start(self, turn_id: str, place: Place) -> Found:
        self.started += 1
        if len(self._open) >= MOST_OPEN:
            oldest = next(iter(self._open))
            yield "turn_never_ended", self._open.pop(oldest), oldest
        self._open[turn_id] = place
        self._newest = turn_id

    def _end(self, record: TurnEnded, place: Place) -> Found:
        turn_id = str(record.turn_id or self._newest)
        self.completed += record.outcome == "completed"
        self.interrupted += record.outcome == "interrupted"
        if record.outcome == "failed":
            self.failed += 1
            yield "turn_failed", place, record.error or "without a reason"
        if self.several:
            yield from self._seen(turn_id, place)
        self._open.pop(turn_id, None)
        self._overlapping.discard(turn_id)

    def _seen(self, turn_id: str | None, place: Place) -> Found:
        """A record of a turn: where a later one has begun and not ended either, two are at work."""
        if turn_id is None or turn_id == self._newest or turn_id not in self._open or self._newest not in self._open:
            return
        if turn_id not in self._overlapping:
            self._overlapping.add(turn_id)
            yield "turns_overlap", place, f"{turn_id} goes on after {self._newest} began"

    def _install(self, record: Compacted, place: Place) -> None:
        history = record.history
        number = record.window.number if record.window else None
        self.checkpoints.append((place.line, None if history is None else len(history), number))
        self._world = record.world is not None
        if history is None:
            self._boundaries += 1  # the summary; of the messages before, the newest stay
        else:
            self._boundaries = sum(map(is_user_turn, history))
