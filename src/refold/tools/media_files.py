"""Media files: an image or a sound as the data URL that an item holds (spec §3.2)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Literal

IMAGE_TYPES = (  # how a file begins, and what it is then
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"RIFF", "image/webp"),
)
AUDIO_TYPES = ((b"RIFF", "audio/wav"), (b"ID3", "audio/mpeg"), (b"\xff\xfb", "audio/mpeg"), (b"\xff\xf3", "audio/mpeg"))
MAX_BYTES = 50 * 1024 * 1024  # no provider takes more in one request
RIFF_KINDS = {"image": b"WEBP", "audio": b"WAVE"}
WANTED = {"image": "a PNG, JPEG, GIF or WebP image", "audio": "a WAV or MP3 file"}

Medium = Literal["image", "audio"]


def is_url(name: str) -> bool:
    """Whether a name is an address, not a file."""
    return name.startswith(("https:", "http:", "data:"))


def read_medium(what: Medium, path: Path) -> str:
    """A file as a data URL. Raises ValueError that names the file and says what is wrong with it."""
    try:
        if not path.is_file():  # a pipe or a device may never end
            path.stat()
            raise ValueError(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES // 2**20} MiB; make it smaller")
    return data_url(what, data, str(path))


def data_url(what: Medium, data: bytes, name: str) -> str:
    """Bytes as a data URL; the kind is told by how they begin. Raises ValueError for what is no such medium."""
    for start, kind in IMAGE_TYPES if what == "image" else AUDIO_TYPES:
        if data.startswith(start) and (start != b"RIFF" or data[8:12] == RIFF_KINDS[what]):
            return f"data:{kind};base64,{base64.b64encode(data).decode()}"
    raise ValueError(f"{name} is not {WANTED[what]}")
