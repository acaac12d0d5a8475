"""Preferred: what people said that exceeds its budget: messages with rules first, and their rule sentences always.

Rule 1: nothing is made up, moved or told twice: every piece is of the message, byte for byte, in its order.
Rule 2: of a message with rules whole sentences are kept, so that no half of one passes for another rule later.
Rule 3: the newest message has at least half of the budget, if it needs that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import groupby

import msgspec

from refold.core.compaction.said_rules import rules_in
from refold.core.compaction.sentences import LONGEST
from refold.core.tokens import utf8_len
from refold.core.truncate import BYTES_PER_TOKEN, tokens_for

RULES_PART = 2  # rule sentences come before the newest message's other words in at most one of so many parts
CUT = "\n…{} tokens truncated…\n"  # between whole sentences; the line ends tell it from a cut that looks at none
_EARLIER_CUT = re.compile(r"\n…(\d+) tokens truncated…\n")

DroppedRules = Collection[tuple[str, str]]  # (address of the message, the sentence)


class Message(msgspec.Struct, frozen=True):
    """What somebody said: its cost in tokens, and its text parts if a person typed it (else none: no rules in it)."""

    cost: int
    texts: Sequence[str]
    address: str


class Piece(msgspec.Struct, frozen=True):
    """Sentences of one part that stay or go together: from `start` to `end`, white space up to `after`."""

    part: int
    start: int
    end: int
    after: int
    is_rule: bool
    size: int  # bytes, with the white space
    gone: int = -1  # of the marker of an earlier cut: how many tokens it says are gone


class Room(msgspec.Struct, frozen=True):
    """How many tokens a message may use, and its pieces where there are rules in it."""

    tokens: int
    pieces: Sequence[Piece] = ()


def rooms(messages: Sequence[Message], budget: int, dropped: DroppedRules = ()) -> list[Room] | None:
    """The room (tokens) of each message, newest first; together they use the budget. None: nobody said a rule."""
    pieces = [_pieces_of(one, dropped) for one in messages]
    floors = [_floor(found, one) for found, one in zip(pieces, messages, strict=True)]
    if not any(floors):
        return None
    given, left = [0] * len(messages), budget

    def give(wanted: Sequence[tuple[int, int]], most: int) -> None:
        nonlocal left
        most = min(most, left)
        for index, tokens in wanted:
            more = max(0, min(most, tokens - given[index]))
            given[index], most, left = given[index] + more, most - more, left - more

    whole = [(index, one.cost) for index, one in enumerate(messages)]
    rules = list(enumerate(floors))
    give(rules, budget // RULES_PART)
    give([(index, cost) for index, cost in whole if messages[index].texts][:1], budget)
    give(rules, budget)
    give([(index, cost) for index, cost in whole if floors[index]], budget)
    give(whole, budget)
    return [Room(tokens, found) for tokens, found in zip(given, pieces, strict=True)]


def _pieces_of(message: Message, dropped: DroppedRules) -> list[Piece]:
    """The pieces of a message that tile it; none when no rule is among them."""
    but = {sentence for address, sentence in dropped if address == message.address}
    pieces: list[Piece] = []
    for part, judged in enumerate(rules_in(message.texts, but)):
        text = message.texts[part]
        if (earlier := _EARLIER_CUT.fullmatch(text)) is not None:
            pieces.append(Piece(part, 0, len(text), len(text), False, 0, int(earlier[1])))
            continue
        for one, is_rule in judged:
            start = one.start
            while is_rule and "\n" in text[start : one.end] and pieces and text[:start].rpartition("\n")[2].strip():
                if pieces[-1].part != part:
                    break
                start = pieces.pop().start  # alone, a line that was wrapped would be read as two sentences
            size = utf8_len(text[start : one.after])
            pieces.append(Piece(part, start, one.end, one.after, is_rule, size))
    return pieces if any(one.is_rule for one in pieces) else []


def _floor(pieces: Sequence[Piece], message: Message) -> int:
    """Tokens of a message's rule sentences alone."""
    if not pieces:
        return 0
    rules = sum(one.size for one in pieces if one.is_rule)
    return min(message.cost, tokens_for(rules + _marker_size(message.texts)))


def _marker_size(texts: Sequence[str]) -> int:
    """Bytes of the largest marker that a cut of these texts may need."""
    earlier = sum(int(found[1]) for text in texts if (found := _EARLIER_CUT.fullmatch(text)))
    return len(CUT.format(tokens_for(sum(map(utf8_len, texts))) + earlier).encode())


# --- a message that is cut ---------------------------------------------------------------------------------------


def cut_between(texts: Sequence[str], pieces: Sequence[Piece], tokens: int) -> list[str]:
    """The message within so many tokens: head, marker, the rule sentences of what is left out, tail; each rule a part.

    Where not all rules fit, the last ones stay; of a message that was cut before, the new marker counts for both. Empty
    when not even one rule fits.
    """
    left = tokens * BYTES_PER_TOKEN - _marker_size(texts)
    rules: set[int] = set()
    for index in range(len(pieces) - 1, -1, -1):
        if pieces[index].is_rule and pieces[index].size <= left:
            rules.add(index)
            left -= pieces[index].size
    if left < 0:
        return []
    head, spent = _run(pieces, range(len(pieces)), rules, left // 2)
    tail, more = _run(pieces, range(len(pieces) - 1, head - 1, -1), rules, left - spent)
    behind, left = len(pieces) - tail, left - spent - more
    first = _joined(texts, pieces[:head])
    if head < behind and (begun := _beginning(texts, pieces[head], left)):
        first += [begun]
    middle = [texts[one.part][one.start : one.end] for n, one in enumerate(pieces[head:behind], head) if n in rules]
    last = _joined(texts, pieces[behind:])
    if not (first or middle or last):
        return []
    before = [one for one in pieces if one.gone >= 0]
    size = sum(map(utf8_len, texts)) - sum(utf8_len(texts[one.part]) for one in before)
    gone = tokens_for(max(0, size - sum(map(utf8_len, (*first, *middle, *last)))))
    return [*first, CUT.format(gone + sum(one.gone for one in before)), *middle, *last]


def _run(pieces: Sequence[Piece], order: range, rules: set[int], room: int) -> tuple[int, int]:
    """How many pieces in this order fit into so many bytes, and what they use; the rules are paid for already."""
    count = spent = 0
    for index in order:
        cost = 0 if index in rules else pieces[index].size
        if spent + cost > room or pieces[index].gone >= 0:
            break
        count, spent = count + 1, spent + cost
    return count, spent


def _joined(texts: Sequence[str], pieces: Sequence[Piece]) -> list[str]:
    """The text of pieces that stand side by side, part by part."""
    found: list[str] = []
    for part, group in groupby(pieces, lambda one: one.part):
        run = list(group)
        found.append(texts[part][run[0].start : run[-1].after])
    return [text for text in found if text]


def _beginning(texts: Sequence[str], piece: Piece, room: int) -> str:
    """The beginning of a piece that is no sentence, but a long text without any: so that room is not wasted.

    As much as to be taken for a sentence is not cut off: half of it might read like a rule.
    """
    text = texts[piece.part][piece.start : piece.end]
    if piece.is_rule or len(text) <= LONGEST:
        return ""
    begun = text.encode("utf-8", "replace")[: max(0, room)].decode("utf-8", "ignore")
    return begun if len(begun) > LONGEST else ""
