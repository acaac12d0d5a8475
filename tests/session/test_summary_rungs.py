"""The summary's rungs: who is asked, with what, what is left out when it does not fit, and which reply counts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import function_call_output, message
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, CompactionAttempted
from refold.core.templates import template
from refold.core.thread import same_state
from refold.core.truncate import Budget
from refold.errors import CompactionFailed, ConfigError, ContextWindowExceeded, ModelRefused, ResponseIncomplete
from refold.model.responses import ResponsesModel
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, Notice
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import ResponsesServer, call_reply, text_reply, usage
from refold.tools.functions import tool
from refold.views.sent import common_prefix, sent

PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000))
PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 400}
FULL = usage(95_000, 10)
LONG_ANSWER = "I moved the parser into a module of its own, and all of its forty-one tests pass, as you asked me to."


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


@tool
def look(where: str) -> str:
    """Looks somewhere."""
    return f"nothing in {where}"


def overflow(text: str = "too long") -> Reply:
    return Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": text}})


def model(*replies: Any, profile: Profile = PROFILE, provider: Provider = PROVIDER) -> ScriptedModel:
    return ScriptedModel(list(replies), profile=profile, provider=provider)


def start(answering: Any, folder: Path, compaction: dict[str, Any] | None = None, **settings: Any) -> Session:
    config = parse_config({**settings, "compaction": compaction or {}}, "test")
    options: dict[str, Any] = {"cwd": folder, "home": folder / "home", "instructions": "BASE", "config": config}
    return Session.start(model=answering, tools=[look], clock=Hasty(), **options)


def compacted(
    answering: Any,
    folder: Path,
    items: list[dict[str, Any]],
    compaction: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Session, Any, list[str]]:
    """The session after these items and a compaction by hand: how it ended or what it failed with; what was said."""

    async def go() -> tuple[Session, Any, list[str]]:
        async with start(answering, folder, compaction, **settings) as session:
            session.memory.add(items)
            before = list(session.memory.thread.history)
            listener = session.memory.feed.listen()
            try:
                ended: Any = await session.compact()
            except Exception as error:
                assert session.memory.thread.history == before, "a failure leaves the history as it was"
                ended = error
            heard = [listener.get_nowait() for _ in range(listener.qsize())]
            return session, ended, [event.text for event in heard if isinstance(event, Notice)]

    session, ended, notices = asyncio.run(go())
    assert session.path is not None
    assert same_state(read_thread(session.path), session.memory.thread)
    assert all(one.is_same for one in sent(read_lines(session.path))), "each request can be made again"
    return session, ended, notices


def attempts(session: Session) -> list[CompactionAttempted]:
    assert session.path is not None
    return [line.record for line in read_lines(session.path) if isinstance(line.record, CompactionAttempted)]


def summary_of(session: Session) -> str:
    return session.memory.thread.history[-1].item["content"][0]["text"].removeprefix(SUMMARY_MARK)


def pairs(count: int, size: int = 400) -> list[dict[str, Any]]:
    """A goal, calls with their outputs, an answer."""
    items = [message("user", ["goal"])]
    for number in range(count):
        call = {"type": "function_call", "name": "look", "arguments": '{"where":"a"}', "call_id": f"c{number}"}
        items += [call, function_call_output(f"c{number}", "x" * size)]
    return [*items, message("assistant", ["An answer."])]


def assert_legal(request: dict[str, Any]) -> None:
    calls = [item["call_id"] for item in request["input"] if item["type"] == "function_call"]
    assert calls == [item["call_id"] for item in request["input"] if item["type"] == "function_call_output"]
    assert request["input"][-1]["content"][0]["text"] == template("handoff")


# --- another model ---------------------------------------------------------------------------------------------------


def test_another_model_and_effort_are_asked_through_the_same_connection(tmp_path: Path) -> None:
    answering = model(text_reply("SUMMARY", usage=usage(1_000, 7)), profile=Profile(slug="gpt-5.5"))
    wanted = {"model": "gpt-5.4-mini", "effort": "low"}
    session, ended, _ = compacted(answering, tmp_path, pairs(2), wanted, model_context_window=50_000)
    (asked,) = answering.requests
    assert (asked["model"], asked["reasoning"]) == ("gpt-5.4-mini", {"effort": "low"})
    assert ended.installed and summary_of(session) == "SUMMARY"
    assert session.memory.thread.total_usage.total_tokens == 1_007


def test_the_effort_alone_is_another_one_for_the_summary_only(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("SUMMARY"), text_reply("two"))

    async def go() -> None:
        async with start(answering, tmp_path, {"effort": "low"}, model_reasoning_effort="high") as session:
            await session.send("first")
            await session.compact()
            await session.send("second")

    asyncio.run(go())
    assert [request["model"] for request in answering.requests] == ["m"] * 3
    assert answering.requests[1]["reasoning"] == {"effort": "low"}
    assert "effort" not in answering.requests[0]["reasoning"] and "effort" not in answering.requests[2]["reasoning"]


def provider_table(server: ResponsesServer) -> dict[str, Any]:
    return {"base_url": server.url, "request_max_retries": 0, "stream_max_retries": 1}


def test_another_provider_is_asked_and_each_request_can_be_made_again(tmp_path: Path) -> None:
    with (
        ResponsesServer([text_reply("one", usage=usage(260_000, 10)), text_reply("two")]) as here,
        ResponsesServer(["SUMMARY"]) as there,
    ):
        tables = {"here": provider_table(here), "there": provider_table(there)}
        settings = {"model_provider": "here", "model_providers": tables}
        wanted = {"provider": "there", "model": "small"}

        async def go() -> Session:
            async with start("large", tmp_path, wanted, **settings) as session:
                await session.send("first")
                await session.send("second")
                return session

        session = asyncio.run(go())
        assert [request.json["model"] for request in here.requests] == ["large", "large"]
        assert [request.json["model"] for request in there.requests] == ["small"]
        assert there.requests[0].input[-1]["content"][0]["text"] == template("handoff")
    assert isinstance(session.model, ResponsesModel)
    assert session.path is not None
    made = list(sent(read_lines(session.path)))
    assert [one.model for one in made] == ["large", "small", "large"] and all(one.is_same for one in made)
    assert same_state(read_thread(session.path), session.memory.thread)


@pytest.mark.parametrize("ends", ["summary", "refusal", "interrupt"])
def test_the_connection_of_another_provider_is_closed_however_the_compaction_ends(ends: str, tmp_path: Path) -> None:
    async def go() -> None:
        closed, asked = asyncio.Event(), asyncio.Event()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
            asked.set()
            if ends != "interrupt":
                writer.write(_answer(ends))
            await reader.read()  # until the other side is gone
            closed.set()
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server, asyncio.timeout(10):
            port = server.sockets[0].getsockname()[1]
            settings = {"model_providers": {"there": {"base_url": f"http://127.0.0.1:{port}/v1"}}}
            async with start(model(), tmp_path, {"provider": "there"}, **settings) as session:
                session.memory.add(pairs(1))
                compacting = asyncio.ensure_future(session.compact())
                await asked.wait()
                if ends == "interrupt":
                    session.interrupt()
                await asyncio.wait([compacting])
                assert (compacting.exception() is None) is (ends == "summary")
                await closed.wait()

    asyncio.run(go())


def _answer(ends: str) -> bytes:
    """An answer of HTTP that keeps its connection."""
    if ends == "refusal":
        return b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}"
    item = json.dumps({"type": "response.output_item.done", "item": message("assistant", ["SUMMARY"])})
    end = json.dumps({"type": "response.completed", "response": {"id": "resp_1"}})
    body = f"data: {item}\n\ndata: {end}\n\n".encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def test_another_providers_failure_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    refusal = Reply(status=401, body={"error": {"message": "wrong key"}})
    with ResponsesServer([refusal]) as there:
        settings = {"model_providers": {"there": provider_table(there)}}
        session, error, _ = compacted(model(), tmp_path, pairs(1), {"provider": "there"}, **settings)
    assert isinstance(error, ModelRefused) and "wrong key" in str(error)
    assert session.memory.thread.compactions == 0


@pytest.mark.parametrize(
    ("compaction", "settings", "key", "why"),
    [
        ({"provider": "nowhere"}, {}, "compaction.provider", "no [model_providers.nowhere] is defined"),
        (
            {"provider": "there"},
            {"model_providers": {"there": {"base_url": "http://127.0.0.1:1", "env_key": "REFOLD_TEST_NO_SUCH_KEY"}}},
            "REFOLD_TEST_NO_SUCH_KEY",
            "is not set",
        ),
    ],
)
def test_a_wrong_name_is_told_at_the_start(
    compaction: dict[str, Any], settings: dict[str, Any], key: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)) as caught:
        start(model(), tmp_path, compaction, **settings)
    assert caught.value.key == key
    assert not (tmp_path / "home").exists(), "nothing was written or locked"


@pytest.mark.parametrize(
    ("table", "key"),
    [({"rendering": "flat"}, "compaction"), ({"modle": "x"}, "compaction.modle"), ({"keep_tools": 1}, "compaction")],
)
def test_a_wrong_setting_is_told_by_its_key(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"compaction": table}, "test")
    assert caught.value.key == key


# --- the tools kept --------------------------------------------------------------------------------------------------


def bodies(session: Session) -> list[bytes]:
    assert session.path is not None
    return [one.request.body() for one in sent(read_lines(session.path))]


def read_by_provider(body: bytes) -> bytes:
    """A request in the order in which a provider's cache reads it: tools, instructions, items."""
    told = json.loads(body)
    return json.dumps([told["tools"], told["parallel_tool_calls"], *told["input"]]).encode()


