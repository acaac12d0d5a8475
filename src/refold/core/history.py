"""History: entries, and list → list passes over them (spec §3.3–3.5).

Rule 1: no pass mutates its input; what needs no change is shared. (What of it is sent: core/pairing.py.)
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from refold.core.fragments import Origin, looks_like_context, looks_like_developer_context, origin_of, turn_of
from refold.core.items import (
    OUTPUT_TYPE_OF,
    OUTPUT_TYPES,
    Item,
    answers,
    as_part,
    as_text,
    is_agent_envelope,
    message_text,
    message_texts,
)
from refold.core.jsonio import is_list, without_lone_surrogates
from refold.core.tokens import measure
from refold.core.truncate import Budget, cut_middle, cut_parts


class Entry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An item in a thread with what refold knows about it. Compared by identity, so that wires can cache its bytes.

    A long history is a hundred thousand of these: the cycle collector need not walk them, JSON holds no cycle.
    """

    item: Item
    origin: Origin
    tokens: int  # by the sizes of its item
    address: str  # thread:ordinal of the record that brought it
    turn_id: str | None = None


def entry(item: Item, address: str, turn_id: str | None = None) -> Entry:
    """Measure an item once. Half surrogate pairs become U+FFFD, as they do in the log: live == replayed."""
    try:
        tokens = measure(item).tokens
    except UnicodeEncodeError:
        item = without_lone_surrogates(item)
        tokens = measure(item).tokens
    return Entry(item, origin_of(item), tokens, address, turn_of(item) or turn_id)


# --- questions ---------------------------------------------------------------------------------------------


def is_user_turn(item: Item) -> bool:
    """Whether a person (or another agent) spoke here: a turn boundary (spec §3.4)."""
    if item.get("type") == "agent_message" or is_agent_envelope(item):
        return True
    return origin_of(item) in ("typed", "summary")


def last_assistant_text(items: Sequence[Item]) -> str:
    """The newest assistant message whose text is not blank, or ""."""
    for item in reversed(items):
        if item.get("type") == "message" and item.get("role") == "assistant":
            text = message_text(item)
            if text.strip():
                return text
    return ""


# --- passes ------------------------------------------------------------------------------------------------


def cut_output(item: Item, budget: Budget) -> Item:
    """A tool output within a budget (bytes or tokens): text is cut in its middle, parts as spec §2.5 says.

    An output of another shape counts as its JSON text, and stays as it is within the budget.
    """
    if item.get("type") not in ("function_call_output", "custom_tool_call_output"):
        return item
    output = item.get("output")
    whole = [as_part(part, item) for part in output] if is_list(output) else as_text(output)
    cut = cut_middle(whole, budget) if isinstance(whole, str) else cut_parts(whole, budget)
    return item if cut == whole else {**item, "output": cut}


def drop_oldest(entries: Sequence[Entry]) -> list[Entry]:
    """Without the first entry and, if it is one half of a pair, without its other half (spec §3.3)."""
    if not entries:
        return []
    first, rest = entries[0].item, list(entries[1:])
    paired = first.get("type") in OUTPUT_TYPE_OF or first.get("type") in OUTPUT_TYPES
    for index, other in enumerate(rest if paired else ()):
        if answers(other.item, first) or answers(first, other.item):
            del rest[index]
            break
    return rest


def drop_user_turns(entries: Sequence[Entry], turns: int) -> list[Entry]:
    """Without the last `turns` user turns and the context that was injected for them (spec §3.5)."""
    boundaries = [index for index, e in enumerate(entries) if is_user_turn(e.item)]
    if turns <= 0 or not boundaries:
        return list(entries)
    cut = boundaries[max(0, len(boundaries) - turns)]
    while cut > boundaries[0] and _is_context(entries[cut - 1]):
        cut -= 1
    return list(entries[:cut])


def _is_context(e: Entry) -> bool:
    role = e.item.get("role")
    if role == "developer":
        return any(looks_like_developer_context(text) for text in message_texts(e.item))
    return role == "user" and (e.origin == "injected" or any(looks_like_context(t) for t in message_texts(e.item)))
