"""Rules: what is kept for good of what was said: pins, and the sentences that are kept before others."""

from __future__ import annotations

import msgspec

from refold.core.pins import fitting_pins, pin_budget, tokens_of, untold
from refold.core.profile import Profile
from refold.core.said import rules_said
from refold.core.thread import Thread
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for
from refold.views.shown import clean


class PinRow(msgspec.Struct, frozen=True):
    """A pinned text; tokens are estimated, with its tags."""

    address: str
    text: str
    tokens: int
    told: bool  # whether the history says it now, by its record or by a message that tells pins
    fits: bool  # whether this model's window has room for it among the pins


class RuleRow(msgspec.Struct, frozen=True):
    """A sentence by which a person forbids, requires or prefers something."""

    address: str  # of its message, and which of its rules: `thread:ordinal#2`
    text: str
    tokens: int


class Rules(msgspec.Struct, frozen=True):
    """Both, and the room that pins have (tokens)."""

    thread_id: str
    pins: tuple[PinRow, ...]
    rules: tuple[RuleRow, ...]
    pinned: int  # tokens of all pins, told together
    budget: int  # tokens that they may take
    dropped: int  # rules that are as other sentences


def rules(thread: Thread, profile: Profile, percent: float) -> Rules:
    """What is pinned, and the rules that the history says; `percent` of the context window is for pins."""
    budget = pin_budget(profile.context_window, percent)
    waiting = set(untold(((e.item, e.address) for e in thread.history), thread.pins))
    fitting = set(fitting_pins(thread.pins, budget))
    pins = [
        PinRow(clean(pin[0]), clean(pin[1]), tokens_of([pin]), pin not in waiting, pin in fitting)
        for pin in thread.pins
    ]
    said = [
        RuleRow(clean(f"{rule.address}#{rule.number}"), clean(rule.text), tokens_for(utf8_len(rule.text)))
        for rule in rules_said(thread.history, thread.dropped_rules)
    ]
    pinned = tokens_of(thread.pins)
    return Rules(clean(thread.id), tuple(pins), tuple(said), pinned, budget, len(thread.dropped_rules))
