"""Compaction ahead: beside the turn, on the history as it was, put in place between two samplings if it still fits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.due import Due
from refold.core.config import parse_config
from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, TurnEnded
from refold.core.thread import same_state
from refold.core.wire import Request
from refold.errors import ConfigError
from refold.model import ModelEvent
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session import Session
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, Event, Notice, SamplingStarted
from refold.session.hooks import Hook
from refold.session.memory import read_thread
from refold.testing import call_reply, text_reply, usage
from refold.tools.functions import tool
from refold.views.sent import sent

PROFILE = Profile(slug="m", context_window=100_000, known=True)  # compaction is due at 90,000
NEAR, FULL, SMALL = usage(80_000, 10), usage(95_000, 10), usage(2_000, 10)
PATIENCE = 10  # seconds that nothing here needs


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


class Slow(ScriptedModel):
    """A model that writes summaries only when it is let. Mutable: it counts who waits."""

    def __init__(self, replies: list[Any], summary: Any, **provider: Any) -> None:
        facts = {"id": "p", "name": "p", "base_url": "http://127.0.0.1:1", "env_key": None, **provider}
        super().__init__(replies, profile=PROFILE, provider=Provider(**facts))
        self._summaries = ScriptedModel([summary] * 3, profile=PROFILE, provider=Provider(**facts))
        self.go_on = asyncio.Event()
        self.asked = asyncio.Event()
        self.summed = 0

    async def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        if b"CONTEXT CHECKPOINT COMPACTION" not in request.body():
            async for event in super().sample(request):
                yield event
            return
        self.summed += 1
        self.asked.set()
        await self.go_on.wait()
        async for event in self._summaries.sample(request):
            yield event


@tool
async def look() -> str:
    """Looks."""
    return "seen"


def start(model: ScriptedModel, folder: Path, **settings: Any) -> Session:
    return Session.start(
        model=model,
        tools=[look],
        cwd=folder,
        home=folder / "home",
        clock=Hasty(),
        config=parse_config({"compact_ahead": 0.75, **settings}, "test"),
    )


async def events_of(session: Session, text: str) -> list[Event]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in session.send(text)]


def checkpoints(session: Session) -> list[Compacted]:
    assert session.path is not None
    return [line.record for line in read_lines(session.path) if isinstance(line.record, Compacted)]


def said(session: Session) -> list[str]:
    return [message_text(e.item) for e in session.memory.thread.history if e.origin == "typed"]


def proven(session: Session) -> None:
    """Live and replayed are the same, and every request can be made again."""
    assert session.path is not None
    assert same_state(read_thread(session.path), session.memory.thread)
    assert all(one.is_same for one in sent(read_lines(session.path)))


def test_it_runs_beside_the_turn_and_is_put_in_place_before_the_next(tmp_path: Path) -> None:
    async def go() -> Session:
        model = Slow([text_reply("one", usage=NEAR), text_reply("two", usage=SMALL)], text_reply("SUMMARY"))
        async with start(model, tmp_path) as session:
            first = await events_of(session, "first")
            assert any(isinstance(event, TurnEnded) for event in first), "the turn does not wait for it"
            assert [event.text for event in first if isinstance(event, Notice) and "ahead" in event.text]
            await model.asked.wait()
            assert not session.busy and session.memory.thread.compactions == 0
            model.go_on.set()
            while not session._scope.ahead.done():  # type: ignore[union-attr]
                await asyncio.sleep(0)
            second = await events_of(session, "second")
            assert [event.installed for event in second if isinstance(event, CompactionEnded)] == [True]
            assert [event.kind for event in second if isinstance(event, SamplingStarted)] == ["turn"]
            told = str(model.requests[-1]["input"])
            assert "SUMMARY" in told and "one" not in [e.item.get("content") for e in session.memory.thread.history]
            assert model.summed == 1
            return session

    session = asyncio.run(go())
    assert said(session) == ["first", "second"]
    proven(session)


def test_what_was_said_and_done_meanwhile_stays_behind_it(tmp_path: Path) -> None:
    async def go() -> Session:
        calls = [call_reply("look", {}, usage=NEAR), call_reply("look", {}, usage=NEAR)]
        model = Slow([*calls, text_reply("one", usage=NEAR), text_reply("two", usage=SMALL)], text_reply("SUMMARY"))
        async with start(model, tmp_path) as session:
            (tmp_path / "AGENTS.md").write_text("Be kind.")
            await events_of(session, "first")
            (tmp_path / "AGENTS.md").write_text("Be brief.")
            assert model.summed == 1, "once in a window"
            model.go_on.set()
            while not session._scope.ahead.done():  # type: ignore[union-attr]
                await asyncio.sleep(0)
            await events_of(session, "second")
            return session

    session = asyncio.run(go())
    (checkpoint,) = checkpoints(session)
    kinds = [str(item.get("role") or item["type"]) for item in checkpoint.history or ()]
    place = next(i for i, item in enumerate(checkpoint.history or ()) if "SUMMARY" in str(item))
    assert kinds[place + 1 :] == ["function_call", "function_call_output", "assistant"]
    assert said(session) == ["first", "second"]
    told = [message_text(e.item) for e in session.memory.thread.history if "AGENTS.md" in message_text(e.item)]
    assert sum("Be kind." in text for text in told) == sum("Be brief." in text for text in told) == 1
    proven(session)


def test_compaction_that_is_due_meanwhile_waits_for_it_instead_of_asking_again(tmp_path: Path) -> None:
    async def go() -> Session:
        model = Slow([text_reply("one", usage=NEAR), text_reply("two", usage=SMALL)], text_reply("SUMMARY"))
        async with start(model, tmp_path) as session:
            await events_of(session, "first")
            turn = asyncio.create_task(events_of(session, "x" * 70_000))  # would not fit any more
            await model.asked.wait()
            await asyncio.sleep(0.01)
            model.go_on.set()
            await turn
            assert model.summed == 1
            return session

    session = asyncio.run(go())
    assert session.memory.thread.compactions == 1
    proven(session)


def test_an_interrupt_of_a_turn_that_waits_for_it_ends_the_turn_and_leaves_it(tmp_path: Path) -> None:
    async def go() -> Session:
        model = Slow([text_reply("one", usage=NEAR), text_reply("three", usage=SMALL)], text_reply("SUMMARY"))
        async with start(model, tmp_path) as session:
            await events_of(session, "first")
            turn = session.send("x" * 70_000)
            await model.asked.wait()
            await asyncio.sleep(0.01)
            assert session.interrupt()
            assert (await turn).outcome == "interrupted"
            assert session._scope.ahead is not None and not session._scope.ahead.done()
            model.go_on.set()
            await events_of(session, "third")
            assert model.summed == 1
            return session

    session = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert session.memory.thread.compactions == 1
    proven(session)


@pytest.mark.parametrize(
    "summary", [Reply(status=401, body={"error": {"message": "no"}}), text_reply("word " * 90_000)], ids=["no", "large"]
)
def test_one_that_fails_or_does_not_fit_costs_nothing(tmp_path: Path, summary: Reply) -> None:
    async def go() -> Session:
        model = Slow([text_reply("one", usage=NEAR), text_reply("two", usage=SMALL)], summary)
        model.go_on.set()
        async with start(model, tmp_path) as session:
            await events_of(session, "first")
            while not session._scope.ahead.done():  # type: ignore[union-attr]
                await asyncio.sleep(0)
            second = await events_of(session, "second")
            assert [event.text for event in second if isinstance(event, Notice) and "ahead" in event.text]
            return session

    session = asyncio.run(go())
    assert session.memory.thread.compactions == 0 and said(session) == ["first", "second"]
    proven(session)


def test_one_by_hand_and_the_end_of_the_session_drop_it(tmp_path: Path) -> None:
    async def go() -> None:
        model = Slow([text_reply("one", usage=NEAR), text_reply("two", usage=NEAR)], text_reply("SUMMARY"))
        async with start(model, tmp_path) as session:
            await events_of(session, "first")
            await model.asked.wait()
            await session.compact(outline=True)
            assert session._scope.ahead is None and session.memory.thread.compactions == 1
            await events_of(session, "second")
            await asyncio.sleep(0)
        assert session._scope.ahead is None
        proven(session)

    asyncio.run(asyncio.wait_for(go(), PATIENCE))


@pytest.mark.parametrize(
    "settings", [{"compact_ahead": 0.9}, {"features": {"token_budget": {"enabled": True}}}], ids=["later", "budget"]
)
def test_it_is_not_begun_below_its_share_nor_where_no_model_is_asked(tmp_path: Path, settings: dict[str, Any]) -> None:
    async def go() -> None:
        model = Slow([text_reply("one", usage=NEAR)], text_reply("SUMMARY"))
        async with start(model, tmp_path, **settings) as session:
            await events_of(session, "first")
            assert session._scope.ahead is None

    asyncio.run(go())


@pytest.mark.parametrize("value", [0, 1, 75, "half"])
def test_a_share_is_between_nothing_and_all(value: Any) -> None:
    with pytest.raises(ConfigError, match="compact_ahead"):
        parse_config({"compact_ahead": value}, "test")


def test_undo_while_a_slow_hook_looks_leaves_it(tmp_path: Path) -> None:
    """What is read is the history as it was when it began, whatever comes of that meanwhile."""
    let = asyncio.Event()

    class Waits(Hook):
        async def before_compaction(self, why: Due) -> str | None:
            if why.reason != "user_requested":
                await let.wait()
            return None

    async def go() -> Session:
        model = Slow([text_reply("one", usage=SMALL), text_reply("two", usage=NEAR)], text_reply("SUMMARY"))
        model.go_on.set()
        async with start(model, tmp_path) as session:
            session.hooks.append(Waits())
            await events_of(session, "first")
            await session.compact(outline=True)
            await events_of(session, "second")
            assert session._scope.ahead is not None
            await session.undo()
            assert session._scope.ahead is None
            let.set()
            await asyncio.sleep(0)
            return session

    session = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert said(session) == ["first", "second"] and session.memory.thread.is_as_restored
    proven(session)


def test_an_answer_that_is_there_is_no_failure_because_of_what_comes_after_it(tmp_path: Path) -> None:
    async def go() -> Session:
        model = Slow([text_reply("one", usage=NEAR)], text_reply("SUMMARY"))
        settings = {"compact_ahead": 0.99, "model_post_turn_compact_threshold_percent": 10}
        async with start(model, tmp_path, **settings) as session:
            turn = session.send("first")
            await model.asked.wait()
            session.interrupt()
            await turn
            return session

    session = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert session.path is not None
    (ended,) = [line.record for line in read_lines(session.path) if isinstance(line.record, TurnEnded)]
    assert (ended.outcome, ended.last_message) == ("completed", "one")
    assert "turn_aborted" not in session.path.read_text()
