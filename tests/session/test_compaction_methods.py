"""Compaction: who is asked, when, and what happens when they will not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, CompactionAttempted
from refold.core.truncate import Budget
from refold.core.usage import Usage
from refold.errors import CompactionFailed, ModelRefused, RefoldError
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, CompactionStarted, Event, Notice
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import text_reply, usage
from refold.views.sent import sent

COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 40}
PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000), comp_hash="1")
FULL = usage(95_000, 10)


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


def provider(**more: Any) -> Provider:
    return Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, **{"compaction": "remote", **more})


def model(*replies: Any, profile: Profile = PROFILE, **more: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), profile=profile, provider=provider(**more))


def start(answering: ScriptedModel, tmp_path: Path, **settings: Any) -> Session:
    config = parse_config(settings, "test")
    return Session.start(
        model=answering, cwd=tmp_path, home=tmp_path / "home", clock=Hasty(), instructions="BASE", config=config
    )


async def events_of(session: Session, text: str) -> list[Event]:
    return [event async for event in session.send(text)]


def said(events: Sequence[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def played(answering: ScriptedModel, tmp_path: Path, *texts: str, **settings: Any) -> tuple[list[Event], Session]:
    """The events of the last turn of a session in which these texts were said."""

    async def go() -> tuple[list[Event], Session]:
        async with start(answering, tmp_path, **settings) as session:
            for text in texts[:-1]:
                await session.send(text)
            events = []
            try:
                async for event in session.send(texts[-1]):
                    events.append(event)
            except RefoldError as error:
                events.append(error)
            return events, session

    return asyncio.run(go())


def kinds(request: dict[str, Any]) -> list[str]:
    return [str(item.get("role") or item["type"]) for item in request["input"]]


def checkpoints(session: Session) -> list[Compacted]:
    assert session.path is not None
    return [line.record for line in read_lines(session.path) if isinstance(line.record, Compacted)]


def attempts(session: Session) -> list[tuple[str, str]]:
    assert session.path is not None
    found = [line.record for line in read_lines(session.path) if isinstance(line.record, CompactionAttempted)]
    return [(one.method, one.outcome) for one in found]


# --- the provider's own ----------------------------------------------------------------------------------------------


def test_provider_that_compacts_is_given_the_trigger_and_its_item_closes_the_history(tmp_path: Path) -> None:
    answering = model(
        text_reply("one", usage=FULL), Reply(items=(COMPACTION,), usage=usage(5_000, 200)), text_reply("two")
    )
    events, session = played(answering, tmp_path, "first", "second")
    asked, after = answering.requests[1:]
    assert asked["input"][-1] == {"type": "compaction_trigger"}
    assert kinds(after)[-4:] == ["user", "user", "compaction", "user"]
    assert after["input"][-2]["encrypted_content"] == COMPACTION["encrypted_content"]
    (checkpoint,) = checkpoints(session)
    assert (checkpoint.message, checkpoint.facts["method"], checkpoint.facts["comp_hash"]) == ("", "remote", "1")
    assert not any("compaction_trigger" in str(item) for item in checkpoint.history or ())
    assert attempts(session) == [("remote", "completed")]
    assert said(events, CompactionEnded)[0].installed
    assert read_thread(session.path).total_usage == session.memory.thread.total_usage  # type: ignore[arg-type]


def test_every_request_of_a_remote_compaction_can_be_made_again(tmp_path: Path) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "x" * 400_000}
    call = {"type": "function_call", "name": "nope", "arguments": "{}", "call_id": "c"}
    answering = model(Reply(items=(COMPACTION,), usage=usage(5_000, 200)), text_reply("on"))

    async def go() -> Session:
        async with start(answering, tmp_path) as session:
            session.memory.add([{"type": "message", "role": "user", "content": "go"}, call, output])
            session.memory.record(session.memory.usage(_usage(96_000)))
            await session.compact()
            return session

    session = asyncio.run(go())
    assert session.path is not None
    assert all(one.is_same for one in sent(read_lines(session.path)))
    texts = [item["output"] for item in answering.requests[0]["input"] if item["type"] == "function_call_output"]
    assert texts == [answering.requests[0]["input"][-2]["output"]]


def _usage(total: int) -> Usage:
    return Usage(input_tokens=total, output_tokens=10, total_tokens=total + 10)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(items=(), usage=usage(1, 1)), "with 0 compaction items in 0 output items; expected 1"),
        (Reply(items=(COMPACTION, {**COMPACTION, "id": "cmp_2"})), "with 2 compaction items in 2 output items"),
        (Reply(status=400, body={"error": {"message": "Invalid input type 'compaction_trigger'"}}), "Invalid input"),
        (Reply(status=404, body={"error": {"message": "no such thing"}}), "no such thing"),
        (Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}}), "too long"),
    ],
    ids=["none", "two", "not known", "not found", "too long"],
)
def test_provider_that_does_not_compact_is_asked_for_a_summary_once(tmp_path: Path, reply: Reply, why: str) -> None:
    script = [text_reply("one", usage=FULL), reply, text_reply("SUMMARY"), text_reply("two")]
    events, session = played(model(*script), tmp_path, "first", "second")
    assert [method for method, _ in attempts(session)] == ["remote", "local"]
    assert why in attempts(session)[0][1]
    assert [one for one in said(events, Notice) if "asked for a summary instead" in one.text]
    assert checkpoints(session)[0].facts["method"] == "local"
    assert session.memory.thread.history[-1].item["content"][0]["text"] == "two"

    script = [text_reply("one", usage=FULL), reply, text_reply("never asked for")]
    events, session = played(model(*script), tmp_path, "first", "second", compaction={"fallback": False})
    assert (checkpoints(session), len(attempts(session))) == ([], 1)
    assert isinstance(events[-1], RefoldError) and why in str(events[-1])


def test_stray_message_beside_the_one_compaction_item_is_no_answer(tmp_path: Path) -> None:
    stray = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Compacted."}]}
    script = [text_reply("one", usage=FULL), Reply(items=(stray, COMPACTION)), text_reply("two")]
    events, session = played(model(*script), tmp_path, "first", "second")
    assert checkpoints(session)[0].facts["method"] == "remote"
    assert "Compacted." not in str([entry.item for entry in session.memory.thread.history])
    assert "Compacted." not in str(events)


def test_wrong_key_is_no_reason_to_ask_for_a_summary(tmp_path: Path) -> None:
    script = [text_reply("one", usage=FULL), Reply(status=401, body={"error": {"message": "wrong key"}})]
    events, session = played(model(*script), tmp_path, "first", "second")
    assert isinstance(events[-1], ModelRefused) and attempts(session) == [("remote", str(events[-1]))]


@pytest.mark.parametrize(
    ("settings", "compacts"),
    [
        ({"name": "OpenAI"}, True),
        ({"name": "azure"}, True),
        ({"base_url": "https://me.openai.azure.com/openai/v1"}, True),
        ({"base_url": "https://x.cognitiveservices.azure.com/v1"}, True),
        ({"name": "openai-compatible"}, False),
        ({"name": "OpenAI", "compaction": "local"}, False),
        ({"compaction": "remote"}, True),
    ],
)
def test_which_providers_compact_themselves(settings: dict[str, Any], compacts: bool) -> None:
    assert Provider(**{"name": "mine", "base_url": "http://127.0.0.1:1", **settings}).compacts is compacts


# --- when ------------------------------------------------------------------------------------------------------------


def test_message_that_would_overflow_compacts_before_it_is_sent(tmp_path: Path) -> None:
    script = [text_reply("one", usage=usage(60_000, 10)), text_reply("SUMMARY"), text_reply("two")]
    answering = model(*script, compaction="local")
    events, _ = played(answering, tmp_path, "first", "x" * 160_000)
    assert said(events, CompactionStarted)[0].tokens > 95_000
    assert kinds(answering.requests[2])[-2:] == ["user", "user"]
    assert answering.requests[2]["input"][-1]["content"][0]["text"] == "x" * 160_000
    answering = model(text_reply("one", usage=usage(60_000, 10)), text_reply("two"), compaction="local")
    events, _ = played(answering, tmp_path, "first", "x" * 40_000)
    assert said(events, CompactionStarted) == [], "what fits is sent, as the real program does"


def test_compaction_after_the_answer_costs_the_turn_nothing_when_it_fails(tmp_path: Path) -> None:
    setting = {"model_post_turn_compact_threshold_percent": 10}
    good = model(text_reply("one", usage=usage(20_000, 10)), text_reply("SUMMARY"), compaction="local")
    events, session = played(good, tmp_path, "first", **setting)
    assert said(events, CompactionStarted)[0].phase == "post_turn"
    assert checkpoints(session)[0].facts["phase"] == "post_turn"
    bad = model(
        text_reply("one", usage=usage(20_000, 10)),
        Reply(status=400, body={"error": {"message": "no"}}),
        compaction="local",
    )
    events, session = played(bad, tmp_path, "first", **setting)
    assert [one.text for one in said(events, Notice) if "not compacted after the turn" in one.text]
    assert checkpoints(session) == []


def switched(tmp_path: Path, before: Profile, now: Profile, used: int) -> tuple[list[Event], list[str]]:
    """The events of the first turn with another model, and the models that its requests name."""
    first = model(text_reply("one", usage=usage(used, 10)), profile=before, compaction="local")
    _, session = played(first, tmp_path, "first")
    second = model(text_reply("SUMMARY"), text_reply("two"), profile=now, compaction="local")

    async def go() -> list[Event]:
        again = Session.resume(session.id, model=second, home=tmp_path / "home", clock=Hasty())
        async with again:
            return await events_of(again, "second")

    events = asyncio.run(go())
    return events, [request["model"] for request in second.requests]


def test_history_that_the_next_model_cannot_read_is_compacted_by_the_last_one(tmp_path: Path) -> None:
    other = Profile(slug="n", context_window=272_000, comp_hash="2")
    events, models = switched(tmp_path, PROFILE, other, 1_000)
    assert (said(events, CompactionStarted)[0].reason, models) == ("comp_hash_changed", ["m", "n"])


def test_history_that_the_next_model_cannot_hold_is_compacted_by_the_last_one(tmp_path: Path) -> None:
    large, small = Profile(slug="gpt-5.5"), Profile(slug="n", context_window=50_000)
    events, models = switched(tmp_path, large, small, 60_000)
    assert (said(events, CompactionStarted)[0].reason, models) == ("model_downshift", ["gpt-5.5", "n"])


def test_history_that_the_next_model_can_read_and_hold_stays(tmp_path: Path) -> None:
    large, small = Profile(slug="gpt-5.5"), Profile(slug="n", context_window=50_000)
    events, models = switched(tmp_path, large, small, 10_000)
    assert (said(events, CompactionStarted), models) == ([], ["n"])


def test_compaction_by_hand_goes_the_providers_way_too(tmp_path: Path) -> None:
    async def go() -> Session:
        answering = model(text_reply("one"), Reply(items=(COMPACTION,)))
        async with start(answering, tmp_path) as session:
            await session.send("first")
            assert (await session.compact()).installed
            return session

    session = asyncio.run(go())
    assert checkpoints(session)[0].facts["phase"] == "standalone_turn"


# --- by hand, and without a model ------------------------------------------------------------------------------------


def test_outline_asks_no_model_and_says_what_the_log_holds(tmp_path: Path) -> None:
    answering = model(text_reply("I will use tabs."), text_reply("on"))

    async def go() -> Session:
        async with start(answering, tmp_path) as session:
            await session.send("Make the parser faster")
            ended = await session.compact(outline=True)
            assert ended.installed
            await session.send("go on")
            return session

    session = asyncio.run(go())
    assert len(answering.requests) == 2
    (checkpoint,) = checkpoints(session)
    assert checkpoint.facts["method"] == "outline" and attempts(session) == []
    closing = answering.requests[1]["input"][-2]["content"][0]["text"]
    assert "Make the parser faster" in closing and session.id[-12:] in closing
    assert all(one.is_same for one in sent(read_lines(session.path)))  # type: ignore[arg-type]


def test_focus_is_asked_for_and_can_be_made_again(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("SUMMARY"))

    async def go() -> Session:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            await session.compact("the names of the files {and} braces")
            return session

    session = asyncio.run(go())
    asked = answering.requests[1]["input"][-1]["content"][0]["text"]
    assert asked.startswith("You are performing a CONTEXT CHECKPOINT COMPACTION.")
    assert asked.endswith("keep in particular: the names of the files {and} braces\n")
    assert checkpoints(session)[0].facts["method"] == "local", "a provider's own compaction knows no focus"
    assert all(one.is_same for one in sent(read_lines(session.path)))  # type: ignore[arg-type]


def test_outline_is_the_last_rung_where_it_is_wanted(tmp_path: Path) -> None:
    too_long = Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}})
    script = [text_reply("one", usage=FULL), *[too_long] * 5, text_reply("two")]
    wanted = {"compaction": {"outline": True}}
    events, session = played(model(*script, compaction="local"), tmp_path, "first", "second", **wanted)
    assert [one.text for one in said(events, Notice) if "an outline of the log takes its place" in one.text]
    assert checkpoints(session)[0].facts["method"] == "outline"


def test_provider_that_cannot_be_reached_is_no_reason_for_an_outline(tmp_path: Path) -> None:
    script = [text_reply("one", usage=FULL), *[Reply(status=503, body={})] * 3]
    once = {"request_max_retries": 0, "stream_max_retries": 1, "compaction": "local"}
    events, session = played(model(*script, **once), tmp_path, "first", "second", compaction={"outline": True})
    assert checkpoints(session) == [] and isinstance(events[-1], RefoldError)


def test_nothing_to_compact_is_said_before_anybody_is_asked(tmp_path: Path) -> None:
    answering = model()

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            with pytest.raises(CompactionFailed, match="nothing to compact yet"):
                await session.compact()
            assert session.path is None or not session.path.exists()

    asyncio.run(go())
    assert answering.requests == []
