"""Hooks: what a host does around a turn, around each call and around a compaction."""

from __future__ import annotations

from refold.core.compaction.due import Due
from refold.core.items import Item
from refold.core.records import TurnEnded
from refold.tools import ToolResult


class Hook:
    """Inherit, and write the methods you need; append it to `session.hooks`. Several are called in their order."""

    async def before_turn(self, text: str) -> None:
        """A turn is about to begin with this message. What this raises is raised by `send`, and nothing is recorded."""

    async def after_turn(self, ended: TurnEnded) -> None:
        """A turn has ended, completed or failed, and its log is whole. What this raises becomes a Notice.

        An interrupted turn ends without it: whoever interrupts wants to have it over.
        """

    async def before_tool(self, call: Item) -> Item | ToolResult | None:
        """A call is about to be permitted and run. None lets it go on; another call item (same `call_id`, other
        `arguments`) is run in its place, while the log keeps what the model wrote; a ToolResult takes the place of
        running it. Raise ToolFailed with a text for the model to refuse it; any other error refuses it, too.
        """
        return None

    async def after_tool(self, call: Item, result: ToolResult) -> ToolResult | None:
        """A call has its result, not recorded yet. None keeps it, another ToolResult takes its place; ToolFailed
        becomes the output; any other error becomes a Notice.
        """
        return None

    async def before_compaction(self, why: Due) -> str | None:
        """The history is about to be compacted; nothing was asked yet. None lets it go on; a text says what the summary
        should keep in particular. Whatever this raises blocks it, with its words as the reason: an automatic one is
        not done in this turn, one by hand raises CompactionBlocked.
        """
        return None

    async def after_compaction(self, why: Due, summary: str | None) -> str | None:
        """A compaction has its result, not in place yet. `summary` is None where only the provider can read it. None
        keeps it, a text takes the place of the summary. Whatever this raises blocks it: the history stays as it is.
        """
        return None
