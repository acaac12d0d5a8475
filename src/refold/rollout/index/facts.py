"""Facts: what the lines of a rollout say of its session, counted line by line.

Rule 1: lines may come in several readings; the facts are the same as after one reading of them all.
Rule 2: a name counts by the newest line that gives one: ours (`named`), or the real program's (`thread_name_updated`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from refold.core.compaction.carried import carried_by
from refold.core.fragments import origin_of, typed_parts
from refold.core.items import Item
from refold.core.jsonio import is_object
from refold.core.lines import decode
from refold.core.records import (
    Compacted,
    ItemRecorded,
    Line,
    Named,
    SessionStarted,
    SettingsApplied,
    TurnStarted,
    UsageCounted,
)
from refold.core.thread import NO_COMPACTION

if TYPE_CHECKING:
    from refold.rollout.index.whole import Whole

FIRST_TEXT_CHARS = 200
LONGEST_NAME = 200  # characters

# How a line begins that says nothing of these: what models and tools wrote, mirrors, snapshots.
_PASSED = re.compile(
    rb'\{"timestamp":"[^"]*",(?:"ordinal":\d{1,18},)?"type":"(?:(?:world_state|token_usage_record|retained_context)"'
    rb'|response_item","payload":\{"type":"(?:(?!message")|message",(?:"id":"[^"]*",)?"role":"(?!user"))'
    rb'|event_msg","payload":\{"type":"(?!(?:task_started|turn_started|token_count|thread_name_updated)")'
    rb'|refold","payload":\{"kind":"(?!named"))'
)


class Facts(msgspec.Struct):
    """What is known of a session so far. Mutable: it grows with each line, and is stored to go on from."""

    id: str = ""
    stamp: str = ""  # when it began, as its file says
    cwd: str = ""  # where its newest turn worked
    branch: str = ""
    parent: str | None = None
    first_text: str = ""
    name: str = ""
    named_at: str = ""
    model: str = ""
    tokens: int | None = None
    compactions: int = 0
    turns: int = 0
    has_identity: bool = False  # whether the file has an identity
    marks_turns: bool = False  # files of 2025 do not
    nobody_spoke: bool = True  # in the newest turn
    problem: str | None = None

    def read(self, raw: bytes, whole: Whole | None = None) -> None:
        """Take one line as it stands in the file; `whole`: how its long texts are found."""
        if _PASSED.match(raw) is not None:
            return
        if whole is not None:
            raw = whole.line(raw, history=not self.first_text)
        line = decode(raw, 0)
        if line is not None:
            self.take(line)

    def take(self, line: Line) -> None:
        match line.record:
            case SessionStarted() as meta if not self.has_identity:
                self._begin(meta)
            case ItemRecorded(item=item) if is_typed(item):
                self._said(item)
            case Compacted() as checkpoint:
                self._compacted(checkpoint, line.timestamp)
            case Named(name=name, thread_id=of) if of in (None, self.id):  # a copied line names the ancestor
                self.name, self.named_at = cleaned(name), line.timestamp
            case SettingsApplied(settings=settings):
                self._apply(settings)
            case TurnStarted():
                self.marks_turns = self.nobody_spoke = True
            case UsageCounted(total=total):
                self.tokens = total.total_tokens
            case _:
                pass

    def _begin(self, meta: SessionStarted) -> None:
        self.has_identity = True
        self.id, self.stamp, self.cwd = meta.thread_id, meta.timestamp, meta.cwd
        git, base = meta.payload.get("git"), meta.payload.get("history_base")
        branch = git.get("branch") if is_object(git) else None
        self.branch = branch if isinstance(branch, str) else ""
        parent = meta.forked_from or (base.get("thread_id") if is_object(base) else None)
        self.parent = parent if isinstance(parent, str) and parent != meta.thread_id else None  # a revert has none

    def _said(self, item: Item) -> None:
        self.turns += self.nobody_spoke or not self.marks_turns
        self.nobody_spoke = False
        self.first_text = self.first_text or _first_words([item])

    def _compacted(self, checkpoint: Compacted, stamp: str) -> None:
        told = carried_by(checkpoint, self.id)
        if told is not None:  # of lines that a file which begins with it does not hold
            self.compactions = told.compactions
            if told.name != self.name:
                self.name, self.named_at = told.name, stamp
        self.compactions += checkpoint.facts.get("method") not in NO_COMPACTION
        self.first_text = self.first_text or _first_words(checkpoint.history or ())
        self._apply(checkpoint.settings)

    def _apply(self, settings: Any) -> None:
        told = settings if is_object(settings) else {}
        model, cwd = told.get("model"), told.get("cwd")
        self.model = model if isinstance(model, str) else self.model
        self.cwd = cwd if isinstance(cwd, str) else self.cwd


def cleaned(name: Any) -> str:
    """A name on one line; empty for what is no text."""
    return " ".join(name.split())[:LONGEST_NAME] if isinstance(name, str) else ""


def is_typed(item: Item) -> bool:
    """Whether a person said this."""
    return item.get("type") == "message" and item.get("role") == "user" and origin_of(item) == "typed"


def _first_words(items: Sequence[Item]) -> str:
    """What a person typed first, on one line."""
    typed = next((item for item in items if is_typed(item)), None)
    return "" if typed is None else " ".join("".join(typed_parts(typed)[0]).split())[:FIRST_TEXT_CHARS]
