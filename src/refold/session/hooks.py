"""Hooks: what a host does around a turn."""

from __future__ import annotations

from refold.core.records import TurnEnded


class Hook:
    """Inherit, and write the methods you need; append it to `session.hooks`. Several are called in their order."""

    async def before_turn(self, text: str) -> None:
        """A turn is about to begin with this message. What this raises is raised by `send`, and nothing is recorded."""

    async def after_turn(self, ended: TurnEnded) -> None:
        """A turn has ended, completed or failed, and its log is whole. What this raises becomes a Notice.

        An interrupted turn ends without it: whoever interrupts wants to have it over.
        """
