"""JSON text ⇄ values, forgiving on the way in, strict UTF-8 on the way out (cases S14, S20)."""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias, TypeGuard

import msgspec

JSON: TypeAlias = dict[str, Any]  # one JSON object

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_object(value: Any) -> TypeGuard[JSON]:
    """Whether a value that came from JSON is an object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether a value that came from JSON is a list."""
    return isinstance(value, list)


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
        try:
            return _decode(raw), None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _load_forgiving(raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg.removesuffix(' at')} at character {error.pos}") from None


def _load_forgiving(raw: bytes) -> tuple[Any, str | None]:
    try:
        text, warning = raw.decode(), None
    except UnicodeDecodeError:
        text, warning = raw.decode("utf-8", "replace"), "bytes that are not UTF-8 were replaced"
    value = json.loads(text, strict=False)
    clean = without_lone_surrogates(value)
    return clean, warning or ("half surrogate pairs were replaced" if clean is not value else None)


def without_lone_surrogates(value: Any) -> Any:
    """The value with each half of a surrogate pair as U+FFFD; the value itself when it holds none."""
    if isinstance(value, str):
        return _well_formed(value)
    if is_list(value):
        parts = [without_lone_surrogates(part) for part in value]
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    if is_object(value):
        pairs = [(without_lone_surrogates(key), without_lone_surrogates(part)) for key, part in value.items()]
        same = all(new is old and part is value[old] for (new, part), old in zip(pairs, value, strict=True))
        return value if same else dict(pairs)
    return value


def _well_formed(text: str) -> str:
    """The text with halves that stand side by side joined, as a parser of their escapes joins them."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
