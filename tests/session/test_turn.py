"""The turn loop: what is asked, run, recorded, and how a turn ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.profile import Profile, Provider
from refold.core.records import ItemRecorded, TurnEnded, TurnStarted, UsageCounted
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import ModelRefused, ModelUnavailable, ResponseIncomplete, SessionBusy, SessionClosed
from refold.model.scripted import Reply, ScriptedModel
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, Event, Notice, TextPreview, ToolEnded, Waiting
from refold.session.memory import read_thread
from refold.session.permits import Question
from refold.session.session import Session
from refold.testing import call_reply, text_reply, usage
from refold.tools.functions import tool

PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000))
PATIENT = Provider(id="scripted", name="scripted", base_url="http://127.0.0.1:1", env_key=None)


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


@tool
def echo(text: str) -> str:
    """Says it again."""
    return f"you said {text}"


@tool
async def slow(seconds: float, word: str = "slow") -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return word


def model(*replies: Any, profile: Profile = PROFILE) -> ScriptedModel:
    return ScriptedModel(list(replies), profile=profile, provider=PATIENT)


def start(answering: ScriptedModel, tmp_path: Path, tools: Sequence[Any] = (echo, slow), **settings: Any) -> Session:
    return Session.start(
        model=answering,
        tools=tools,
        cwd=tmp_path,
        home=tmp_path / "home",
        clock=Hasty(),
        instructions="BASE",
        **settings,
    )


async def events_of(session: Session, text: str) -> list[Event]:
    return [event async for event in session.send(text)]


def kinds(request: dict[str, Any]) -> list[str]:
    return [str(item.get("role") or item["type"]) for item in request["input"]]


def assert_replays(session: Session) -> None:
    """The log says what the live session knows, and every call in it has its output."""
    assert session.path is not None
    replayed = read_thread(session.path)
    assert same_state(replayed, session.memory.thread)
    calls = [e.item["call_id"] for e in replayed.history if e.item["type"] == "function_call"]
    outputs = [e.item["call_id"] for e in replayed.history if e.item["type"] == "function_call_output"]
    assert calls == outputs


def test_an_answer_without_calls_ends_the_turn(tmp_path: Path) -> None:
    answering = model(text_reply("hello there", usage=usage(100, 10)))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            result = await session.send("hi")
            assert (result.text, result.outcome, result.usage.total_tokens) == ("hello there", "completed", 110)
            assert_replays(session)

    asyncio.run(go())
    assert kinds(answering.requests[0]) == ["developer", "developer", "user", "user"]
    assert answering.requests[0]["input"][-1]["content"][0]["text"] == "hi"


def test_a_turn_tells_its_records_in_the_order_of_the_log_and_previews_between(tmp_path: Path) -> None:
    async def go() -> list[Event]:
        async with start(model(call_reply("echo", {"text": "x"}), text_reply("done")), tmp_path) as session:
            return await events_of(session, "hi")

    events = asyncio.run(go())
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-1], TurnEnded)
    items = [event.item for event in events if isinstance(event, ItemRecorded)]
    assert [item.get("role") or item["type"] for item in items] == [
        "developer",
        "user",
        "user",
        "function_call",
        "function_call_output",
        "assistant",
    ]
    assert items[4]["output"] == "you said x"
    assert "".join(event.text for event in events if isinstance(event, TextPreview)) == "done"
    assert any(isinstance(event, ToolEnded) and event.success for event in events)


def test_calls_of_one_reply_run_side_by_side_and_are_recorded_in_call_order(tmp_path: Path) -> None:
    arrived: list[str] = []
    everybody = asyncio.Event()

    @tool
    async def meet(word: str) -> str:
        """Comes back when all three are here; the last to come is the first to leave."""
        arrived.append(word)
        if len(arrived) == 3:
            everybody.set()
            return word
        await everybody.wait()
        return word

    calls = tuple(
        {"type": "function_call", "name": "meet", "arguments": f'{{"word":"{word}"}}', "call_id": call_id}
        for call_id, word in (("a", "first"), ("b", "second"), ("c", "third"))
    )
    answering = model(Reply(items=calls, usage=usage(1, 1)), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path, [meet]) as session:
            async with asyncio.timeout(10):
                await session.send("go")
            assert_replays(session)

    asyncio.run(go())
    outputs = [item for item in answering.requests[1]["input"] if item["type"] == "function_call_output"]
    assert [(item["call_id"], item["output"]) for item in outputs] == [("a", "first"), ("b", "second"), ("c", "third")]


def test_an_exclusive_tool_runs_alone(tmp_path: Path) -> None:
    inside = 0
    most = 0

    @tool(parallel=False)
    async def alone(n: int) -> str:
        """Wants no company."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return str(n)

    calls = tuple(
        {"type": "function_call", "name": "alone", "arguments": f'{{"n":{n}}}', "call_id": str(n)} for n in range(3)
    )

    async def go() -> None:
        async with start(model(Reply(items=calls, usage=usage(1, 1)), text_reply("x")), tmp_path, [alone]) as session:
            await session.send("go")

    asyncio.run(go())
    assert most == 1


