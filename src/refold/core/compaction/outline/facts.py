"""Facts: what the entries of a history say by themselves, sorted by kind; nothing is concluded from them.

Rule 1: one pass over the entries that parses nothing, then one back from the newest until there is enough to show.
Rule 2: a fact quotes its record or names something in it, and carries its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core.compaction.outline.calls import READ, asked
from refold.core.compaction.outline.fact import Fact, Found
from refold.core.compaction.outline.ran import CallFacts
from refold.core.compaction.outline.said import checklist, decisions
from refold.core.fragments import SUMMARY_MARK, typed_parts
from refold.core.history import Entry
from refold.core.items import OUTPUT_TYPE_OF, OUTPUT_TYPES, Item, is_agent_envelope, message_text, message_texts
from refold.core.jsonio import is_list, is_object

PLAN_TOOL = "update_plan"
READ_SAID = 1_000  # messages of the model, the newest ones


class Facts(msgspec.Struct, frozen=True):
    """Everything that was found, in the order in which it is shown; `summary` is the newest one in the history."""

    goals: Found
    steers: Found
    decisions: Found
    plan: Found
    files: Found
    commands: Found
    errors: Found
    last: Found
    threads: list[str]
    summary: str


def facts_of(history: Sequence[Entry], enough: int) -> Facts:
    """The facts of a history. Of a kind that is shown newest first, no more than about `enough` are looked for."""
    spoken = _Spoken()
    for e in history:
        spoken.read(e)
    calls = CallFacts(spoken.calls, spoken.answers, enough)
    return Facts(
        goals=Found(spoken.goals),
        steers=Found(spoken.steers),
        decisions=_decisions(spoken.said, enough),
        plan=Found([*_plan(spoken.plan), *_unchecked(spoken.said)]),
        files=calls.files,
        commands=calls.commands,
        errors=calls.errors,
        last=Found([*(Fact(e.address, f"said: {text}") for e, text in spoken.said[-1:]), *calls.waiting]),
        threads=list(spoken.threads),
        summary=spoken.summary,
    )


class _Spoken:
    """What people and the model said, and which output answers which call. Mutable: one pass collects it."""

    def __init__(self) -> None:
        self.goals: list[Fact] = []
        self.steers: list[Fact] = []
        self.said: list[tuple[Entry, str]] = []  # assistant messages and their texts
        self.calls: list[Entry] = []
        self.answers: dict[int, Entry] = {}  # place of a call → its output
        self.plan: Entry | None = None  # the newest call that tells a plan
        self.threads: dict[str, None] = {}
        self.summary = ""
        self._turns: set[str] = set()  # that a typed message has begun
        self._open: dict[str, int] = {}  # call id → place of the newest call that has it

    def read(self, e: Entry) -> None:
        self.threads.setdefault(e.address.rpartition(":")[0])
        item = e.item
        kind = item.get("type")
        if not isinstance(kind, str):
            return
        if kind in OUTPUT_TYPE_OF:
            self._call(e, item)
        elif kind in OUTPUT_TYPES:
            call_id = item.get("call_id")
            if isinstance(call_id, str) and (place := self._open.pop(call_id, None)) is not None:
                self.answers[place] = e
        elif kind == "message" or kind == "agent_message":
            self._message(e, item)

    def _call(self, e: Entry, item: Item) -> None:
        call_id = item.get("call_id")
        if isinstance(call_id, str):
            self._open[call_id] = len(self.calls)
        self.calls.append(e)
        script = item.get("input")
        if item.get("name") == PLAN_TOOL or (isinstance(script, str) and PLAN_TOOL in script[:READ]):
            self.plan = e

    def _message(self, e: Entry, item: Item) -> None:
        if item.get("type") == "agent_message" or is_agent_envelope(item):
            text = "\n".join(message_texts(item))
            if not text.startswith("Message Type:") or text.startswith("Message Type: NEW_TASK"):
                self._typed(e, text)
        elif item.get("role") == "assistant":
            if (text := message_text(item)).strip():
                self.said.append((e, text))
        elif e.origin == "typed":
            self._typed(e, "\n".join(typed_parts(item)[0]))
        elif e.origin == "summary":
            self.summary = message_text(item).removeprefix(SUMMARY_MARK)

    def _typed(self, e: Entry, text: str) -> None:
        """What is said first in a turn is its goal; what comes later in the same turn steers it."""
        if not text.strip():
            return
        is_steer = e.turn_id is not None and e.turn_id in self._turns
        (self.steers if is_steer else self.goals).append(Fact(e.address, text))
        if e.turn_id is not None:
            self._turns.add(e.turn_id)


# --- kinds ---------------------------------------------------------------------------------------------------


def _decisions(said: Sequence[tuple[Entry, str]], enough: int) -> Found:
    """Sentences that state a decision, newest message first, each once."""
    found: dict[str, str] = {}
    for count, (e, text) in enumerate(reversed(said)):
        if len(found) >= enough or count == READ_SAID:
            return Found(_facts(found), unread=True)
        for sentence in decisions(text):
            found.setdefault(sentence, e.address)
    return Found(_facts(found))


def _unchecked(said: Sequence[tuple[Entry, str]]) -> list[Fact]:
    """The lines of checklists that were not checked when they were last written."""
    newest: dict[str, tuple[str, bool]] = {}
    for e, text in said:
        for line, is_checked in checklist(text):
            newest[line] = e.address, is_checked
    return [Fact(address, f"[ ] {line}") for line, (address, is_checked) in newest.items() if not is_checked]


def _plan(told: Entry | None) -> list[Fact]:
    """The steps of a plan that are not completed."""
    for one in asked(told.item) if told is not None else ():
        steps = one.arguments.get("plan") if one.name == PLAN_TOOL and is_object(one.arguments) else None
        if told is not None and is_list(steps):
            return [Fact(told.address, text) for text in map(_open_step, steps) if text]
    return []


def _open_step(step: Any) -> str:
    if not is_object(step) or not isinstance(step.get("step"), str) or step.get("status") == "completed":
        return ""
    status = step.get("status")
    return f"{status}: {step['step']}" if isinstance(status, str) else step["step"]


def _facts(found: dict[str, str]) -> list[Fact]:
    return [Fact(address, text) for text, address in found.items()]
