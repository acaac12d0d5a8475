"""Media: how many bytes of images and sounds a file holds, how many of them again, and which are very large.

Rule 1: nothing is decoded; of each payload its hash and its size are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MARKS = (b'"data:', b'"result":"', b'"input_audio"')  # what stands before a payload; a line without is not looked into
SMALLEST = 4_096  # bytes of base64: smaller ones are not counted
LARGE = 5 << 20  # bytes of base64: what the strictest of the usual providers take for one image
REPEATED = 1 << 20  # bytes in copies from which on they are worth a remark

_PAYLOAD = re.compile(rb'"(?:data:[^",\\]{1,200},)?([A-Za-z0-9+/=_-]{%d,})"' % SMALLEST)


class Media:
    """Mutable: it has seen the lines before. Bytes as they stand in the file."""

    def __init__(self) -> None:
        self.count = self.size = 0
        self.repeats = self.repeated = 0  # how often one came again, and how many bytes these copies are
        self._known: set[tuple[int, int]] = set()

    def look(self, raw: bytes) -> Iterator[int]:
        """Count a line's payloads; the sizes of those that are very large."""
        if len(raw) < SMALLEST or not any(mark in raw for mark in MARKS):
            return
        for found in _PAYLOAD.finditer(raw):
            payload = found[1]
            size, key = len(payload), (len(payload), hash(payload))
            self.count += 1
            self.size += size
            if key in self._known:
                self.repeats += 1
                self.repeated += size
            self._known.add(key)
            if size > LARGE:
                yield size
