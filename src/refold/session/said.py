"""Said: what a user says in one message: text, with images and audio beside it (spec §3.2; oracle, r_images)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from refold.core.fragments import KIND_AUDIO, KIND_IMAGE, KIND_TYPED, image_label
from refold.core.items import Part
from refold.errors import ConfigError
from refold.tools.media_files import Medium, is_url, read_medium

DETAIL = "high"

Parts = tuple[tuple[str, str | Part], ...]  # (kind, text or part)


def said(text: str, images: Sequence[str | Path] = (), audio: Sequence[str | Path] = ()) -> Parts:
    """The parts of a message, each with its kind. An image or a sound is a file, or a URL (`https:` or `data:`).

    Each image is labelled by its number and path. Raises ConfigError for a file that is missing or of another kind.
    """
    parts: list[tuple[str, str | Part]] = []
    for number, image in enumerate(images, 1):
        name = str(image)
        url = name if is_url(name) else _inline("image", Path(name))
        parts += [
            (KIND_TYPED, image_label(number, None if is_url(name) else name)),
            (KIND_IMAGE, {"type": "input_image", "image_url": url, "detail": DETAIL}),
            (KIND_TYPED, "</image>"),
        ]
    for sound in map(str, audio):
        url = sound if is_url(sound) else _inline("audio", Path(sound))
        parts.append((KIND_AUDIO, {"type": "input_audio", "audio_url": url}))
    return (*parts, (KIND_TYPED, text))


def _inline(what: Medium, path: Path) -> str:
    """A file as a data URL."""
    try:
        return read_medium(what, path)
    except ValueError as error:
        raise ConfigError(what, str(error)) from None
