"""Memory: a session's log and the thread it folds to, with compaction, without a loop; for hosts that have one.

Rule 1: `record` is the only way in: disk, then memory, then whoever listens, in that order.
Rule 2: a failed append changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from refold import __version__
from refold.core.compaction.account import account
from refold.core.compaction.carried import carried
from refold.core.compaction.due import Due, context_tokens, due
from refold.core.compaction.replacement import Replacement
from refold.core.compaction.retained import retained
from refold.core.compaction.shadow import facts_of
from refold.core.config import Config
from refold.core.fragments import in_turn, stored_message
from refold.core.history import cut_output
from refold.core.items import ID_PREFIX, Item, Part, enters_history, is_call, is_output, with_id
from refold.core.jsonio import dump, load
from refold.core.pairing import view_of
from refold.core.profile import Profile
from refold.core.prompt import Projection, Prompt
from refold.core.records import (
    JSON,
    Compacted,
    ItemRecorded,
    Phase,
    Record,
    SessionStarted,
    SettingsApplied,
    UsageCounted,
    Window,
    WorldObserved,
    addressed,
    well_formed,
)
from refold.core.thread import NO_COMPACTION, Thread
from refold.core.truncate import recording_budget
from refold.core.usage import Usage, usage_from_api
from refold.errors import CompactionFailed, RolloutCorrupt, SessionClosed
from refold.model import Model
from refold.rollout import FileStore, MemoryStore, Store
from refold.rollout.blobs import BLOBS, MODES, PLAIN
from refold.rollout.catalogue import Catalogue
from refold.session.clock import Clock
from refold.session.collector import without_collector
from refold.session.events import CompactionEnded
from refold.session.feed import Feed
from refold.session.home import profile_of
from refold.session.redacting import Redacting

if TYPE_CHECKING:
    from refold.session.late import Late
    from refold.session.undo import Undone


class Fresh(msgspec.Struct, frozen=True):
    """What is in force after a compaction: context items to re-inject, the world they tell, the turn's settings."""

    context: tuple[Item, ...] = ()
    world: JSON | None = None
    settings: JSON | None = None


