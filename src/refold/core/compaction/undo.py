"""Undo: the history that an undo or a rollback restores, taken from the log (docs/undo.md).

Rule 1: it is a fold of the log up to a line, and what was recorded since; nothing in it is made up.
Rule 2: its world is what these items told the model, not what an undone checkpoint told it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from refold.core.compaction.due import Due, context_tokens
from refold.core.compaction.shadow import Shadow
from refold.core.history import Entry, is_user_turn
from refold.core.jsonio import is_object
from refold.core.records import JSON, Compacted, Line, LineDamaged, Record, SettingsApplied, TurnStarted, WorldObserved
from refold.core.thread import Thread
from refold.core.world import ids_in, merge_patch, value_of, with_value
from refold.errors import CompactionFailed

CLOSING_TYPES = frozenset({"compaction", "compaction_summary", "context_compaction"})
SWITCHES = ("model_downshift", "comp_hash_changed")  # reasons of a compaction that the former model made


class Restored(msgspec.Struct, frozen=True):
    """What takes the history's place, and what the model had been told by it."""

    entries: tuple[Entry, ...]
    world: JSON | None
    settings: JSON | None
    undoes: str = ""  # address of the checkpoint that is undone
    method: str = ""  # of that checkpoint
    shadows: dict[str, Shadow] = {}  # of the encrypted items among the entries


def waits(thread: Thread, found: Due, usable: int | None, pending: int = 0) -> bool:
    """Whether a compaction that is due waits for something new or for the provider's refusal, because what is over the
    limit is what an undo restored. `pending`: tokens of what is about to be said, `usable`: what the window can hold.

    It does not wait for what cannot work: a message that has no room, items that the next model cannot read.
    """
    if not thread.is_as_restored:
        return False
    match found.reason:
        case "comp_hash_changed":
            return not any(e.item.get("type") in CLOSING_TYPES for e in thread.history)
        case "model_downshift":
            return usable is None or found.tokens < usable
        case "context_limit":
            total = context_tokens(thread)
            return usable is None or total > usable or total + pending <= usable
        case _:
            return False


def told_after(told: JSON | None, recorded: JSON | None, records: Iterable[Record]) -> JSON | None:
    """What a model that was told `told` knows of the world after these records were read to it, too.

    They were written for one that knew `recorded`. A change tells a section whole, so a section is of one or the other;
    what was told in part, to one that knew something else, is as good as not told.
    """
    for record in records:
        match record:
            case WorldObserved(full=True, state=state):
                told = recorded = state
            case WorldObserved(state=patch) if recorded is not None:
                known, recorded = recorded, cast("JSON", merge_patch(recorded, patch))
                if told is not None:
                    told = _with_change(told, known, patch, recorded)
            case _:
                pass
    return told


def _with_change(told: JSON, known: JSON, patch: JSON, recorded: JSON) -> JSON:
    """What a model that was told `told` knows after a change that leads from `known` to `recorded`."""
    for section in ids_in(patch):
        same = value_of(told, section) == value_of(known, section)
        part = not same and _is_in_part(section, value_of(patch, section))
        told = with_value(told, section, None if part else value_of(recorded, section))
    return told


def _is_in_part(section: str, patch: Any) -> bool:
    """Whether a section was told by what came to it: permissions are, where only approved prefixes are new."""
    return section == "permissions" and is_object(patch) and "instructions" not in patch


# --- the newest checkpoint -----------------------------------------------------------------------------------------