def test_an_unknown_tool_and_a_failing_one_become_outputs(tmp_path: Path) -> None:
    @tool
    def broken() -> str:
        """Never works."""
        raise ValueError("no luck")

    answering = model(call_reply("nothing", {}), call_reply("broken", {}), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path, [broken]) as session:
            await session.send("go")

    asyncio.run(go())
    outputs = [item["output"] for item in answering.requests[2]["input"] if item["type"] == "function_call_output"]
    assert outputs == ["unsupported call: nothing", "ValueError: no luck"]


def test_end_turn_false_samples_again(tmp_path: Path) -> None:
    answering = model(text_reply("thinking", end_turn=False), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            assert (await session.send("go")).text == "done"

    asyncio.run(go())
    assert len(answering.requests) == 2


# --- steers ------------------------------------------------------------------------------------------------------


def test_a_steer_reaches_the_model_at_its_next_sampling(tmp_path: Path) -> None:
    answering = model(call_reply("slow", {"seconds": 0.1}), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            turn = session.send("go")
            await asyncio.sleep(0.05)
            item_id = session.steer("only touch billing/")
            assert read_thread(session.path).steers == {item_id: "only touch billing/"}  # type: ignore[arg-type]
            await turn
            assert_replays(session)
            assert not session.memory.thread.steers

    asyncio.run(go())
    last = answering.requests[1]["input"][-1]
    assert (last["role"], last["content"][0]["text"]) == ("user", "only touch billing/")


def test_a_steer_during_the_last_answer_is_answered_too(tmp_path: Path) -> None:
    answering = model(text_reply("first", delay=0.1), text_reply("second"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            turn = session.send("go")
            await asyncio.sleep(0.03)
            session.steer("and this")
            assert (await turn).text == "second"

    asyncio.run(go())
    assert [item["content"][0]["text"] for item in answering.requests[1]["input"][-2:]] == ["first", "and this"]


def test_a_steer_that_no_turn_read_waits_for_the_next_one_also_after_a_resume(tmp_path: Path) -> None:
    async def go() -> None:
        async with start(model(text_reply("one")), tmp_path) as session:
            await session.send("go")
            session.steer("remember this")
        answering = model(text_reply("two"))
        async with Session.resume(session.id, model=answering, home=tmp_path / "home") as resumed:
            await resumed.send("next")
        texts = [item["content"][0]["text"] for item in answering.requests[0]["input"][-2:]]
        assert texts == ["remember this", "next"]

    asyncio.run(go())


# --- how a turn can end --------------------------------------------------------------------------------------------


def test_an_interrupt_settles_every_call_and_the_turn(tmp_path: Path) -> None:
    reply = Reply(
        items=(
            {"type": "function_call", "name": "slow", "arguments": '{"seconds":0,"word":"real"}', "call_id": "p1"},
            {"type": "function_call", "name": "slow", "arguments": '{"seconds":30}', "call_id": "p2"},
        ),
        usage=usage(1, 1),
    )
    answering = model(reply, text_reply("after"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            turn = session.send("go")
            await asyncio.sleep(0.1)
            assert session.interrupt()
            result = await turn
            assert (result.outcome, result.text) == ("interrupted", None)
            assert not session.interrupt()
            assert_replays(session)
            assert (await session.send("go on")).text == "after"

    asyncio.run(go())
    items = answering.requests[1]["input"]
    outputs = {item["call_id"]: item["output"] for item in items if item["type"] == "function_call_output"}
    assert outputs["p1"] == "real"
    assert re.fullmatch(r"Wall time: 0\.\d{4} seconds\naborted by user", outputs["p2"])
    assert items[-2]["content"][0]["text"].startswith("<turn_aborted>")


def test_leaving_the_session_settles_a_running_turn(tmp_path: Path) -> None:
    async def go() -> None:
        async with start(model(call_reply("slow", {"seconds": 30})), tmp_path) as session:
            session.send("go")
            await asyncio.sleep(0.1)
        log = read_thread(session.path)  # type: ignore[arg-type]
        assert log.open_turn is None
        [output] = [e.item["output"] for e in log.history if e.item["type"] == "function_call_output"]
        assert output.endswith("aborted by user")

    asyncio.run(go())


def test_one_turn_at_a_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with start(model(text_reply("one", delay=0.05)), tmp_path) as session:
            turn = session.send("go")
            with pytest.raises(SessionBusy):
                session.send("and this")
            await turn
        with pytest.raises(SessionClosed):
            session.send("late")

    asyncio.run(go())


def test_a_refusal_fails_the_turn_and_the_session_goes_on(tmp_path: Path) -> None:
    refusal = Reply(status=400, body={"error": {"code": "invalid_prompt", "message": "not like this"}})

    async def go() -> None:
        async with start(model(refusal, text_reply("fine")), tmp_path) as session:
            with pytest.raises(ModelRefused, match="not like this"):
                await session.send("go")
            assert (await session.send("again")).text == "fine"
            assert_replays(session)

    asyncio.run(go())


def test_iterating_a_failed_turn_raises_after_its_last_event(tmp_path: Path) -> None:
    async def go() -> None:
        seen: list[Event] = []
        async with start(model(Reply(incomplete="max_output_tokens", usage=usage(1500, 12))), tmp_path) as session:
            with pytest.raises(ResponseIncomplete, match="max_output_tokens"):
                async for event in session.send("go"):
                    seen.append(event)
            assert session.memory.thread.total_usage.total_tokens == 1512
        ended = seen[-1]
        assert isinstance(ended, TurnEnded)
        assert (ended.outcome, ended.error) == ("failed", "Incomplete response returned, reason: max_output_tokens")

    asyncio.run(go())


def test_a_broken_stream_is_asked_again_and_no_call_runs_twice(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    def note(text: str) -> str:
        """Remembers."""
        ran.append(text)
        return "noted"

    broken = call_reply("note", {"text": "once"}, "c1", cut_after="items")
    answering = model(broken, text_reply("done"))

    async def go() -> list[Event]:
        async with start(answering, tmp_path, [note]) as session:
            events = await events_of(session, "go")
            assert_replays(session)
            return events

    events = asyncio.run(go())
    assert ran == ["once"]
    assert kinds(answering.requests[1])[-2:] == ["function_call", "function_call_output"]
    waits = [event for event in events if isinstance(event, Waiting)]
    assert [(wait.attempt, wait.of) for wait in waits] == [(1, 5)]


def test_patience_ends(tmp_path: Path) -> None:
    answering = model(*[Reply(status=503, body={})] * 40)

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            with pytest.raises(ModelUnavailable):
                await session.send("go")
            assert_replays(session)

    asyncio.run(go())
    assert len(answering.requests) == (1 + PATIENT.stream_max_retries) * (1 + PATIENT.request_max_retries)


# --- limits and notices ----------------------------------------------------------------------------------------------


def test_a_long_tool_output_is_limited_before_it_is_recorded(tmp_path: Path) -> None:
    @tool
    def flood() -> str:
        """Says far too much."""
        return "x" * 1_000_000

    answering = model(call_reply("flood", {}), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path, [flood]) as session:
            await session.send("go")
            assert_replays(session)

    asyncio.run(go())
    output = next(item["output"] for item in answering.requests[1]["input"] if item["type"] == "function_call_output")
    assert len(output) < 12_000 * 4 + 100
    assert "tokens truncated…" in output


def test_an_unknown_model_works_with_one_notice(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("two"), profile=Profile(slug="mystery", known=False))

    async def go() -> list[Event]:
        async with start(answering, tmp_path) as session:
            return [*await events_of(session, "1"), *await events_of(session, "2")]

    notices = [event.text for event in asyncio.run(go()) if isinstance(event, Notice)]
    assert len(notices) == 1
    assert "mystery" in notices[0]
    assert "272,000" in notices[0]


def test_usage_is_counted_over_the_session(tmp_path: Path) -> None:
    async def go() -> list[Event]:
        replies = (text_reply("1", usage=usage(100, 10)), text_reply("2", usage=usage(200, 20)))
        async with start(model(*replies), tmp_path) as session:
            return [*await events_of(session, "1"), *await events_of(session, "2")]

    counted = [event for event in asyncio.run(go()) if isinstance(event, UsageCounted)]
    assert [one.total.total_tokens for one in counted] == [110, 330]


# --- compaction in the loop ------------------------------------------------------------------------------------


def small(limit: int = 1_000) -> Profile:
    return Profile(slug="m", context_window=50_000, auto_compact_token_limit=limit, truncation=Budget("tokens", 10_000))


def test_compaction_waits_for_every_output_and_leaves_no_orphan(tmp_path: Path) -> None:
    reply = Reply(
        items=(
            {"type": "function_call", "name": "slow", "arguments": '{"seconds":0.05}', "call_id": "p1"},
            {"type": "function_call", "name": "slow", "arguments": '{"seconds":0.1}', "call_id": "p2"},
        ),
        usage=usage(5000, 10),
    )
    answering = model(reply, text_reply("SUMMARY"), text_reply("done"), profile=small())

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("go")
            assert_replays(session)

    asyncio.run(go())
    asked = answering.requests[1]
    assert kinds(asked)[-5:] == [
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "user",
    ]
    assert (asked["tools"], asked["parallel_tool_calls"]) == ([], False)
    after = answering.requests[2]
    assert kinds(after) == ["developer", "developer", "user", "user", "user"]
    assert after["input"][-1]["content"][0]["text"].endswith("\nSUMMARY")


def test_an_overflow_while_sampling_compacts_and_goes_on_in_the_same_turn(tmp_path: Path) -> None:
    overflow = Reply(fail={"code": "context_length_exceeded", "message": "too long"})
    answering = model(overflow, text_reply("SUMMARY"), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            assert (await session.send("go")).text == "done"
            assert session.memory.thread.window.number == 1
            assert_replays(session)

    asyncio.run(go())


def test_an_overflow_that_comes_back_fails_the_turn_instead_of_going_round(tmp_path: Path) -> None:
    overflow = Reply(fail={"code": "context_length_exceeded", "message": "too long"})
    answering = model(overflow, text_reply("SUMMARY"), overflow)

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            with pytest.raises(Exception, match="too long"):
                await session.send("go")

    asyncio.run(go())
    assert len(answering.requests) == 3


def test_a_compaction_that_cannot_make_room_is_said_and_not_repeated_in_the_turn(tmp_path: Path) -> None:
    """Case S03: base instructions alone are above the limit."""
    calls = [call_reply("echo", {"text": "x"}, usage=usage(15_000, 10)) for _ in range(5)]
    replies = [calls[0], text_reply("done so far: nothing"), *calls[1:], text_reply("end")]
    answering = model(*replies, profile=Profile(slug="m", context_window=16_000))

    async def go() -> list[Event]:
        session = Session.start(
            model=answering,
            tools=[echo],
            cwd=tmp_path,
            home=tmp_path / "home",
            clock=Hasty(),
            instructions="b" * 56_000,
        )
        async with session:
            return await events_of(session, "m" * 8_000)

    events = asyncio.run(go())
    ended = [event for event in events if isinstance(event, CompactionEnded)]
    assert [event.made_room for event in ended] == [False]
    assert min(ended[0].before, ended[0].after, ended[0].limit or 0) > 0
    assert any(isinstance(event, Notice) and "no room" in event.text for event in events)
    assert sum("CONTEXT CHECKPOINT" in str(request["input"][-1]) for request in answering.requests) == 1


def test_a_summary_much_larger_than_the_history_is_not_installed(tmp_path: Path) -> None:
    """Case S04."""
    answering = model(
        call_reply("echo", {"text": "x"}, usage=usage(5_000, 10)),
        text_reply("s" * 8_000),
        text_reply("done"),
        profile=small(),
    )

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            events = await events_of(session, "go")
            ended = next(event for event in events if isinstance(event, CompactionEnded))
            assert not ended.installed
            assert ended.after - ended.before >= 1_000
            assert session.memory.thread.window.number == 0
            assert "compacted" not in [line.record.__class__.__name__.lower() for line in session.memory.store.lines()]
            assert_replays(session)

    asyncio.run(go())


def test_a_failed_compaction_before_a_turn_keeps_what_the_user_said(tmp_path: Path) -> None:
    refusal = Reply(status=401, body={"error": {"message": "bad key"}})
    answering = model(
        text_reply("one", usage=usage(5_000, 10)), refusal, text_reply("SUMMARY"), text_reply("two"), profile=small()
    )

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            with pytest.raises(ModelRefused):
                await session.send("second")
            assert session.memory.thread.history[-1].item["content"][0]["text"] == "second"
            await session.send("third")
            assert_replays(session)

    asyncio.run(go())
    texts = [item["content"][0]["text"] for item in answering.requests[-1]["input"] if item.get("role") == "user"]
    assert [text for text in texts if text in ("first", "second", "third")] == ["first", "second", "third"]


def test_an_older_answer_never_passes_for_a_summary(tmp_path: Path) -> None:
    empty = Reply(items=(), usage=usage(10, 1))
    answering = model(text_reply("an answer", usage=usage(5_000, 10)), *[empty] * 6, text_reply("x"), profile=small())

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            with pytest.raises(Exception, match="instead of a text"):
                await session.send("second")
            assert session.memory.thread.window.number == 0

    asyncio.run(go())


def test_a_manual_compaction_is_a_turn_of_its_own(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("SUMMARY"), text_reply("two"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            ended = await session.compact()
            assert ended.installed
            await session.send("second")
            assert_replays(session)
            thread: Thread = session.memory.thread
            assert (thread.turns, thread.compactions, thread.open_turn) == (3, 1, None)

    asyncio.run(go())
    assert kinds(answering.requests[2]) == ["developer", "developer", "user", "user", "user", "user"]


def test_a_failed_manual_compaction_leaves_the_session_usable(tmp_path: Path) -> None:
    answering = model(text_reply("one"), Reply(status=401, body={}), text_reply("two"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            with pytest.raises(ModelRefused):
                await session.compact()
            assert (await session.send("second")).text == "two"

    asyncio.run(go())


@pytest.mark.parametrize(
    "text",
    [
        "<environment_context>typed</environment_context>",
        "# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>\ntyped\n</INSTRUCTIONS>",
        "<turn_aborted>typed</turn_aborted>",
    ],
)
def test_a_typed_message_that_looks_like_context_survives_a_compaction(text: str, tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("SUMMARY"), text_reply("two"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send(text)
            await session.compact()
        async with Session.resume(session.id, model=answering, home=tmp_path / "home") as resumed:
            await resumed.send("second")

    asyncio.run(go())
    said = [item["content"][0]["text"] for item in answering.requests[-1]["input"] if item.get("role") == "user"]
    assert said.count(text) == 1


def test_questions_are_asked_one_at_a_time_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    asking = 0
    most = 0
    ran: list[int] = []

    async def approve(question: Question) -> bool:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await asyncio.sleep(0.01)
        asking -= 1
        return '"n":1' in question.call["arguments"]

    @tool(needs_approval=True)
    def risky(n: int) -> str:
        """Does something."""
        ran.append(n)
        return str(n)

    calls = tuple(
        {"type": "function_call", "name": "risky", "arguments": f'{{"n":{n}}}', "call_id": str(n)} for n in range(3)
    )
    answering = model(Reply(items=calls, usage=usage(1, 1)), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path, [risky], approve=approve) as session:
            await session.send("go")

    asyncio.run(go())
    assert (most, ran) == (1, [1])
    outputs = [item["output"] for item in answering.requests[1]["input"] if item["type"] == "function_call_output"]
    assert outputs == [
        "The user did not allow this command to run.",
        "1",
        "The user did not allow this command to run.",
    ]


def test_two_overflows_far_apart_are_two_compactions(tmp_path: Path) -> None:
    overflow = Reply(fail={"code": "context_length_exceeded", "message": "too long"})
    again = call_reply("echo", {"text": "x"})
    answering = model(overflow, text_reply("ONE"), again, again, overflow, text_reply("TWO"), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            assert (await session.send("go")).text == "done"
            assert session.memory.thread.window.number == 2
            assert_replays(session)

    asyncio.run(go())


def test_the_usage_of_a_refused_summary_is_recorded(tmp_path: Path) -> None:
    empty = Reply(items=(), usage=usage(1000, 7))
    answering = model(text_reply("one", usage=usage(10, 1)), empty, text_reply("SUMMARY", usage=usage(100, 10)))

    async def go() -> None:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            await session.compact()
            assert session.memory.thread.total_usage.total_tokens == 11 + 1007 + 110
            assert_replays(session)

    asyncio.run(go())


def test_a_tool_that_is_cancelled_from_inside_does_not_end_the_turn(tmp_path: Path) -> None:
    @tool
    async def odd() -> str:
        """Waits for something that is cancelled."""
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        gone.cancel()
        return await gone

    answering = model(call_reply("odd", {}), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path, [odd]) as session:
            assert (await session.send("go")).outcome == "completed"
            assert_replays(session)

    asyncio.run(go())


def test_a_turn_tells_its_own_usage_whenever_it_is_asked(tmp_path: Path) -> None:
    async def go() -> None:
        replies = (text_reply("1", usage=usage(10, 1)), text_reply("2", usage=usage(20, 2)))
        async with start(model(*replies), tmp_path) as session:
            first = session.send("1")
            assert (await first).usage.total_tokens == 11
            await session.send("2")
            assert (await first).usage.total_tokens == 11

    asyncio.run(go())
