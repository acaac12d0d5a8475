"""Server-sent events: bytes in, (event, data) pairs out, whatever way the network cut them (spec §9.3).

Sans-IO, after the WHATWG rules: lines end at CR, LF or CRLF and nowhere else, so splitting happens on bytes and
text is decoded only when an event is whole; a character can never be cut.
"""

from __future__ import annotations

from refold.errors import BadModelStream

LARGEST_EVENT = 64 * 1024 * 1024  # bytes; an endless line must not fill the memory (inline images are far below)

_BOM = b"\xef\xbb\xbf"
_NO_NAME = "message"  # the name of an event that does not give one


class SseDecoder:
    """Mutable because a stream has a position: the unfinished line and the event under construction.

    An event that the end of the stream leaves unfinished is dropped: nobody has to close the decoder.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._line_bytes = 0
        self._name = _NO_NAME
        self._data: list[bytes] = []  # the event's data lines so far
        self._data_bytes = 0
        self._at_start = True  # a byte order mark may come
        self._after_cr = False  # a LF at the start of the next chunk belongs to a line end already seen

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """The events that `chunk` completes, in order. Raises BadModelStream for an event above LARGEST_EVENT."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        events: list[tuple[str, str]] = []
        for line in self._ended_lines(chunk):
            if line.startswith(b"data:"):
                self._add_data(line[5:])
            elif line:
                self._read_field(line)
            else:
                if self._data:
                    events.append((self._name, b"\n".join(self._data).decode("utf-8", "replace")))
                    self._data, self._data_bytes = [], 0
                self._name = _NO_NAME
        if self._line_bytes + self._data_bytes > LARGEST_EVENT:
            raise BadModelStream(f"stream disconnected: one event is larger than {LARGEST_EVENT:,} bytes")
        return events

    def _ended_lines(self, chunk: bytes) -> list[bytes]:
        """The lines that end in `chunk`, without their ends; what follows the last end is kept for later."""
        if b"\n" not in chunk and b"\r" not in chunk:
            self._keep(chunk)
            return []
        if self._line:
            chunk = b"".join((*self._line, chunk))
            self._line, self._line_bytes = [], 0
        lines = chunk.splitlines()  # of bytes: at CR, LF and CRLF only
        if self._at_start:
            lines[0] = lines[0].removeprefix(_BOM)
            self._at_start = False
        if chunk[-1:] not in b"\r\n":
            self._keep(lines.pop())
        self._after_cr = chunk.endswith(b"\r")
        return lines

    def _keep(self, piece: bytes) -> None:
        self._line.append(piece)
        self._line_bytes += len(piece)

    def _read_field(self, line: bytes) -> None:
        """Any line but a `data:` one. Comments, `id`, `retry` and unknown fields say nothing that is needed here."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace") or _NO_NAME
        elif field == b"data":
            self._add_data(value)

    def _add_data(self, value: bytes) -> None:
        value = value.removeprefix(b" ")
        self._data.append(value)
        self._data_bytes += len(value)
