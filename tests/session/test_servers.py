"""MCP servers in a session: used in its turns, missing without harm, and gone when it is left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, parse_config
from refold.core.profile import Profile, Provider
from refold.core.truncate import Budget, recording_budget
from refold.errors import ConfigError, RolloutError
from refold.model.scripted import Reply, ScriptedModel
from refold.session.events import Event, Notice, ToolEnded, ToolProgress
from refold.session.memory import read_thread
from refold.session.permits import Question
from refold.session.session import Session
from refold.testing import call_reply, text_reply
from refold.tools.functions import tool

SERVER = str(Path(__file__).parents[1] / "tools" / "mcp_server.py")
PATIENCE = 60.0  # seconds that no server needs to start, however busy the machine is
POLICY = Budget("tokens", 1000)
PROFILE = Profile(slug="m", context_window=100_000, truncation=POLICY)
SCRIPTED = Provider(id="scripted", name="scripted", base_url="http://127.0.0.1:1", env_key=None)


def by_pipes(*words: str, **settings: Any) -> dict[str, Any]:
    words = words or ("stdio",)
    return {"command": sys.executable, "args": [SERVER, *words], "startup_timeout_sec": PATIENCE, **settings}


@contextmanager
def http_server(*words: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, SERVER, "http", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


def config(**servers: dict[str, Any]) -> Config:
    return parse_config({"mcp_servers": servers}, "config.toml")


def model(*replies: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), profile=PROFILE, provider=SCRIPTED)


def start(answering: ScriptedModel, folder: Path, settings: Config, tools: Sequence[Any] = (), **more: Any) -> Session:
    return Session.start(
        model=answering, tools=tools, cwd=folder, home=folder / "home", config=settings, instructions="B", **more
    )


def calls(*names: tuple[str, dict[str, Any]]) -> Reply:
    """A reply that calls several tools at once."""
    return Reply(items=tuple(item for name, arguments in names for item in call_reply(name, arguments).items))


def outputs(request: dict[str, Any]) -> list[Any]:
    return [item["output"] for item in request["input"] if item.get("type") == "function_call_output"]


def tool_names(request: dict[str, Any]) -> list[str]:
    return [spec["name"] for spec in request["tools"]]


def notices(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


async def events_of(session: Session, text: str = "go") -> list[Event]:
    return [event async for event in session.send(text)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def ends(pid: int) -> bool:
    """Whether it is gone in a moment: one that was killed while it was being started is not waited for."""
    for _ in range(200):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.01)
    return False


def pid_in(output: str) -> int:
    return json.loads(output)["pid"]


# --- used ------------------------------------------------------------------------------------------------


def test_a_server_over_pipes_and_one_over_http_are_used_in_one_turn(tmp_path: Path) -> None:
    answering = model(
        calls(
            ("mcp__files__who", {}),
            ("mcp__docs__who", {}),
            ("mcp__docs__echo", {"text": "hi"}),
            ("mcp__files__slow", {"seconds": 0, "mark": "/dev/null"}),
        ),
        calls(("mcp__files__picture", {}), ("mcp__docs__fail", {}), ("mcp__files__long", {"size": 100_000})),
        text_reply("done"),
    )

    async def go(url: str) -> list[Event]:
        async with start(answering, tmp_path, config(files=by_pipes(), docs={"url": url})) as session:
            events = await events_of(session)
            assert session.path is not None
            replayed = [entry.item for entry in read_thread(session.path).history]
            assert replayed == [entry.item for entry in session.memory.thread.history]
        assert not is_alive(pid_in(outputs(answering.requests[1])[0]))  # while the loop runs, whose end would end it
        return events

    with http_server() as url:
        events = asyncio.run(go(url))
        first = outputs(answering.requests[1])
        files, docs = pid_in(first[0]), pid_in(first[1])
        assert first[2:] == ["you said hi", "slept"]
        assert files != docs
        assert is_alive(docs)  # somebody else's
    picture, failed, long = outputs(answering.requests[2])[4:]
    assert [part["type"] for part in picture] == ["input_text", "input_image"]
    assert "the disk is full" in failed
    assert len(long.encode()) < recording_budget(POLICY).bytes + 200 < 100_000
    assert "tokens truncated" in long
    ended = {event.call["name"]: event.success for event in events if isinstance(event, ToolEnded)}
    assert not ended.pop("mcp__docs__fail")
    assert all(ended.values())
    assert [event.text for event in events if isinstance(event, ToolProgress)] == ["1 of 10: begun"]
    assert notices(events) == []


def test_names_are_what_providers_take_and_only_what_is_enabled_is_offered(tmp_path: Path) -> None:
    @tool(name="mcp__a__who")
    def mine() -> str:
        """The host's own."""
        return "mine"

    some = by_pipes(enabled_tools=["odd.name/with everything", "who", "whoo"])
    few = by_pipes(enabled_tools=["echo", "add"], disabled_tools=["add"])
    off = {"command": "no-such-program", "enabled": False}
    answering = model(text_reply("done"), text_reply("again"))

    async def go() -> list[Event]:
        async with start(answering, tmp_path, config(a=some, b=few, off=off), [mine]) as session:
            return await events_of(session) + await events_of(session)

    events = asyncio.run(go())
    own, who, odd, echo = tool_names(answering.requests[0])
    assert (own, odd, echo) == ("mcp__a__who", "mcp__a__odd_name_with_everything", "mcp__b__echo")
    assert who.startswith("mcp__a__who_")
    assert notices(events) == ["mcp_servers.a.enabled_tools: the server has no whoo"]
    assert answering.requests[0]["tools"] == answering.requests[1]["tools"]