def after_a_sampling(folder: Path, compaction: dict[str, Any]) -> tuple[bytes, bytes]:
    """The bodies of a sampling and of the request for a summary after it, in a session of 200 items."""
    answering = model(text_reply("one"), text_reply("SUMMARY"))
    folder.mkdir()

    async def go() -> Session:
        async with start(answering, folder, compaction) as session:
            session.memory.add(pairs(99))
            await session.send("go on")
            await session.compact()
            return session

    session = asyncio.run(go())
    assert session.path is not None
    assert all(one.is_same for one in sent(read_lines(session.path)))
    sampling, asking = bodies(session)
    return sampling, asking


def test_a_request_for_a_summary_that_keeps_the_tools_begins_as_the_sampling_did(tmp_path: Path) -> None:
    sampling, asking = after_a_sampling(tmp_path / "kept", {"keep_tools": True})
    mine, theirs = json.loads(asking), json.loads(sampling)
    items = theirs["input"]
    assert (mine["tools"], mine["parallel_tool_calls"]) == (theirs["tools"], theirs["parallel_tool_calls"])
    assert mine["tools"] and mine["input"][: len(items)] == items
    assert mine["input"][-1]["content"][0]["text"] == template("handoff")
    history = sampling[: sampling.index(b'],"tools":')]
    assert asking.startswith(history), "byte for byte, up to the end of the items"
    shared = common_prefix(read_by_provider(sampling), read_by_provider(asking))
    assert shared > 0.99 * len(read_by_provider(sampling))

    sampling, asking = after_a_sampling(tmp_path / "not", {})
    assert json.loads(asking)["tools"] == []
    assert common_prefix(read_by_provider(sampling), read_by_provider(asking)) < 10, "the tools stand before it all"


