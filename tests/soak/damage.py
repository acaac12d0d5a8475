"""Damage: whole rollouts to begin with, and what may happen to a file, drawn from a seed."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from odd_items import BROKEN_BYTES, DATA, KEYS, Draw

from refold.core.config import Config
from refold.core.jsonio import dump, load
from refold.core.profile import Profile, Provider
from refold.core.records import LineKept, Named, SteerQueued
from refold.errors import UnusableItem
from refold.model.scripted import ScriptedModel
from refold.session.clock import Clock
from refold.session.session import Session
from refold.testing import call_reply, usage
from refold.tools.functions import tool

Step = tuple[str, Any]  # what is done, and with what; a place is a share of the file's bytes or lines, below 1

OURS = ("ours", "ours, compacted")
UNSURE = (700, 1_100)  # levels: whether so many can be read depends on how deep the reader itself was called
LARGEST_SEED = 80_000  # bytes of a file that is begun with
NUMBERS = ("0", "-1", "1.5", "1e999", "-0", "9" * 20, "9" * 5_000, "1" + "0" * 400 + ".5", "NaN", "0x10", "1e-400")
STRANGE = (
    None, True, [], {}, "", "x", -1, 0, 1.5, 10**30, 2**63, -(2**63) - 1, 1e300, [[]], [None], {"": None}, [1, "a"],
    "\ud83d", "\x00", "compacted", "refold", {"type": "message"}, [{"type": "message"}], {"text": 5}, {"text": {}},
)  # fmt: skip
LINES = (
    b"",
    b"  \t ",
    b"null",
    b"5",
    b"[]",
    b"{}",
    b'"text"',
    b"{",
    b"\x00" * 300,
    b"\xff\xfe{\x00}\x00",
    b"[" * 20_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"timestamp":"x","ordinal":1,"type":"compacted","payload":{"message":"","replacement_history":[]}}',
    b'{"timestamp":"x","ordinal":99999999999999999999,"type":"event_msg","payload":{"type":"thread_rolled_back","num_turns":1}}',
    b'{"timestamp":"x","type":"event_msg","payload":{"type":"thread_rolled_back","num_turns":1e18}}',
    b'{"timestamp":"x","type":"session_meta","payload":{"id":"other","history_base":{"thread_id":"other","end_ordinal_exclusive":3}}}',
    b'{"timestamp":"x","type":"inter_agent_communication","payload":{"content":5}}',
)


# --- whole files -----------------------------------------------------------------------------------------------------


@cache
def seeds() -> dict[str, bytes]:
    """Files by their names: the real program's, those of the cases, and two of our own."""
    found: dict[str, bytes] = {}
    for path in sorted(DATA.rglob("*.jsonl")):
        raw = path.read_bytes()
        if len(raw) <= LARGEST_SEED and path.parent != DATA:
            found[str(path.relative_to(DATA))] = raw
    return {**found, **{name: _own_file(compacts=name == OURS[1]) for name in OURS}}


class Counting(Clock):
    """A clock that stands still and whose ids count, so that a file is the same every time."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = 0

    def uuid(self) -> str:
        self._ids += 1
        return f"0190bbbb-0000-7000-8000-{self._ids:012x}"

    def timestamp(self) -> str:
        return "2026-05-04T12:00:00.000Z"

    def now(self) -> datetime:
        return datetime(2026, 5, 4, 12, tzinfo=UTC)

    def seconds(self) -> int:
        return 1_777_896_000

    def monotonic(self) -> float:
        return 0.0

    def chunk_id(self) -> str:
        return "c0ffee"


def _own_file(*, compacts: bool) -> bytes:
    """What refold writes, with every kind of line that it has."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return asyncio.run(_session(Path(folder), compacts)).replace(folder.encode(), b"/h")


