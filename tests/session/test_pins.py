"""Pins and dropped rules in a session: told once in every later context, through compactions, resumes, forks, undos."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import message_texts
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, Pinned
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import ConfigError, RolloutError, RolloutNotFound
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread
from refold.session.pins import drop_rule, pin
from refold.session.session import Session
from refold.testing import call_reply, text_reply, usage
from refold.tools import tool

PROFILE = Profile(slug="m", context_window=20_000, truncation=Budget("tokens", 10_000))
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 40}
FACT = "The staging host is stage-7, port 8443. Its <key> & rest."


def model(*replies: Any, **more: Any) -> ScriptedModel:
    provider = Provider(
        id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, **{"compaction": "local", **more}
    )
    return ScriptedModel(list(replies), profile=PROFILE, provider=provider)


def start(answering: ScriptedModel, tmp_path: Path, tools: Any = (), **settings: Any) -> Session:
    return Session.start(
        model=answering,
        cwd=tmp_path,
        home=tmp_path / "home",
        instructions="BASE",
        tools=tools,
        config=parse_config(settings, "test"),
    )


def again(answering: ScriptedModel, tmp_path: Path, path: Path, how: str = "resume", **more: Any) -> Session:
    make = Session.resume if how == "resume" else Session.fork
    return make(path, model=answering, home=tmp_path / "home", config=Config(), **more)


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(work())


def answers(thread: Thread) -> list[str]:
    return [e.address for e in thread.history if e.item.get("role") == "assistant"]


def told(request: dict[str, Any]) -> list[str]:
    """Every text of a request, part by part."""
    return [text for item in request["input"] for text in message_texts(item)]


def pin_parts(request: dict[str, Any]) -> list[str]:
    return [text for item in request["input"] for text in message_texts(item) if "external_pinned" in text]


def is_replayed(session: Session) -> bool:
    assert session.path is not None
    whole = Thread.replay(read_lines(session.path))
    return same_state(session.memory.thread, whole) and same_state(read_thread(session.path), whole)


# --- told once -----------------------------------------------------------------------------------------------------


def test_a_pinned_answer_outlives_compactions_and_is_told_once(tmp_path: Path) -> None:
    answering = model(
        text_reply(FACT), *[text_reply(f"SUMMARY {n}") if n % 2 else text_reply("ok") for n in range(1, 7)]
    )

    async def go() -> Session:
        async with start(answering, tmp_path) as session:
            await session.send("Where?")
            (address,) = answers(session.memory.thread)
            pinned = session.pin(address)
            assert (pinned.address, pinned.text) == (address, FACT) and 0 < pinned.tokens <= 200
            for number in range(3):
                await session.compact()
                await session.send(f"go on {number}")
            return session

    session = run(go)
    (address,) = {where for where, _ in session.memory.thread.pins}
    for number, request in enumerate(answering.requests):
        said = [text for text in told(request) if text == FACT]
        assert len(said) == (0 if number == 0 else 1), number
        assert pin_parts(request) == ([f'<external_pinned address="{address}">', "</external_pinned>"] * (number > 1))
    assert is_replayed(session)


def test_it_stands_before_the_newest_message_behind_the_rules_in_force(tmp_path: Path) -> None:
    answering = model(text_reply(FACT), text_reply("SUMMARY"), text_reply("ok"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            session.pin(answers(session.memory.thread)[0])
            await session.compact()
            await session.send("second")

    run(go)
    texts = told(answering.requests[-1])
    place = texts.index(FACT)
    assert place == next(index for index, text in enumerate(texts) if text.startswith("<environment_context>")) + 2
    assert texts[place + 2] == "first" and texts[place + 3].startswith(SUMMARY_MARK)


def test_a_message_that_stays_whole_is_not_told_a_second_time(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("SUMMARY"), text_reply("two"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send(FACT)
            session.pin(next(e.address for e in session.memory.thread.history if e.origin == "typed"))
            await session.compact()
            await session.send("second")

    run(go)
    assert [told(request).count(FACT) for request in answering.requests] == [1, 1, 1]
    assert pin_parts(answering.requests[-1]) == []


@pytest.mark.parametrize("way", ["local", "remote", "outline", "rollover"])
def test_by_every_way_to_compact(tmp_path: Path, way: str) -> None:
    answering = model(
        text_reply(FACT),
        *{"local": [text_reply("SUMMARY")], "remote": [Reply(items=(COMPACTION,), usage=usage(9, 9))]}.get(way, []),
        text_reply("ok"),
        compaction="remote" if way == "remote" else "local",
    )
    settings = {"features": {"token_budget": True}} if way == "rollover" else {}

    async def go() -> None:
        async with start(answering, tmp_path, **settings) as session:
            await session.send("first")
            session.pin(answers(session.memory.thread)[0], text="stage-7, port 8443")
            await session.compact(outline=way == "outline")
            await session.send("second")
            assert is_replayed(session)

    run(go)
    assert "stage-7, port 8443" in told(answering.requests[-1])
    assert len(pin_parts(answering.requests[-1])) == 2


def test_what_left_the_context_already_is_told_at_once(tmp_path: Path) -> None:
    answering = model(text_reply(FACT), text_reply("SUMMARY"), text_reply("ok"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            (address,) = answers(session.memory.thread)
            await session.compact()
            session.pin(address.rpartition(":")[2])
            session.pin(address)
            await session.send("second")
            assert sum(isinstance(line.record, Pinned) for line in session.memory.store.lines()) == 1
            assert is_replayed(session)

    run(go)
    assert told(answering.requests[-1]).count(FACT) == 1


def test_a_pin_while_a_tool_runs_waits_for_the_compaction(tmp_path: Path) -> None:
    sessions: list[Session] = []

    @tool
    async def look() -> str:
        """Look."""
        session = sessions[0]
        session.pin(answers(session.memory.thread)[0])
        return "x" * 200

    answering = model(
        text_reply(FACT), call_reply("look", {}, usage=usage(18_500, 10)), text_reply("SUMMARY"), text_reply("done")
    )

    async def go() -> None:
        async with start(answering, tmp_path, [look]) as session:
            sessions.append(session)
            await session.send("first")
            await session.send("second")
            assert is_replayed(session)

    run(go)
    assert [told(request).count(FACT) for request in answering.requests] == [0, 1, 1, 1]
    assert [len(pin_parts(request)) for request in answering.requests] == [0, 0, 0, 2]


# --- through resumes, forks and undos ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["resume", "fork"])
def test_it_goes_on_in_a_resumed_and_in_a_forked_session(tmp_path: Path, how: str) -> None:
    first = model(text_reply(FACT), text_reply("SUMMARY"))
    second = model(text_reply("ok"), text_reply("SUMMARY"), text_reply("ok"))

    async def go() -> None:
        async with start(first, tmp_path) as session:
            await session.send("Never touch billing/.")
            thread = session.memory.thread
            session.pin(answers(thread)[0])
            assert session.drop_rule(thread.history[-2].address) == ["Never touch billing/."]
            await session.compact()
        assert session.path is not None
        async with again(second, tmp_path, session.path, how) as child:
            assert child.memory.thread.pins == session.memory.thread.pins
            assert child.memory.thread.dropped_rules == session.memory.thread.dropped_rules
            await child.send("second")
            await child.compact()
            await child.send("third")
            assert is_replayed(child)

    run(go)
    assert [told(request).count(FACT) for request in second.requests] == [1, 1, 1]


def test_an_undo_leaves_what_is_pinned_and_says_it_once(tmp_path: Path) -> None:
    answering = model(text_reply(FACT), text_reply("SUMMARY"), text_reply("ok"), text_reply("ok"), text_reply("ok"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            session.pin(answers(session.memory.thread)[0])
            await session.compact()
            await session.send("second")
            await session.undo()
            await session.send("third")
            await session.undo(2)
            await session.undo(1)
            assert session.memory.thread.pins and not answers(session.memory.thread)
            await session.send("fourth")
            assert is_replayed(session)

    run(go)
    assert [told(request).count(FACT) for request in answering.requests] == [0, 1, 1, 1, 1]
    assert pin_parts(answering.requests[3]) == []
    assert len(pin_parts(answering.requests[4])) == 2


def test_unpinned_text_is_gone_after_the_next_compaction(tmp_path: Path) -> None:
    answering = model(
        text_reply(FACT), text_reply("SUMMARY"), text_reply("ok"), text_reply("SUMMARY"), text_reply("ok")
    )

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            (address,) = answers(session.memory.thread)
            session.pin(address)
            session.pin(address, text="stage-7")
            await session.compact()
            await session.send("second")
            assert session.unpin(address, text="stage-7") == ["stage-7"]
            assert session.unpin(address) == [FACT]
            with pytest.raises(RolloutNotFound, match=f"nothing like that is pinned at {address} \\(pinned: none\\)"):
                session.unpin(address)
            await session.compact()
            await session.send("third")

    run(go)
    assert FACT in told(answering.requests[2]) and "stage-7" in told(answering.requests[2])
    assert FACT not in told(answering.requests[4]) and not pin_parts(answering.requests[4])


# --- refused -------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_and_says_how_large_it_is(tmp_path: Path) -> None:
    answering = model(text_reply("a" * 400), text_reply("b" * 800))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("one")
            await session.send("two")
            first, second = answers(session.memory.thread)
            session.pin(first)
            before = session.memory.thread.next_ordinal
            with pytest.raises(ConfigError) as refused:
                session.pin(second)
            told = re.fullmatch(
                rf"compaction.pin_percent: {second} takes (\d+) tokens; pins may take 200 together, and (\d+) of them "
                r"are taken: pin a part of it \(text\), unpin something, or raise this",
                str(refused.value),
            )
            assert told is not None
            assert 200 < int(told[1]) < 240 and 100 < int(told[2]) < 140
            session.pin(second, text="b" * 40)
            assert session.memory.thread.next_ordinal == before + 1

    run(go)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with start(model(text_reply(FACT)), tmp_path) as session:
            await session.send("first")
            (address,) = answers(session.memory.thread)
            with pytest.raises(RolloutNotFound, match=f"{address} does not say 'stage-8'"):
                session.pin(address, text="stage-8")
            with pytest.raises(RolloutNotFound, match="says nothing that could be pinned"):
                session.pin(address, text=" ")
            for wrong in ("999", f"{session.id}:1", "other:3"):
                with pytest.raises(RolloutNotFound, match="no record with a text at"):
                    session.pin(wrong)
            with pytest.raises(RolloutNotFound, match="no rule is kept first"):
                session.drop_rule(address)

    run(go)


@pytest.mark.parametrize("percent", [-1, 51, "much"])
def test_a_wrong_share_is_an_error_of_the_settings(percent: object) -> None:
    with pytest.raises(ConfigError, match=r"^compaction: "):
        parse_config({"compaction": {"pin_percent": percent}}, "test")


def test_a_smaller_window_leaves_out_what_has_no_room(tmp_path: Path) -> None:
    small = ScriptedModel(
        [text_reply("SUMMARY"), text_reply("ok")],
        profile=Profile(slug="m", context_window=4_000, truncation=Budget("tokens", 10_000)),
        provider=Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, compaction="local"),
    )

    async def go() -> None:
        async with start(model(text_reply(FACT), text_reply("c" * 240)), tmp_path) as session:
            await session.send("one")
            await session.send("two")
            first, second = answers(session.memory.thread)
            session.pin(first)
            session.pin(second)
        assert session.path is not None
        async with again(small, tmp_path, session.path) as resumed:
            await resumed.compact()
            await resumed.send("three")

    run(go)
    assert FACT in told(small.requests[1]) and "c" * 240 not in told(small.requests[1])


# --- without a loop ------------------------------------------------------------------------------------------------


def test_a_host_with_its_own_loop_pins_too() -> None:
    async def go() -> Memory:
        memory = Memory.open(None, model=PROFILE)
        memory.add([{"role": "user", "content": "first"}, {"role": "assistant", "content": FACT}])
        pin(memory, answers(memory.thread)[0])
        ended = await memory.make_room(model(text_reply("SUMMARY")), force=True)
        assert ended is not None and ended.installed
        return memory

    memory = run(go)
    assert [text for item in memory.prompt().input for text in message_texts(item)].count(FACT) == 1
    (checkpoint,) = [line.record for line in memory.store.lines() if isinstance(line.record, Compacted)]
    assert checkpoint.pins == ({"address": next(iter(memory.thread.pins))[0], "text": FACT},)


def test_a_blocking_session_has_the_same(tmp_path: Path) -> None:
    with Session.start_sync(
        model=model(text_reply(FACT)), cwd=tmp_path, home=tmp_path / "home", config=Config(), instructions="B"
    ) as session:
        session.send("Never touch billing/.")
        (address,) = answers(session.session.memory.thread)
        assert session.pin(address, text="stage-7").text == "stage-7"
        assert session.unpin(address) == ["stage-7"]
        typed = next(e.address for e in session.session.memory.thread.history if e.origin == "typed")
        assert session.drop_rule(f"{typed}#1") == ["Never touch billing/."]


def test_another_programs_file_takes_no_pins(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "data" / "oracle" / "rollouts" / "d_preturn.jsonl"
    path = tmp_path / "rollout-2026-11-30T11-32-20-x.jsonl"
    path.write_bytes(source.read_bytes())
    with Memory.reopen(path, PROFILE, Config(), Clock()) as memory:
        with pytest.raises(RolloutError, match=r"another program's file.*without --in-place"):
            pin(memory, memory.thread.history[0].address)
        with pytest.raises(RolloutError, match="another program's file"):
            drop_rule(memory, memory.thread.history[0].address)
    assert path.read_bytes() == source.read_bytes()