def test_a_person_is_asked_before_what_may_do_harm(tmp_path: Path) -> None:
    asked: list[str] = []

    async def approve(question: Question) -> bool:
        asked.append(question.call["name"])
        return False

    answering = model(calls(("mcp__a__echo", {"text": "x"}), ("mcp__a__add", {"a": 1, "b": 1})), text_reply("done"))

    async def go() -> None:
        async with start(answering, tmp_path, config(a=by_pipes()), approve=approve) as session:
            await session.send("go")

    asyncio.run(go())
    assert asked == ["mcp__a__add"]
    said, denied = outputs(answering.requests[1])
    assert said == "you said x"
    assert "not allow" in denied


def test_a_list_that_changes_counts_from_the_next_turn_on(tmp_path: Path) -> None:
    answering = model(call_reply("mcp__a__grow", {}), text_reply("done"), text_reply("again"))

    async def go() -> list[Event]:
        async with start(answering, tmp_path, config(a=by_pipes())) as session:
            await session.send("go")
            [server] = session._scope.servers._open
            for _ in range(1000):
                if "new" in [offered.name for offered in server.offered]:
                    break
                await asyncio.sleep(0.01)
            return await events_of(session)

    events = asyncio.run(go())
    assert "mcp__a__new" not in tool_names(answering.requests[1])
    assert "mcp__a__new" in tool_names(answering.requests[2])
    assert notices(events) == ["the tools of a have changed"]


def test_the_blocking_session_has_them_too(tmp_path: Path) -> None:
    answering = model(call_reply("mcp__a__who", {}), text_reply("done"))
    settings = config(a=by_pipes())
    with Session.start_sync(model=answering, cwd=tmp_path, home=tmp_path / "home", config=settings) as session:
        assert session.send("go").text == "done"
    assert not is_alive(pid_in(outputs(answering.requests[1])[0]))


# --- missing ------------------------------------------------------------------------------------------------


def test_servers_that_fail_cost_a_notice_each(tmp_path: Path) -> None:
    servers = {
        "missing": {"command": "no-such-program"},
        "hanging": {"command": "sh", "args": ["-c", "echo $$ > pid; exec sleep 60"], "startup_timeout_sec": 2},
        "wrong": {"url": "http://127.0.0.1:9/mcp"},
        "keyless": {"url": "http://127.0.0.1:9/mcp", "bearer_token_env_var": "NO_SUCH_TOKEN"},
        "good": by_pipes(enabled_tools=["echo"]),
    }
    answering = model(call_reply("mcp__good__echo", {"text": "x"}), text_reply("done"), text_reply("again"))

    async def go() -> tuple[list[str], list[str]]:
        async with start(answering, tmp_path, config(**servers)) as session:
            first = notices(await events_of(session))
            return first, notices(await events_of(session))

    told, later = asyncio.run(go())
    assert [text.partition(":")[0] for text in told] == [f"mcp_servers.{name}" for name in list(servers)[:-1]]
    assert all(text.endswith("; the session goes on without its tools") for text in told)
    assert later == []
    assert tool_names(answering.requests[0]) == ["mcp__good__echo"]
    assert outputs(answering.requests[1]) == ["you said x"]
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_required_server_that_fails_ends_the_session_before_it_began(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("two"))

    async def go() -> str:
        async with start(answering, tmp_path, Config()) as session:
            await session.send("hi")
        settings = config(good=by_pipes(), bad={"command": "no-such-program", "required": True})
        again = Session.resume(
            session.id, model=answering, tools=(), cwd=tmp_path, config=settings, home=tmp_path / "home"
        )
        with pytest.raises(ConfigError, match=r"mcp_servers\.bad: command 'no-such-program' .* \(it is required\)"):
            await again.__aenter__()
        try:
            free = Session.resume(session.id, model=answering, cwd=tmp_path, home=tmp_path / "home", config=Config())
        except RolloutError as error:
            raise AssertionError("the session that did not begin still holds its file") from error
        async with free:
            return str((await free.send("on")).text)

    assert asyncio.run(go()) == "two"


