"""Said: what a user says in one message: text, with images beside it (spec §3.2; oracle, r_images)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from refold.core.fragments import KIND_IMAGE, KIND_TYPED, image_label
from refold.core.items import Part
from refold.errors import ConfigError

IMAGE_TYPES = (  # how a file begins, and what it is then
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"RIFF", "image/webp"),
)
MAX_IMAGE_BYTES = 50 * 1024 * 1024  # no provider takes more in one request
DETAIL = "high"

Parts = tuple[tuple[str, str | Part], ...]  # (kind, text or part)


def said(text: str, images: Sequence[str | Path] = ()) -> Parts:
    """The parts of a message, each with its kind. An image is a file, or a URL (`https:` or `data:`).

    Each is labelled by its number and path. Raises ConfigError for a file that is missing or no image.
    """
    parts: list[tuple[str, str | Part]] = []
    for number, image in enumerate(images, 1):
        name = str(image)
        is_url = name.startswith(("https:", "http:", "data:"))
        url = name if is_url else _inline(Path(name))
        parts += [
            (KIND_TYPED, image_label(number, None if is_url else name)),
            (KIND_IMAGE, {"type": "input_image", "image_url": url, "detail": DETAIL}),
            (KIND_TYPED, "</image>"),
        ]
    return (*parts, (KIND_TYPED, text))


def _inline(path: Path) -> str:
    """An image file as a data URL."""
    try:
        if not path.is_file():  # a pipe or a device may never end
            path.stat()
            raise ConfigError("image", f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
        if len(data) > MAX_IMAGE_BYTES:
            raise ConfigError("image", f"{path} is larger than {MAX_IMAGE_BYTES // 2**20} MiB; make it smaller")
    except OSError as error:
        raise ConfigError("image", f"{path} cannot be read: {error.strerror}") from None
    for start, kind in IMAGE_TYPES:
        if data.startswith(start) and (kind != "image/webp" or data[8:12] == b"WEBP"):
            return f"data:{kind};base64,{base64.b64encode(data).decode()}"
    raise ConfigError("image", f"{path} is not a PNG, JPEG, GIF or WebP image")
