"""Messages that wait for a turn of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import message_text
from refold.core.records import ItemRecorded, TurnStarted
from refold.errors import SessionBusy
from refold.session import Session
from refold.testing import Reply, ScriptedModel, call_reply, text_reply, usage
from refold.tools.functions import tool


@tool
async def nap() -> str:
    """Sleep a little."""
    await asyncio.sleep(0.1)
    return "slept"


def session_of(folder: Path, *script: Any) -> Session:
    return Session.start(model=ScriptedModel([*script]), tools=[nap], cwd=folder, home=folder / "home")


def test_queued_messages_are_turns_of_their_own_in_order(tmp_path: Path) -> None:
    async def play() -> None:
        replies = [text_reply(word, usage=usage(10 * n, n)) for n, word in enumerate(("one", "two", "three"), 1)]
        async with session_of(tmp_path, *replies) as session:
            turns = [session.send("a"), session.queue("b"), session.queue("c")]
            with pytest.raises(SessionBusy):
                session.send("not now")
            results = [await turn for turn in turns]
            assert [result.text for result in results] == ["one", "two", "three"]
            assert [result.usage.input_tokens for result in results] == [10, 20, 30], "each counts its own"
            assert not session.busy
            assert session.memory.thread.turns == 3
            said = [message_text(e.item) for e in session.memory.thread.history if e.origin in ("typed", "model")]
            assert said == ["a", "one", "b", "two", "c", "three"]

    asyncio.run(play())


def test_a_queued_turn_tells_its_own_events_only(tmp_path: Path) -> None:
    async def play() -> None:
        async with session_of(tmp_path, "one", "two") as session:
            session.send("a")
            events = [event async for event in session.queue("b")]
            assert isinstance(events[0], TurnStarted)
            typed = [
                message_text(e.item) for e in events if isinstance(e, ItemRecorded) and e.item.get("role") == "user"
            ]
            assert typed[-1] == "b" and "a" not in typed

    asyncio.run(play())


def test_a_queue_goes_on_after_a_turn_that_failed(tmp_path: Path) -> None:
    async def play() -> None:
        async with session_of(tmp_path, Reply(status=400, body={"error": {"message": "no"}}), "two") as session:
            first, second = session.send("a"), session.queue("b")
            with pytest.raises(Exception, match="no"):
                await first
            assert (await second).text == "two"

    asyncio.run(play())


def test_an_interrupt_drops_what_waits(tmp_path: Path) -> None:
    async def play() -> None:
        async with session_of(tmp_path, call_reply("nap", {}), "two", "three") as session:
            first, second, third = session.send("a"), session.queue("b"), session.queue("c")
            await asyncio.sleep(0.05)
            session.interrupt()
            outcomes = [(await turn).outcome for turn in (first, second, third)]
            assert outcomes == ["interrupted"] * 3
            assert [event async for event in second] == []
            assert session.memory.thread.turns == 1, "what waited was never begun"
            assert (await session.send("d")).outcome == "completed"

    asyncio.run(play())


def test_nothing_to_wait_for_means_now(tmp_path: Path) -> None:
    async def play() -> None:
        async with session_of(tmp_path, "one") as session:
            assert (await session.queue("a")).text == "one"

    asyncio.run(play())


def test_leaving_the_session_drops_what_waits(tmp_path: Path) -> None:
    async def play() -> None:
        async with session_of(tmp_path, "one", "two") as session:
            session.send("a")
            turn = session.queue("b")
        assert (await turn).outcome == "interrupted"

    asyncio.run(play())