async def _session(home: Path, compacts: bool) -> bytes:
    """The file of a session that is played under a home."""

    @tool
    async def look(text: str) -> str:
        """Looks."""
        session.steer("and be brief")
        return text * 900

    replies = [call_reply("look", {"text": "x"}, usage=usage(900, 9)), *["answer"] * 3]
    profile = Profile(slug="m", context_window=50_000)
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
    model = ScriptedModel(lambda _: replies.pop(0) if replies else "SUMMARY", profile=profile, provider=provider)
    options: dict[str, Any] = {"model": model, "tools": [look], "cwd": "/", "home": home, "config": Config()}
    async with Session.start(instructions="BASE", clock=Counting(), **options) as session:
        memory = session.memory
        await session.send("look: Grüße 🙂")
        session.pin(memory.thread.history[-1].address)
        if compacts:
            await session.compact()
            await session.send("and now?")
            await session.undo()
        await session.send("the last one")
        memory.record(Named("a name"), SteerQueued("msg_s", "hurry"), LineKept("of_tomorrow", {}))
        memory.add({"type": "compaction", "encrypted_content": "Zm9v" * 20})
    assert session.path is not None
    return session.path.read_bytes()


# --- what happens to one ---------------------------------------------------------------------------------------------


def damage_of(draw: Draw) -> list[Step]:
    """A file, and what is done to it, one after the other."""
    name = draw.one_of(OURS) if draw.once_in(3) else draw.one_of(sorted(seeds()))
    steps: list[Step] = [("begin with", name)]
    for _ in range(draw.one_of((1, 1, 2, 3, 5, 9))):
        steps.append(_one(draw))
    if draw.once_in(25):
        steps.append(("compress", draw.below(3)))
        if draw.once_in(2):
            steps.append(draw.one_of((("cut", _share(draw)), ("flip a byte", [_share(draw), draw.below(256)]))))
    return steps


def _one(draw: Draw) -> Step:
    match draw.below(21):
        case 0 | 1:
            return "flip a byte", [_share(draw), draw.below(256)]
        case 2:
            return "cut", _share(draw)
        case 3:
            return "remove bytes", [_share(draw), draw.one_of((1, 2, 10, 100, 5_000))]
        case 4:
            return "put bytes", [_share(draw), draw.one_of(BROKEN_BYTES).decode("latin-1")]
        case 5:
            return "swap lines", [_share(draw), _share(draw)]
        case 6:
            return "double a line", [_share(draw), draw.one_of((1, 1, 2, 40))]
        case 7:
            return "drop a line", _share(draw)
        case 8:
            return "glue lines", _share(draw)
        case 9:
            return "put a line", [_share(draw), draw.below(len(LINES))]
        case 10:
            return "mix in a file", [_share(draw), draw.one_of(sorted(seeds())), _share(draw), 1 + draw.below(8)]
        case 11:
            return "spell another way", draw.one_of(("crlf", "mark", "no last newline", "spaced", "no ordinals"))
        case 12:
            return "another number", [_share(draw), draw.one_of(NUMBERS)]
        case 13:
            return "drop a key", [_share(draw), _share(draw)]
        case 14:
            return "another key", [_share(draw), _share(draw), draw.one_of(KEYS)]
        case 15:
            return "deeper", [_share(draw), _share(draw), draw.one_of((3, 240, 600, 5_000))]
        case 16:
            return "another item", [_share(draw), dump(draw.item()).decode()]
        case _:
            value = draw.one_of(STRANGE) if draw.once_in(2) else draw.value()
            return "another value", [_share(draw), _share(draw), dump(value).decode()]


def _share(draw: Draw) -> float:
    return draw.below(1_000_000) / 1_000_000


def damaged(steps: list[Step]) -> bytes:
    """The file that these steps leave."""
    raw = b""
    for what, given in steps:
        raw = _done(raw, what, given)
    return raw


def _done(raw: bytes, what: str, given: Any) -> bytes:
    match what, given:
        case "begin with", str(name):
            return seeds()[name]
        case "flip a byte", [float(share), int(byte)]:
            at = int(share * len(raw))
            return raw[:at] + bytes([byte]) + raw[at + 1 :]
        case "cut", float(share):
            return raw[: int(share * len(raw))]
        case "remove bytes", [float(share), int(count)]:
            at = int(share * len(raw))
            return raw[:at] + raw[at + count :]
        case "put bytes", [float(share), str(text)]:
            at = int(share * len(raw))
            return raw[:at] + text.encode("latin-1") + raw[at:]
        case "spell another way", str(way):
            return _spelled(raw, way)
        case "compress", int(frames):
            return _compressed(raw, frames)
        case _:
            lines = raw.split(b"\n")
            _done_to_lines(lines, what, given)
            return b"\n".join(lines)


