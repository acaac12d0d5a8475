"""Replacement: what takes the history's place, and the only place that knows where fresh context goes (oracle §4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from refold.core.fragments import (
    KIND_SUMMARY,
    KIND_TYPED,
    SUMMARY_MARK,
    is_image_label,
    origin_of,
    stored_message,
)
from refold.core.history import Entry, is_user_turn
from refold.core.items import PASSTHROUGH, Item, message_text, message_texts
from refold.core.jsonio import is_list, is_object
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for

RETAINED_USER_TOKENS = 20_000  # the user's last corrections stay verbatim
LEFT_OUT = "[{} left out]"  # stands where an image or audio was, so that the model knows of it
NO_SUMMARY = "(no summary available)"


class Replacement(msgspec.Struct, frozen=True):
    """The items that take the place of `base` history entries, and the address each comes from ("" = new)."""

    base: tuple[Entry, ...]  # the entries at the history's start that it replaces
    items: tuple[Item, ...]
    addresses: tuple[str, ...]
    message: str  # the summary with its prefix, for the checkpoint line


def fitting(tokens: int, room: int | None, part: int = 2) -> int:
    """Tokens that something may take of a window: as asked, but at most one part in so many of its room (tokens, None =
    unknown). What is kept word for word may take half."""
    return tokens if room is None else min(tokens, room // part)


def retained_user_messages(
    history: Sequence[Entry],
    budget: int = RETAINED_USER_TOKENS,
    *,
    dropped: Collection[tuple[str, str]] = (),
) -> list[tuple[Item, str]]:
    """What people typed, newest first until the budget (tokens) is used, in order; each with its address.

    The message that does not fit is kept in three parts: its head, a marker, its tail. Media become a short text.
    Where not all fit, those with rules come before newer ones without, and a rule is not cut (preferred.py);
    `dropped`: rules, each with its address, that are as other sentences.
    """
    kept: list[tuple[Item, str]] = []
    remaining, fits = budget, True
    for entry in reversed(history):
        if entry.origin != "typed":
            continue
        if remaining <= 0:
            fits = False
            break
        said = text_only(entry.item)
        text = message_text(said)
        cost = tokens_for(utf8_len(text))
        if cost <= remaining:
            kept.append((said, entry.address))
            remaining -= cost
        else:
            kept.append((with_texts(said, cut_in_three(text, remaining)), entry.address))
            remaining, fits = 0, False
    kept.reverse()
    return kept if fits else (_with_rules_first(history, budget, dropped) or kept)


def _with_rules_first(
    history: Sequence[Entry], budget: int, dropped: Collection[tuple[str, str]]
) -> list[tuple[Item, str]]:
    """What people typed where not all of it fits; nothing where no rule is in it."""
    from refold.core.compaction.preferred import Message, cut_between, rooms  # few compactions need it

    said = [(text_only(e.item), e.address) for e in reversed(history) if e.origin == "typed"]
    told = [Message(tokens_for(utf8_len(message_text(item))), message_texts(item), where) for item, where in said]
    kept: list[tuple[Item, str]] = []
    for (item, address), message, room in zip(said, told, rooms(told, budget, dropped) or (), strict=False):
        if room.tokens >= message.cost:
            kept.append((item, address))
        elif room.pieces and (texts := cut_between(message.texts, room.pieces, room.tokens)):
            kept.append((with_texts(item, texts), address))
        elif not room.pieces and room.tokens > 0:
            kept.append((with_texts(item, cut_in_three(message_text(item), room.tokens)), address))
    return kept[::-1]


def cut_in_three(text: str, tokens: int) -> list[str]:
    """Head, `…N tokens truncated…` and tail of a text, each a part of its own; whole characters only."""
    data = text.encode("utf-8", "replace")
    budget = tokens * 4
    left = budget // 2
    start = len(data) - (budget - left)
    while left > 0 and data[left] & 0xC0 == 0x80:
        left -= 1
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    marker = f"…{tokens_for(len(data) - budget)} tokens truncated…"
    parts = [data[:left].decode(), marker, data[start:].decode()]
    return [part for part in parts if part]


def text_only(item: Item) -> Item:
    """The message with a short text in place of each medium; the labels around images go with them (case S10)."""
    parts = item.get("content")
    if not is_list(parts) or all(is_object(p) and p.get("type") == "input_text" for p in parts):
        return item
    texts: list[str] = []
    for part in filter(is_object, parts):
        text = part.get("text")
        if not isinstance(text, str):
            texts.append(LEFT_OUT.format(str(part.get("type")).removeprefix("input_")))
        elif not is_image_label(text):
            texts.append(text)
    return with_texts(item, texts)


def with_texts(item: Item, texts: Sequence[str]) -> Item:
    """The message with these text parts."""
    about = item.get(PASSTHROUGH)
    changed: Item = {**item, "content": [{"type": "input_text", "text": text} for text in texts]}
    if is_object(about):
        changed[PASSTHROUGH] = {**about, "content_item_kinds": [KIND_TYPED] * len(texts)}
    return changed


def assemble(
    history: Sequence[Entry],
    context: Sequence[Item],
    kept: Sequence[tuple[Item, str]],
    closing: Item,
    *,
    message: str = "",
) -> Replacement:
    """[older kept messages, fresh context, the newest one that somebody said, … , the closing item].

    `kept`: what stays, in order, each with its address. `closing`: a summary, or an item that only the provider reads.
    """
    place = context_place([item for item, _ in kept])
    fresh = [(item, "") for item in context]
    placed = [*kept[:place], *fresh, *kept[place:], (closing, "")]
    return Replacement(
        base=tuple(history),
        items=tuple(item for item, _ in placed),
        addresses=tuple(address for _, address in placed),
        message=message,
    )


def context_place(kept: Sequence[Item]) -> int:
    """Where fresh context goes: before the newest message that somebody said, else before the newest summary."""
    said = [index for index, item in enumerate(kept) if is_user_turn(item) and origin_of(item) != "summary"]
    summaries = [index for index, item in enumerate(kept) if origin_of(item) == "summary"]
    return max(said, default=max(summaries, default=len(kept)))


def summarised(
    history: Sequence[Entry],
    context: Sequence[Item],
    summary: str,
    *,
    summary_id: str,
    turn_id: str | None,
    budget: int = RETAINED_USER_TOKENS,
    dropped: Collection[tuple[str, str]] = (),
) -> Replacement:
    """What people typed, newest first within the budget (tokens), closed by a summary."""
    text = SUMMARY_MARK + summary
    closing = stored_message("user", [(KIND_SUMMARY, text)], id=summary_id, turn_id=turn_id)
    return assemble(history, context, retained_user_messages(history, budget, dropped=dropped), closing, message=text)


def rebuild_from_summary(history: Sequence[Entry], message: str) -> list[Item]:
    """The history after a checkpoint of 2025 that holds only its summary (spec §8.7)."""
    summary: Item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": message or NO_SUMMARY}],
    }
    return [*(item for item, _ in retained_user_messages(history)), summary]
