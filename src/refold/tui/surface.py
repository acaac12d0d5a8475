"""Surface: what a conversation needs of the thing that a person sits at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from refold.core.permissions import Question, Verdict
    from refold.rollout.catalogue import Summary
    from refold.tui.history import SaidBefore


class Person(Protocol):
    """Who sits there, as the surface tells it."""

    def entered(self, text: str) -> None:
        """A whole message or command."""
        ...

    def stop(self) -> None:
        """Ctrl-C, or Esc while something runs: stop it; the second time, leave."""
        ...

    def leave(self) -> None: ...


class Surface(Protocol):
    """A terminal with an input line, or plain lines. Texts may hold anything: it takes the control characters out."""

    def say(self, text: str, look: str = "") -> None:
        """Whole lines."""
        ...

    def said(self, text: str) -> None:
        """What the person said, as part of the conversation."""
        ...

    def part(self, text: str) -> None:
        """More of an answer that is being written."""
        ...

    def end_part(self) -> None:
        """The answer is complete."""
        ...

    def changed(self) -> None:
        """The board says something else than before."""
        ...

    async def ask(self, question: Question) -> Verdict:
        """May this run? What was typed before the question was shown does not answer it."""
        ...

    async def pick(self, found: Sequence[Summary]) -> Summary | None:
        """Which of these sessions? None: none of them."""
        ...

    def remember(self, file: SaidBefore) -> None:
        """Where what the person said before is kept; nothing to do where the terminal has no Up."""
        ...

    async def painted(self) -> None:
        """Returns when the person can see where to type."""
        ...

    async def listen(self, person: Person) -> None:
        """Read what the person types until `close`."""
        ...

    def close(self) -> None: ...
