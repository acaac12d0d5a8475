"""Said: what a user says in one message: text, with images and audio beside it (spec §3.2; oracle, r_images)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from refold.core.fragments import KIND_AUDIO, KIND_IMAGE, KIND_TYPED, image_label
from refold.core.items import Part
from refold.errors import ConfigError

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
DETAIL = "high"

Parts = tuple[tuple[str, str | Part], ...]  # (kind, text or part)


def said(text: str, images: Sequence[str | Path] = (), audio: Sequence[str | Path] = ()) -> Parts:
    """The parts of a message, each with its kind. An image or a sound is a file, or a URL (`https:` or `data:`).

    Each image is labelled by its number and path. Raises ConfigError for a file that is missing or of another kind.
    """
    parts: list[tuple[str, str | Part]] = []
    for number, image in enumerate(images, 1):
        name = str(image)
        url = name if _is_url(name) else _inline("image", Path(name))
        parts += [
            (KIND_TYPED, image_label(number, None if _is_url(name) else name)),
            (KIND_IMAGE, {"type": "input_image", "image_url": url, "detail": DETAIL}),
            (KIND_TYPED, "</image>"),
        ]
    for sound in map(str, audio):
        url = sound if _is_url(sound) else _inline("audio", Path(sound))
        parts.append((KIND_AUDIO, {"type": "input_audio", "audio_url": url}))
    return (*parts, (KIND_TYPED, text))


def _is_url(name: str) -> bool:
    return name.startswith(("https:", "http:", "data:"))


def _inline(what: Literal["image", "audio"], path: Path) -> str:
    """A file as a data URL."""
    try:
        if not path.is_file():  # a pipe or a device may never end
            path.stat()
            raise ConfigError(what, f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(what, f"{path} is larger than {MAX_BYTES // 2**20} MiB; make it smaller")
    except OSError as error:
        raise ConfigError(what, f"{path} cannot be read: {error.strerror}") from None
    for start, kind in IMAGE_TYPES if what == "image" else AUDIO_TYPES:
        if data.startswith(start) and (start != b"RIFF" or data[8:12] == RIFF_KINDS[what]):
            return f"data:{kind};base64,{base64.b64encode(data).decode()}"
    wanted = "a PNG, JPEG, GIF or WebP image" if what == "image" else "a WAV or MP3 file"
    raise ConfigError(what, f"{path} is not {wanted}")
