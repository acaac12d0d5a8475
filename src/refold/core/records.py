"""Records: the facts that a session's log states, past tense, one line each (spec §8, docs/rollout.md).

Rule 1: only these change a Thread. Rule 2: what this version does not know is kept whole (LineKept, EventKept).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from refold.core.items import Item
from refold.core.jsonio import JSON, TOO_DEEP, without_lone_surrogates
from refold.core.usage import Usage
from refold.errors import UnusableItem

Outcome: TypeAlias = Literal["completed", "failed", "interrupted"]
Phase: TypeAlias = Literal["pre_turn", "mid_turn", "post_turn", "standalone_turn"]
Scope: TypeAlias = Literal["total", "body_after_prefix"]
Reason: TypeAlias = Literal["context_limit", "model_downshift", "comp_hash_changed", "user_requested"]
Rendering: TypeAlias = Literal["structured", "flattened"]  # a history as its items, or as one text
Method: TypeAlias = Literal["local", "remote", "endpoint", "outline", "rollover"]


class Window(msgspec.Struct, frozen=True):
    """The stretch of a thread between two compactions: its number from 0, and its own id."""

    number: int = 0
    id: str | None = None
    first_id: str | None = None
    previous_id: str | None = None

    def next(self, new_id: str) -> Window:
        return Window(self.number + 1, new_id, self.first_id or self.id, self.id)


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The session's identity; the first one in a file is the file's own, later ones are copied ancestry."""

    thread_id: str
    timestamp: str  # UTC, RFC 3339 with milliseconds
    cwd: str
    provider: str = ""
    base_instructions: str | None = None
    window_id: str | None = None
    forked_from: str | None = None
    history_mode: str = "legacy"
    payload: JSON = {}  # the line's payload as it stood, for keys this version does not know

    @property
    def is_foreign(self) -> bool:
        """Whether another program began this file; what it writes into it itself says less than our own lines."""
        return self.payload.get("originator", "refold") != "refold"


class TurnStarted(msgspec.Struct, frozen=True):
    turn_id: str
    started_at: int = 0  # seconds since 1970
    context_window: int | None = None  # usable tokens


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True):
    turn_id: str | None
    outcome: Outcome
    last_message: str | None = None
    error: str | None = None
    started_at: int = 0
    completed_at: int = 0
    duration_ms: int = 0


class ItemRecorded(msgspec.Struct, frozen=True, gc=False):
    """One Responses item; `limit` is the recording budget in tokens that a tool output was cut to, if it was."""

    item: Item
    limit: int | None = None
    metadata: JSON | None = None  # a foreign line's `metadata` sibling, kept


class UsageCounted(msgspec.Struct, frozen=True):
    """What the context holds now (`last`) and what the session has used so far (`total`), in tokens."""

    last: Usage
    total: Usage
    context_window: int | None = None


class WorldObserved(msgspec.Struct, frozen=True):
    """What the model was last told of its surroundings: a full snapshot, or an RFC 7386 merge patch."""

    full: bool
    state: JSON


class SettingsApplied(msgspec.Struct, frozen=True):
    """A turn's settings (`turn_context`), as the line's payload: turn_id, cwd, model, policies, …"""

    settings: JSON


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint. With `history` it is sufficient alone: nothing before it is needed to go on.

    `addresses` run beside `history` ("" = made by this compaction); `world` and `settings` are what is in force.
    """

    message: str
    history: tuple[Item, ...] | None
    window: Window | None = None
    addresses: tuple[str, ...] = ()
    world: JSON | None = None
    settings: JSON | None = None
    steers: dict[str, str] | None = None  # messages that wait; None = this line does not say
    pins: tuple[JSON, ...] | None = None  # texts that stay, with their addresses; None = this line does not say
    dropped_rules: tuple[JSON, ...] | None = None  # sentences that are as others, with their addresses; None as above
    facts: JSON = {}  # method, reason, phase, tokens before and after; of an encrypted item its maker and its shadow
    response_id: str | None = None
    payload: JSON = {}  # keys that only the real program reads, and a foreign checkpoint's others, kept


class RolledBack(msgspec.Struct, frozen=True):
    """The last `turns` user turns no longer count (legacy files of the real program)."""

    turns: int


class SteerQueued(msgspec.Struct, frozen=True):
    """A message that waits for the next sampling; it becomes the item with this id."""

    item_id: str
    text: str


class Pinned(msgspec.Struct, frozen=True):
    """A text of the record at `address`, whole or in part, that every later context holds word for word."""

    address: str
    text: str


class Unpinned(msgspec.Struct, frozen=True):
    """What was pinned of the record at `address` need not stay any more: this text, or all of it (None)."""

    address: str
    text: str | None = None


class RuleDropped(msgspec.Struct, frozen=True):
    """A sentence that a person typed in the message at `address` is no longer kept before others."""

    address: str
    text: str


class Named(msgspec.Struct, frozen=True):
    """What the session is called from here on; "" = nothing any more. `thread_id`: of the real program's line."""

    name: str
    thread_id: str | None = None


