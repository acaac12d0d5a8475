"""Token budget: a full window ends without a request, and what the model is told of it (docs/token-budget.md)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.config import parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, RequestSent
from refold.core.thread import same_state
from refold.core.truncate import Budget
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, CompactionStarted, Event, Notice
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import call_reply, text_reply, usage
from refold.tools import Tool, tool
from refold.views.sent import sent

PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000))
LIMIT = 10_000
LOW, NEAR, FULL = usage(1_000, 10), usage(8_990, 10), usage(11_990, 10)
REMIND = {"reminder_threshold_tokens": 2_000, "reminder_message_template": "{n_remaining} left, {not_ours}"}
BEYOND = {"auto_compact_fallback_prompt": "WRITE IT DOWN", "auto_compact_fallback_buffer_tokens": 1_500}


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


@tool(name="exec_command")
def work(cmd: str) -> str:
    """Pretend to run a command."""
    return f"Process exited with code 0\nOutput:\n{cmd}"


def act(cmd: str, usage: Any = LOW) -> Reply:
    return call_reply("exec_command", {"cmd": cmd}, usage=usage)


def fresh_window(usage: Any = LOW) -> Reply:
    return call_reply("new_context", {}, usage=usage)


def model(*replies: Any, profile: Profile = PROFILE) -> ScriptedModel:
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
    return ScriptedModel(list(replies), profile=profile, provider=provider)


def common(answering: ScriptedModel, folder: Path, budget: dict[str, Any], **more: Any) -> dict[str, Any]:
    document = {
        "model_auto_compact_token_limit": LIMIT,
        "features": {"token_budget": {"enabled": True, **budget}},
        **more,
    }
    config = parse_config(document, "test")
    profile = config.profile(answering.profile)
    answering.profile = profile
    return {"model": answering, "home": folder / "home", "clock": Hasty(), "config": config, "tools": [work]}


Doing = Callable[[Session], Awaitable[Any]]


def started(
    answering: ScriptedModel, folder: Path, doing: Doing, budget: dict[str, Any] | None = None, **more: Any
) -> Path:
    """A session that does this; afterwards the log gives the same thread. The log's path."""

    async def go() -> Path:
        session = Session.start(cwd=folder, instructions="BASE", **common(answering, folder, budget or {}, **more))
        return await done(session, doing)

    return asyncio.run(go())


def resumed(
    answering: ScriptedModel, folder: Path, path: Path, doing: Doing, budget: dict[str, Any] | None = None
) -> Path:
    async def go() -> Path:
        return await done(Session.resume(path, **common(answering, folder, budget or {})), doing)

    return asyncio.run(go())


async def done(session: Session, doing: Doing) -> Path:
    async with session:
        await asyncio.wait_for(doing(session), 30)
        assert session.path is not None
        assert same_state(session.memory.thread, read_thread(session.path)), "live is replayed"
        assert all(one.is_same for one in sent(read_lines(session.path))), "each request can be made again"
        return session.path


def saying(*texts: str) -> Doing:
    async def doing(session: Session) -> None:
        for text in texts:
            await session.send(text)

    return doing


def checkpoints(path: Path) -> list[Compacted]:
    return [line.record for line in read_lines(path) if isinstance(line.record, Compacted)]


def items(request: dict[str, Any], role: str) -> list[str]:
    return [message_text(item) for item in request["input"] if item.get("role") == role]


def told(request: dict[str, Any], words: str) -> list[str]:
    return [text for text in items(request, "developer") if words in text]


def typed(request: dict[str, Any]) -> list[str]:
    """What people said: the environment is no such message, nor is an outline."""
    return [text for text in items(request, "user") if not text.startswith(("<environment", SUMMARY_MARK))]


def outputs(request: dict[str, Any]) -> list[str]:
    return [item["output"] for item in request["input"] if item["type"] == "function_call_output"]


def names(request: dict[str, Any]) -> list[str]:
    return [one["name"] for one in request["tools"]]


# --- a window ends ---------------------------------------------------------------------------------------------------