def test_a_call_in_the_reply_is_not_run_and_no_summary(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    def act(where: str) -> str:
        """Acts."""
        ran.append(where)
        return "done"

    answering = model(
        text_reply("one"),
        call_reply("act", {"where": "x"}, usage=usage(500, 5)),
        text_reply("SUMMARY"),
        text_reply("two"),
    )
    config = parse_config({"compaction": {"keep_tools": True}}, "test")

    async def go() -> Session:
        options: dict[str, Any] = {"cwd": tmp_path, "home": tmp_path / "home", "config": config, "clock": Hasty()}
        async with Session.start(model=answering, tools=[act], **options) as session:
            await session.send("first")
            await session.compact()
            await session.send("second")
            return session

    session = asyncio.run(go())
    assert ran == []
    assert [one.outcome for one in attempts(session)] == [
        "the model answered the request for a summary with function_call instead of a text",
        "completed",
    ]
    assert "function_call" not in [item["type"] for item in answering.requests[-1]["input"]]


# --- as one text -----------------------------------------------------------------------------------------------------


def test_flattened_the_history_is_one_text_and_nothing_can_be_called(tmp_path: Path) -> None:
    answering = model(text_reply("SUMMARY"))
    wanted = {"rendering": "flattened", "keep_tools": True}
    session, ended, _ = compacted(answering, tmp_path, pairs(2), wanted)
    (asked,) = answering.requests
    assert ended.installed and summary_of(session) == "SUMMARY"
    assert asked["tools"] == []
    base, transcript, handoff = [item["content"][0]["text"] for item in asked["input"]]
    assert (base, handoff) == (template("flattened"), template("handoff"))
    assert transcript.startswith("[user]\ngoal\n\n[assistant calls look]\n")
    assert transcript.endswith("[assistant]\nAn answer.")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (call_reply("look", {"where": "x"}), "with function_call instead of a text"),
        (
            Reply(items=(message("assistant", ["On it."]), *call_reply("look", {"where": "x"}).items)),
            "called look beside",
        ),
        (text_reply(""), "instead of a text"),
        (text_reply(LONG_ANSWER), "repeated what it was given"),
    ],
    ids=["call", "text and call", "empty", "echo"],
)
def test_what_answers_the_items_with_something_else_is_given_one_text_before_giving_up(
    reply: Reply, why: str, tmp_path: Path
) -> None:
    items = [*pairs(2), message("assistant", [LONG_ANSWER])]
    answering = model(reply, reply, text_reply("SUMMARY"))
    session, ended, notices = compacted(answering, tmp_path, items)
    assert ended.installed and summary_of(session) == "SUMMARY"
    assert [len(request["input"]) for request in answering.requests][1:] == [len(answering.requests[0]["input"]), 3]
    assert all(why in one.outcome for one in attempts(session)[:2])
    assert [one.outcome for one in attempts(session)[2:]] == ["completed"]
    assert all("asked once more, with the session as one text" in notice for notice in notices) and len(notices) == 1


