"""Media: what images and audio cost a model, by their own headers, never by their base64 (spec §1.2–1.3)."""

from __future__ import annotations

import base64
import re
import struct
from typing import Any

from refold.core.items import Part

IMAGE_BYTES = 7_373  # what one image costs, as bytes of text
PATCH_PIXELS = 32  # an image in its original size costs one token for each patch of so many pixels squared
MAX_PATCHES = 10_000
AUDIO_TOKENS_PER_SECOND = 10
COMPRESSED_BYTES_PER_SECOND = 16_000  # 128 kbit/s, where the header tells no rate
HEAD_CHARS = 128 * 1024  # of the base64 that are looked at: enough for the header of any camera's JPEG

INLINE_IMAGE = re.compile(r"data:image/[^,]*;base64,", re.IGNORECASE)
INLINE_AUDIO = re.compile(r"data:audio/[^,]*;base64,", re.IGNORECASE)


def image_bytes(part: Part) -> tuple[int, int] | None:
    """(bytes that stand for the picture, bytes of the URL's beginning that count as text); None for a plain address."""
    url = str(part.get("image_url") or "")
    head = INLINE_IMAGE.match(url[:256])
    if head is None:
        return None
    if part.get("detail") != "original":
        return IMAGE_BYTES, head.end()
    size = picture_size(_decoded(url[head.end() : head.end() + HEAD_CHARS]))
    if size is None:
        return IMAGE_BYTES, head.end()
    across, down = (-(-pixels // PATCH_PIXELS) for pixels in size)
    return 4 * min(MAX_PATCHES, across * down), head.end()


def audio_bytes(part: Part) -> int | None:
    """Bytes of text that an inline audio part stands for: 10 tokens a second; None for a plain address."""
    match part:
        case {"audio_url": str(url)} if head := INLINE_AUDIO.match(url[:256]):
            data = url[head.end() :]
        case {"input_audio": {"data": str(data)}}:
            pass
        case _:
            return None
    rate = _wav_rate(_decoded(data[:64])) or COMPRESSED_BYTES_PER_SECOND
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return 4 * -(-size * AUDIO_TOKENS_PER_SECOND // rate)


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, GIF or JPEG, from its first bytes; None where they do not tell."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    if data.startswith(b"GIF8") and len(data) >= 10:
        return struct.unpack("<HH", data[6:10])
    if data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """From the first start-of-frame segment."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _wav_rate(data: bytes) -> int | None:
    """Bytes per second of a WAV file."""
    if data[:4] != b"RIFF" or data[8:16] != b"WAVEfmt " or len(data) < 32:
        return None
    return int.from_bytes(data[28:32], "little") or None


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text[: len(text) // 4 * 4])
    except ValueError:
        return b""
