"""Whole: a line with its long texts, where those lie beside the file (`[rollout] blobs`).

Rule 1: of a checkpoint's history, which a file says again and again, only what is asked for is read.
"""

from __future__ import annotations

from pathlib import Path

from refold.core.jsonio import dump, is_object, load
from refold.rollout.blobs import MARK
from refold.rollout.reader import Reading

CHECKPOINT = b'"type":"compacted"'
HEAD = 128  # bytes in which a line says what it is
HISTORY = ("replacement_history", "replacement_history_metadata")


class Whole:
    """The lines of one file. Mutable: it keeps the text that it read last."""

    def __init__(self, path: Path) -> None:
        self._reading = Reading(path, kept=0)  # an index reads a text once

    def line(self, raw: bytes, *, history: bool = False) -> bytes:
        """A line with its texts in it; a checkpoint's history is left out unless it is asked for."""
        if MARK not in raw:
            return raw
        if not history and CHECKPOINT in raw[:HEAD]:
            raw = _without_history(raw)
        return self._reading.whole(raw)[0]


def _without_history(raw: bytes) -> bytes:
    try:
        value, _ = load(raw.strip(b" \t\r\n"))
    except ValueError:
        return raw
    payload = value.get("payload") if is_object(value) else None
    if not is_object(payload):
        return raw
    return dump({**value, "payload": {**payload, **{key: [] for key in HISTORY if key in payload}}})