def test_with_no_summary_in_any_rendering_it_fails_or_an_outline_takes_its_place(tmp_path: Path) -> None:
    call = call_reply("look", {"where": "x"})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    answering = model(call, call, call, text_reply("never asked for"))
    session, error, _ = compacted(answering, tmp_path / "a", pairs(2))
    assert isinstance(error, CompactionFailed) and "instead of a text" in str(error)
    assert len(attempts(session)) == len(answering.requests) == 3
    session, ended, _ = compacted(model(call, call, call), tmp_path / "b", pairs(2), {"outline": True})
    assert ended.installed
    (checkpoint,) = [line.record for line in read_lines(session.path) if isinstance(line.record, Compacted)]  # type: ignore[arg-type]
    assert checkpoint.facts["method"] == "outline"


def test_one_text_that_does_not_fit_is_made_shorter(tmp_path: Path) -> None:
    answering = model(overflow("maximum context length is 4,000"), overflow(), text_reply("SUMMARY"))
    session, ended, _ = compacted(answering, tmp_path, pairs(60, 1_000), {"rendering": "flattened"})
    sizes = [len(request["input"][1]["content"][0]["text"]) for request in answering.requests]
    assert sizes[1] <= 4 * 3_100 and sizes[2] <= sizes[1] // 2 + 200, "the limit that was told, then half"
    assert ended.installed and ended.dropped == attempts(session)[-1].dropped > 0
    assert answering.requests[2]["input"][1]["content"][0]["text"].startswith(
        f"({ended.dropped} earlier items left out)"
    )


# --- what does not fit -----------------------------------------------------------------------------------------------


def test_where_the_error_tells_nothing_the_oldest_go_one_by_one(tmp_path: Path) -> None:
    answering = model(*[overflow()] * 4, text_reply("SUMMARY"))
    session, ended, notices = compacted(answering, tmp_path, pairs(5))
    assert [one.dropped for one in attempts(session)] == [0, 1, 3, 5, 7]
    assert (ended.dropped, notices) == (7, [])
    for request in answering.requests:
        assert_legal(request)


@pytest.mark.parametrize("count", [50, 400])
def test_where_the_error_tells_the_limit_as_many_go_at_once_as_must(count: int, tmp_path: Path) -> None:
    told = overflow("This model's maximum context length is 4,096 tokens. However, you requested more.")
    answering = model(told, text_reply("SUMMARY"))
    _, ended, notices = compacted(answering, tmp_path, pairs(count))
    assert ended.installed and len(answering.requests) == 2
    assert_legal(answering.requests[1])
    left = sum(len(json.dumps(item)) for item in answering.requests[1]["input"]) // 4
    assert left < 4_096 * 2 and ended.dropped > 2 * count - 80, "enough, and not everything"
    assert len(answering.requests[1]["input"]) > 20
    assert notices == ["m takes 4,096 tokens, not 100,000: set model_context_window = 4096"]


