"""Events: what a turn tells while it runs: the records it writes, and previews that change nothing.

A record (`ItemRecorded`, `TurnStarted`, `Compacted`, …) is published after it is in the log and in memory. The rest are
defined here, save for what happened to the log's file (rollout/waiting.py); a preview ends in its item's record or in
PreviewDropped.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from refold.core.items import Item
from refold.core.records import Phase, Reason, Record
from refold.rollout.waiting import LogCaughtUp, LogChanged, LogWaits


class TextPreview(msgspec.Struct, frozen=True):
    """More text of the answer that item `item_id` will hold."""

    item_id: str
    text: str


class ReasoningPreview(msgspec.Struct, frozen=True):
    """More text of a reasoning summary."""

    item_id: str
    text: str


class CallPreview(msgspec.Struct, frozen=True):
    """More of what the call that item `item_id` will hold asks for."""

    item_id: str
    text: str


class PreviewDropped(msgspec.Struct, frozen=True):
    """The previews since the last record came from an attempt that broke; nothing of them was kept."""


class SamplingStarted(msgspec.Struct, frozen=True):
    """A request goes out: how many items, about how many tokens, how many bytes."""

    kind: Literal["turn", "compaction"]
    items: int
    tokens: int
    bytes: int


class ToolStarted(msgspec.Struct, frozen=True):
    """A call is being run: its item, as the model wrote it."""

    call: Item


class ToolProgress(msgspec.Struct, frozen=True):
    """What a call that is being run says of itself: the newest lines of a command's output, a function's own words."""

    call: Item
    text: str


class ToolEnded(msgspec.Struct, frozen=True):
    """A call has its result: a preview, its output is recorded in call order. `details` is the tool's own."""

    call: Item
    output: str
    success: bool
    details: dict[str, Any]


class Waiting(msgspec.Struct, frozen=True):
    """An attempt failed, the next begins in `seconds`; `level` says which budget of attempts it counts against."""

    attempt: int
    of: int
    seconds: float
    reason: str
    level: Literal["request", "stream"] = "stream"


class CompactionStarted(msgspec.Struct, frozen=True):
    reason: Reason
    phase: Phase
    tokens: int
    limit: int | None


class CompactionEnded(msgspec.Struct, frozen=True):
    """How a compaction went. `installed` false: the history is as it was, and `error` says why if it failed.

    `dropped`: items that were left out of the request so that it fits.
    """

    installed: bool
    before: int  # tokens
    after: int
    limit: int | None
    dropped: int = 0
    made_room: bool = True
    error: str | None = None


class Notice(msgspec.Struct, frozen=True):
    """One line that a person should see; the turn goes on."""

    text: str


Event: TypeAlias = (
    Record
    | TextPreview
    | ReasoningPreview
    | CallPreview
    | PreviewDropped
    | SamplingStarted
    | ToolStarted
    | ToolProgress
    | ToolEnded
    | Waiting
    | CompactionStarted
    | CompactionEnded
    | Notice
    | LogWaits
    | LogCaughtUp
    | LogChanged
)
