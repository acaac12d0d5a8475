"""Damaged files: builders of rollout lines, and the faults that disks, editors and crashes make in them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if sys.version_info >= (3, 14):
    pass
else:
    pass

DATA = Path(__file__).parents[1] / "data"
CASES, ROLLOUTS = DATA / "cases", DATA / "oracle" / "rollouts"
AT = "2026-01-01T00:00:00.000Z"


def line(kind: str, payload: Any, ordinal: Any = None, **more: Any) -> dict[str, Any]:
    numbered = {} if ordinal is None else {"ordinal": ordinal}
    return {"timestamp": AT, **numbered, "type": kind, "payload": payload, **more}


def meta(ordinal: Any = None, **more: Any) -> dict[str, Any]:
    told = {"id": "T", "timestamp": AT, "cwd": "/w", "originator": "x", "base_instructions": {"text": "Do."}, **more}
    return line("session_meta", told, ordinal)


def said(text: str, ordinal: Any = None, role: str = "user") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
    return line("response_item", item, ordinal)


def item(kind: str, ordinal: Any = None, **more: Any) -> dict[str, Any]:
    return line("response_item", {"type": kind, **more}, ordinal)


def call(call_id: str = "c1") -> dict[str, Any]:
    return item("function_call", name="look", arguments="{}", call_id=call_id)


def output(call_id: str = "c1") -> dict[str, Any]:
    return item("function_call_output", call_id=call_id, output="seen")


def event(kind: str, **more: Any) -> dict[str, Any]:
    return line("event_msg", {"type": kind, **more})


def checkpoint(*items: Any, **more: Any) -> dict[str, Any]:
    return line("compacted", {"message": "", "replacement_history": list(items), "window_number": 1, **more})


def jsonl(*values: Any) -> bytes:
    return b"".join(
        value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode() + b"\n"
        for value in values
    )


def packed(data: bytes) -> bytes:
    """The bytes as zstd compresses them."""
    return zstd.compress(data)


def written(folder: Path, data: bytes, name: str = "rollout.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The bytes with a few faults of the kinds that disks, editors and crashes make."""
    for _ in range(draw.randint(1, 6)):
        data = draw.choice(FAULTS)(data, draw)
    return data


def _flip(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.randint(0, 3)) + data[at + draw.randint(0, 3) :]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _unfold(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    return b"\n".join(lines[:at]) + draw.choice([b"", b"\r\n", b"\n\n", b"\0\0", b" "]) + b"\n".join(lines[at:])


def _shuffle(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
    return b"".join([*lines[:to], lines[at], *lines[to:]])


def _drop(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at = draw.randrange(len(lines))
    return b"".join(lines[:at] + lines[at + 1 :])


def _junk(data: bytes, draw: random.Random) -> bytes:
    junk = [
        b"null",
        b"\xff\xfe{\0}\0",
        b"[" * 3_000,
        b'{"a":1}',
        b'{"type":"compacted","payload":{"replacement_history":7}}',
    ]
    return data + draw.choice(junk) + draw.choice([b"", b"\n"])


def _value(data: bytes, draw: random.Random) -> bytes:
    old = draw.choice(
        [b'"ordinal":1', b'"user"', b'"turn_id":', b'"payload":{', b'"id":', b'"type":"message"', b"true"]
    )
    new = draw.choice([b"null", b'"\\ud800"', b"1e999", b"[]", b'"x\tx"', b'"ordinal":-3', b"{", b'"ordinal":99999'])
    return data.replace(old, new, draw.randint(1, 3))


def _mark(data: bytes, draw: random.Random) -> bytes:
    return b"\xef\xbb\xbf" + data if draw.random() < 0.5 else data.replace(b"\n", b"\r\n")


FAULTS: list[Callable[[bytes, random.Random], bytes]] = [_flip, _cut, _unfold, _shuffle, _drop, _junk, _value, _mark]
SOURCES = [
    *sorted(ROLLOUTS.glob("[abdimnt]_*.jsonl")),
    *sorted(CASES.glob("S1[489]*/**/*.jsonl")),
    *sorted(CASES.glob("S2[0138]*/**/*.jsonl")),
]