def test_where_the_estimate_is_too_low_a_share_goes_each_time(tmp_path: Path) -> None:
    answering = model(*[overflow("maximum context length is 90000")] * 3, text_reply("SUMMARY"))
    session, ended, _ = compacted(answering, tmp_path, pairs(200))
    dropped = [one.dropped for one in attempts(session)]
    assert dropped == sorted(set(dropped)) and 20 < dropped[1] < 100 and ended.dropped < 250


def test_a_limit_that_nothing_meets_ends_in_the_providers_error(tmp_path: Path) -> None:
    answering = model(lambda request: overflow("maximum context length is 1"), *[overflow()] * 3)
    session, error, _ = compacted(answering, tmp_path, pairs(5))
    assert isinstance(error, ContextWindowExceeded)
    assert [one.dropped for one in attempts(session)] == [0, 12], "then the handoff text alone"


def seen(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    picture = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See"}, PICTURE]}
    return [*items, picture]


def test_what_does_not_fit_again_is_asked_for_without_media(tmp_path: Path) -> None:
    answering = model(overflow(), overflow(), overflow(), text_reply("SUMMARY"))
    session, ended, _ = compacted(answering, tmp_path, seen(pairs(5)))
    assert [one.dropped for one in attempts(session)] == [0, 1, 1, 3]
    told = [json.dumps(request["input"]) for request in answering.requests]
    assert ["data:image" in one for one in told] == [True, True, False, False]
    assert ["[image left out]" in one for one in told] == [False, False, True, True]
    assert ended.installed


@pytest.mark.parametrize(
    "refusal",
    [
        Reply(status=400, body={"error": {"message": "could not process image"}}),
        Reply(fail={"code": "invalid_prompt", "message": "bad image"}),
    ],
)
def test_what_is_refused_is_asked_for_without_media_once(refusal: Reply, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    session, ended, _ = compacted(model(refusal, text_reply("SUMMARY")), tmp_path / "a", seen(pairs(1)))
    assert ended.installed and len(attempts(session)) == 2
    session, error, _ = compacted(model(refusal, refusal, text_reply("no")), tmp_path / "b", seen(pairs(1)))
    assert isinstance(error, ModelRefused) and len(attempts(session)) == 2


def test_what_is_refused_without_media_or_for_its_key_is_not_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    bad = Reply(status=400, body={"error": {"message": "no"}})
    _, error, _ = compacted(model(bad, text_reply("no")), tmp_path / "a", pairs(1))
    assert isinstance(error, ModelRefused)
    key = Reply(status=401, body={"error": {"message": "wrong key"}})
    session, error, _ = compacted(model(key, text_reply("no")), tmp_path / "b", seen(pairs(1)))
    assert isinstance(error, ModelRefused) and len(attempts(session)) == 1


def test_a_smaller_model_is_not_asked_pair_by_pair(tmp_path: Path) -> None:
    catalogue = tmp_path / "models.json"
    catalogue.write_text(json.dumps({"models": [{"slug": "small", "context_window": 4_000}]}), encoding="utf-8")
    answering = model(overflow(), text_reply("SUMMARY"))
    settings = {"model_catalog_json": str(catalogue), "model_context_window": 90_000}
    _, ended, notices = compacted(answering, tmp_path, pairs(100), {"model": "small"}, **settings)
    assert ended.installed and ended.dropped > 100 and notices == []


# --- what is no summary ----------------------------------------------------------------------------------------------

REFUSED = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I must not."}]}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(items=(REFUSED,), usage=usage(400, 4)), "refused to write a summary: I must not."),
        (text_reply("I'm sorry, but I can't help with that.", usage=usage(400, 4)), "refused to write a summary"),
        (text_reply("", usage=usage(400, 4)), "instead of a text"),
        (text_reply(template("handoff"), usage=usage(400, 4)), "repeated the request"),
        (text_reply(LONG_ANSWER, usage=usage(400, 4)), "repeated what it was given"),
        (call_reply("look", {"where": "x"}, usage=usage(400, 4)), "function_call instead of a text"),
    ],
    ids=["refusal part", "refusal text", "empty", "echo of the request", "echo of the session", "call"],
)
def test_a_reply_that_is_no_summary_costs_what_it_cost_and_is_asked_again(
    reply: Reply, why: str, tmp_path: Path
) -> None:
    items = [*pairs(1), message("assistant", [LONG_ANSWER])]
    answering = model(reply, text_reply("SUMMARY", usage=usage(100, 10)))
    session, ended, notices = compacted(answering, tmp_path, items)
    first, second = attempts(session)
    assert why in first.outcome and first.usage == usage(400, 4)
    assert (second.outcome, notices) == ("completed", [])
    assert session.memory.thread.total_usage.total_tokens == 404 + 110
    assert ended.installed and summary_of(session) == "SUMMARY"
    logged = [line for line in read_lines(session.path) if "ItemRecorded" in type(line.record).__name__]  # type: ignore[arg-type]
    assert len(logged) == len(items), "a reply to the request for a summary is never an item"


