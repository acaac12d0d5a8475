"""Hooks around a call: what they see, change, replace and refuse, and that a call is answered whatever they do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import Item
from refold.core.records import TurnEnded
from refold.core.thread import same_state
from refold.errors import ToolFailed
from refold.session import Session
from refold.session.events import Event, Notice, ToolEnded
from refold.session.hooks import Hook
from refold.session.memory import read_thread
from refold.session.permits import Question
from refold.testing import Reply, ScriptedModel, call_reply, text_reply
from refold.tools import ToolResult
from refold.tools.commands import exec_command
from refold.tools.functions import tool

PATIENCE = 20  # seconds that nothing here needs


class Counting:
    """A tool that notes what it was run with. Mutable: the notes."""

    def __init__(self) -> None:
        self.said: list[str] = []

        @tool
        def echo(text: str) -> str:
            """Say it again."""
            self.said.append(text)
            return f"you said {text}"

        self.tool = echo


class Played:
    """A turn that was played: the tool's notes, the events, and the history that the log holds."""

    def __init__(self, folder: Path, hooks: list[Hook], script: list[Any] | None = None, approve: Any = None) -> None:
        self.echo = Counting()
        self.model = ScriptedModel(script or [call_reply("echo", {"text": "hi"}, "c1"), text_reply("done")])
        self.events: list[Event] = []
        asyncio.run(asyncio.wait_for(self._play(folder, hooks, approve), PATIENCE))

    async def _play(self, folder: Path, hooks: list[Hook], approve: Any) -> None:
        tools = [self.echo.tool, exec_command]
        async with Session.start(
            model=self.model, tools=tools, cwd=folder, home=folder / "home", approve=approve
        ) as session:
            session.hooks += hooks
            async for event in session.send("go"):
                self.events.append(event)
            assert session.path is not None
            thread = read_thread(session.path)
            assert same_state(thread, session.memory.thread)
            self.history = [entry.item for entry in thread.history]

    @property
    def call(self) -> Item:
        [found] = [item for item in self.history if item["type"] == "function_call"]
        return found

    @property
    def output(self) -> str:
        """What the model reads for its one call, which is what the log holds."""
        [found] = [item for item in self.history if item["type"] == "function_call_output"]
        assert found["call_id"] == self.call["call_id"], "the call stays paired"
        assert found["output"] == self.model.requests[1]["input"][-1]["output"]
        return found["output"]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


# --- what a hook may do -------------------------------------------------------------------------------------------


