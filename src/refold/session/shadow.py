"""Shadow: when the readable outline steps in for an item that a provider does not read (core/compaction/shadow.py).

Rule 1: it steps in once, in one checkpoint, before anything else is asked; what stands in the log already stays there.
Rule 2: it happens when the provider refused the item, or when another provider than its maker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from refold.core.compaction.due import size_of
from refold.core.compaction.replacement import Replacement
from refold.core.compaction.shadow import (
    SealedReplacement,
    Shadow,
    maker_of,
    seal_of,
    unsealed,
)
from refold.core.history import Entry, entry
from refold.core.profile import Provider
from refold.core.records import JSON
from refold.errors import ModelRefused
from refold.model.sealed import UNREADABLE, named_item
from refold.session.events import CompactionEnded, Notice
from refold.session.memory import Fresh, Memory

if TYPE_CHECKING:
    from refold.session.rungs.job import Job

# --- made ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def shadowing(job: Job, snapshot: Sequence[Entry]) -> AsyncGenerator[Awaitable[str]]:
    """The outline of a history, made beside what else is done: a provider takes longer."""
    from refold.session.rungs.outline import outline_text

    making = asyncio.create_task(asyncio.to_thread(outline_text, job.memory, snapshot))
    try:
        yield making
    finally:
        making.cancel()


def with_shadow(job: Job, replacement: Replacement, text: str) -> Replacement:
    """The replacement with the outline of what it replaces, where it holds an item that only this provider can read."""
    if not any(seal_of(item) for item in replacement.items):
        return replacement
    fields = {name: getattr(replacement, name) for name in Replacement.__struct_fields__}
    return SealedReplacement(**fields, shadow=Shadow(text, job.model.provider.id))


# --- in use ----------------------------------------------------------------------------------------------


def step_in_for(memory: Memory, provider: Provider) -> bool:
    """Before this provider is asked: whether another one made what the history holds, so that the shadow stepped in."""
    thread = memory.thread
    begun_with = thread.meta.provider if thread.meta else ""
    makers = {maker_of(e, thread.shadows, begun_with) for e in thread.sealed}
    others = sorted(makers - {"", provider.id})
    if others:
        why = f"only {', '.join(others)} can read the compacted history, and {provider.id} goes on"
        _step_in(memory, "provider_changed", why)
    return bool(others)


def step_in_after(memory: Memory, error: ModelRefused) -> bool:
    """After this error: whether it says that the history's encrypted item cannot be read, and the shadow stepped in.

    False, with nothing changed, for every other error, and when the error names an item that is none of those.
    """
    if not is_about_seal(memory, error):
        return False
    _step_in(memory, "encrypted_refused", f"the provider cannot read the compacted history any more ({error})")
    return True


def is_about_seal(memory: Memory, error: Exception) -> bool:
    """Whether an error says that the encrypted item that the history holds cannot be read."""
    seals = memory.thread.sealed
    if not seals or not isinstance(error, ModelRefused) or error.code != UNREADABLE:
        return False
    name = named_item(str(error))
    others = {str(e.item.get("id")) for e in memory.thread.history} - {str(e.item.get("id")) for e in seals}
    return name is None or name not in others


def _step_in(memory: Memory, reason: str, why: str) -> None:
    thread = memory.thread
    history, newest = list(thread.history), thread.sealed[-1]
    from refold.session.rungs.outline import outline_text

    shadow = thread.shadows.get(seal_of(newest.item) or "")
    known = shadow is not None and bool(shadow.text)
    text = shadow.text if shadow and known else outline_text(memory, history)
    summary_id = memory.clock.item_id("msg")
    replacement = unsealed(history, text, summary_id=summary_id, turn_id=thread.open_turn)
    facts: JSON = {
        "method": "shadow",
        "reason": reason,
        "tokens_before": size_of(thread, history),
        "tokens_after": size_of(thread, (entry(item, "") for item in replacement.items)),
    }
    told = Fresh((), thread.world, thread.settings)
    memory.install(replacement, facts, told, window=thread.window)  # the same window: it is no shorter
    taken = "its outline" if known else "an outline of what is left of it"
    memory.feed.publish(Notice(f"{why}; {taken} takes its place"))


async def compact(job: Job) -> CompactionEnded:
    """Compact as the ladder does; where the provider cannot read what was compacted before, again from its outline."""
    from refold.session.ladder import compact as by_ladder

    step_in_for(job.memory, job.model.provider)
    try:
        return await by_ladder(job)
    except ModelRefused as error:
        if not step_in_after(job.memory, error):
            raise
    return await by_ladder(job)