def test_a_model_that_refuses_twice_is_not_asked_in_another_way(tmp_path: Path) -> None:
    refusal = text_reply("I'm sorry, but I can't help with that.")
    answering = model(refusal, refusal, text_reply("never asked for"))
    session, error, _ = compacted(answering, tmp_path, pairs(1))
    assert isinstance(error, CompactionFailed) and "refused to write a summary" in str(error)
    assert len(attempts(session)) == 2


def test_a_summary_that_was_cut_off_is_none(tmp_path: Path) -> None:
    cut = text_reply("Half a summ", usage=usage(300, 3), incomplete="max_output_tokens")
    session, error, _ = compacted(model(cut, text_reply("no")), tmp_path, pairs(1))
    assert isinstance(error, ResponseIncomplete)
    (attempt,) = attempts(session)
    assert "max_output_tokens" in attempt.outcome and attempt.usage == usage(300, 3)


def test_a_summary_larger_than_what_it_replaces_is_told_as_such_and_not_installed(tmp_path: Path) -> None:
    answering = model(text_reply("one", usage=FULL), text_reply("long words " * 900), text_reply("two"))

    async def go() -> tuple[Session, list[Any]]:
        async with start(answering, tmp_path) as session:
            await session.send("first")
            return session, [event async for event in session.send("second")]

    session, events = asyncio.run(go())
    (ended,) = [event for event in events if isinstance(event, CompactionEnded)]
    assert not ended.installed and ended.after > ended.before + 1_000
    (attempt,) = attempts(session)
    assert attempt.outcome.startswith("the summary is larger than what it replaces: 2,")
    assert session.memory.thread.compactions == 0


def test_a_broken_stream_does_not_use_up_the_tries_of_a_reply_that_is_no_summary(tmp_path: Path) -> None:
    broken = Reply(items=(message("assistant", ["x"]),), cut_after="partial_item")
    answering = model(broken, text_reply(""), broken, text_reply(""), broken, text_reply("SUMMARY"))
    session, ended, _ = compacted(answering, tmp_path, pairs(1))
    assert ended.installed and len(attempts(session)) == 6


@pytest.mark.parametrize("place", ["asking", "waiting"])
def test_an_interrupted_compaction_leaves_everything_as_it_was(place: str, tmp_path: Path) -> None:
    replies: dict[str, list[Any]] = {"asking": [text_reply("S", delay=30)], "waiting": [text_reply("")]}
    with ResponsesServer([*replies[place], text_reply("S", delay=30)]) as there:
        settings = {"model_providers": {"there": provider_table(there)}}

        async def go() -> Session:
            async with start(model(), tmp_path, {"provider": "there"}, **settings) as session:
                session.memory.add(pairs(1))
                compacting = asyncio.ensure_future(session.compact())
                await _until(lambda: len(there.requests) >= len(replies[place]))
                session.interrupt()
                with pytest.raises(CompactionFailed, match="interrupted"):
                    await compacting
                assert session.memory.thread.compactions == 0
                return session

        session = asyncio.run(go())
    assert same_state(read_thread(session.path), session.memory.thread)  # type: ignore[arg-type]


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


def test_patience_begins_anew_with_each_rung(tmp_path: Path) -> None:
    broken = Reply(items=(message("assistant", ["x"]),), cut_after="partial_item")
    once = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, stream_max_retries=1)
    call = call_reply("look", {"where": "x"})
    replies = [broken, overflow(), broken, overflow(), call, call, broken, text_reply("SUMMARY")]
    session, ended, _ = compacted(model(*replies, provider=once), tmp_path, pairs(3))
    assert ended.installed and len(attempts(session)) == len(replies)
