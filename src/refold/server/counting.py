"""Counting: the tokens of an input: estimated, or counted in OpenAI's vocabulary where the extra `tokens` is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from refold.core.history import entry
from refold.core.items import BODY_KEYS, Item, content_parts
from refold.core.jsonio import dump, is_list
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for
from refold.server.incoming import Asked, Given

VOCABULARY = "o200k_base"
FRAME_TOKENS = 4  # around each item: who speaks, and where it ends


def estimated(asked: Asked, told: Sequence[Given]) -> int:
    """Tokens of a request: a quarter of its bytes, as refold estimates everywhere; tools count as their JSON text."""
    items = sum(entry(given.item, "").tokens for given in told)
    return items + tokens_for(utf8_len(asked.instructions or "")) + tokens_for(len(_tools(asked)))


def counted(asked: Asked, told: Sequence[Given]) -> int:
    """Tokens of a request: its texts counted, media estimated; the same as `estimated` without the extra."""
    count = _counter()
    if count is None:
        return estimated(asked, told)
    items = sum(_of_item(given.item, count) for given in told)
    return items + count(asked.instructions or "") + (count(_tools(asked).decode()) if _tools(asked) else 0)


def _of_item(item: Item, count: Callable[[str], int]) -> int:
    key = BODY_KEYS.get(str(item.get("type")))
    if key is None:
        rest = {name: value for name, value in item.items() if name not in ("id", "status", "encrypted_content")}
        blob = entry({"type": "reasoning", "encrypted_content": item.get("encrypted_content")}, "").tokens
        return count(dump(rest).decode()) + blob + FRAME_TOKENS
    parts = content_parts({key: item.get(key)})
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    others = [part for part in parts if not isinstance(part.get("text"), str)]
    media = entry({"type": "message", "content": others}, "").tokens if others else 0
    return sum(map(count, texts)) + media + FRAME_TOKENS


def _tools(asked: Asked) -> bytes:
    raw = asked.keys.get("tools", b"")
    tools: Any = asked.value("tools")
    return raw if is_list(tools) and tools else b""


@cache
def _counter() -> Callable[[str], int] | None:
    try:
        import quicktok  # type: ignore[import-not-found]
    except ImportError:
        return None
    return quicktok.get_encoding(VOCABULARY).count