class CompactionAttempted(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a summary: what it cost and how it ended. It never changes the history."""

    method: str
    outcome: str  # "completed", or one line that says what went wrong
    dropped: int = 0  # history items left out of this attempt so that it fits
    usage: Usage | None = None
    response_id: str | None = None


class Known(msgspec.Struct, frozen=True):
    """What requests refer to by its hash, stored once in a log: tool schemas, how requests are spelled, other texts."""

    hash: str  # the first 16 hex digits of the SHA-256 of its JSON text
    value: Any


class RequestSent(msgspec.Struct, frozen=True, kw_only=True):
    """A request that goes out next: with what stands before this line it can be made again, byte for byte."""

    kind: Literal["turn", "compaction"]
    spelling: str  # hash of what is Known: provider and model, as far as they change a request
    tools: str
    sha256: str  # of the body
    size: int  # bytes of the body
    items: int
    dropped: int = 0  # oldest items, or texts of the newest outputs, that were left out so that it fits
    handoff: str | None = None  # another handoff text than the protocol's
    output_schema: str | None = None
    method: Method | None = None  # of a request for a compaction; None = local
    without_media: bool = False  # of a request for a summary: a short text stands for each image and sound
    budget: int = 0  # of a request for a summary, tokens of its transcript; 0 = the items as they are
    entries: int = 0  # of a compaction beside a turn: how many of the history's it reads; 0 = all


class EventKept(msgspec.Struct, frozen=True):
    """An event line that changes nothing: mirrors for the real program, progress, kinds this version does not know."""

    payload: JSON


class LineKept(msgspec.Struct, frozen=True):
    """A line of a type that this version does not know, kept whole."""

    type: str
    payload: Any


class LineDamaged(msgspec.Struct, frozen=True):
    """A line that is not a JSON object; `why` says what is wrong with it."""

    why: str


Record: TypeAlias = (
    SessionStarted
    | TurnStarted
    | TurnEnded
    | ItemRecorded
    | UsageCounted
    | WorldObserved
    | SettingsApplied
    | Compacted
    | RolledBack
    | SteerQueued
    | Pinned
    | Unpinned
    | RuleDropped
    | Named
    | CompactionAttempted
    | Known
    | RequestSent
    | EventKept
    | LineKept
    | LineDamaged
)


def addressed(texts: Iterable[tuple[str, str]]) -> tuple[JSON, ...] | None:
    """Texts with their addresses as a checkpoint holds them; None where there are none."""
    return tuple({"address": address, "text": text} for address, text in texts) or None


_R = TypeVar("_R", bound=Record)


def well_formed(record: _R) -> _R:
    """The record with half surrogate pairs as U+FFFD: as its line will be read. Raises UnusableItem."""
    try:
        fields = {name: _mended(getattr(record, name)) for name in record.__struct_fields__}
    except RecursionError:
        raise UnusableItem(TOO_DEEP) from None
    return msgspec.structs.replace(record, **fields)


def _mended(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return tuple(map(without_lone_surrogates, parts))
    return without_lone_surrogates(value)


class Line(msgspec.Struct, frozen=True, gc=False):
    """A record where it stands: `ordinal` is the line's own number, or its line number where it has none."""

    ordinal: int
    record: Record
    timestamp: str = ""
    warning: str | None = None