def test_at_the_limit_before_a_turn_a_window_begins_without_a_request(tmp_path: Path) -> None:
    answering = model(text_reply("one", usage=FULL), text_reply("two", usage=LOW))
    path = started(answering, tmp_path, saying("find the leak", "now fix it"))
    assert len(answering.requests) == 2
    (checkpoint,) = checkpoints(path)
    assert (checkpoint.facts["method"], checkpoint.facts["phase"]) == ("rollover", "pre_turn")
    assert typed(answering.requests[1]) == ["find the leak", "now fix it"]
    assert not [item for item in answering.requests[1]["input"] if item.get("role") == "assistant"]


def test_at_the_limit_within_a_turn_the_goal_and_an_outline_go_on(tmp_path: Path) -> None:
    answering = model(act("make"), act("make check", FULL), text_reply("done"))
    path = started(answering, tmp_path, saying("find the leak"))
    after = answering.requests[2]
    assert typed(after) == ["find the leak"]
    outline = items(after, "user")[-1]
    assert outline.startswith(SUMMARY_MARK)
    assert re.search(r"\[\S+:\d+\] make check -> exit 0", outline), "what was done, with its record's address"
    assert outputs(after) == []
    assert checkpoints(path)[0].facts["phase"] == "mid_turn"


def test_the_limit_is_met_by_count_only_when_it_is_reached(tmp_path: Path) -> None:
    answering = model(act("a", usage(LIMIT - 200, 10)), text_reply("done"))
    assert checkpoints(started(answering, tmp_path, saying("go"))) == []


def test_without_the_feature_nothing_is_different(tmp_path: Path) -> None:
    answering = model(act("a"), text_reply("done"))
    path = started(answering, tmp_path, saying("go"), {"enabled": False, **REMIND, "guidance_message": "G"})
    assert names(answering.requests[0]) == ["exec_command"]
    assert not told(answering.requests[1], "context_window")
    assert "refold" not in (read_thread(path).world or {})


def test_a_compaction_by_hand_asks_no_model_and_one_with_a_focus_does(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("THE SUMMARY"), text_reply("two"))

    async def doing(session: Session) -> None:
        await session.send("go")
        await session.compact()
        assert len(answering.requests) == 1
        await session.compact("the names")
        await session.send("more")

    path = started(answering, tmp_path, doing)
    assert [one.facts["method"] for one in checkpoints(path)] == ["rollover", "local"]
    window = read_thread(path).window
    (text,) = told(answering.requests[2], "Current context window id")
    assert (window.number, f"Current context window id: {window.id}\n" in text) == (2, True)


def test_a_request_that_is_too_long_begins_a_window_and_the_turn_goes_on(tmp_path: Path) -> None:
    overflow = Reply(fail={"code": "context_length_exceeded", "message": "too long"})
    answering = model(act("a"), overflow, text_reply("done"))
    path = started(answering, tmp_path, saying("go"))
    assert [one.facts["method"] for one in checkpoints(path)] == ["rollover"]
    assert typed(answering.requests[2]) == ["go"]