class Memory:
    """Mutable: it owns the log's writer and the thread; see the rules above."""

    def __init__(self, store: Store, thread: Thread, profile: Profile, config: Config, clock: Clock) -> None:
        self.store = store
        self.thread = thread
        self.profile = profile
        self.config = config
        self.clock = clock
        self.feed = Feed()
        self.redacting = Redacting(config.redaction)
        self._projection = Projection(profile)
        self._unwritten: list[Record] = []  # the session's identity waits for the first real record
        self._closed = False
        self.late: Late | None = None  # tries again what the disk did not take

    # --- open and close ----------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | Path | None = None,
        *,
        model: str | Profile = "gpt-5.5",
        instructions: str | None = None,
        config: Config | None = None,
    ) -> Self:
        """The memory in a folder (its newest session, or a new one), of one rollout file, or of this process (None).

        `model` says whose limits count; `instructions` are the base instructions of a new session.
        """
        settings = config or Config()
        profile = model if isinstance(model, Profile) else profile_of(model, settings)
        if path is None:
            return cls.new(None, profile, settings, Clock(), cwd="", instructions=instructions)
        place = Path(path)
        if place.is_file():
            return cls.reopen(place, profile, settings, Clock())
        existing = [found for _, found, _ in Catalogue(place).paths()]
        if existing:
            return cls.reopen(max(existing, key=lambda one: one.stat().st_mtime), profile, settings, Clock())
        return cls.new(place, profile, settings, Clock(), cwd="", instructions=instructions)

    @classmethod
    def new(
        cls,
        home: Path | None,
        profile: Profile,
        config: Config,
        clock: Clock,
        *,
        cwd: str,
        instructions: str | None,
        provider: str = "",
        forked_from: str | None = None,
    ) -> Self:
        """A new session under `home` (None: in this process only). Nothing is written before the first record."""
        thread_id = clock.uuid()
        store: Store = FileStore.create(home, thread_id, clock.now()) if home else MemoryStore(thread_id)
        memory = cls(store, Thread(), profile, config, clock)
        started = SessionStarted(
            thread_id=thread_id,
            timestamp=clock.timestamp(),
            cwd=cwd,
            provider=provider,
            base_instructions=instructions,
            window_id=clock.uuid(),
            forked_from=forked_from,
            history_mode=BLOBS if home and config.rollout.blobs else PLAIN,
            payload={"cli_version": __version__},
        )
        memory._unwritten += memory.redacting.records([well_formed(started)])
        memory.thread.apply(memory._unwritten[0], 0)
        return memory

    @classmethod
    def reopen(
        cls, path: Path, profile: Profile, config: Config, clock: Clock, *, thread: Thread | None = None
    ) -> Self:
        """Continue a file in place. Raises RolloutLocked, RolloutNotFound, RolloutCorrupt."""
        thread = thread or read_thread(path)
        store = FileStore.reopen(path, thread.id, thread.next_ordinal)
        return cls(store, thread, profile, config, clock)

    def close(self) -> None:
        """Release the log. Closing twice is fine."""
        self._closed = True
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- facts in ----------------------------------------------------------------------------------------------

    def record(self, *records: Record) -> None:
        """Append to the log, fold into the thread, tell whoever listens. What the disk takes not yet waits (LogWaits).

        Raises RolloutError or UnusableItem with nothing changed. Half surrogate pairs become U+FFFD.
        """
        if self._closed:
            raise SessionClosed("the session is closed; resume it to go on")
        batch = [*self._unwritten, *self.redacting.records(records)]
        turn_id, stamp = self.thread.open_turn, self.clock.timestamp()
        try:
            ordinals = self.store.append(batch, turn_id=turn_id, timestamp=stamp)
        except UnicodeEncodeError:
            batch = [well_formed(record) for record in batch]
            ordinals = self.store.append(batch, turn_id=turn_id, timestamp=stamp)
        new, self._unwritten = len(self._unwritten), []
        for record, ordinal in zip(batch[new:], ordinals[new:], strict=True):
            self.thread.apply(record, ordinal)
            self.feed.publish(record)
        if self.store.has_facts:
            from refold.session.late import follow

            follow(self)

    def add(self, items: Any, *, usage: Any = None) -> None:
        """Record items as the host has them: one or several; dicts, or objects with `model_dump` (the OpenAI SDK's).

        User input, a response's output, tool outputs. A message may leave out its `type`. `usage` is the response's
        usage (the API's object, or Usage): it makes `make_room` exact. Raises TypeError for what is no item.
        """
        given: list[Any] = [items] if isinstance(items, dict) or hasattr(items, "model_dump") else list(items)
        records: list[Record] = [self.item(_as_item(item)) for item in given]
        counted = usage if isinstance(usage, Usage) or usage is None else usage_from_api(_as_json(usage))
        if counted is not None:
            records.append(self.usage(counted))
        if records:
            self.record(*records)

    def item(self, item: Item, *, shaped: bool = False) -> ItemRecorded:
        """The record of an item: with id and turn, and a tool output (unless shaped) cut to the recording budget."""
        if not enters_history(item):
            return ItemRecorded(item)
        limit = None
        if is_output(item):
            budget = recording_budget(self.profile.truncation)
            item, limit = item if shaped else cut_output(self.redacting.item(item), budget), budget.tokens
        named = with_id(item, self.clock.item_id(ID_PREFIX[item["type"]]))
        return ItemRecorded(in_turn(named, self.thread.open_turn), limit)

    def usage(self, last: Usage) -> UsageCounted:
        """The record of one response's usage."""
        return UsageCounted(last, self.thread.total_usage + last, self.profile.usable_window)

    # --- state out ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.thread.id

    @property
    def path(self) -> Path | None:
        """The rollout file; it exists once something was recorded."""
        return self.store.path

    @property
    def tokens(self) -> int:
        """Tokens in the context now: the provider's count and the estimate of what came after it."""
        return context_tokens(self.thread)

    def prompt(self, tools: Sequence[dict[str, Any]] = (), *, output_schema: dict[str, Any] | None = None) -> Prompt:
        """What the next request says; `.input` are the items to send, `.base_instructions` stand beside them."""
        base = self.thread.base_instructions
        history = self.thread.history
        return self._projection.prompt(history, base_instructions=base, tools=tools, output_schema=output_schema)

    # --- compaction --------------------------------------------------------------------------------------------

    def due(self, phase: Phase, *, pending: int = 0) -> Due | None:
        """Whether the context must be compacted now; `pending`: tokens of what is about to be said."""
        scope = self.config.model_auto_compact_token_limit_scope
        percent = self.config.model_post_turn_compact_threshold_percent
        found = due(self.thread, self.profile, phase, scope, pending=pending, percent=percent)
        return None if found is not None and self.waits(found, pending=pending) else found

    def waits(self, found: Due, *, pending: int = 0) -> bool:
        """Whether what is due has to wait, because an undo put the history here and nothing came since."""
        if not self.thread.is_as_restored:
            return False
        from refold.core.compaction.undo import waits

        return waits(self.thread, found, self.profile.usable_window, pending)

    async def make_room(self, model: Model, *, force: bool = False) -> CompactionEnded | None:
        """Compact if the limit is reached (or `force`), with `model` writing the summary.

        None when nothing was due, or while a call waits for its output: add that first.
        Raises CompactionFailed or a ModelError with the thread untouched.
        """
        from refold.core.wire import Wire
        from refold.session.rungs.job import Job
        from refold.session.shadow import compact

        reason = self.due("pre_turn")
        if (reason is None and not force) or self._waits_for_output():
            return None
        why = reason or Due("user_requested", "standalone_turn", self.tokens, 0)
        return await compact(Job(self, model, why, Fresh(), Wire(model.provider, model.profile)))

    def _waits_for_output(self) -> bool:
        """Whether the newest items are calls (and outputs) of which one call is still unanswered."""
        newest = itertools.takewhile(lambda e: is_call(e.item) or is_output(e.item), reversed(self.thread.history))
        return bool(view_of(reversed(list(newest)), self.profile.input_modalities).unanswered)

    def undo(self, turns: int | None = None) -> Undone:
        """Undo the newest compaction (or undo), or the last `turns` turns. Raises CompactionFailed (docs/undo.md)."""
        from refold.session.undo import undo

        return undo(self, turns)

    def install(
        self,
        replacement: Replacement,
        facts: JSON,
        fresh: Fresh,
        *,
        response_id: str | None = None,
        window: Window | None = None,
    ) -> None:
        """Replace the history by a replacement, in one checkpoint that is sufficient alone.

        What came after its base stays. `window`: the one that begins, or goes on, where that is not the next. The
        lines behind it repeat world and settings for the real program. Raises CompactionFailed, with nothing changed,
        when the history no longer begins with the base.
        """
        known = len(replacement.base)
        if tuple(self.thread.history[:known]) != replacement.base:
            raise CompactionFailed("the history was replaced while it was being compacted; nothing was changed")
        later = self.thread.history[known:]
        if self.thread.pins and facts.get("method") not in NO_COMPACTION:
            from refold.session.pins import pinned_in, say_what_is_lost

            replacement = pinned_in(self, replacement, later)
            say_what_is_lost(self)
        items = (*replacement.items, *(entry.item for entry in later))
        records: list[Record] = [
            Compacted(
                message=replacement.message,
                history=items,
                window=window or self.thread.window.next(self.clock.uuid()),
                addresses=(*replacement.addresses, *(entry.address for entry in later)),
                world=fresh.world,
                settings=fresh.settings,
                steers=dict(self.thread.steers),
                pins=addressed(self.thread.pins),
                dropped_rules=addressed(self.thread.dropped_rules),
                facts={
                    **facts,
                    **facts_of(replacement, items, self.thread.shadows),
                    "goal_ids": _goals(replacement),
                    **carried(self.thread, settings=fresh.settings),
                },
                response_id=response_id,
                payload=retained(self.thread, items, facts) | account(self.thread, response_id, facts.get("phase")),
            )
        ]
        records += [WorldObserved(True, fresh.world)] if fresh.world is not None else []
        records += [SettingsApplied(fresh.settings)] if fresh.settings is not None else []
        self.record(*records)
        last = self.thread.last_usage or Usage()
        self.record(UsageCounted(last, self.thread.total_usage, self.profile.usable_window))
        self.store.sync()

    def stored(self, parts: Sequence[tuple[str, str | Part]]) -> Item:
        """A user message of (kind, text or part) as it is stored."""
        return stored_message("user", parts, id=self.clock.item_id("msg"), turn_id=self.thread.open_turn)


