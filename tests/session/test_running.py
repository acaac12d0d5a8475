"""Commands that run on between turns, in a real session, and their end with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import Config, Profile, ScriptedModel, Session, exec_command
from refold.session.events import ToolEnded, ToolProgress, ToolStarted
from refold.testing import Reply, call_reply, text_reply

NEVER = 60  # seconds that no test waits


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def start(tmp_path: Path, answer: Callable[[Any], Reply | str]) -> Session:
    answering = ScriptedModel(answer, profile=Profile(slug="m", context_window=100_000))
    return Session.start(model=answering, tools=[exec_command], cwd=tmp_path, home=tmp_path / "home", config=Config())


def told(request: Any) -> list[str]:
    """The outputs that a request sends."""
    return [item["output"] for item in request["input"] if item["type"] == "function_call_output"]


def number_in(output: str) -> int:
    match = re.search(r"running with session ID (\d+)", output)
    assert match, output
    return int(match[1])


def is_alive(pid: str) -> bool:
    try:
        return b") Z" not in Path("/proc", pid.strip(), "stat").read_bytes()
    except OSError:
        return False


def running(cmd: str) -> Reply:
    return call_reply("exec_command", {"cmd": cmd, "yield_time_ms": 250})


def test_command_of_one_turn_is_gone_on_with_in_the_next_and_ends_with_the_session(tmp_path: Path) -> None:
    def answer(request: Any) -> Reply | str:
        outputs = told(request)
        match len(outputs), len([item for item in request["input"] if item.get("role") == "user"]):
            case 0, _:
                return running(f"echo $$ > pid; echo up; sleep {NEVER}")
            case 1, 2:
                return text_reply("it runs")
            case 1, _:
                return call_reply("write_stdin", {"session_id": number_in(outputs[0]), "yield_time_ms": 250})
            case _:
                return text_reply("still")

    async def main() -> None:
        async with start(tmp_path, answer) as session:
            assert (await session.send("start it")).text == "it runs"
            assert (await session.send("look")).text == "still"
            last = told(session.model.requests[-1])[-1]  # type: ignore[attr-defined]
            assert "Process running with session ID" in last and last.endswith("Output:\n")
            assert is_alive((tmp_path / "pid").read_text())
        assert not is_alive((tmp_path / "pid").read_text())

    asyncio.run(main())


def test_interrupted_turn_ends_the_command_it_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        call = call_reply("exec_command", {"cmd": f"echo $$ > pid; sleep {NEVER}", "yield_time_ms": 50_000})
        async with start(tmp_path, lambda _: call) as session:
            turn = session.send("go")
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.01)
            session.interrupt()
            assert (await turn).outcome == "interrupted"
            assert not is_alive((tmp_path / "pid").read_text())
            items = [entry.item for entry in session.memory.thread.history]
            assert "aborted by user" in next(one["output"] for one in items if one["type"] == "function_call_output")

    asyncio.run(main())


def test_leaving_that_is_cancelled_still_ends_commands_and_lets_go_of_the_log(tmp_path: Path) -> None:
    def answer(request: Any) -> Reply | str:
        return (
            text_reply("done")
            if told(request)
            else running(f"trap '' TERM; echo $$ > pid; while :; do sleep {NEVER}; done")
        )

    async def main() -> None:
        inside = asyncio.Event()

        async def use() -> None:
            async with start(tmp_path, answer) as session:
                await session.send("go")
                opened.append(session)
                inside.set()

        opened: list[Session] = []
        using = asyncio.create_task(use())
        await inside.wait()
        await asyncio.sleep(0.05)  # it waits for what does not hear SIGTERM
        using.cancel()
        await asyncio.wait([using])
        assert using.cancelled() and not is_alive((tmp_path / "pid").read_text())
        path = opened[0].path
        assert path is not None
        again = Session.resume(path, model=opened[0].model, home=tmp_path / "home", config=Config(), in_place=True)
        again.memory.close()  # nobody held the file any more

    asyncio.run(main())


def test_id_from_before_a_resume_means_no_other_command(tmp_path: Path) -> None:
    def answer(request: Any) -> Reply | str:
        outputs = told(request)
        match len(outputs):
            case 0:
                return running(f"sleep {NEVER}")
            case 1 if request["input"][-1].get("role") == "user":
                return call_reply("write_stdin", {"session_id": number_in(outputs[0])})
            case _:
                return text_reply("done")

    async def main() -> None:
        async with start(tmp_path, answer) as session:
            await session.send("go")
            model, thread_id = session.model, session.id
        async with Session.resume(
            thread_id, model=model, tools=[exec_command], home=tmp_path / "home", config=Config()
        ) as session:
            await session.send("look")
        assert "no command has the session ID" in told(model.requests[-1])[-1]  # type: ignore[attr-defined]

    asyncio.run(main())


def test_whoever_watches_sees_each_call_begin_go_on_and_end(tmp_path: Path) -> None:
    replies = [
        call_reply("exec_command", {"cmd": "echo first; sleep 1.2", "yield_time_ms": 5_000}),
        call_reply("exec_command", {"bad": 1}),
        text_reply("done"),
    ]

    async def main() -> list[str]:
        async with start(tmp_path, lambda request: replies[len(told(request))]) as session:
            kinds = (ToolStarted, ToolProgress, ToolEnded)
            return [type(event).__name__ async for event in session.send("go") if isinstance(event, kinds)]

    assert asyncio.run(main()) == ["ToolStarted", "ToolProgress", "ToolEnded", "ToolStarted", "ToolEnded"]