def test_what_only_the_provider_could_read_goes_on_as_its_outline(tmp_path: Path) -> None:
    sealed = Reply(items=({"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 40},), usage=LOW)
    first = model(act("make check"), text_reply("one", usage=FULL), sealed, text_reply("two"))
    first.provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, compaction="remote")
    path = started(first, tmp_path, saying("find the leak", "on"), {"enabled": False})
    assert [one.facts["method"] for one in checkpoints(path)] == ["remote"]
    second = model(text_reply("three", usage=FULL), text_reply("four"))
    second.provider = first.provider
    resumed(second, tmp_path, path, saying("more", "and more"))
    after = second.requests[1]
    assert not [item for item in after["input"] if item["type"] == "compaction"]
    assert typed(after) == ["find the leak", "on", "more", "and more"]
    assert "make check -> exit 0" in next(text for text in items(after, "user") if text.startswith(SUMMARY_MARK))


def test_an_undone_window_is_not_begun_again_by_itself(tmp_path: Path) -> None:
    answering = model(act("make"), fresh_window(), text_reply("one"), text_reply("two"))

    async def doing(session: Session) -> None:
        await session.send("go")
        await session.undo()
        await session.send("on")

    path = started(answering, tmp_path, doing)
    assert [one.facts["method"] for one in checkpoints(path)] == ["rollover", "undo"]
    assert (typed(answering.requests[3]), len(outputs(answering.requests[3]))) == (["go", "on"], 2)
    current = read_thread(path).window.id
    assert told(answering.requests[3], f"Current context window id: {current}\n")


def test_nothing_is_compacted_after_an_answer(tmp_path: Path) -> None:
    answering = model(text_reply("one", usage=FULL))
    more = {"model_post_turn_compact_threshold_percent": 1}
    assert checkpoints(started(answering, tmp_path, saying("go"), **more)) == []


def test_a_host_without_a_loop_gets_the_same_window(tmp_path: Path) -> None:
    config = parse_config({"features": {"token_budget": True}, "model_auto_compact_token_limit": LIMIT}, "test")
    answering = model()
    with Memory.open(tmp_path, model=config.profile(PROFILE), config=config) as memory:
        memory.add([{"role": "user", "content": "go"}, {"role": "assistant", "content": "x" * 999}], usage=FULL)
        ended = asyncio.run(memory.make_room(answering))
        assert ended is not None
        assert ended.installed
        assert answering.requests == []
        assert memory.thread.window.number == 1
        assert memory.path is not None
        assert same_state(memory.thread, read_thread(memory.path))


# --- its ids ---------------------------------------------------------------------------------------------------------


def test_each_window_names_the_first_the_current_and_the_one_before(tmp_path: Path) -> None:
    answering = model(act("a", FULL), act("b", FULL), text_reply("done"))
    path = started(answering, tmp_path, saying("go"))
    told_ids = [
        re.findall("window id: (.*)\n", told(request, "context window id")[0]) for request in answering.requests
    ]
    first, second, third = (ids[1] for ids in told_ids)
    assert told_ids == [[first, first], [first, second, first], [first, third, second]]
    assert len({first, second, third}) == 3
    found = [
        (one.window.number, one.window.first_id, one.window.id, one.window.previous_id)
        for one in checkpoints(path)
        if one.window
    ]
    assert found == [(1, first, second, first), (2, first, third, second)]


def test_a_window_is_told_once_and_not_again_after_a_resume(tmp_path: Path) -> None:
    path = started(model(text_reply("one")), tmp_path, saying("go"))
    answering = model(text_reply("two"))
    resumed(answering, tmp_path, path, saying("on"))
    assert len(told(answering.requests[0], "context window id")) == 1


def test_a_feature_that_is_switched_on_later_tells_the_window_then(tmp_path: Path) -> None:
    path = started(model(text_reply("one")), tmp_path, saying("go"), {"enabled": False})
    answering = model(text_reply("two", usage=FULL), text_reply("three"))
    resumed(answering, tmp_path, path, saying("on", "and on"))
    current = read_thread(path).window
    assert len(told(answering.requests[0], f"Current context window id: {current.first_id}\n")) == 1
    assert len(told(answering.requests[1], "context window id")) == 1
    assert told(answering.requests[1], f"Current context window id: {current.id}\n")


def test_guidance_stands_first_and_is_told_again_only_when_it_changes(tmp_path: Path) -> None:
    first = model(text_reply("one"), text_reply("two"))
    path = started(first, tmp_path, saying("go", "on"), {"guidance_message": "BE BRIEF"})
    context = first.requests[1]["input"][1]["content"]
    tag = "context_window_guidance"
    assert context[0]["text"] == f"<{tag}>\nBE BRIEF\n</{tag}>"
    assert len(told(first.requests[1], "BE BRIEF")) == 1
    second = model(text_reply("three"))
    resumed(second, tmp_path, path, saying("more"), {"guidance_message": "BE LONG"})
    assert len(told(second.requests[0], "BE LONG")) == 1


# --- the model asks --------------------------------------------------------------------------------------------------


def test_new_context_begins_a_window_at_once_and_leaves_no_trace_of_its_call(tmp_path: Path) -> None:
    both = Reply(items=(*act("make check").items, *fresh_window().items), usage=LOW)
    answering = model(act("z"), both, text_reply("done"))
    path = started(answering, tmp_path, saying("go"))
    after = answering.requests[2]
    assert (len(checkpoints(path)), outputs(after), typed(after)) == (1, [], ["go"])
    outline = items(after, "user")[-1]
    assert "make check" in outline
    assert "new_context" not in outline


def test_a_model_that_only_asks_for_windows_gets_one(tmp_path: Path) -> None:
    answering = model(*[fresh_window() for _ in range(5)], text_reply("done"))
    path = started(answering, tmp_path, saying("go"))
    assert len(checkpoints(path)) == 1
    assert all("go on with the task" in output for output in outputs(answering.requests[-1]))
    assert len(outputs(answering.requests[-1])) == 4


def test_a_window_in_which_work_was_done_may_be_left_again(tmp_path: Path) -> None:
    answering = model(act("a"), fresh_window(), act("b"), fresh_window(), text_reply("done"))
    assert len(checkpoints(started(answering, tmp_path, saying("go")))) == 2


def test_a_window_that_was_asked_for_before_a_crash_begins_with_the_next_turn(tmp_path: Path) -> None:
    path = started(model(act("a"), fresh_window(), text_reply("done")), tmp_path, saying("go"))
    lines = path.read_bytes().splitlines(keepends=True)
    checkpoint = next(place for place, line in enumerate(lines) if b'"type":"compacted"' in line)
    path.write_bytes(b"".join(lines[:checkpoint]))  # killed between the call's output and the new window
    answering = model(text_reply("two"))
    resumed(answering, tmp_path, path, saying("on"))
    assert [one.facts["phase"] for one in checkpoints(path)] == ["pre_turn"]
    assert (typed(answering.requests[0]), outputs(answering.requests[0])) == (["go", "on"], [])


def test_a_hosts_own_tool_of_that_name_stays_and_begins_no_window(tmp_path: Path) -> None:
    @tool(name="new_context")
    def own() -> str:
        """Mine."""
        return "mine"

    answering = model(fresh_window(), text_reply("done"))
    tools: Sequence[Tool] = [own]

    async def go() -> None:
        settings = {**common(answering, tmp_path, {}), "tools": tools}
        async with Session.start(cwd=tmp_path, **settings) as session:
            await session.send("go")
            assert session.memory.thread.window.number == 0

    asyncio.run(go())
    assert names(answering.requests[0]) == ["new_context", "get_context_remaining"]
    assert outputs(answering.requests[1]) == ["mine"]


@pytest.mark.parametrize("slow", [True, False])
def test_what_is_left_counts_the_last_usage_and_everything_since(tmp_path: Path, *, slow: bool) -> None:
    asks = call_reply("get_context_remaining", {}, usage=usage(9_520, 10), stall=0.2 if slow else 0.0)
    answering = model(act("x" * 2_000, NEAR), asks, text_reply("done"))
    started(answering, tmp_path, saying("go"))
    (text,) = [output for output in outputs(answering.requests[2]) if "left" in output]
    found = re.fullmatch(r"About (\d+) of 10000 tokens are left in this context window\.", text)
    assert found
    if slow:  # the question is answered before its own response's usage is told: 9,000, an output of 500, and itself
        assert LIMIT - 9_000 - 540 < int(found[1]) < LIMIT - 9_000 - 510
    else:
        assert int(found[1]) == LIMIT - 9_530


def test_what_is_left_is_not_known_without_a_context_window(tmp_path: Path) -> None:
    unknown = Profile(slug="m", context_window=None)
    answering = model(call_reply("get_context_remaining", {}), text_reply("done"), profile=unknown)

    async def go() -> None:
        config = parse_config({"features": {"token_budget": {"enabled": True, **REMIND}}}, "test")
        async with Session.start(model=answering, home=tmp_path / "home", cwd=tmp_path, config=config) as session:
            await session.send("go")

    asyncio.run(go())
    assert outputs(answering.requests[1]) == ["It is not known how many tokens this context window holds."]


# --- what it is told -------------------------------------------------------------------------------------------------


def test_little_is_left_is_told_once_in_a_window_behind_the_outputs(tmp_path: Path) -> None:
    answering = model(act("a"), act("b", NEAR), act("c", NEAR), act("d", FULL), act("e", NEAR), text_reply("done"))
    started(answering, tmp_path, saying("go"), REMIND)
    counts = [len(told(request, " left, ")) for request in answering.requests]
    assert counts == [0, 0, 1, 1, 0, 1], "the next window has its own"
    last = answering.requests[2]["input"][-1]
    assert last["role"] == "developer"
    assert re.fullmatch(r"9\d\d left, \{not_ours\}", message_text(last))


def test_little_is_left_is_not_told_again_after_a_resume_or_in_a_fork(tmp_path: Path) -> None:
    path = started(model(act("a", NEAR), text_reply("one", usage=NEAR)), tmp_path, saying("go"), REMIND)
    answering = model(text_reply("two", usage=NEAR))
    resumed(answering, tmp_path, path, saying("on"), REMIND)
    assert len(told(answering.requests[0], " left, ")) == 1
    forking = model(text_reply("three", usage=NEAR), text_reply("four"))

    async def go() -> None:
        async with Session.fork(path, **common(forking, tmp_path, REMIND)) as session:
            await session.send("more")
            await session.send("and more")

    asyncio.run(go())
    assert [len(told(request, " left, ")) for request in forking.requests] == [1, 1]


def test_little_is_left_is_told_at_the_next_turn_when_an_answer_brought_it_there(tmp_path: Path) -> None:
    answering = model(text_reply("one", usage=NEAR), text_reply("two"))
    started(answering, tmp_path, saying("go", "on"), REMIND)
    assert [len(told(request, " left, ")) for request in answering.requests] == [0, 1]


def test_nothing_is_told_before_the_windows_use_is_known(tmp_path: Path) -> None:
    answering = model(act("a", FULL), text_reply("done"))
    started(answering, tmp_path, saying("go"), {**REMIND, "reminder_threshold_tokens": LIMIT})
    assert [told(request, " left, ") for request in answering.requests] == [[], []]


def test_a_reminder_without_a_text_of_its_own_has_refolds(tmp_path: Path) -> None:
    answering = model(act("a", NEAR), text_reply("done"))
    started(answering, tmp_path, saying("go"), {"reminder_threshold_tokens": 2_000})
    (text,) = told(answering.requests[1], "tokens are left in this context window")
    assert re.match(r"About 9\d\d tokens", text)


def test_at_the_limit_the_fallback_prompt_is_said_once_and_the_window_ends_at_the_buffers_end(tmp_path: Path) -> None:
    over = usage(LIMIT + 390, 10)
    answering = model(act("a", over), act("b", over), act("c", FULL), text_reply("done"))
    path = started(answering, tmp_path, saying("go"), BEYOND)
    assert [len(told(request, "WRITE IT DOWN")) for request in answering.requests] == [0, 1, 1, 0]
    assert len(checkpoints(path)) == 1


def test_a_window_that_ends_is_not_told_the_fallback_prompt(tmp_path: Path) -> None:
    answering = model(act("a", usage(LIMIT + 1_490, 10)), text_reply("done"))
    path = started(answering, tmp_path, saying("go"), BEYOND)
    assert told(answering.requests[1], "WRITE IT DOWN") == []
    assert len(checkpoints(path)) == 1


def test_a_buffer_never_reaches_beyond_the_usable_window(tmp_path: Path) -> None:
    small = Profile(slug="m", context_window=10_000, truncation=Budget("tokens", 10_000))  # limit 9,000, usable 9,500
    answering = model(act("a", usage(9_490, 10)), text_reply("done"), profile=small)
    budget = {**BEYOND, "auto_compact_fallback_buffer_tokens": 5_000}
    assert len(checkpoints(started(answering, tmp_path, saying("go"), budget))) == 1


# --- it terminates ---------------------------------------------------------------------------------------------------


def test_a_context_that_alone_is_over_the_limit_is_said_and_ends_no_window_again(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Rule.\n" * 5_000)  # 30 kB: 7,500 tokens
    events: list[Event] = []

    async def doing(session: Session) -> None:
        async for event in session.send("go"):
            events.append(event)

    answering = model(*[act("a", usage(6_500, 10)) for _ in range(4)], text_reply("done"))
    budget = {**REMIND, **BEYOND}
    path = started(answering, tmp_path, doing, budget, model_auto_compact_token_limit=5_000)
    assert len([one for one in events if isinstance(one, CompactionStarted)]) == 1
    (ended,) = [one for one in events if isinstance(one, CompactionEnded)]
    assert not ended.made_room
    assert [one for one in events if isinstance(one, Notice) and "made no room" in one.text]
    assert len(answering.requests) == 5
    assert len(checkpoints(path)) <= 1
    assert told(answering.requests[-1], "WRITE IT DOWN") == [], "there is no room for an answer"


STEPS = st.sampled_from(["work", "new", "left", "answer"])
USED = st.sampled_from([500, 2_000, 7_900, 8_500, 9_999, 10_100, 11_499, 11_500, 50_000])
PLAYS = st.lists(st.tuples(STEPS, USED), min_size=1, max_size=14)


def reply_of(step: str, used: int) -> Reply:
    told_usage = usage(used - 10, 10)
    match step:
        case "work":
            return act("x" * 40, told_usage)
        case "new":
            return fresh_window(told_usage)
        case "left":
            return call_reply("get_context_remaining", {}, usage=told_usage)
        case _:
            return text_reply("an answer", usage=told_usage)


@settings(max_examples=40, deadline=None)
@given(PLAYS)
def test_whatever_comes_each_window_is_whole_and_told_once(play: list[tuple[str, int]]) -> None:
    answers = [*play, ("answer", 500)]
    turns = [f"message {number}" for number, (step, _) in enumerate(answers) if step == "answer"]
    answering = model(*(reply_of(*one) for one in answers))
    with TemporaryDirectory() as folder:
        path = started(answering, Path(folder), saying(*turns), {**REMIND, **BEYOND, "guidance_message": "GUIDE"})
        found = checkpoints(path)
        asked = [line.record for line in read_lines(path) if isinstance(line.record, RequestSent)]
    assert len(asked) == len(answering.requests) == len(answers), "no window costs a request"
    assert [one.window.number for one in found if one.window] == list(range(1, len(found) + 1))
    assert len({one.window.id for one in found if one.window}) == len(found)
    assert len(found) <= len(answers) + len(turns), "at most one between two answers and before each turn"
    said = 0
    for (step, _), request in zip([("answer", 0), *answers], answering.requests, strict=False):
        said += step == "answer"
        assert typed(request) == turns[:said], "nothing that a person said is lost"
        for words in (" left, ", "WRITE IT DOWN"):
            assert len(told(request, words)) <= 1
        for words in ("GUIDE", "Current context window id"):
            assert len(told(request, words)) == 1
        assert sum(text.startswith(SUMMARY_MARK) for text in items(request, "user")) <= 1


@pytest.mark.parametrize("method", ["resume", "fork"])
def test_the_next_request_is_the_same_live_and_from_the_log(tmp_path: Path, method: str) -> None:
    answering = model(act("a", NEAR), act("b", FULL), text_reply("one"), text_reply("two"))
    path = started(answering, tmp_path, saying("go", "on"), REMIND)
    log = path.read_bytes()
    cut = log.index(b'"on"')  # before the second turn's message
    path.write_bytes(log[: log.rindex(b'"type":"task_started"', 0, cut)].rpartition(b"\n")[0] + b"\n")
    again = model(text_reply("two"))
    if method == "resume":
        resumed(again, tmp_path, path, saying("on"), REMIND)
    else:

        async def go() -> None:
            async with Session.fork(path, **common(again, tmp_path, REMIND)) as session:
                await session.send("on")

        asyncio.run(go())

    def plain(request: dict[str, Any]) -> list[Any]:
        return [{key: value for key, value in item.items() if key != "id"} for item in request["input"]]

    assert plain(again.requests[0]) == plain(answering.requests[3])