def _done_to_lines(lines: list[bytes], what: str, given: Any) -> None:
    first = given[0] if isinstance(given, list) else given
    at = int(first * len(lines))
    match what, given:
        case "swap lines", [_, float(other)]:
            there = int(other * len(lines))
            lines[at], lines[there] = lines[there], lines[at]
        case "double a line", [_, int(times)]:
            lines[at:at] = [lines[at]] * times
        case "drop a line", _:
            del lines[at]
        case "glue lines", _:
            lines[at : at + 2] = [b"".join(lines[at : at + 2])]
        case "put a line", [_, int(number)]:
            lines.insert(at, LINES[number])
        case "mix in a file", [_, str(name), float(there), int(count)]:
            others = seeds()[name].split(b"\n")
            start = int(there * len(others))
            lines[at:at] = others[start : start + count]
        case _:
            lines[at] = _changed(lines[at], what, given[1:])


def _changed(line: bytes, what: str, given: list[Any]) -> bytes:
    """A line with one thing in it changed; as it is where it is no JSON object."""
    try:
        value = load(line)[0]
    except ValueError:
        return line
    places = list(_places(value))
    if not places:
        return line
    match what, given:
        case "another item", [str(item)]:
            new: Any = {**value, "type": "response_item", "payload": "?"} if isinstance(value, dict) else "?"
            return dump(new).replace(b'"?"', item.encode())
        case _:
            pass
    holder, key = (
        places[int(float(given[0]) * len(places)) % len(places)] if isinstance(given[0], float) else places[-1]
    )
    match what, given:
        case "another number", [str(number)]:
            numbers = [(one, at) for one, at in places if isinstance(one[at], int | float)]
            if not numbers:
                return line
            holder, key = numbers[len(line) % len(numbers)]
            holder[key] = "<number>"
            return dump(value).replace(b'"<number>"', number.encode())
        case "drop a key", _:
            del holder[key]
        case "another key", [_, str(name)] if isinstance(holder, dict):
            holder[name] = holder.pop(key)
        case "deeper", [_, int(levels)]:
            if UNSURE[0] < _depth(value) + 2 * levels < UNSURE[1]:
                return line
            holder[key] = "<deep>"
            return dump(value).replace(b'"<deep>"', b'[{"a":' * levels + b"1" + b"}]" * levels)
        case "another value", [_, str(text)]:
            holder[key] = "<value>"
            return dump(value).replace(b'"<value>"', text.encode())
        case _:
            pass
    try:
        return dump(value)
    except UnusableItem:  # it was made too deep for us to spell before
        return line


def _depth(value: Any) -> int:
    """Levels of lists and objects."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every key of every object, and every part of every list, with what holds it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _spelled(raw: bytes, way: str) -> bytes:
    match way:
        case "crlf":
            return raw.replace(b"\n", b"\r\n")
        case "mark":
            return b"\xef\xbb\xbf" + raw
        case "no last newline":
            return raw.rstrip(b"\n")
        case "spaced":
            return b"\n".join(json.dumps(one).encode() if (one := _object(line)) else line for line in raw.split(b"\n"))
        case _:
            lines = [(_object(line), line) for line in raw.split(b"\n")]
            return b"\n".join(
                dump({key: value for key, value in one.items() if key != "ordinal"}) if one else line
                for one, line in lines
            )


def _object(line: bytes) -> Any:
    try:
        value = load(line)[0]
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _compressed(raw: bytes, frames: int) -> bytes:
    """In one frame, or in several."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    size = len(raw) // (frames + 1) + 1
    return b"".join(zstd.compress(raw[at : at + size]) for at in range(0, len(raw), size))
