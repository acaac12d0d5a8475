"""Said: sentences of assistant messages that state a decision, and lines of checklists."""

from __future__ import annotations

import re
from collections.abc import Iterator

from refold.core.compaction.outline.quote import one_line

SHORTEST = 12  # bytes of a sentence that says something

# Words without which no sentence counts: looked for first, because most messages hold none of them.
_HINTS = (
    "decid", "chose", "will ", "'ll ", "’ll ", "because", "instead", "rather than", "opted ", "settled on",
    "going with", "决定", "选择了", "选用", "采用", "改用", "改为", "因为", "而不是",
    "不再", "我会", "我将", "们会", "们将", "打算",
)  # fmt: skip
_DECIDES = re.compile(
    r"\b(?:decided|decision|chose|chosen|because|instead|rather than|opted (?:for|to)|settled on|going with)\b"
    r"|\b(?:i|we)(?: will|['’]ll)\b"
    r"|决定|选择了|选用|采用|改用|改为|因为|而不是|不再|我们?[会将]|打算",
    re.IGNORECASE,
)
# Offers and questions decide nothing.
_OFFERS = re.compile(
    r"(?:[-*>\s]|\d+\.)*(?:if you|if that|let me know|would you|shall|should i|do you|如果你|如果您|如需|要不要|是否)",
    re.IGNORECASE,
)
_FENCED = re.compile(r"^[ \t]*```.*?(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；])\s*|\n+")
_CHECK = re.compile(r"^[ \t]*[-*] \[([ xX])\][ \t]+(\S.*)$", re.MULTILINE)


def decisions(text: str) -> Iterator[str]:
    """The sentences of a message that say what was chosen or why, in order; code in it is not read."""
    lowered = text.lower()
    if text.lstrip()[:1] in ("{", "[") or not any(hint in lowered for hint in _HINTS):
        return  # an answer in JSON is data
    for raw in _SENTENCE_ENDS.split(_FENCED.sub("\n", text)):
        if not raw or _DECIDES.search(raw) is None or _OFFERS.match(raw) is not None:
            continue
        sentence = one_line(raw).lstrip("-*># ")
        if len(sentence.encode("utf-8", "replace")) >= SHORTEST and not sentence.endswith(("?", "？")):
            yield sentence


def checklist(text: str) -> Iterator[tuple[str, bool]]:
    """The lines `- [ ] …` and `- [x] …` of a message: what they say, and whether they are checked."""
    if "] " in text and "[" in text:
        for found in _CHECK.finditer(text):
            yield one_line(found[2]), found[1] != " "
