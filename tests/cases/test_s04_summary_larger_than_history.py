"""S04: a summary that is larger than what it replaces is not installed; who looked at it may (checks 1 to 5)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from refold.core.compaction.due import size_of
from refold.core.config import parse_config
from refold.core.history import entry
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, CompactionAttempted
from refold.model.scripted import ScriptedModel
from refold.rollout import read_lines
from refold.session import Memory, Session
from refold.session.events import CompactionEnded, SamplingStarted
from refold.testing import call_reply, text_reply, usage
from refold.tools.functions import tool
from refold.views.context import context

CASE = Path(__file__).parent.parent / "data" / "cases" / "S04-summary-larger-than-history"
ITEMS: list[dict[str, Any]] = [json.loads(line) for line in (CASE / "history.jsonl").read_text("utf-8").splitlines()]
SUMMARY = (CASE / "summary.txt").read_text("utf-8")
PROFILE = Profile(slug="m", context_window=100_000, auto_compact_token_limit=3_000)
PROVIDER = Provider(name="p", base_url="http://127.0.0.1:1", env_key=None)
OVER, UNDER = usage(4_000, 10), usage(400, 10)


@tool
def step() -> str:
    """Does one step."""
    return "done"


def model(*replies: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), profile=PROFILE, provider=PROVIDER)


def made_room(folder: Path, told: Any, *, force: bool = False) -> tuple[Memory, CompactionEnded, int]:
    """The memory of the four items after making room, how that ended, and the size of its history before."""
    with Memory.open(folder, model=PROFILE, instructions="Be brief.") as memory:
        memory.add(ITEMS, usage=told)
        before = size_of(memory.thread, memory.thread.history)
        ended = asyncio.run(memory.make_room(model(text_reply(SUMMARY)), force=force))
    assert ended is not None
    return memory, ended, before


def put_in_place(folder: Path) -> tuple[Session, CompactionEnded, int]:
    """A person looks at what a compaction of the four items would give, and wants it all the same."""

    async def go() -> tuple[Session, CompactionEnded, int]:
        place = {"cwd": folder, "home": folder / "home"}
        async with Session.start(model=model(text_reply(SUMMARY)), instructions="Be brief.", **place) as session:
            session.memory.add(ITEMS, usage=UNDER)
            before = size_of(session.memory.thread, session.memory.thread.history)
            preview = await session.compact(preview=True)
            return session, await preview.commit(), before

    return asyncio.run(go())


def test_both_numbers_come_from_one_estimator_over_the_same_view(tmp_path: Path) -> None:
    assert len(SUMMARY.encode()) == 8_000
    session, ended, before = put_in_place(tmp_path)
    assert ended.before == before
    assert ended.after == size_of(session.memory.thread, session.memory.thread.history)


def test_automatic_it_gains_nothing_and_nothing_is_installed(tmp_path: Path) -> None:
    memory, ended, before = made_room(tmp_path, OVER)
    assert (ended.installed, ended.made_room, ended.before) == (False, False, before)
    assert ended.after - ended.before >= 1_900
    assert [e.item["content"] for e in memory.thread.history] == [item["content"] for item in ITEMS]
    assert memory.path is not None
    records = [line.record for line in read_lines(memory.path)]
    assert not any(isinstance(record, Compacted) for record in records)
    (attempt,) = [record for record in records if isinstance(record, CompactionAttempted)]
    assert "larger than what it replaces" in attempt.outcome and attempt.usage is not None


def test_by_hand_it_is_not_installed_either_and_says_so(tmp_path: Path) -> None:
    memory, ended, before = made_room(tmp_path, UNDER, force=True)
    assert (ended.installed, ended.made_room, ended.before) == (False, False, before)
    assert ended.error == "the result would be larger than what it replaces"
    assert memory.thread.compactions == 0


def test_who_looked_at_it_may_put_it_in_place_and_the_gauge_shows_what_was_said(tmp_path: Path) -> None:
    session, ended, _ = put_in_place(tmp_path)
    assert ended.installed and not ended.made_room and ended.after - ended.before >= 1_900
    assert session.memory.thread.compactions == 1
    assert session.memory.tokens == context(session.memory.thread, PROFILE).used == ended.after


def test_the_estimate_after_it_is_that_of_what_is_in_the_log(tmp_path: Path) -> None:
    session, ended, _ = put_in_place(tmp_path)
    assert session.path is not None
    (checkpoint,) = [line.record for line in read_lines(session.path) if isinstance(line.record, Compacted)]
    entries = [entry(item, "") for item in checkpoint.history or ()]
    assert checkpoint.facts["tokens_after"] == size_of(session.memory.thread, entries) == ended.after


def test_no_second_automatic_one_is_tried_in_the_turn(tmp_path: Path) -> None:
    calls = [call_reply("step", {}, usage=OVER) for _ in range(3)]
    answering = model(calls[0], text_reply(SUMMARY), *calls[1:], text_reply("done", usage=OVER))
    config = parse_config({}, "test")

    async def go() -> list[Any]:
        place = {"cwd": tmp_path, "home": tmp_path / "home"}
        async with Session.start(model=answering, tools=[step], config=config, instructions="b", **place) as session:
            return [event async for event in session.send("hi")]

    events = asyncio.run(go())
    assert [event.installed for event in events if isinstance(event, CompactionEnded)] == [False]
    asked = [event.kind for event in events if isinstance(event, SamplingStarted)]
    assert asked == ["turn", "compaction", "turn", "turn", "turn"]
