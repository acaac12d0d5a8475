"""Chat: a person, a surface and a conversation, from the first prompt to the terminal given back as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from refold.tui.board import Board
from refold.tui.conversation import Conversation
from refold.tui.history import NAME, SaidBefore
from refold.tui.opening import First, Opening, Prepare
from refold.tui.surface import Surface

EXIT_TERMINATED = 1


def chat(prepare: Prepare, first: First) -> int:
    """Talk until the person leaves: 0; 1 when a signal ended it.

    `prepare` is called once, in a thread, after the prompt is there. Raises what it raises, and what keeps the first
    session from being opened.
    """
    return asyncio.run(_chat(prepare, first))


def is_rich(environ: dict[str, str] | None = None) -> bool:
    """Whether the terminal can move its cursor: both ends of this program are at one that is not dumb."""
    term = (os.environ if environ is None else environ).get("TERM", "")
    return sys.stdin.isatty() and sys.stdout.isatty() and term not in ("", "dumb", "unknown")


async def _chat(prepare: Prepare, first: First) -> int:
    board = Board()
    surface = _surface(board)

    def prepared() -> Opening:
        opening = prepare()
        loop.call_soon_threadsafe(surface.remember, SaidBefore(opening.home.path / NAME))
        return opening

    loop = asyncio.get_running_loop()
    conversation = Conversation(surface, board, prepared)
    for number in (signal.SIGTERM, signal.SIGHUP):
        with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, conversation.leave, EXIT_TERMINATED)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(surface.listen(conversation))
            try:
                return await conversation.live(first)
            finally:
                surface.close()
    except ExceptionGroup as failed:  # a task group wraps even the error that its own body raised
        raise _first_of(failed) from None


def _surface(board: Board) -> Surface:
    if not is_rich():
        from refold.tui.plain import Plain

        return Plain(board, sys.stdin, sys.stdout)
    from refold.tui.screen import Screen

    return Screen(board, colours=not os.environ.get("NO_COLOR"))


def _first_of(failed: ExceptionGroup[Exception]) -> Exception:
    first = failed.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
