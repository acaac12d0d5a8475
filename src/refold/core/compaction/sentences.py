"""Sentences: a text in sentences, and which of them are a person's own words, not quoted code or output.

Rule 1: the sentences tile the text, so that any run of them is a piece of it, byte for byte.
Rule 2: what touches a place where a text was cut is half a sentence, and nobody's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LONGEST = 400  # characters; what is longer is no sentence that somebody wrote as one
LARGEST = 1_000_000  # characters of a part; more was not written by hand, and reading it would take seconds
LOOKED_BACK = 12  # characters: no abbreviation and no list's number is longer
WRAPPED = 60  # characters from which on a line may have been broken by an editor, not by its writer

_FENCE = re.compile(r"\s*(```|~~~)")
_BULLET = re.compile(r"\s*(?:[-*+•–]|\(?\d{1,3}[.)]|[a-zA-Z][.)])\s+")
_HEADING = re.compile(r"\s*#{2,6}\s")
# Quotes, shell, diffs, comments, markup, logs and compilers: what a person pastes, not what they say.
_PASTED = re.compile(
    r"\s*(?:>|\$\s|%\s|[-+]{1,3}[^\s+-]|@@|#\s|#!|//|/\*|--|;;|<|\{|\}|\"\"\"|'''|"
    r"Traceback|File \"|at \S+\(|npm ERR|E\s{2,}|"
    r"\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b|"
    r"(?:\w*[eE]rror|\w*[wW]arning|fatal|panic|hint|help)(?:\[\w+\])?:|"
    r"(?:def|class|import|return|raise|assert|const|let|var|function|fn|func|public|private|static) \w)"
)
_CODE_END = re.compile(r"(?:[;{}]|=>|->|\)\s*:)\s*$")
_INDENTED = re.compile(r"(?: {4,}|\t)")
_STOP = re.compile(r"[.!?]+[\"')\]*_”’»]*(?=\s)|[。！？]+[”’』」）)\"]*")
_SHORT = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|incl|resp|al|fig|no|nr|dr|mr|mrs|ms|st)|\b[A-Za-z]|\.)\.$", re.I
)
_SPACE = re.compile(r"\s+")
_NUMBER = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z])[.)]")
_RAW_CUT = re.compile(r"…\d+ (?:tokens|chars) truncated…")


class Sentence(NamedTuple):
    """A piece of a text: words from `start` to `end`, white space up to `after`, where the next one begins."""

    start: int
    end: int
    after: int
    own: bool  # a whole sentence in a person's own words

    def of(self, text: str) -> str:
        """Its words."""
        return text[self.start : self.end]


def sentences_of(texts: Sequence[str]) -> list[list[Sentence]]:
    """The sentences of a message's text parts, part by part; none reaches over a part's end."""
    cut = [_is_raw_cut(text) for text in texts]
    found: list[list[Sentence]] = []
    for index, text in enumerate(texts):
        begun = index > 0 and cut[index - 1]
        ends = index + 1 < len(texts) and cut[index + 1]
        found.append(_sentences(text, cut_before=begun, cut_behind=ends))
    return found


def _is_raw_cut(text: str) -> bool:
    """Whether a part is the marker of a cut that looks at no sentence."""
    return _RAW_CUT.fullmatch(text) is not None


def _sentences(text: str, *, cut_before: bool, cut_behind: bool) -> list[Sentence]:
    starts = [start for start in _starts(text) if start[0] < len(text)] if len(text) <= LARGEST else []
    if not starts or starts[0][0] > 0:
        starts.insert(0, (0, False))
    found: list[Sentence] = []
    for place, (start, own) in enumerate(starts):
        after = starts[place + 1][0] if place + 1 < len(starts) else len(text)
        words = text[start:after].rstrip()
        own = own and 0 < len(words) <= LONGEST and _RAW_CUT.search(words) is None
        found.append(Sentence(start, start + len(words), after, own))
    if cut_before:
        odd = sum(_FENCE.match(line) is not None for line in text.splitlines()) % 2  # it was cut inside a block
        found = [one._replace(own=one.own and not odd and place > 0) for place, one in enumerate(found)]
    if cut_behind:
        found[-1] = found[-1]._replace(own=False)
    return found


def _starts(text: str) -> Iterator[tuple[int, bool]]:
    """Where each sentence starts, and whether it is a person's own words."""
    for start, end, own in _paragraphs(text):
        yield start, own
        if not own:
            continue
        begun = start
        for stop in _STOP.finditer(text, start, end):
            following = _SPACE.match(text, stop.end(), end)
            next_one = stop.end() if following is None else following.end()
            if next_one < end and _ends(text, begun, stop.end(), next_one):
                begun = next_one
                yield begun, True


def _ends(text: str, begun: int, stop: int, next_one: int) -> bool:
    """Whether a stop ends the sentence: not behind a list's number, nor in `e.g. this`."""
    if stop - begun < LOOKED_BACK and _NUMBER.fullmatch(text, begun, stop):
        return False
    return _SHORT.search(text, max(begun, stop - LOOKED_BACK), stop) is None or text[next_one].isupper()


def _paragraphs(text: str) -> Iterator[tuple[int, int, bool]]:
    """Lines that belong together: where they start and end, and whether a person wrote them. A fenced block is one."""
    open_from, place, fence, before = -1, 0, "", ""
    for line in text.splitlines(keepends=True):
        start, place = place, place + len(line)
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark is not None and mark[1] == fence else fence
            continue
        own = mark is None and not _is_pasted(line)
        joins = own and open_from >= 0 and _goes_on(before, line)
        if open_from >= 0 and not joins:
            yield open_from, start, True
            open_from = -1
        before, fence = line, mark[1] if mark is not None else ""
        words = start + len(line) - len(line.lstrip())
        if own and words < place:
            open_from = open_from if joins else words
        elif words < place:
            yield words, place, False
    if open_from >= 0:
        yield open_from, len(text), True


def _is_pasted(line: str) -> bool:
    if _PASTED.match(line) or _CODE_END.search(line):
        return True
    return _INDENTED.match(line) is not None and _BULLET.match(line) is None


def _goes_on(before: str, line: str) -> bool:
    """Whether a line goes on with the sentence of the one before it: a long line that was wrapped."""
    if not line.strip() or _BULLET.match(line) or _HEADING.match(line) or _HEADING.match(before):
        return False
    words = before.strip()
    if not words or words[-1] in ".!?:：。！？":
        return False
    return len(words) >= WRAPPED or (line.lstrip()[0].islower() and len(words) >= WRAPPED // 2)