class Watching(Hook):
    """Mutable: what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def before_tool(self, call: Item) -> None:
        self.seen.append(("before", json.loads(call["arguments"])))

    async def after_tool(self, call: Item, result: ToolResult) -> None:
        self.seen.append(("after", result.output))


class Changing(Hook):
    def __init__(self, text: str) -> None:
        self.text = text

    async def before_tool(self, call: Item) -> Item:
        said = json.loads(call["arguments"])["text"]
        return {**call, "arguments": json.dumps({"text": f"{said} {self.text}"})}


class Replacing(Hook):
    async def before_tool(self, call: Item) -> ToolResult:
        return ToolResult(output="from the cache")


class Refusing(Hook):
    async def before_tool(self, call: Item) -> None:
        raise ToolFailed("not on a Friday")


class Afterwards(Hook):
    def __init__(self, mark: str) -> None:
        self.mark = mark

    async def after_tool(self, call: Item, result: ToolResult) -> ToolResult:
        return ToolResult(output=f"{result.output}{self.mark}")


class Clumsy(Hook):
    def __init__(self, where: str) -> None:
        self.where = where

    async def before_tool(self, call: Item) -> None:
        if self.where == "before":
            raise ValueError("oh")

    async def after_tool(self, call: Item, result: ToolResult) -> None:
        if self.where == "after":
            raise ValueError("oh")


def test_a_hook_that_only_looks_changes_nothing(tmp_path: Path) -> None:
    watching = Watching()
    played = Played(tmp_path, [watching])
    assert watching.seen == [("before", {"text": "hi"}), ("after", "you said hi")]
    assert played.output == "you said hi"
    assert played.notices == []


def test_the_tool_gets_changed_arguments_and_the_log_keeps_what_the_model_wrote(tmp_path: Path) -> None:
    played = Played(tmp_path, [Changing("there")])
    assert played.echo.said == ["hi there"]
    assert played.output == "you said hi there"
    assert json.loads(played.call["arguments"]) == {"text": "hi"}
    sent = [item for item in played.model.requests[1]["input"] if item["type"] == "function_call"]
    assert json.loads(sent[0]["arguments"]) == {"text": "hi"}, "the prompt's beginning stays what it was"


def test_a_hook_may_answer_in_the_tools_place(tmp_path: Path) -> None:
    played = Played(tmp_path, [Replacing()])
    assert (played.echo.said, played.output) == ([], "from the cache")
    [ended] = played.told(ToolEnded)
    assert ended.success


def test_a_refused_call_is_not_run_and_the_model_reads_why(tmp_path: Path) -> None:
    played = Played(tmp_path, [Refusing()])
    assert (played.echo.said, played.output) == ([], "not on a Friday")
    [ended] = played.told(ToolEnded)
    assert not ended.success
    assert played.history[-1]["content"][0]["text"] == "done", "the turn goes on"


def test_a_hook_may_replace_the_result_afterwards(tmp_path: Path) -> None:
    played = Played(tmp_path, [Afterwards("!")])
    assert (played.echo.said, played.output) == (["hi"], "you said hi!")


def test_a_result_may_be_refused_afterwards(tmp_path: Path) -> None:
    class Censoring(Hook):
        async def after_tool(self, call: Item, result: ToolResult) -> None:
            raise ToolFailed("nothing that you may read")

    played = Played(tmp_path, [Censoring()])
    assert (played.echo.said, played.output) == (["hi"], "nothing that you may read")


def test_hooks_work_one_after_the_other(tmp_path: Path) -> None:
    watching = Watching()
    played = Played(tmp_path, [Changing("a"), Changing("b"), watching, Afterwards("1"), Afterwards("2")])
    assert played.echo.said == ["hi a b"]
    assert watching.seen[0] == ("before", {"text": "hi a b"}), "it sees what those before it left"
    assert played.output == "you said hi a b12"


def test_after_a_refusal_the_later_hooks_are_not_asked(tmp_path: Path) -> None:
    watching = Watching()
    assert Played(tmp_path, [Refusing(), watching]).output == "not on a Friday"
    assert "before" not in dict(watching.seen)


def test_a_hook_that_fails_before_a_call_refuses_it(tmp_path: Path) -> None:
    played = Played(tmp_path, [Clumsy("before")])
    assert played.echo.said == []
    assert played.output == "a hook failed before echo: ValueError: oh"


def test_a_hook_that_fails_after_a_call_is_a_notice(tmp_path: Path) -> None:
    played = Played(tmp_path, [Clumsy("after"), Afterwards("!")])
    assert played.output == "you said hi!"
    assert played.notices == ["a hook failed after echo: ValueError: oh"]


def test_the_person_is_asked_about_what_will_really_run(tmp_path: Path) -> None:
    class Careful(Hook):
        async def before_tool(self, call: Item) -> Item:
            return {**call, "arguments": json.dumps({"cmd": "touch changed"})}

    asked: list[str] = []

    async def approve(question: Question) -> bool:
        asked.append(json.loads(question.call["arguments"])["cmd"])
        return True

    script = [call_reply("exec_command", {"cmd": "touch made"}), text_reply("done")]
    played = Played(tmp_path, [Careful()], script, approve)
    assert asked == ["touch changed"]
    assert "exited with code 0" in played.output
    assert (tmp_path / "changed").exists() and not (tmp_path / "made").exists()


def test_each_of_several_calls_has_its_own_answer(tmp_path: Path) -> None:
    class Picky(Hook):
        async def before_tool(self, call: Item) -> Item | ToolResult | None:
            match json.loads(call["arguments"])["text"]:
                case "no":
                    raise ToolFailed("refused")
                case "cached":
                    return ToolResult(output="from the cache")
                case "bad":
                    raise KeyError("x")
            return None

    calls = [call_reply("echo", {"text": text}, text).items[0] for text in ("yes", "no", "cached", "bad")]
    played = Played(tmp_path, [Picky()], [Reply(items=tuple(calls)), text_reply("done")])
    outputs = {i["call_id"]: i["output"] for i in played.history if i["type"] == "function_call_output"}
    assert list(outputs) == ["yes", "no", "cached", "bad"], "in call order"
    assert outputs["yes"] == "you said yes"
    assert outputs["no"] == "refused"
    assert outputs["cached"] == "from the cache"
    assert outputs["bad"].startswith("a hook failed before echo: KeyError")


def test_a_hook_around_a_turn_works_beside_them(tmp_path: Path) -> None:
    told: list[str] = []

    class Both(Hook):
        async def before_turn(self, text: str) -> None:
            told.append(f"before turn {text}")

        async def before_tool(self, call: Item) -> None:
            told.append("before tool")

        async def after_tool(self, call: Item, result: ToolResult) -> None:
            told.append("after tool")

        async def after_turn(self, ended: TurnEnded) -> None:
            told.append(f"after turn {ended.outcome}")

    Played(tmp_path, [Both()])
    assert told == ["before turn go", "before tool", "after tool", "after turn completed"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupt_during_a_hook_settles_the_call(tmp_path: Path, where: str) -> None:
    reached = asyncio.Event()

    class Slow(Hook):
        async def before_tool(self, call: Item) -> None:
            if where == "before":
                reached.set()
                await asyncio.sleep(PATIENCE)

        async def after_tool(self, call: Item, result: ToolResult) -> None:
            reached.set()
            await asyncio.sleep(PATIENCE)

    async def play() -> None:
        echo = Counting()
        model = ScriptedModel([call_reply("echo", {"text": "hi"}), text_reply("and on")])
        async with Session.start(model=model, tools=[echo.tool], cwd=tmp_path, home=tmp_path / "home") as session:
            session.hooks.append(Slow())
            turn = session.send("go")
            await reached.wait()
            session.interrupt()
            assert (await turn).outcome == "interrupted"
            assert echo.said == ([] if where == "before" else ["hi"])
            session.hooks.clear()
            assert (await session.send("go on")).text == "and on"
            assert session.path is not None
            items = [entry.item for entry in read_thread(session.path).history]
        [call] = [item for item in items if item["type"] == "function_call"]
        [output] = [item for item in items if item["type"] == "function_call_output"]
        assert output["call_id"] == call["call_id"]
        assert "aborted by user" in output["output"]

    asyncio.run(asyncio.wait_for(play(), PATIENCE))
