"""Tokens: what an item costs, estimated from sizes that are measured once (spec §1, oracle §4–5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from refold.core.items import Item, Part
from refold.core.jsonio import is_list, is_object
from refold.core.media import IMAGE_BYTES, audio_bytes, image_bytes
from refold.core.truncate import BYTES_PER_TOKEN, tokens_for

BLOB_DIVISOR = 3  # encrypted content: a third of its length counts as bytes, so ceil(len / 12) tokens


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """Bytes of an item that a model will see: text, images at their fixed cost, encrypted content at a third."""

    text: int = 0
    image: int = 0
    blob: int = 0

    @property
    def tokens(self) -> int:
        return (self.text + self.image - (-self.blob // BLOB_DIVISOR) + 3) // BYTES_PER_TOKEN


class Measured(Protocol):
    """What was measured once: sizes, or an entry of a history."""

    @property
    def tokens(self) -> int: ...


def utf8_len(text: str) -> int:
    """Bytes of a text in UTF-8; half a surrogate pair counts as the replacement character that will be sent."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def measure(item: Item) -> Sizes:
    """The sizes of one item (spec §1.2 second generation, as the recorded totals show).

    Raises UnicodeEncodeError when a text that counts holds half a surrogate pair.
    """
    match item.get("type"):
        case "message" | "agent_message":
            return _measure_body(item.get("content"))
        case "function_call" | "custom_tool_call":
            return Sizes(text=_lengths(item, "name", "namespace", "arguments", "input"))
        case "function_call_output" | "custom_tool_call_output":
            body, names = _measure_body(item.get("output")), _lengths(item, "call_id", "name", "namespace")
            return Sizes(body.text + names, body.image, body.blob)
        case "reasoning" | "compaction" | "compaction_summary" | "context_compaction":
            return Sizes(blob=_lengths(item, "encrypted_content"))
        case "image_generation_call":
            return Sizes(text=_lengths(item, "revised_prompt"), image=IMAGE_BYTES if item.get("result") else 0)
        case "additional_tools":
            return Sizes()  # never sent again: tools are a fact of now
        case _:
            return Sizes(text=len(msgspec.json.encode(item)))


def estimate(items: Iterable[Measured], base_instructions: str | None) -> int:
    """Tokens of a whole context: ceil(base bytes / 4) plus each item's; tool schemas are never counted (spec §1.4)."""
    return tokens_for(utf8_len(base_instructions or "")) + sum(item.tokens for item in items)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _lengths(item: Item, *keys: str) -> int:
    total = 0
    for key in keys:
        value = item.get(key)
        if value is None:
            continue
        if isinstance(value, str):
            total += len(value) if value.isascii() else len(value.encode())
        elif key in ("arguments", "input"):
            total += len(msgspec.json.encode(value))
    return total


def _measure_body(body: Any) -> Sizes:
    if isinstance(body, str):
        return Sizes(text=_bytes(body))
    if not is_list(body):
        return Sizes()
    if len(body) == 1 and is_object(body[0]):  # most are
        return _measure_part(body[0])
    text = image = blob = 0
    for part in body:
        if is_object(part):
            size = _measure_part(part)
            text, image, blob = text + size.text, image + size.image, blob + size.blob
    return Sizes(text, image, blob)


def _measure_part(part: Part) -> Sizes:
    text = part.get("text")
    if isinstance(text, str):
        return Sizes(_bytes(text))
    match part.get("type"):
        case "input_image":
            inline = image_bytes(part)
            return Sizes(text=_lengths(part, "image_url")) if inline is None else Sizes(image=inline[0], text=inline[1])
        case "input_audio" if (size := audio_bytes(part)) is not None:
            return Sizes(text=size)
        case "encrypted_content":
            return Sizes(text=-(-_lengths(part, "encrypted_content") * 9 // 16))
        case _:
            return Sizes(text=sum(_bytes(value) for value in part.values() if isinstance(value, str)))
