"""S03: a compaction that makes no room is said, once a turn, and never goes round (checks 1, 2, 4; half of 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from refold.core.profile import Profile, Provider
from refold.core.records import ItemRecorded
from refold.model.scripted import Reply, ScriptedModel
from refold.session import Session
from refold.session.events import CompactionEnded, Event, Notice, SamplingStarted
from refold.testing import call_reply, text_reply, usage
from refold.tools.functions import tool

WINDOW, LIMIT = 16_000, 14_400
BASE, MESSAGE = "b" * 52_000, "m" * 8_000  # 13,000 and 2,000 tokens, estimated
SUMMARY = "done so far: nothing"
USED = usage(15_000, 10)
PROVIDER = Provider(name="p", base_url="http://127.0.0.1:1", env_key=None)


@tool
def step() -> str:
    """Does one step."""
    return "done"


def is_compaction(request: dict[str, Any]) -> bool:
    return '"request_kind":"compaction"' in request["client_metadata"]["x-codex-turn-metadata"]


def model(calls: int = 0) -> ScriptedModel:
    """Every turn takes so many calls and then an answer; every request for a summary gets the same one."""
    sampled = 0

    def answer(request: dict[str, Any]) -> Reply:
        nonlocal sampled
        if is_compaction(request):
            return text_reply(SUMMARY)
        sampled += 1
        return call_reply("step", {}, usage=USED) if sampled % (calls + 1) else text_reply("answer", usage=USED)

    return ScriptedModel(answer, profile=Profile(slug="m", context_window=WINDOW), provider=PROVIDER)


def start(answering: ScriptedModel, folder: Path) -> Session:
    place = {"cwd": folder, "home": folder / "home"}
    return Session.start(model=answering, tools=[step], instructions=BASE, **place)


async def turn(session: Session) -> list[Event]:
    return [event async for event in session.send(MESSAGE)]


def ends(events: Sequence[Event]) -> list[CompactionEnded]:
    return [event for event in events if isinstance(event, CompactionEnded)]


def test_one_automatic_compaction_before_the_next_sampling_and_none_after_it_in_the_turn(tmp_path: Path) -> None:
    async def go() -> list[Event]:
        async with start(model(calls=3), tmp_path) as session:
            assert session.memory.profile.compact_limit == LIMIT
            await turn(session)
            return await turn(session)

    events = asyncio.run(go())
    asked = [event.kind for event in events if isinstance(event, SamplingStarted)]
    assert asked == ["compaction", "turn", "turn", "turn", "turn"]
    assert any(isinstance(event, ItemRecorded) for event in events)


def test_the_outcome_is_typed_and_tells_its_three_numbers(tmp_path: Path) -> None:
    async def go() -> list[Event]:
        async with start(model(), tmp_path) as session:
            await turn(session)
            return await turn(session)

    events = asyncio.run(go())
    (ended,) = ends(events)
    assert not ended.made_room
    assert ended.before > 0 and ended.limit == LIMIT
    assert ended.after >= LIMIT
    texts = [event.text for event in events if isinstance(event, Notice)]
    assert f"{ended.before:,} tokens before, {ended.after:,} after, limit {LIMIT:,}" in "\n".join(texts)


def test_ten_turns_ask_for_at_most_ten_summaries(tmp_path: Path) -> None:
    answering = model(calls=2)

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            for _ in range(10):
                await turn(session)

    asyncio.run(go())
    asked = [is_compaction(request) for request in answering.requests]
    assert 1 <= sum(asked) <= 10
    assert not any(one and other for one, other in pairwise(asked)), "never two in a row"
    assert len(asked) - sum(asked) == 30, "every turn did its work"


def test_a_compaction_by_hand_is_allowed_and_tells_the_same_three_numbers(tmp_path: Path) -> None:
    async def go() -> CompactionEnded:
        async with start(model(), tmp_path) as session:
            await turn(session)
            await turn(session)
            return await session.compact()

    ended = asyncio.run(go())
    assert ended.installed and not ended.made_room
    assert min(ended.before, ended.after) >= LIMIT == ended.limit
