"""Undo: puts the history that a compaction, an undo or turns replaced back in place, by one more checkpoint."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from refold.core.compaction.due import size_of
from refold.core.compaction.replacement import Replacement
from refold.core.compaction.shadow import SealedReplacement, seal_of
from refold.core.compaction.undo import Restored, without_newest, without_turns
from refold.core.records import JSON
from refold.errors import CompactionFailed
from refold.rollout import read_lines
from refold.session.collector import without_collector
from refold.session.memory import Fresh, Memory

Undid: TypeAlias = Literal["compaction", "undo", "rollback", "turns"]


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """What an undo did: it changed which history counts; both stay in the log."""

    what: Undid
    address: str  # of the checkpoint that holds the restored history
    undoes: str  # of the checkpoint that no longer counts; "" for turns
    turns: int  # that were undone
    items: int  # in the history now
    before: int  # tokens
    after: int
    limit: int | None  # where compaction is due

    def __str__(self) -> str:
        """One line for a person."""
        what = {
            "compaction": f"the compaction at {self.undoes} is undone",
            "undo": f"the undo at {self.undoes} is undone",
            "rollback": f"the undone turns are back (they went with {self.undoes})",
            "turns": f"the last {self.turns} turns are undone" if self.turns > 1 else "the last turn is undone",
        }[self.what]
        waits = ", no compaction before something new comes" if self.limit and self.after >= self.limit else ""
        return f"{what}: {self.before:,} → {self.after:,} tokens, {self.items} items{waits}"


def undo(memory: Memory, turns: int | None = None) -> Undone:
    """Undo the newest checkpoint, or the last `turns` turns. The log is read for it, and only appended to.

    Raises CompactionFailed, with nothing changed, when there is nothing to undo, and RolloutError.
    """
    thread = memory.thread
    if turns is not None and turns < 1:
        raise CompactionFailed(f"{turns} turns cannot be undone: say 1 or more")
    if thread.checkpoint is None and not thread.history:
        raise CompactionFailed("there is nothing to undo yet: nothing was said")
    restored = _restored(memory, turns)
    before, after = size_of(thread, thread.history), size_of(thread, restored.entries)
    own: JSON = {"method": "rollback", "turns": turns} if turns else {"method": "undo", "undoes": restored.undoes}
    told: JSON = {"reason": "user_requested", "phase": "standalone_turn"}
    facts = {**own, **told, "tokens_before": before, "tokens_after": after, "waits": True}
    memory.install(_replacement(memory, restored), facts, Fresh((), restored.world, restored.settings))
    return Undone(
        what=_what(restored),
        address=f"{thread.id}:{thread.checkpoint}",
        undoes=restored.undoes,
        turns=turns or 0,
        items=len(thread.history),
        before=before,
        after=after,
        limit=memory.profile.compact_limit,
    )


async def run_undo(memory: Memory, turns: int | None) -> Undone:
    """The same as the work of a session, which does one thing at a time."""
    return undo(memory, turns)


def _what(restored: Restored) -> Undid:
    if not restored.undoes:
        return "turns"
    match restored.method:
        case "undo" | "rollback" as method:
            return method
        case _:
            return "compaction"


def _restored(memory: Memory, turns: int | None) -> Restored:
    with without_collector():
        on_disk = memory.path is not None and memory.store.behind is None
        log = list(read_lines(memory.path, skim=True) if memory.path and on_disk else memory.store.lines())
        return without_newest(log, memory.thread) if turns is None else without_turns(log, memory.thread, turns)


def _replacement(memory: Memory, restored: Restored) -> Replacement:
    """The restored items; with the shadow of the newest encrypted one, which only the log may still hold."""
    base, items = tuple(memory.thread.history), tuple(e.item for e in restored.entries)
    addresses = tuple(e.address for e in restored.entries)
    shadows = (restored.shadows.get(seal_of(item) or "") for item in reversed(items))
    shadow = next((one for one in shadows if one is not None), None)
    if shadow is None:
        return Replacement(base=base, items=items, addresses=addresses, message="")
    return SealedReplacement(base=base, items=items, addresses=addresses, message="", shadow=shadow)
