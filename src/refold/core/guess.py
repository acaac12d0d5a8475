"""Guess: about how many tokens a text is, from what it looks like, where no provider has told any usage.

The protocol's own rule, ceil(bytes / 4), stays in `tokens`: its limits are stated in it. But of logs and JSON it counts
as little as half, of base64 a third. The weights here are fitted to o200k: `bench/estimate.py` finds them and measures
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import msgspec

from refold.core.items import Item, Part
from refold.core.jsonio import dump, is_list, is_object
from refold.core.media import IMAGE_BYTES, audio_bytes, image_bytes
from refold.core.tokens import BLOB_DIVISOR, utf8_len
from refold.core.truncate import tokens_for

WHOLE = 65_536  # bytes of a text that are all looked at; of what follows, one window stands for EVERY of them
WINDOW = 256
EVERY = 8
BETWEEN = b"\xff "  # two texts that are weighed at once: no byte of UTF-8, then what each text begins with
AT_ONCE = 1 << 20  # bytes that are weighed at once


def _shapes() -> bytes:
    """What each byte of UTF-8 looks like; a character of several bytes looks like its first one."""
    starts = {0x00: "f", 0x20: ".", 0x7F: "f", 0x80: "_", 0xC0: "e", 0xC8: "c"}  # controls, ASCII, inside, é, Cyrillic
    starts |= {0xE0: "t", 0xE3: "k", 0xE4: "h", 0xEA: "g", 0xEE: "t", 0xF0: "f"}  # Thai and …, kana, Han, Hangul, emoji
    table = bytearray(256)
    for start, shape in starts.items():
        table[start:] = shape.encode() * (256 - start)
    alike = {"a": ascii_lowercase, "A": ascii_uppercase, "0": digits, " ": " \t\r\f\v", "\n": "\n", "-": "-=#*~_."}
    for shape, characters in alike.items():
        for byte in characters.encode():
            table[byte] = ord(shape)
    table[BETWEEN[0]] = ord("|")  # in no pattern
    return bytes(table)


SHAPES = _shapes()

# Hundredths of a token that each occurrence of these shapes adds. None is negative, so more text is never less.
WEIGHTS: dict[bytes, int] = {
    # spaces, line ends, indented lines, lines that end in a word
    b" ": 2,
    b"\n": 83,
    b"\n ": 49,
    b"a\n": 39,
    # words by what is before them; long words
    b" a": 93,
    b"\na": 80,
    b".a": 148,
    b"-a": 114,
    b"aaaaaaaa": 80,
    # Words, CONSTANTS, base64
    b" A": 4,
    b"-A": 101,
    b"Aa": 115,
    b"AAa": 131,
    b"AAA": 80,
    # numbers by what is before them; long numbers
    b" 0": 232,
    b".0": 145,
    b"-0": 201,
    b"a0": 199,
    b"A0": 323,
    b"000": 83,
    # punctuation; what also makes up rulers and paths: =====, a.b
    b".": 28,
    b" .": 50,
    b"-": 2,
    b" -": 82,
    # other scripts, by the first byte of a character
    b"e": 124,
    b"c": 27,
    b"t": 30,
    b"k": 68,
    b"h": 83,
    b"g": 73,
    b"f": 200,
}


def guess_text(text: str) -> int:
    """About the o200k tokens of a text. Appending to a text never lowers it."""
    return -(-_hundredths(text) // 100)


class Guess(msgspec.Struct, frozen=True):
    """About how much something is, so that guesses of its parts can be added up."""

    hundredths: int = 0  # of a token, of texts
    known_bytes: int = 0  # of what is no text

    @property
    def tokens(self) -> int:
        return -(-self.hundredths // 100) + tokens_for(self.known_bytes)

    def __add__(self, other: Guess) -> Guess:
        return Guess(self.hundredths + other.hundredths, self.known_bytes + other.known_bytes)


def guess_items(items: Iterable[Item]) -> Guess:
    """About how much items are: the texts that a model will see; images and encrypted content as in `tokens`."""
    hundredths = known_bytes = waiting = 0
    texts: list[bytes] = []
    for item in items:
        for seen in _seen(item):
            if not isinstance(seen, str):
                known_bytes += seen
            elif seen:
                raw = seen.encode("utf-8", "surrogatepass")
                hundredths += _rest(raw)
                texts.append(raw[:WHOLE])
                waiting += len(texts[-1])
        if waiting > AT_ONCE:
            hundredths += _weigh(BETWEEN + BETWEEN.join(texts))
            texts, waiting = [], 0
    return Guess(hundredths + (_weigh(BETWEEN + BETWEEN.join(texts)) if texts else 0), known_bytes)


def guess_item(item: Item) -> int:
    """About the tokens of one item."""
    return guess_items((item,)).tokens


def _hundredths(text: str) -> int:
    if not text:
        return 0
    raw = text.encode("utf-8", "surrogatepass")
    return _weigh(b" " + raw[:WHOLE]) + _rest(raw)


def _rest(raw: bytes) -> int:
    """What follows a text's first part, by windows."""
    if len(raw) <= WHOLE:
        return 0
    windows = (raw[start : start + WINDOW] for start in range(WHOLE, len(raw), WINDOW * EVERY))
    return EVERY * _weigh(b"".join(windows))


def _weigh(raw: bytes) -> int:
    shapes = raw.translate(SHAPES)
    return sum(weight * shapes.count(pattern) for pattern, weight in WEIGHTS.items())


# --- what a model will see of an item: the walk of `tokens.measure` ------------------------------------------


def _seen(item: Item) -> Iterator[str | int]:
    """Its texts, and the bytes that stand for what is no text."""
    match item.get("type"):
        case "message" | "agent_message":
            yield from _seen_body(item.get("content"))
        case "function_call" | "custom_tool_call":
            yield from _texts(item, "name", "namespace", "arguments", "input")
        case "function_call_output" | "custom_tool_call_output":
            yield from _seen_body(item.get("output"))
            yield from _texts(item, "call_id", "name", "namespace")
        case "reasoning" | "compaction" | "compaction_summary" | "context_compaction":
            yield -(-sum(map(utf8_len, _texts(item, "encrypted_content"))) // BLOB_DIVISOR)
        case "image_generation_call":
            yield from _texts(item, "revised_prompt")
            yield IMAGE_BYTES if item.get("result") else 0
        case "additional_tools":
            pass
        case _:
            yield dump(item).decode()


def _texts(item: Item, *keys: str) -> Iterator[str]:
    for key in keys:
        value = item.get(key)
        if isinstance(value, str):
            yield value
        elif value is not None and key in ("arguments", "input"):
            yield dump(value).decode()


def _seen_body(body: Any) -> Iterator[str | int]:
    if isinstance(body, str):
        yield body
    elif is_list(body):
        for part in body:
            if is_object(part):
                yield from _seen_part(part)


def _seen_part(part: Part) -> Iterator[str | int]:
    if isinstance(part.get("text"), str):
        yield part["text"]
        return
    match part.get("type"):
        case "input_image":
            picture, start = image_bytes(part) or (0, None)
            yield from (url[:start] for url in _texts(part, "image_url"))
            yield picture
        case "input_audio" if (size := audio_bytes(part)) is not None:
            yield size
        case "encrypted_content":
            yield -(-sum(map(utf8_len, _texts(part, "encrypted_content"))) * 9 // 16)
        case _:
            yield from (value for value in part.values() if isinstance(value, str))