def _goals(replacement: Replacement) -> list[str]:
    """The ids of the messages that people typed, of what a compaction read: the goals that its result stands for."""
    return [str(e.item["id"]) for e in replacement.base if e.origin == "typed" and e.item.get("id")]


def _as_json(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_unset=True) if hasattr(value, "model_dump") else value


def _as_item(value: Any) -> Item:
    item = _as_json(value)
    if not isinstance(item, dict) or not ("type" in item or "role" in item):
        raise TypeError(f"not a Responses item: {str(value)[:80]!r}")
    given = cast("Item", load(dump(item))[0])  # a copy: what the host does with its own is not our history
    return given if "type" in given else {"type": "message", **given}


def read_thread(path: Path, *, headless: bool = False) -> Thread:
    """Fold a rollout file from its newest checkpoint on (docs/rollout.md), with what it goes on from (`history_base`).

    Raises RolloutNotFound (also for that file), RolloutError, RolloutCorrupt (empty, or not a rollout).
    `headless`: a list of items without a session_meta line will do, to look at.
    """
    from refold.rollout.lineage import active_lines

    with without_collector(ages=True):
        thread = Thread.replay(active_lines(path))
    if thread.meta is None and headless and thread.history:
        return thread
    if thread.meta is None:
        if path.stat().st_size == 0:
            raise RolloutCorrupt(f"{path} is empty: there is no session in it")
        raise RolloutCorrupt(f"{path} is not a rollout: no session_meta line in it")
    if (mode := thread.meta.history_mode) not in MODES:
        raise RolloutCorrupt(
            f"{path} has the history mode {mode!r}; a newer version can read it, this one would misread it"
        )
    return thread
