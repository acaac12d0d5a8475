"""Terminal: a person at it, asked for a line without a thread, so that Ctrl-C is never stuck behind a question."""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

from refold.core.permissions import Question, Verdict
from refold.views.questions import AGAIN, asked_lines, choices, verdict


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
    """Whether the person lets a call run; the end of the input is a no, and what is no answer is asked again."""
    _forget_what_was_typed()
    prompt = shown(question)
    while (answer := await asked(prompt)) is not None:
        given = verdict(answer.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), question)
        if given is not None:
            return given
        prompt = f"{AGAIN}\n{choices(question)} › "
    return Verdict(False)


def shown(question: Question) -> str:
    """What the person is asked."""
    lines = "\n".join(text for text, _ in asked_lines(question))
    return f"\n{lines}\n{choices(question)} › "


def _forget_what_was_typed() -> None:
    """An answer is given after its question: what was typed before it was seen is none."""
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