def without_newest(log: Sequence[Line], thread: Thread) -> Restored:
    """The history without the newest checkpoint: what stood before it, and everything recorded since.

    `log`: every line of the thread. Raises CompactionFailed when there is no checkpoint, or only an inherited one.
    """
    place = _place(log, thread.checkpoint)
    checkpoint = _checkpoint(log, place)
    if place is None or checkpoint is None or checkpoint.facts.get("method") == "fork":
        where = f"; its beginning was taken over from {parent}" if (parent := _parent(thread)) else ""
        raise CompactionFailed(f"there is nothing to undo: this session was not compacted yet{where}")
    before = Thread.replay(log[:place])
    stood, world, settings = before.history, before.world, before.settings
    shadows = {**before.shadows, **thread.shadows}
    before.apply(checkpoint, log[place].ordinal)
    since = thread.history[len(before.history) :]
    told = told_after(world, checkpoint.world, _records(log, _behind(log, place)))
    if since:  # later turns went on with settings of their own
        settings = _of_former_model(checkpoint, settings, thread.settings)
    undoes, method = f"{thread.id}:{log[place].ordinal}", str(checkpoint.facts.get("method") or "")
    return Restored((*stood, *since), told, settings, undoes, method, shadows)


def _of_former_model(checkpoint: Compacted, before: JSON | None, now: JSON | None) -> JSON | None:
    """The newest settings; after a compaction because of a switch the history is again one of the former model."""
    if checkpoint.facts.get("reason") not in SWITCHES or before is None or now is None:
        return now
    other = {key: value for key, value in now.items() if key not in ("model", "comp_hash")}
    return {**other, **{key: before[key] for key in ("model", "comp_hash") if key in before}}


def _parent(thread: Thread) -> str | None:
    return thread.meta.forked_from if thread.meta else None


# --- the last turns ------------------------------------------------------------------------------------------------


def without_turns(log: Sequence[Line], thread: Thread, turns: int) -> Restored:
    """The history as it was before the last `turns` turns in which somebody spoke; a compaction in them goes with them.

    A turn before the newest compaction is found in the log. Raises CompactionFailed when there are fewer.
    """
    restored, missing = _rolled_back(log, thread, turns)
    if restored is None:
        those = f"only {turns - missing} of them" if turns > missing else "none of them"
        where = f"; the rest is in {parent}, which it was forked from" if (parent := _parent(thread)) else ""
        raise CompactionFailed(f"{turns} turns cannot be undone: {those} can be found in this session's log{where}")
    return restored


def _rolled_back(log: Sequence[Line], thread: Thread, turns: int) -> tuple[Restored | None, int]:
    """What is restored, or None and how many turns are missing."""
    closing, starts = _starts(thread.history)
    place = _place(log, _ordinal(thread, thread.history[closing])) if closing >= 0 else None
    if _checkpoint(log, place) is None:
        place = None
    split = 0  # turns that began before the compaction and went on after it
    while place is not None and split < len(starts):
        begin = _begin(log, thread, thread.history[starts[split]])
        if begin is None or begin > place:
            break
        split += 1
    rest = turns - (len(starts) - split)
    if rest <= 0:
        return _before(log, thread, starts[-turns]), 0
    if place is None:
        return None, rest
    earlier = Thread.replay(log[:place])
    spoken = {e.turn_id for e in earlier.history if _speaks(e)}
    rest -= sum(thread.history[start].turn_id not in spoken for start in starts[:split])  # there it came first
    if rest <= 0:
        return Restored(tuple(earlier.history), earlier.world, earlier.settings, shadows=earlier.shadows), 0
    return _rolled_back(log[:place], earlier, rest)


def _starts(history: Sequence[Entry]) -> tuple[int, list[int]]:
    """Where the newest summary stands (-1: nowhere), and where each turn after it begins: a steer begins none."""
    closing = max((index for index, e in enumerate(history) if _closes(e)), default=-1)
    starts: list[int] = []
    turn_id: str | None = None
    for index in range(closing + 1, len(history)):
        if not _speaks(history[index]):
            continue
        same, turn_id = turn_id, history[index].turn_id
        if turn_id is None or turn_id != same:
            starts.append(_with_context(history, index, closing + 1))
    return closing, starts


def _with_context(history: Sequence[Entry], index: int, first: int) -> int:
    """The index of the first piece of context that was told for the message at `index`."""
    turn_id = history[index].turn_id
    while index > first and history[index - 1].origin == "injected" and history[index - 1].turn_id == turn_id:
        index -= 1
    return index


