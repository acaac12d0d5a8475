"""Parent: the thread that a fork begins with: a session as it is, or as it was after a record or a turn.

Rule 1: only lines are counted, so a turn's number and a record's address mean the same for ever: turns that were
undone later count, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from refold.core.history import is_user_turn
from refold.core.records import ItemRecorded, Line, SessionStarted, TurnStarted
from refold.core.thread import Thread
from refold.errors import ConfigError, RolloutNotFound
from refold.rollout import read_lines
from refold.rollout.catalogue import Catalogue
from refold.rollout.lineage import active_lines
from refold.rollout.reader import find_line
from refold.session.collector import without_collector
from refold.session.memory import read_thread

ADDRESS = re.compile(r"(.+):([0-9]{1,18})", re.DOTALL)


def parent_at(catalogue: Catalogue, reference: str, turn: int | None = None) -> Thread:
    """The thread of an id, an id's beginning, a path, or an address (`ID:ORDINAL`: up to that record, with it).

    `turn`: up to the end of that turn in which somebody spoke; 1 is the first one of its log, -1 the newest.
    Raises RolloutNotFound (also for a record or turn that is not there), RolloutCorrupt, ConfigError.
    """
    path, at = meant_by(catalogue, reference)
    if turn is None:
        return read_thread(path) if at is None else _after(path, at)
    if at is not None:
        raise ConfigError("turn", f"{reference} already says where: give an address or a turn, not both")
    last = _end_of(path, turn)
    return read_thread(path) if last is None else _until(path, last)


def meant_by(catalogue: Catalogue, reference: str) -> tuple[Path, int | None]:
    """The file that a reference means and, of an address, the record's ordinal. Raises RolloutNotFound, RolloutError.

    A path or a name may end like an address, and is none.
    """
    address = None if os.path.lexists(reference) else ADDRESS.fullmatch(reference)
    if address is None:
        return catalogue.find(reference)[0], None
    try:
        return catalogue.find(address[1])[0], int(address[2])
    except RolloutNotFound as error:
        try:
            return catalogue.find(reference)[0], None
        except RolloutNotFound:
            raise error from None


def _after(path: Path, ordinal: int) -> Thread:
    """The thread as it was after a record. Raises RolloutNotFound when there is none."""
    thread = _until(path, ordinal)
    if thread.meta is None or (thread.next_ordinal != ordinal + 1 and find_line(path, ordinal) is None):
        newest = read_thread(path).next_ordinal - 1
        raise RolloutNotFound(f"{path.name} has no record {ordinal} that a session could go on from (up to {newest})")
    return thread


def _until(path: Path, ordinal: int) -> Thread:
    """The thread that the lines up to one fold to."""
    read_thread(path)  # says what is wrong with the file
    with without_collector():
        return Thread.replay(active_lines(path, before=ordinal + 1))


def _end_of(path: Path, turn: int) -> int | None:
    """The ordinal of the last line before the turn after this one; None where the file ends with it."""
    if turn == 0:
        raise ConfigError("turn", "there is no turn 0: 1 is the first one, -1 the newest")
    with without_collector():
        begins, spoken = _turns(read_lines(path, skim=True))
    index = turn - 1 if turn > 0 else len(spoken) + turn
    if not 0 <= index < len(spoken):
        where = f"{path.name} has {len(spoken)} turns in which somebody spoke"
        raise RolloutNotFound(f"there is no turn {turn}: {where}; what its beginning took over counts in its parent")
    later = begins.index(spoken[index]) + 1
    return begins[later] - 1 if later < len(begins) else None


def _turns(lines: Iterable[Line]) -> tuple[list[int], list[int]]:
    """The ordinals with which turns begin, and those of them in which somebody spoke.

    In a file without `task_started` lines (2025) each message that somebody typed begins one.
    """
    begins: list[int] = []
    spoken: list[int] = []
    told = False  # whether turns say where they begin
    for line in lines:
        match line.record:
            case SessionStarted():
                continue
            case TurnStarted():
                told = True
                begins.append(line.ordinal)
            case ItemRecorded(item=item) if is_user_turn(item):
                if not told:
                    begins.append(line.ordinal)
                if begins and begins[-1] not in spoken[-1:]:
                    spoken.append(begins[-1])
            case _:
                pass
    return begins, spoken
