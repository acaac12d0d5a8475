"""Preview: what a compaction would put in the history's place, to be put there or left (docs/undo.md)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.core.compaction.gone import Gone, gone
from refold.core.compaction.undo import told_after
from refold.core.items import Item
from refold.core.records import SettingsApplied
from refold.core.usage import Usage
from refold.errors import CompactionFailed, SessionBusy
from refold.session.events import CompactionEnded
from refold.session.ladder import Prepared, install
from refold.session.memory import Fresh, Memory

if TYPE_CHECKING:
    from refold.session.session import Session


class Previewed:
    """What was found, for people and programs. Sizes in tokens, estimated; money in whatever `model_price` is in."""

    def __init__(self, prepared: Prepared) -> None:
        replacement, price = prepared.found.replacement, prepared.job.memory.config.model_price
        self.method: str = prepared.found.method
        self.items: tuple[Item, ...] = replacement.items  # the new context
        self.addresses: tuple[str, ...] = replacement.addresses  # where each item comes from; "" = new
        self.before: int = prepared.before
        self.after: int = prepared.after
        self.limit: int | None = prepared.limit  # where compaction is due
        self.dropped: int = prepared.found.dropped  # items that the request for it had no room for
        self.gone: tuple[Gone, ...] = gone(replacement)  # what would no longer be in the prompt
        self.usage: Usage = prepared.used  # what it cost already, also when it is discarded
        self.cost: float | None = None if price is None else price.of(prepared.used)


class Preview(Previewed):
    """Mutable: it can be committed or discarded, once. What was asked of the model is in the log either way."""

    def __init__(self, session: Session, prepared: Prepared) -> None:
        super().__init__(prepared)
        self._session = session
        self.prepared = prepared
        self._over = ""

    async def commit(self) -> CompactionEnded:
        """Put it in the place of what it was made from; what was recorded since stays behind it.

        Raises CompactionFailed, with nothing changed, when the history no longer begins with that, or the preview was
        committed or discarded before; SessionBusy while a turn runs, SessionClosed afterwards.
        """
        if self._over:
            raise CompactionFailed(f"this preview was {self._over} already; ask for a new one")
        if self._session.busy:
            raise SessionBusy("a turn is running: commit the preview when it has ended")
        memory = self._session.memory
        ended = install(self.prepared, in_force(memory, self.prepared))
        self._over = "committed"
        memory.feed.publish(ended)
        return ended

    def discard(self) -> None:
        """Leave the history as it is."""
        self._over = self._over or "discarded"


class SyncPreview(Previewed):
    """The same for a blocking session."""

    def __init__(
        self, preview: Preview, call: Callable[[Coroutine[Any, Any, CompactionEnded]], CompactionEnded]
    ) -> None:
        super().__init__(preview.prepared)
        self._preview = preview
        self._call = call

    def commit(self) -> CompactionEnded:
        """As `Preview.commit`."""
        return self._call(self._preview.commit())

    def discard(self) -> None:
        """Leave the history as it is."""
        self._preview.discard()


def in_force(memory: Memory, prepared: Prepared) -> Fresh:
    """What the model will have been told with what was recorded since, too."""
    fresh = prepared.job.fresh
    since = [line.record for line in memory.store.lines() if line.ordinal >= prepared.ordinal]
    settings = [record.settings for record in since if isinstance(record, SettingsApplied)]
    world = told_after(fresh.world, prepared.told, since)
    return Fresh(fresh.context, world, settings[-1] if settings else fresh.settings)


def aside(path: Path, **options: Any) -> Session:
    """A session in this process only, with what a file holds: nothing that is done in it is kept. Raises as
    `Session.resume` does; `options` are the same."""
    from refold.rollout import MemoryStore
    from refold.session.beginning import directory_of, model_for, surroundings
    from refold.session.clock import Clock
    from refold.session.memory import read_thread
    from refold.session.scope import Scope
    from refold.session.session import Session
    from refold.tools import Toolbox

    config, home, tools = options["config"], options["home"], options.get("tools", ())
    thread = read_thread(path)
    answering = model_for(options.get("model"), config, thread)
    where = surroundings(directory_of(thread, options.get("cwd")), home, config, tools, None)
    memory = Memory(MemoryStore(thread.id), thread, answering.profile, config, Clock())
    return Session(memory, Scope(memory, answering, Toolbox(tools), where, None))
