"""Terminal: a person at it, asked for a line without a thread, so that Ctrl-C is never stuck behind a question."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TextIO

from refold.core.plain_command import understood
from refold.session.permits import Question, Verdict
from refold.views.calls import call_text, visible, visible_line

YES, ALWAYS, NO = ("y", "yes"), ("a", "always"), ("n", "no")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sits at this stream; a closed one is None."""
    return stream is not None and not stream.closed and stream.isatty()


async def asked(prompt: str) -> str | None:
    """What the person answers, without its line end; None at the end of the input."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
    ready = asyncio.Event()
    loop.add_reader(number, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(number)
    line = sys.stdin.readline()  # a terminal gives a whole line, and no more than one
    return line.rstrip("\n") if line else None


async def allows(question: Question) -> Verdict:
    """Whether the person lets a command run: `y`, `a` for good, or `n` with words for the model; all else is a no."""
    _forget_what_was_typed()
    return verdict(await asked(shown(question)), can_remember=bool(question.remember))


def shown(question: Question) -> str:
    """What the person is asked. Nothing of a command is hidden, and no line of it can look like one of ours."""
    command, call = question.command, question.call
    lines = (visible(command.command) if command else call_text(call)).split("\n")
    where = f" in {command.cwd}" if command and command.cwd != str(Path.cwd()) else ""
    count = f" ({len(lines)} lines)" if len(lines) > 1 else ""
    said = [f"The model wants to run{visible_line(where)}{count}:", *(f"  │ {line}" for line in lines)]
    said += [f"  {visible_line(note)}" for note in _notes(question)]
    return "\n" + "\n".join(said) + "\nAllow it? [y/N] "


def _notes(question: Question) -> list[str]:
    """Why it is asked, what is unusual about it, and the model's reason, which is only what it says."""
    command, words = question.command, " ".join(question.remember)
    notes = [f"Why you are asked: {question.why}"] if question.why else []
    if command:
        notes += [] if understood(command.shell) else [f"It is run by {command.shell}"]
        notes += ["More can be typed into it later without asking"] if command.interactive else []
        notes += [f'The model says: "{command.reason}"'] if command.reason else []
    return notes + ([f'a = always: every command in this workspace that begins with "{words}"'] if words else [])


def verdict(answer: str | None, *, can_remember: bool) -> Verdict:
    """What an answer means; None is the end of the input."""
    first, _, words = (answer or "").strip().partition(" ")
    match first.lower().rstrip(",.:;"):
        case word if word in YES and not words:
            return Verdict(True)
        case word if word in ALWAYS and not words and can_remember:
            return Verdict(True, remember=True)
        case word if word in NO:
            return Verdict(False, word=words.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        case _:
            return Verdict(False)


def _forget_what_was_typed() -> None:
    """An answer is given after its question: what was typed before it was seen is none."""
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
