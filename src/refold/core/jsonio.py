"""JSON text ⇄ values, forgiving on the way in, strict UTF-8 on the way out (cases S14, S20)."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_LONE = re.compile("[\ud800-\udfff]")


def dump(value: Any) -> bytes:
    """Compact JSON in strict UTF-8, keys in their order; half a surrogate pair becomes U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(without_lone_surrogates(value))


def load(raw: bytes) -> tuple[Any, str | None]:
    """The value of a JSON text and a warning when something had to be replaced.

    Raises ValueError with one line that says where the text stops being JSON.
    """
    try:
        return _decode(raw), None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _load_forgiving(raw)


def _load_forgiving(raw: bytes) -> tuple[Any, str | None]:
    text = raw.decode("utf-8", "replace")
    warning = "bytes that are not UTF-8 were replaced" if "\ufffd" in text and b"\xef\xbf\xbd" not in raw else None
    try:
        value = json.loads(text, strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    clean = without_lone_surrogates(value)
    return clean, warning or ("half surrogate pairs were replaced" if clean != value else None)


def without_lone_surrogates(value: Any) -> Any:
    """The same value with each lone surrogate as U+FFFD; shares what needs no change."""
    if isinstance(value, str):
        return value if value.isascii() else _LONE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_lone_surrogates(part) for part in value]
    if isinstance(value, dict):
        return {without_lone_surrogates(key): without_lone_surrogates(part) for key, part in value.items()}
    return value
