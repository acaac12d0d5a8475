"""Pins: pinning a text of the log, letting it go again, and telling what is pinned (core/pins.py, docs/pins.md).

Rule 1: a pin is a record, so it lives through compactions, resumes, forks and undos.
Rule 2: what is pinned and stands in no item of the history is told at once, or as the next turn begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.core.compaction.replacement import Replacement
from refold.core.history import Entry
from refold.core.items import is_call, is_output
from refold.core.pins import (
    fitting_pins,
    item_text,
    pin_budget,
    pin_message,
    text_of,
    tokens_of,
    untold,
    with_pins,
)
from refold.core.records import ItemRecorded, Pinned, RuleDropped, Unpinned
from refold.core.said import rules_said
from refold.core.thread import Thread
from refold.errors import ConfigError, RolloutError, RolloutNotFound
from refold.session.events import Notice
from refold.session.memory import Memory


class Pin(msgspec.Struct, frozen=True):
    """A text that every later context holds, and what it takes of the budget (tokens, with its tags)."""

    address: str
    text: str
    tokens: int


def budget_of(memory: Memory) -> int:
    """Tokens that all pins of a session may take together."""
    return pin_budget(memory.profile.context_window, memory.config.compaction.pin_percent)


# --- by a person ---------------------------------------------------------------------------------------------------


def pin(memory: Memory, address: str, text: str | None = None) -> Pin:
    """Pin what the record at an address says (`thread:ordinal`, or the ordinal alone), or a part of it, word for word.

    Pinning it twice is fine. Raises RolloutNotFound for a record that is not there or does not say this, ConfigError
    when it does not fit into the budget, RolloutError in a file that another program began; nothing is changed then.
    """
    thread, address = memory.thread, full_address(memory.thread, address)
    _check_ours(thread)
    whole = _text_at(memory, address)
    if text is not None and text not in whole:
        raise RolloutNotFound(f"{address} does not say {_shown(text)}: refold show {address} shows what it says")
    found = (address, whole if text is None else text)
    if not found[1].strip():
        raise RolloutNotFound(f"{address} says nothing that could be pinned: it holds no text")
    size = tokens_of([found])
    if found not in thread.pins:
        _check_room(memory, found)
        memory.record(Pinned(*found))
    if thread.open_turn is None:  # else as the next turn begins, or after the compaction that takes the record away
        tell_pins(memory)
    return Pin(*found, tokens=size)


def unpin(memory: Memory, address: str, text: str | None = None) -> list[str]:
    """Let go of what is pinned at an address, or of one text of it: the texts. What was told stays in the context until
    the next compaction. Raises RolloutNotFound when nothing is pinned there."""
    address = full_address(memory.thread, address)
    gone = [pinned for where, pinned in memory.thread.pins if where == address and text in (None, pinned)]
    if not gone:
        known = ", ".join(dict.fromkeys(where for where, _ in memory.thread.pins)) or "none"
        raise RolloutNotFound(f"nothing like that is pinned at {address} (pinned: {known})")
    memory.record(Unpinned(address, text))
    return gone


def drop_rule(memory: Memory, address: str) -> list[str]:
    """Let the rules of a message be as other sentences: those at its address, or with `#2` behind it its second one.

    Returns them. Raises RolloutNotFound when there is none, RolloutError in a file that another program began.
    """
    thread = memory.thread
    _check_ours(thread)
    where, mark, number = full_address(thread, address).partition("#")
    found = [rule for rule in rules_said(thread.history, thread.dropped_rules) if rule.address == where]
    if mark:
        found = [rule for rule in found if str(rule.number) == number]
    if not found:
        raise RolloutNotFound(f"no rule is kept first at {address}: refold rules {thread.id} lists them")
    memory.record(*(RuleDropped(rule.address, rule.text) for rule in found))
    return [rule.text for rule in found]


def _check_ours(thread: Thread) -> None:
    if thread.meta is not None and thread.meta.is_foreign:
        raise RolloutError(
            f"{thread.id} is another program's file, whose next checkpoint would forget this: go on with it in a"
            f" session of refold's own first (refold resume {thread.id}, without --in-place)"
        )


def newest_said(thread: Thread) -> str:
    """The address of the newest message that a person typed. Raises RolloutNotFound when there is none."""
    for e in reversed(thread.history):
        if e.origin == "typed":
            return e.address
    raise RolloutNotFound("nothing was said yet that could be pinned")


def full_address(thread: Thread, address: str) -> str:
    """`thread:ordinal`; an ordinal alone means this thread's record."""
    return address if ":" in address else f"{thread.id}:{address}"


def _text_at(memory: Memory, address: str) -> str:
    """What the record at an address says. Raises RolloutNotFound when this session holds no such record."""
    thread_id, _, ordinal = address.rpartition(":")
    if thread_id == memory.id and ordinal.isdecimal():
        lines = memory.store.lines()  # with what is not on the disk yet
        for line in lines:
            if line.ordinal == int(ordinal) and (text := text_of(line.record)):
                return text
    inherited = [item_text(e.item) for e in memory.thread.history if e.address == address]
    if inherited:
        return inherited[0]
    where = "this session" if thread_id == memory.id else f"{thread_id}, of which nothing like that is in this history"
    raise RolloutNotFound(f"no record with a text at {address} in {where}")


def _check_room(memory: Memory, new: tuple[str, str]) -> None:
    budget, held, together = budget_of(memory), tokens_of(memory.thread.pins), tokens_of([*memory.thread.pins, new])
    if together > budget:
        taken = f", and {held:,} of them are taken" if held else ""
        why = f"{new[0]} takes {tokens_of([new]):,} tokens; pins may take {budget:,} together{taken}"
        raise ConfigError("compaction.pin_percent", f"{why}: pin a part of it (text), unpin something, or raise this")


def _shown(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 60 else f"{words[:60]}…")


# --- in the context ------------------------------------------------------------------------------------------------


def tell_pins(memory: Memory) -> None:
    """Tell what is pinned and stands in no item of the history; not between a call and its output."""
    thread, pins = memory.thread, fitting_pins(memory.thread.pins, budget_of(memory))
    waiting = untold(((e.item, e.address) for e in thread.history), pins)
    newest = thread.history[-1].item if thread.history else None
    if waiting and not (newest is not None and (is_call(newest) or (is_output(newest) and thread.open_turn is None))):
        item = pin_message(waiting, id=memory.clock.item_id("msg"), turn_id=thread.open_turn)
        memory.record(ItemRecorded(item))


def pinned_in(memory: Memory, replacement: Replacement, later: Sequence[Entry]) -> Replacement:
    """A replacement with what is pinned and would be said nowhere else. Those that a smaller window has no room for are
    left out."""
    pins, budget = memory.thread.pins, budget_of(memory)
    behind = [(e.item, e.address) for e in later]
    new_id, turn_id = memory.clock.item_id("msg"), memory.thread.open_turn
    return with_pins(replacement, behind, pins, budget, id=new_id, turn_id=turn_id)


def say_what_is_lost(memory: Memory) -> None:
    """Whether the pins fit into this model's window."""
    pins, budget = memory.thread.pins, budget_of(memory)
    lost = len(pins) - len(fitting_pins(pins, budget))
    if lost:
        text = f"{lost} pinned texts are not told: pins may take {budget:,} tokens of this model's window"
        memory.feed.publish(Notice(f"{text} (compaction.pin_percent)"))
