"""Terminal: a person at it, asked for a line without a thread, so that Ctrl-C is never stuck behind a question."""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

from refold.cli.live import command_of
from refold.session.permits import Question


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


async def allows(question: Question) -> bool:
    """Whether the person lets a command run."""
    answer = await asked(f"\nThe model wants to run:\n  {command_of(question.call)}\nAllow it? [y/N] ")
    return (answer or "").strip().lower() in ("y", "yes")
