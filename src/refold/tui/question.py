"""Question: how a person is asked whether a call may run, and what an answer means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from refold.tui.choice import shown_folder

if TYPE_CHECKING:
    from refold.session.permits import Question, Verdict

NO = re.compile(r"^(?:n|no)(?:[\s,:;.!]+(?P<word>.*))?$", re.IGNORECASE | re.DOTALL)


def asked_lines(question: Question) -> list[tuple[str, str]]:
    """(text, look) of what is shown: the whole call, and what a person has to know to decide."""
    from refold.views.calls import call_text, visible, visible_line

    asked = question.command
    lines = [("The model wants to run:", "bold")]
    text = visible(asked.command) if asked else call_text(question.call)
    lines += [("  │ " + line, "cyan") for line in text.split("\n")]  # so that none can look like one of ours
    return lines + [("  " + visible_line(note), look) for note, look in _notes(question)]


def _notes(question: Question) -> list[tuple[str, str]]:
    """Where it would run, why it is asked, what is unusual, and the model's reason, which is only what it says."""
    from refold.core.plain_command import understood

    asked, notes = question.command, []
    if asked is not None:
        notes += [(f"in {shown_folder(asked.cwd)}", "dim")]
        notes += [("outside the sandbox, with your rights", "yellow")] if asked.outside else []
        notes += [(f"run by {asked.shell}", "yellow")] if not understood(asked.shell) else []
        notes += [("more can be typed into it later without asking", "yellow")] if asked.interactive else []
        notes += [(f'the model says: "{asked.reason}"', "dim")] if asked.reason else []
    notes += [(f"why you are asked: {question.why}", "dim")] if question.why else []
    if question.remember:
        notes += [(f"always = every command here that begins with `{' '.join(question.remember)}`", "dim")]
    return notes


def choices(question: Question) -> str:
    """What can be answered, on one line."""
    always = ", a(lways)" if question.remember else ""
    return f"Allow it? y(es), n(o), n and why{always}"


def verdict(answer: str, question: Question) -> Verdict | None:
    """What an answer means; None when it means nothing."""
    from refold.session.permits import Verdict

    text = answer.strip()
    if text.lower() in ("y", "yes"):
        return Verdict(True)
    if text.lower() in ("a", "always"):
        return Verdict(True, remember=True) if question.remember else None
    if found := NO.match(text):
        return Verdict(False, word=(found["word"] or "").strip())
    return None
