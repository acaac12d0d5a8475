"""Said: the rules in what people typed, sentence by sentence, each with its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from refold.core.compaction.said_rules import rules_in
from refold.core.history import Entry
from refold.core.items import message_texts


class SaidRule(msgspec.Struct, frozen=True):
    """A sentence that is kept before others when what people said does not all fit."""

    address: str  # of the message
    number: int  # of this rule among those at its address, from 1
    text: str


def rules_said(history: Sequence[Entry], dropped: Collection[tuple[str, str]] = ()) -> list[SaidRule]:
    """The rules that a history still says, in order, without those that were dropped. Only what people typed counts."""
    counted: Counter[str] = Counter()
    found: list[SaidRule] = []
    for e in history:
        if e.origin != "typed":
            continue
        texts = message_texts(e.item)
        for text, judged in zip(texts, rules_in(texts), strict=True):
            for sentence in [one.of(text) for one, is_rule in judged if is_rule]:
                counted[e.address] += 1
                if (e.address, sentence) not in dropped:
                    found.append(SaidRule(e.address, counted[e.address], sentence))
    return found
