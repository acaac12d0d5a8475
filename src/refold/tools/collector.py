"""Collector: the first and the last half MiB of a byte stream, in constant memory (oracle §3 rule 1)."""

from __future__ import annotations

from refold.core.truncate import Captured

KEPT_BYTES = 1 << 20  # what the real program keeps of one command's output
HEAD_BYTES = KEPT_BYTES // 2
TAIL_BYTES = KEPT_BYTES - HEAD_BYTES


class Collector:
    """Takes a command's output chunk by chunk and keeps its two ends.

    Mutable because it stands at the end of a pipe. It never holds more than the head, two tails and one chunk.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._newlines = 0
        self._last = b""
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        if not chunk:
            return
        self.total_bytes += len(chunk)
        self._newlines += chunk.count(b"\n")
        self._last = chunk[-1:]
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._keep_tail(chunk)

    def _keep_tail(self, chunk: bytes) -> None:
        if len(chunk) >= TAIL_BYTES:
            self._tail = bytearray(chunk[-TAIL_BYTES:])
            return
        self._tail += chunk
        # Trimmed at twice its size and not each time, so that small chunks do not move half a MiB apiece.
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def last(self, most: int) -> bytes:
        """The newest bytes that are held, at most so many."""
        held = self._tail if len(self._tail) >= most else self._head[-most:] + self._tail
        return bytes(held[-most:])

    def captured(self) -> Captured:
        """What is held now; the collector may go on afterwards."""
        tail = bytes(self._tail[-TAIL_BYTES:])
        return Captured(
            head=bytes(self._head),
            tail=tail,
            omitted=self.total_bytes - len(self._head) - len(tail),
            total_bytes=self.total_bytes,
            lines=self._newlines + (1 if self._last not in (b"", b"\n") else 0),
        )
