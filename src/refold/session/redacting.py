"""Redacting: what a session does to each record before it is kept; nothing, unless its settings say so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold.core.items import Item
from refold.core.records import Record
from refold.core.redaction_settings import RedactionSettings, check_redaction
from refold.core.world import World

if TYPE_CHECKING:
    from refold.core.redaction import Redaction


class Redacting:
    """Compiled once a session; the environment is that of now. Raises ConfigError for a pattern that is none."""

    def __init__(self, settings: RedactionSettings) -> None:
        self._redaction: Redaction | None = None
        if settings.is_on:
            from refold.core.redaction import Redaction

            self._redaction = Redaction(check_redaction(settings, "Config"), os.environ)

    def records(self, records: Sequence[Record]) -> Sequence[Record]:
        found = self._redaction
        return records if found is None else [found.record(record) for record in records]

    def item(self, item: Item) -> Item:
        return item if self._redaction is None else self._redaction.item(item)

    def world(self, world: World) -> World:
        return world if self._redaction is None else self._redaction.world(world)
