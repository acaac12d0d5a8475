"""Thread: the state that folding a session's records gives.

Rule 1: only `apply` changes a Thread, and only records go in.
Rule 2: live session, resume, fork and every view use this one fold.
Rule 3: a checkpoint with a history is sufficient alone; what stood before it no longer matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refold.core.compaction.carried import Carried, carried_by, told_by_another
from refold.core.compaction.replacement import rebuild_from_summary
from refold.core.compaction.retained import Told, told_by
from refold.core.compaction.shadow import Shadow, seal_of, sealed, shadows_of
from refold.core.guess import Guess, guess_items, guess_text
from refold.core.history import Entry, drop_user_turns, entry, is_user_turn
from refold.core.items import enters_history
from refold.core.jsonio import without_lone_surrogates
from refold.core.records import (
    JSON,
    Compacted,
    CompactionAttempted,
    ItemRecorded,
    Known,
    Line,
    Named,
    Pinned,
    Record,
    RequestSent,
    RolledBack,
    RuleDropped,
    SessionStarted,
    SettingsApplied,
    SteerQueued,
    TurnEnded,
    TurnStarted,
    Unpinned,
    UsageCounted,
    Window,
    WorldObserved,
)
from refold.core.tokens import estimate
from refold.core.usage import Usage
from refold.core.world import merge_patch

NO_COMPACTION = ("fork", "undo", "rollback", "shadow")  # methods of checkpoints that make nothing shorter


class Thread:
    """A session's memory. Mutable, because it grows by one entry thousands of times; see Rule 1."""

    def __init__(self) -> None:
        self.id = ""
        self.meta: SessionStarted | None = None
        self.meta_ordinal = 0  # where it stands
        self.name = ""  # what a person called it
        self.history: list[Entry] = []
        self.window = Window()
        self.last_usage: Usage | None = None  # what the context held after the newest response, or its estimate
        self.counted: int | None = None  # entries that an estimate in `last_usage` covers; None = a provider's count
        self.told_at = 0  # entries that stood there when `last_usage` was told
        self.usage_told = False  # whether a response ever told usage; a provider that never does is guessed at
        self.window_prefix: int | None = None  # total tokens of the window's first response
        self.total_usage = Usage()  # everything that this session has used
        self.used_before_turn = Usage()  # what it had used when the newest turn began
        self.attempted: CompactionAttempted | None = None  # the newest since the checkpoint that went well
        self.shadows: dict[str, Shadow] = {}  # what can be read beside the history's encrypted items, by their content
        self._holds_seal = False  # so that a history without any need not be looked through
        self.world: JSON | None = None  # what the model was last told (the baseline); None = tell it everything
        self.settings: JSON | None = None  # the newest turn context
        self.open_turn: str | None = None
        self.usable_window: int | None = None  # tokens; what the newest turn was begun with
        self.turns = 0
        self.compactions = 0
        self.known: set[str] = set()  # hashes of what the log holds for requests to refer to
        self.sent = 0  # requests that went out
        self.pins: dict[tuple[str, str], None] = {}  # (address, text) of what every later context holds, in order
        self.dropped_rules: dict[tuple[str, str], None] = {}  # (address, sentence) of rules that are as other sentences
        self.steers: dict[str, str] = {}  # item id → text of messages that wait for the next sampling
        self.next_ordinal = 0
        self.retained: Told | None = None  # what the newest checkpoint told of messages and its items
        self.checkpoint: int | None = None  # where the newest one stands; what an undo undoes
        self.restored: int | None = None  # entries that an undo put back, if the newest checkpoint is one
        self.damaged = 0  # lines that a replay could read in part only, or not at all
        self._guessed: tuple[list[Entry], int, Guess] | None = None  # a history, how far it is guessed, and at what

    @property
    def base_instructions(self) -> str | None:
        return self.meta.base_instructions if self.meta else None

    @property
    def sealed(self) -> list[Entry]:
        """The entries that stand for a history that only their provider can read."""
        return sealed(self.history) if self._holds_seal else []

    @property
    def is_as_restored(self) -> bool:
        """Whether an undo put this history here and nothing came since: compacting it again would undo the undo."""
        return self.restored is not None and len(self.history) <= self.restored

    def guessed_tokens(self) -> int:
        """About the tokens of the context, by what its texts look like; costs what is new since the last time."""
        if self._guessed is None or self._guessed[0] is not self.history or self._guessed[1] > len(self.history):
            self._guessed = (self.history, 0, Guess())
        _, count, guess = self._guessed
        guess += guess_items(entry.item for entry in self.history[count:])
        self._guessed = (self.history, len(self.history), guess)
        return guess_text(self.base_instructions or "") + guess.tokens

    @classmethod
    def replay(cls, lines: Iterable[Line]) -> Thread:
        """Fold a log. Checkpoints inside turns that were rolled back later do not count (spec §8.7)."""
        log = list(lines)
        ignored = _rolled_back(log)
        thread = cls()
        for index, line in enumerate(log):
            if line.warning is not None:
                thread.damaged += 1
            if index in ignored:
                thread.next_ordinal = max(thread.next_ordinal, line.ordinal + 1)
            else:
                thread.apply(line.record, line.ordinal)
        return thread

    def apply(self, record: Record, ordinal: int) -> None:
        """Fold one record, which stands at `ordinal` in this thread's log."""
        if ordinal >= self.next_ordinal:
            self.next_ordinal = ordinal + 1
        match record:
            case ItemRecorded(item=item):
                if self.steers:
                    self.steers.pop(str(item.get("id")), None)
                if enters_history(item):
                    self.history.append(entry(item, f"{self.id}:{ordinal}", self.open_turn))
                    self._holds_seal = self._holds_seal or seal_of(item) is not None
            case UsageCounted(last=last, total=total):
                self.last_usage, self.total_usage, self.told_at = last, total, len(self.history)
                is_estimate = not last.input_tokens and not last.output_tokens
                self.counted = len(self.history) if is_estimate else None
                self.usage_told = self.usage_told or not is_estimate
                if self.window_prefix is None and last.input_tokens:
                    self.window_prefix = last.total_tokens
            case TurnStarted(turn_id=turn_id, context_window=usable):
                self.open_turn = turn_id
                self.usable_window = usable if isinstance(usable, int) else None
                self.turns += 1
                self.used_before_turn = self.total_usage
            case TurnEnded():
                self.open_turn = None
            case SettingsApplied(settings=settings):
                self.settings = settings
            case WorldObserved(full=full, state=state) if full or self.world is not None:
                self.world = state if full else merge_patch(self.world, state)  # a patch without a base is ignored
            case Compacted():
                self._install(record, ordinal)
            case CompactionAttempted(usage=usage, outcome=outcome):
                self.total_usage = self.total_usage + (usage or Usage())
                self.attempted = record if outcome == "completed" else self.attempted
            case SteerQueued(item_id=item_id, text=text):
                self.steers[item_id] = without_lone_surrogates(text)  # as it is in the log: live == replayed
            case Pinned() | Unpinned() | RuleDropped():
                self._keep(record)
            case Named(name=name, thread_id=of) if of in (None, self.id):  # a copied line names the ancestor
                self.name = without_lone_surrogates(name)
            case Known(hash=digest):
                self.known.add(digest)
            case RequestSent():
                self.sent += 1
            case RolledBack(turns=turns):
                self.history = drop_user_turns(self.history, turns)
                self.retained = self.retained and Told()  # it goes by place
                self._estimate()
            case SessionStarted() if self.meta is None:
                self.id, self.meta, self.meta_ordinal = record.thread_id, record, ordinal
                self.window = Window(0, record.window_id, record.window_id)
            case _:
                pass  # kept in the log, changes nothing

    def _keep(self, record: Pinned | Unpinned | RuleDropped) -> None:
        address, text = record.address, without_lone_surrogates(record.text)
        match record:
            case Pinned():
                self.pins[address, text] = None
            case Unpinned():
                self.pins = {pin: None for pin in self.pins if pin[0] != address or text not in (None, pin[1])}
            case RuleDropped():
                self.dropped_rules[address, text] = None

    def _install(self, record: Compacted, ordinal: int) -> None:
        here = f"{self.id}:{ordinal}"
        if record.history is None:  # 2025: only the summary was written
            self.history = [entry(item, here) for item in rebuild_from_summary(self.history, record.message)]
        else:
            known = record.addresses if len(record.addresses) == len(record.history) else ()
            self.history = [
                entry(item, (known[index] if known else "") or here)
                for index, item in enumerate(record.history)
                if enters_history(item)
            ]
        self.retained = told_by(record, len(self.history))
        self.window = record.window or self.window.next("")
        self.window_prefix = None
        self.world = record.world
        if told := carried_by(record, self.id):
            self._carry(told)
            self.settings = told.settings
        elif told := told_by_another(record, self.meta):
            self._carry(told)
            self.steers.clear()
            self.shadows.clear()
        self.settings = record.settings or self.settings
        shadows = {**self.shadows, **shadows_of(record)}
        seals = [seal_of(e.item) for e in sealed(self.history)]
        self.shadows = {seal: shadows[seal] for seal in seals if seal in shadows}
        self._holds_seal = bool(seals)
        self.attempted = None
        self._estimate()
        if record.steers is not None:
            self.steers.clear()
            self.steers.update(record.steers)
        if record.pins is not None:
            self.pins = {(one["address"], one["text"]): None for one in record.pins}
        if record.dropped_rules is not None:
            self.dropped_rules = {(one["address"], one["text"]): None for one in record.dropped_rules}
        self.checkpoint = ordinal
        self.restored = len(self.history) if record.facts.get("waits") is True else None
        if record.facts.get("method") not in NO_COMPACTION:
            self.compactions += 1

    def _carry(self, told: Carried) -> None:
        """Take what a checkpoint says of what stands before it; where all of that was read, it is mostly so already."""
        self.turns, self.compactions, self.sent = told.turns, told.compactions, told.sent
        self.known = set(told.known)
        self.total_usage, self.used_before_turn = told.used, told.used_before_turn
        self.usage_told = told.usage_told
        self.open_turn, self.usable_window = told.open_turn, told.usable_window
        self.name = told.name
        self.pins, self.dropped_rules = {}, {}  # it says them itself, if there are any

    def _estimate(self) -> None:
        self.last_usage = Usage(total_tokens=estimate(self.history, self.base_instructions))
        self.counted = len(self.history)


