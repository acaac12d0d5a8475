"""Media cost what their headers say, whatever the length of their base64."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from refold.core.items import Item
from refold.core.media import IMAGE_BYTES, MAX_PATCHES, audio_bytes, image_bytes, picture_size
from refold.core.tokens import measure


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"x" * 5_000


def jpeg(width: int, height: int) -> bytes:
    comment = b"\xff\xfe" + struct.pack(">H", 502) + b"c" * 500
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"f" * 100
    return b"\xff\xd8" + comment + frame


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"g" * 50


def inline(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(data).decode()}", **more}


@pytest.mark.parametrize("made", [png, jpeg, gif])
def test_the_size_of_a_picture_is_in_its_head(made: Any) -> None:
    assert picture_size(made(640, 33)) == (640, 33)


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\x00\x10", b"GIF89a", b"RIFF....WEBP"])
def test_a_head_that_does_not_tell_is_no_error(data: bytes) -> None:
    assert picture_size(data) is None


@pytest.mark.parametrize("made", [png, jpeg, gif])
def test_an_original_costs_a_token_for_each_patch(made: Any) -> None:
    prefix = len("data:image/png;base64,")
    assert image_bytes(inline(made(64, 33), detail="original")) == (4 * 2 * 2, prefix)
    assert image_bytes(inline(made(30_000, 30_000), detail="original")) == (4 * MAX_PATCHES, prefix)
    assert image_bytes(inline(made(64, 33))) == (IMAGE_BYTES, prefix)
    assert image_bytes(inline(made(64, 33), detail="high")) == (IMAGE_BYTES, prefix)


def test_an_original_that_cannot_be_read_costs_what_any_image_does() -> None:
    broken = {"type": "input_image", "image_url": "data:image/png;base64,!!", "detail": "original"}
    assert image_bytes(broken) == (IMAGE_BYTES, len("data:image/png;base64,"))
    assert image_bytes({"type": "input_image", "image_url": "https://e.invalid/a.png"}) is None
    assert image_bytes({"type": "input_image"}) is None


def wav(seconds: float, rate: int = 32_000) -> str:
    head = b"RIFF" + b"size" + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, rate, 2, 16)
    return base64.b64encode(head.ljust(int(rate * seconds), b"\0")).decode()


def test_audio_costs_ten_tokens_a_second() -> None:
    assert audio_bytes({"type": "input_audio", "audio_url": f"data:audio/wav;base64,{wav(3)}"}) == 4 * 30
    assert audio_bytes({"type": "input_audio", "input_audio": {"data": wav(0.5), "format": "wav"}}) == 4 * 5
    compressed = base64.b64encode(b"ID3" + b"m" * 15_997).decode()
    assert audio_bytes({"type": "input_audio", "audio_url": f"data:audio/mpeg;base64,{compressed}"}) == 4 * 10
    assert audio_bytes({"type": "input_audio", "audio_url": "https://e.invalid/a.wav"}) is None


def test_a_message_with_a_minute_of_audio_is_not_counted_by_its_bytes() -> None:
    part = {"type": "input_audio", "audio_url": f"data:audio/wav;base64,{wav(60)}"}
    item: Item = {"type": "message", "role": "user", "content": [part]}
    assert measure(item).tokens == 600
