"""Accepting: whether a reply is the summary that was asked for, or something else that must not pass for one.

Rule 1: the last message counts, as in the real program; what is beside it only counts where it shows another purpose.
Rule 2: when in doubt it is a summary: a wrong refusal costs a session its compaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from refold.core.compaction.local import settle
from refold.core.history import Entry
from refold.core.items import OUTPUT_TYPE_OF, Item, content_parts, message_text, message_texts
from refold.core.prompt import Prompt
from refold.errors import CompactionFailed

GROWTH_ALLOWED = 1_000  # tokens: a tiny history may grow by the prefix and fresh context; more is not worth installing
REFUSAL_BYTES = 600  # a refusal is short; what is longer says more than no
ECHO_CHARS = 80  # a shorter text may be the same by chance
LINE_CHARS = 20  # shorter lines are everywhere
ECHO_LINES = 12  # that are looked for; a history is long
ENDS = 500  # items at each end of a history that an echo is looked for in
STRAY_LINES = 10  # of so many lines that are repeated, one may be new

Kind: TypeAlias = Literal["empty", "refusal", "tool call", "echo"]

# The first sentence of a text that is a refusal and nothing else. Work that cannot be done is not: it names the work.
_SORRY = r"(?:(?:i am|i'm)(?: very)? sorry|sorry|i apologi[sz]e|unfortunately|as an ai(?: language model| assistant)?)"
_CANNOT = (
    r"i(?: (?:cannot|can not|can't|won't|will not|must decline|am not able|am unable)|'m (?:not able|unable))(?: to)?"
)
_ASKED = r"(?:this|that|it|your request|these requests|the request|a summary|the summary|an answer)"
_DO = r"(?:do|answer|discuss|fulfil?l|process|provide|produce|generate|write|share)"
_HELP = rf"(?:help|assist)(?: you)?(?: with {_ASKED}\b|\s*(?:[.!,]|$))|comply\b"
_REFUSAL = re.compile(
    rf"(?:{_SORRY}[\s,.;:\u2013-]*(?:but )?)?{_CANNOT} (?:{_HELP}|{_DO} {_ASKED}\b|summari[sz]e (?:this|that)\b)",
    re.IGNORECASE,
)


class Unfit(msgspec.Struct, frozen=True):
    """What a reply is instead of a summary, and one line that says so."""

    kind: Kind
    why: str


def judged(output: Sequence[Item], asked: Prompt) -> str | Unfit:
    """The summary that a reply to this request holds, or what it is instead."""
    called = [item for item in output if item.get("type") in OUTPUT_TYPE_OF]
    refusal = _refusal_part(output)
    try:
        text = settle(output)
    except CompactionFailed as error:
        if refusal:
            return Unfit("refusal", f"the model refused to write a summary: {refusal}")
        return Unfit("tool call" if called else "empty", str(error))
    if called:
        name = called[0].get("name") or called[0]["type"]
        return Unfit("tool call", f"the model called {name} beside its text: it went on working instead of summing up")
    if refusal or is_refusal(text):
        return Unfit("refusal", f"the model refused to write a summary: {_first_line(refusal or text)}")
    *told, handoff = asked.entries
    if _repeats(text, lambda: message_texts(handoff.item)):
        return Unfit("echo", "the model repeated the request for a summary instead of answering it")
    if _repeats(text, lambda: _texts_of(told)):
        return Unfit("echo", "the model repeated what it was given instead of summing it up")
    return text


def is_larger(summary: int, replaced: int) -> bool:
    """Whether a summary is so much larger than what it replaces (both in tokens) that nothing would be gained."""
    return summary > replaced + GROWTH_ALLOWED


# --- refusals --------------------------------------------------------------------------------------------------------


def _refusal_part(output: Sequence[Item]) -> str:
    """The refusal in the last message that says anything, in the API's own part; "" if it holds none."""
    for item in reversed(output):
        if item.get("type") != "message" or item.get("role") != "assistant":
            continue
        parts = [part for part in content_parts(item) if part.get("type") == "refusal"]
        if parts:
            return _first_line(str(parts[0].get("refusal") or "no reason told"))
        if message_text(item).strip():
            return ""
    return ""


def is_refusal(text: str) -> bool:
    """Whether a text only refuses."""
    plain = text.strip().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").lstrip("*_\"'> ")
    return len(plain.encode()) <= REFUSAL_BYTES and _REFUSAL.match(plain) is not None


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:200]


# --- echoes ----------------------------------------------------------------------------------------------------------


def _texts_of(entries: Sequence[Entry]) -> list[str]:
    """What a reply may not repeat. An earlier summary it may: where nothing happened, nothing is new. Of a long history
    its two ends: who repeats it begins with one of them."""
    ends = entries if len(entries) <= 2 * ENDS else (*entries[:ENDS], *entries[-ENDS:])
    return [text for e in ends if e.origin != "summary" for text in message_texts(e.item)]


def _repeats(text: str, texts: Callable[[], Sequence[str]]) -> bool:
    """Whether a text is made of lines that were given. A good summary quotes, but it also says something."""
    lines = [line for line in (line.strip() for line in text.splitlines()) if len(line) >= LINE_CHARS]
    length = sum(map(len, lines))
    if length < ECHO_CHARS or 2 * length < len(text.strip()):
        return False
    given = texts()
    looked_for = lines[:: -(-len(lines) // ECHO_LINES)]
    strays = len(looked_for) // STRAY_LINES
    for line in looked_for:
        if not any(line in one for one in given):
            strays -= 1
            if strays < 0:
                return False
    return True