def _rolled_back(log: list[Line]) -> set[int]:
    """Indexes of checkpoints, worlds and settings in turns that a later rollback undid.

    A rollback counts turns in which a person spoke; a turn that only compacted goes with the one before it.
    """
    if not any(isinstance(line.record, RolledBack) for line in log):
        return set()
    ignored: set[int] = set()
    turns: list[list[int]] = [[]]  # the indexes to ignore if it is undone; the first holds what stands before any turn
    spoken: list[bool] = [False]
    for index, line in enumerate(log):
        match line.record:
            case TurnStarted():
                turns.append([])
                spoken.append(False)
            case ItemRecorded(item=item):
                spoken[-1] = spoken[-1] or is_user_turn(item)
            case Compacted() | WorldObserved() | SettingsApplied():
                turns[-1].append(index)
            case RolledBack(turns=count):
                while count > 0 and len(turns) > 1:
                    ignored.update(turns.pop())
                    count -= spoken.pop()
            case _:
                pass
    return ignored


def same_state(one: Thread, other: Thread) -> bool:
    """Whether two threads hold the same memory (used to prove live == resumed == replayed)."""
    return _state(one) == _state(other)


def _state(thread: Thread) -> dict[str, Any]:
    return {
        "id": (thread.id, thread.name),
        "history": [(e.item, e.origin, e.address, e.turn_id) for e in thread.history],
        "window": thread.window,
        "usage": (thread.last_usage, thread.counted, thread.window_prefix, thread.total_usage, thread.usage_told),
        "world": thread.world,
        "settings": thread.settings,
        "turn": (thread.open_turn, thread.usable_window, thread.turns, thread.compactions),
        "steers": thread.steers,
        "pins": (list(thread.pins), list(thread.dropped_rules)),
        "sent": (thread.sent, thread.known),
        "beside": (thread.shadows, thread.used_before_turn, thread.attempted),
        "undo": (thread.checkpoint, thread.restored, thread.retained),
    }
