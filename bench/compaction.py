"""Compaction: what refold itself adds to one, how much smaller the context is, and what of its request is cached.

`python -m bench.compaction` prints the table.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec

from bench.core import TABLE, Figure
from refold.core.config import Config
from refold.core.limits import Compaction
from refold.core.profile import Profile, Provider
from refold.core.wire import Request
from refold.model import ModelEvent
from refold.model.scripted import Reply, ScriptedModel
from refold.session.events import CompactionEnded
from refold.session.session import Session
from refold.testing import text_reply, usage
from refold.tools.functions import tool
from refold.views.sent import common_prefix

ROUNDS = 7
PAIRS = 5_000  # a call and its output each: 10,000 items, 5 MB
SUMMARY = "What was done, and what is to be done next. " * 90  # 4 kB, as models write them
SEALED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 1_000}
BUDGET = 20  # ms


@tool
def nop() -> str:
    """Does nothing."""
    return "ok"


class Timed(ScriptedModel):
    """A model that knows how long it was asked: the rest is ours. Mutable: it adds up."""

    seconds = 0.0

    async def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        began = time.perf_counter()
        async for event in super().sample(request):
            yield event
        self.seconds += time.perf_counter() - began


class Compacted(msgspec.Struct):
    """One compaction: milliseconds without the model, how it ended, and the two last requests."""

    ms: float
    ended: CompactionEnded
    requests: list[Any]


def rows() -> Iterator[object]:
    ways = {
        "a summary": ("local", False),
        "the provider's own, with its shadow": ("remote", False),
        "an outline": ("local", True),
    }
    last: Compacted | None = None
    for what, (way, outline) in ways.items():
        found = [_compacted(way, outline=outline) for _ in range(ROUNDS)]
        quickest = min(found, key=lambda one: one.ms)
        most = BUDGET if what == "a summary" else None
        yield Figure(f"compact 10,000 items by {what}, without the model", "ms", quickest.ms, most=most)
        last = last or quickest
    assert last is not None
    yield Figure("tokens after it, beside those before", "tokens", last.ended.after, "before", last.ended.before)
    for keep in (False, True):
        one = _compacted("local", keep_tools=keep)
        shared, whole = _reusable(*one.requests[-2:])
        named = "with" if keep else "without"
        yield Figure(f"of its request a prompt cache can reuse, {named} `keep_tools`", "kB", shared, "all of it", whole)


def _compacted(way: str, *, outline: bool = False, keep_tools: bool = False) -> Compacted:
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, compaction=way)  # type: ignore[arg-type]
    answer = Reply(items=(SEALED,)) if way == "remote" else text_reply(SUMMARY)
    replies = [text_reply("one", usage=usage(100, 10)), text_reply("two", usage=usage(100, 10)), answer]
    model = Timed(replies, profile=Profile(slug="bench", context_window=10_000_000), provider=provider)
    settings = Config(compaction=Compaction(keep_tools=keep_tools))

    async def go(folder: str) -> Compacted:
        start = Session.start(model=model, tools=[nop], cwd=folder, home=f"{folder}/home", config=settings)
        async with start as session:
            await session.send("go")
            session.memory.add(_items())
            await session.send("on")
            model.seconds = 0.0
            began = time.perf_counter()
            ended = await session.compact(outline=outline)
            taken = time.perf_counter() - began - model.seconds
            return Compacted(taken * 1000, ended, model.requests)

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(go(folder))


def _items() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(PAIRS):
        call_id = f"call_{number}"
        call = {"type": "function_call", "name": "nop", "arguments": json.dumps({"n": number}), "call_id": call_id}
        found += [call, {"type": "function_call_output", "call_id": call_id, "output": f"line {number} " * 60}]
    return found


def _reusable(sampled: Any, asked: Any) -> tuple[float, float]:
    """Kilobytes of a request that begin as the one before it, and all of it, in the order in which providers read:
    tools, instructions, input."""
    read = [
        msgspec.json.encode([body.get("tools"), body.get("instructions"), body["input"]]) for body in (sampled, asked)
    ]
    return common_prefix(read[0], read[1]) / 1000, len(read[1]) / 1000


if __name__ == "__main__":
    print(TABLE)
    for row in rows():
        print(row, flush=True)
