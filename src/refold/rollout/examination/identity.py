"""Identity: which session a file says that it is, and which generation wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from refold.core.jsonio import JSON
from refold.core.records import SessionStarted
from refold.rollout.blobs import MODES

Generation = Literal["refold", "paginated", "legacy", "2025", "bare", "unknown"]

SAID = {
    "refold": "refold's own",
    "paginated": "the real program's, with ordinals",
    "legacy": "the real program's, without ordinals",
    "2025": "the real program's of 2025",
    "bare": "the real program's first, without envelopes",
    "unknown": "of an unknown generation",
}


class Identity:
    """Mutable: it has seen the lines before. The first session_meta line counts."""

    def __init__(self) -> None:
        self.meta: SessionStarted | None = None
        self.metas = 0
        self.version = ""
        self.stamp = ""  # of the first record
        self.generation: Generation = "unknown"
        self.records = 0  # that could be read

    @property
    def mode(self) -> str:
        return self.meta.history_mode if self.meta else ""

    def look(self, value: JSON, record: Any) -> Iterator[tuple[str, str]]:
        """What is odd about the next record as to who the session is: kind and detail."""
        self.records += 1
        if self.records == 1:
            stamp = value.get("timestamp")
            self.stamp = stamp if isinstance(stamp, str) else ""
        if not isinstance(record, SessionStarted):
            if self.records == 1:
                self.generation = "bare" if "payload" not in value else "unknown"
            return
        self.metas += 1
        if self.meta is None:
            self._begin(value, record)
            if self.records > 1:
                yield "meta_late", f"record {self.records}"
            if record.history_mode not in MODES:
                yield "mode_unknown", record.history_mode[:80]
        elif record.thread_id == self.meta.thread_id:
            yield "meta_repeated", ""
        else:
            yield "meta_of_another", record.thread_id[:80]

    def _begin(self, value: JSON, record: SessionStarted) -> None:
        self.meta = record
        told = record.payload
        self.version = str(told.get("cli_version") or "")[:80]
        if "payload" not in value:
            self.generation = "bare"
        elif told.get("originator") == "refold":
            self.generation = "refold"
        elif record.history_mode == "paginated":
            self.generation = "paginated"
        else:
            base = value["payload"]
            self.generation = "legacy" if "history_mode" in base or "base_instructions" in base else "2025"
