"""Pins: texts of a session's records that every later context holds, word for word (docs/pins.md).

Rule 1: while the record itself stands in the history with the text, the pin is not told; else it is told once.
Rule 2: a pinned text is a part of its own, byte for byte, between tags that it cannot close.
Rule 3: what is told together keeps to a budget; what does not fit is refused when it is pinned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from refold.core.compaction.replacement import Replacement, context_place
from refold.core.compaction.shadow import seal_of
from refold.core.fragments import origin_of, stored_kinds, stored_message, typed_parts
from refold.core.items import Item, content_parts, message_text
from refold.core.jsonio import is_list, is_object
from refold.core.profile import FALLBACK_CONTEXT_WINDOW
from refold.core.records import Compacted, ItemRecorded, Record, SteerQueued
from refold.core.tokens import measure

KIND_PINNED = "refold.pinned"  # of a stored message's parts
TAG = "external_pinned"  # the real program takes a user's text that begins with `<external_` for context, too

Pin = tuple[str, str]  # the address of the record, the text
Placed = tuple[Item, str]  # an item and its address


# --- what can be pinned --------------------------------------------------------------------------------------------


def text_of(record: Record) -> str:
    """The text of a record that can be pinned: what was said, called, given out, summed up; else ""."""
    match record:
        case ItemRecorded(item=item):
            return item_text(item)
        case Compacted(message=text) | SteerQueued(text=text):
            return text
        case _:
            return ""


def item_text(item: Item) -> str:
    """The words of an item: of a typed message without the labels around its images."""
    match item.get("type"):
        case "message" if origin_of(item) == "typed":
            return "".join(typed_parts(item)[0])
        case "function_call" | "custom_tool_call":
            text = item.get("arguments", item.get("input"))
            return text if isinstance(text, str) else ""
        case "reasoning":
            parts = item.get("summary")
            told = filter(is_object, parts) if is_list(parts) else ()
            return "\n".join(str(part.get("text", "")) for part in told)
        case _:
            return message_text(item)


# --- how it is told ------------------------------------------------------------------------------------------------


def pin_budget(context_window: int | None, percent: float) -> int:
    """Tokens that all pins together may take of a context window (tokens; None = unknown)."""
    return int((context_window or FALLBACK_CONTEXT_WINDOW) * percent / 100)


def pin_message(pins: Iterable[Pin], *, id: str, turn_id: str | None = None) -> Item:
    """The message that tells pins: for each an opening tag with the address, the text, a closing tag, as parts."""
    texts = [text for address, pinned in pins for text in _tagged(address, pinned)]
    return stored_message("user", [(KIND_PINNED, text) for text in texts], id=id, turn_id=turn_id)


def tokens_of(pins: Iterable[Pin]) -> int:
    """Estimated tokens of pins that are told together; none take none."""
    told = list(pins)
    return measure(pin_message(told, id="msg_" + "0" * 32)).tokens if told else 0


def fitting_pins(pins: Iterable[Pin], budget: int) -> list[Pin]:
    """Those that fit into the budget (tokens), the oldest first: after a change to a smaller window some may not."""
    told: list[Pin] = []
    for pin in pins:
        if tokens_of([*told, pin]) <= budget:
            told.append(pin)
    return told


def _tagged(address: str, text: str) -> tuple[str, str, str]:
    number, tag = 1, TAG
    while tag in text.lower():  # a text that holds the tag could close it, and say the rest in its own name
        number += 1
        tag = f"{TAG}_{number}"
    safe = address.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<{tag} address="{safe}">', text, f"</{tag}>"


def is_pin_message(item: Item) -> bool:
    """Whether an item only tells pins."""
    return item.get("role") == "user" and KIND_PINNED in stored_kinds(item)


# --- where it stands -----------------------------------------------------------------------------------------------


def untold(placed: Iterable[Placed], pins: Iterable[Pin]) -> list[Pin]:
    """The pins that no item says: neither the record itself, whole where it matters, nor a message that tells pins."""
    waiting = dict.fromkeys(pins)
    for item, address in placed:
        if not waiting:
            break
        if is_pin_message(item):
            texts = [str(part.get("text", "")) for part in content_parts(item)]
            for pin in [pin for pin in waiting if _tells(texts, pin)]:
                del waiting[pin]
        for pin in [pin for pin in waiting if pin[0] == address and pin[1] in _said(item)]:
            del waiting[pin]
    return list(waiting)


def _said(item: Item) -> str:
    """The words of an item as one text; parts of a message that was cut do not run into each other."""
    if item.get("type") == "message" and len(content_parts(item)) > 1 and origin_of(item) == "typed":
        return "\0".join(typed_parts(item)[0]) + "\0" + item_text(item)
    return item_text(item)


def _tells(texts: Sequence[str], pin: Pin) -> bool:
    opening, text, _ = _tagged(*pin)
    return any(one == opening and texts[place + 1 : place + 2] == [text] for place, one in enumerate(texts))


def with_pins(
    replacement: Replacement, later: Sequence[Placed], pins: Iterable[Pin], budget: int, *, id: str, turn_id: str | None
) -> Replacement:
    """The replacement with what is pinned and would be said neither by it nor by what came `later`; before the newest
    message that somebody said, behind the fresh context. Doing it twice does no more."""
    placed = zip(replacement.items, replacement.addresses, strict=True)
    kept = [(item, address) for item, address in placed if not is_pin_message(item)]
    missing = untold([*kept, *later], fitting_pins(pins, budget))
    if missing:
        items = [item for item, _ in kept]
        place = context_place(items)
        if place == len(items):
            place = next((index for index, item in enumerate(items) if seal_of(item)), place)
        kept.insert(place, (pin_message(missing, id=id, turn_id=turn_id), ""))
    return msgspec.structs.replace(
        replacement, items=tuple(item for item, _ in kept), addresses=tuple(address for _, address in kept)
    )
