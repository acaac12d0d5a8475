"""JSON text ⇄ values, forgiving on the way in, strict UTF-8 on the way out (cases S14, S20)."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeAlias, TypeGuard

import msgspec

from refold.errors import UnusableItem

JSON: TypeAlias = dict[str, Any]  # one JSON object

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
MAX_DEPTH = 500  # levels of lists and objects; Python's own readers give up at about a thousand
CHECKPOINT_LEVELS = 8  # that a checkpoint adds around an item, so that what was recorded can be copied into one
TOO_DEEP = f"nested too deeply: more than {MAX_DEPTH - CHECKPOINT_LEVELS} levels"
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_object(value: Any) -> TypeGuard[JSON]:
    """Whether a value that came from JSON is an object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether a value that came from JSON is a list."""
    return isinstance(value, list)


def dump(value: Any) -> bytes:
    """Compact JSON in strict UTF-8, keys in their order; half a surrogate pair becomes U+FFFD.

    Raises UnusableItem for what is nested far too deeply.
    """
    try:
        try:
            return _encode(value)
        except UnicodeEncodeError:
            return _encode(without_lone_surrogates(value))
    except RecursionError:
        raise UnusableItem(TOO_DEEP) from None


def dump_strict(value: Any, *, levels: int = MAX_DEPTH) -> bytes:
    """The same for a log, which must read back as what it was written from.

    Raises UnicodeEncodeError for half a surrogate pair (`without_lone_surrogates` mends it), UnusableItem for what is
    nested so deeply that a reader might not follow.
    """
    try:
        raw = _encode(value)
    except RecursionError:
        raise UnusableItem(TOO_DEEP) from None
    if raw.count(b"[") + raw.count(b"{") > levels and _depth(value) > levels:
        raise UnusableItem(TOO_DEEP)
    return raw


def _depth(value: Any) -> int:
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        inner: list[Any] = []
        for part in level:
            if is_object(part):
                inner += part.values()
            elif is_list(part):
                inner += part
        level = inner
    return depth


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
    value = json.loads(text, strict=False, parse_float=_finite, parse_constant=lambda _: None)
    clean = without_lone_surrogates(value)
    return clean, warning or ("half surrogate pairs were replaced" if clean is not value else None)


def _finite(number: str) -> float | None:
    """JSON knows no infinity: a number beyond all bounds is null, as it will be in the log."""
    value = float(number)
    return value if math.isfinite(value) else None


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
