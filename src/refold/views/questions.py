"""Questions: what a person has to know to decide whether a call may run, and what an answer means."""

from __future__ import annotations

import re

from refold.core.permissions import Question, Verdict
from refold.core.plain_command import stands_for_more, understood
from refold.views.calls import call_text, visible, visible_line

NO = re.compile(r"^(?:n|no)(?:[\s,:;.!]+(?P<word>.*))?$", re.IGNORECASE | re.DOTALL)
AGAIN = "  that is no answer"


def asked_lines(question: Question) -> list[tuple[str, str]]:
    """(text, look) of what is shown. Nothing of a call is hidden, and no line of it can look like one of ours."""
    asked = question.command
    text = (visible(asked.command) if asked else call_text(question.call)).split("\n")
    count = f" ({len(text)} lines)" if len(text) > 1 else ""
    lines = [(f"The model wants to run{count}:", "bold"), *(("  │ " + line, "cyan") for line in text)]
    return lines + [("  " + visible_line(note), look) for note, look in _notes(question)]


def _notes(question: Question) -> list[tuple[str, str]]:
    """Where it would run, why it is asked, what is unusual, and the model's reason, which is only what it says."""
    asked, notes = question.command, []
    if asked is not None:
        notes += [(f"in {asked.cwd}", "dim")]
        notes += [(f"run by {asked.shell}", "yellow")] if not understood(asked.shell) else []
        notes += [("more can be typed into it later without asking", "yellow")] if asked.interactive else []
        notes += [(f'the model says: "{asked.reason}"', "dim")] if asked.reason else []
    look = "yellow" if asked is not None and asked.outside else "dim"
    notes += [(f"why you are asked: {question.why}", look)] if question.why else []
    if words := " ".join(question.remember):
        begins = stands_for_more(question.remember)
        meant = f"every command here that begins with `{words}`" if begins else "exactly this command here"
        notes += [(f"always: {meant}", "dim")]
    return notes


def choices(question: Question) -> str:
    """What can be answered, on one line."""
    return f"Allow it? y(es), n(o), n and why{', a(lways)' if question.remember else ''}"


def verdict(answer: str, question: Question) -> Verdict | None:
    """What an answer means; None when it means nothing, as a lone Enter does."""
    text = answer.strip()
    if text.lower() in ("y", "yes"):
        return Verdict(True)
    if text.lower() in ("a", "always"):
        return Verdict(True, remember=True) if question.remember else None
    if found := NO.match(text):
        return Verdict(False, word=(found["word"] or "").strip())
    return None
