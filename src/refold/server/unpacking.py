"""Unpacking: a body that came compressed with zstd, as Codex sends them for whoever is signed in with ChatGPT.

Rule 1: it never grows beyond the limit of a body, nor does what is needed to unpack it. One frame is taken, as clients
send it: a million empty ones would take minutes.
"""

from __future__ import annotations

import sys

from refold.errors import RequestRefused

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODING = "zstd"
# Powers of two, in bytes. RFC 8878 asks everybody to take 8 MiB; a frame may ask for gigabytes.
LARGEST_WINDOW = 23


def unpacked(body: bytes, most: int) -> bytes:
    """The body, which is one frame. Raises RequestRefused: 413 when it has more than `most` bytes, 400 when it is no
    whole frame, or more than one."""
    frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: LARGEST_WINDOW})
    try:
        told = frame.decompress(body, max_length=most + 1)
    except zstd.ZstdError:
        raise _unreadable() from None
    if len(told) > most:
        raise too_large(most)
    if not frame.eof or frame.unused_data:
        raise _unreadable()
    return told


def too_large(most: int) -> RequestRefused:
    return RequestRefused(f"The body is larger than {most:,} bytes.", status=413, code="request_too_large")


def _unreadable() -> RequestRefused:
    return RequestRefused(f"The body could not be unpacked: it is not one whole frame of {ENCODING}.")