def _closes(e: Entry) -> bool:
    return e.origin == "summary" or e.item.get("type") in CLOSING_TYPES


def _speaks(e: Entry) -> bool:
    return e.origin != "summary" and is_user_turn(e.item)


def _before(log: Sequence[Line], thread: Thread, index: int) -> Restored:
    """The history up to an entry, as it was before the turn that brought this."""
    cut = thread.history[index]
    begin = _begin(log, thread, cut)
    settings = thread.settings if begin is None else _settings(log[:begin])
    told = _told_to(log, thread, cut, begin)
    return Restored(tuple(thread.history[:index]), told, settings, shadows=thread.shadows)


def _told_to(log: Sequence[Line], thread: Thread, cut: Entry, begin: int | None) -> JSON | None:
    """What the history before `cut` told of the world, when its turn began; None where the log does not hold it."""
    if begin is None:
        return None
    place, at = _place(log, thread.checkpoint), _place(log, _ordinal(thread, cut))
    checkpoint = _checkpoint(log, place)
    if place is None or checkpoint is None:
        return told_after(None, None, _records(log[:begin], 0))
    if at is not None and at > place:
        return told_after(checkpoint.world, checkpoint.world, _records(log[:begin], _behind(log, place)))
    method = checkpoint.facts.get("method")
    if method == "rollback":
        return _told_to(log[:place], Thread.replay(log[:place]), cut, begin)
    undone = _place(log, _own(thread, str(checkpoint.facts.get("undoes")))) if method == "undo" else None
    other = _checkpoint(log, undone)
    if undone is None or other is None:
        return None
    before = Thread.replay(log[:undone])
    if at is not None and at > undone:
        return told_after(before.world, other.world, _records(log[:begin], _behind(log, undone)))
    return _told_to(log[:undone], before, cut, begin)


# --- places in the log ---------------------------------------------------------------------------------------------


def _place(log: Sequence[Line], ordinal: int | None) -> int | None:
    """The index of the line that an ordinal means."""
    if ordinal is None:
        return None
    for index in range(len(log) - 1, -1, -1):
        if log[index].ordinal == ordinal and not isinstance(log[index].record, LineDamaged):
            return index
    return None


def _checkpoint(log: Sequence[Line], place: int | None) -> Compacted | None:
    record = None if place is None else log[place].record
    return record if isinstance(record, Compacted) else None


def _behind(log: Sequence[Line], place: int) -> int:
    """The index behind a checkpoint and the lines that repeat its world and settings."""
    place += 1
    while place < len(log) and isinstance(log[place].record, SettingsApplied | WorldObserved):
        place += 1
    return place


def _records(log: Sequence[Line], start: int) -> Iterable[Record]:
    return (line.record for line in log[start:])


def _own(thread: Thread, address: str) -> int | None:
    """The ordinal in an address of this thread; None for another one's."""
    thread_id, _, ordinal = address.rpartition(":")
    return int(ordinal) if thread_id == thread.id and ordinal.isdecimal() else None


def _ordinal(thread: Thread, e: Entry) -> int | None:
    return _own(thread, e.address)


def _begin(log: Sequence[Line], thread: Thread, e: Entry) -> int | None:
    """The index of the line with which an entry's turn began, or of its own; None when it was inherited."""
    at = _place(log, _ordinal(thread, e))
    if at is None:
        return None
    for index in range(at, -1, -1):
        record = log[index].record
        if isinstance(record, TurnStarted) and e.turn_id in (None, record.turn_id):
            return index
    return at


def _settings(log: Sequence[Line]) -> JSON | None:
    """The newest settings in a log."""
    for line in reversed(log):
        match line.record:
            case SettingsApplied(settings=settings) | Compacted(settings=dict() as settings):
                return settings
            case _:
                pass
    return None