def test_who_does_not_wait_for_servers_leaves_nothing_behind(tmp_path: Path) -> None:
    script = {"command": "sh", "args": ["-c", "echo $$ > pid; exec sleep 60"], "startup_timeout_sec": PATIENCE}
    pid = tmp_path / "pid"

    async def go() -> None:
        session = start(model(), tmp_path, config(slow=script))
        entering = asyncio.create_task(session.__aenter__())
        while not (pid.exists() and pid.read_text().strip()):
            assert not entering.done()
            await asyncio.sleep(0.01)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert await ends(int(pid.read_text()))

    asyncio.run(go())


def test_without_the_extra_a_notice_says_what_to_install(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.modules["mcp"] = None  # as if it were not installed
from refold.core.config import parse_config
from refold.errors import ConfigError
from refold.session.events import Notice
from refold.session.session import Session
from refold.testing import text_reply
from refold.model.scripted import ScriptedModel

async def go(**more):
    config = parse_config({{"mcp_servers": {{"a": {{"command": "x"}}, "b": {{"command": "y", **more}}}}}}, "c")
    model = ScriptedModel([text_reply("done")])
    async with Session.start(model=model, cwd={str(tmp_path)!r}, config=config, persist=False) as session:
        return [event.text async for event in session.send("go") if isinstance(event, Notice)]

print(*asyncio.run(go()), sep="\\n")
try:
    asyncio.run(go(required=True))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    soft, hard = [line for line in done.stdout.splitlines() if "mcp_servers" in line]
    assert soft.startswith("mcp_servers: needs refold's extra mcp: pip install 'refold[mcp]'")
    assert soft.endswith("; the session goes on without a, b")
    assert hard.startswith("mcp_servers.b: needs refold's extra mcp: pip install 'refold[mcp]'")


# --- ended ------------------------------------------------------------------------------------------------


def test_an_interrupt_stops_the_server_s_work_and_the_session_goes_on(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    answering = model(
        call_reply("mcp__a__slow", {"seconds": 60, "mark": str(mark)}),
        call_reply("mcp__a__echo", {"text": "on"}),
        text_reply("done"),
    )

    async def go() -> tuple[str, str | None]:
        async with start(answering, tmp_path, config(a=by_pipes())) as session:
            turn = session.send("go")
            async for event in turn:
                if isinstance(event, ToolProgress):
                    session.interrupt()
            first = await turn
            return first.outcome, (await session.send("on")).text

    assert asyncio.run(go()) == ("interrupted", "done")
    assert mark.read_text() == "cancelled"
    aborted, echoed = outputs(answering.requests[2])
    assert "aborted by user" in aborted
    assert echoed == "you said on"


def test_a_server_that_dies_in_a_call_does_not_cost_the_turn(tmp_path: Path) -> None:
    answering = model(
        call_reply("mcp__a__die", {}),
        call_reply("mcp__a__who", {}),
        text_reply("done"),
    )

    async def go() -> str | None:
        async with start(answering, tmp_path, config(a=by_pipes())) as session:
            return (await session.send("go")).text

    assert asyncio.run(go()) == "done"
    died, who = outputs(answering.requests[2])
    assert died.startswith("MCP tool a/die failed: the server went away during the call (it ended")
    assert not is_alive(pid_in(who))


def test_a_call_that_hangs_does_not_cost_the_turn(tmp_path: Path) -> None:
    slow = {"seconds": 60, "mark": str(tmp_path / "mark")}
    answering = model(call_reply("mcp__a__slow", slow), text_reply("done"))

    async def go() -> str | None:
        async with start(answering, tmp_path, config(a=by_pipes(tool_timeout_sec=0.5))) as session:
            return (await session.send("go")).text

    assert asyncio.run(go()) == "done"
    assert "gave no answer within 0.5 seconds" in outputs(answering.requests[1])[0]


def test_leaving_in_the_middle_of_a_call_ends_a_server_that_heeds_nothing(tmp_path: Path) -> None:
    slow = {"seconds": 60, "mark": str(tmp_path / "mark")}
    answering = model(calls(("mcp__a__who", {}), ("mcp__a__slow", slow)))

    async def go() -> None:
        pid = 0
        async with start(answering, tmp_path, config(a=by_pipes("stubborn"))) as session:
            async for event in session.send("go"):
                if isinstance(event, ToolEnded) and event.success:
                    pid = pid_in(event.output)
                    break
        assert pid
        assert not is_alive(pid)

    asyncio.run(go())
