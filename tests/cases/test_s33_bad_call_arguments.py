"""S33: arguments that are not valid JSON are answered, kept as they are, and always sent as text."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import argument_fault
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.thread import Thread
from refold.core.wire import Identity, Wire
from refold.rollout import read_lines
from refold.session import Session
from refold.testing import ScriptedModel, call_reply
from refold.tools.functions import tool
from refold.views.context import context

CASE = Path(__file__).parent.parent / "data" / "cases" / "S33-bad-call-arguments"
FILE = CASE / "rollout.jsonl"
PROFILE = Profile(slug="m")
CUT_OFF = '{"cmd":"cat /srv/demo/a'


def view() -> dict[str, dict[str, Any]]:
    """The calls of the prompt view by call id, as they are sent."""
    prompt = prompt_from(Thread.replay(read_lines(FILE)).history, PROFILE, base_instructions=None)
    sent = json.loads(Wire(Provider(), PROFILE).request(prompt, Identity(thread_id="T")).body())["input"]
    assert sent == prompt.input
    return {item["call_id"]: item for item in sent if item["type"] == "function_call"}


def test_nothing_raises_on_the_file() -> None:
    lines = list(read_lines(FILE))
    assert not [line for line in lines if line.warning]
    assert context(Thread.replay(lines), PROFILE).unanswered == ("call_empty",)


def test_the_view_lists_the_four_odd_calls_with_their_reason() -> None:
    odd = {one.call_id: one.what for one in context(Thread.replay(read_lines(FILE)), PROFILE).odd}
    assert set(odd) == {"call_bad", "call_arr", "call_empty", "call_obj"}
    assert "not JSON" in odd["call_bad"]
    assert odd["call_arr"] == "arguments are not a JSON object"
    assert odd["call_empty"] == "arguments are empty"
    assert odd["call_obj"] == "arguments are not a text"


@pytest.mark.parametrize("arguments", ['{"a":NaN}', '{"a":"line\nend"}', '{"a":1}}', "[" * 3_000])
def test_what_only_a_forgiving_reader_takes_is_odd_too(arguments: str) -> None:
    fault = argument_fault({"type": "function_call", "arguments": arguments})
    assert fault is not None
    assert fault.startswith("arguments are not JSON")


def test_a_strict_server_may_be_sent_empty_arguments_in_their_place() -> None:
    provider = Provider(repair_call_arguments=True)
    assert not Provider().repair_call_arguments, "it is off by default"
    prompt = prompt_from(Thread.replay(read_lines(FILE)).history, PROFILE, base_instructions=None)
    wire = Wire(provider, PROFILE)
    sent = json.loads(wire.request(prompt, Identity(thread_id="T")).body())["input"]
    assert {item["call_id"]: item["arguments"] for item in sent if item["type"] == "function_call"} == {
        "call_bad": "{}",
        "call_arr": "{}",
        "call_empty": "{}",
        "call_obj": '{"cmd":"cat a"}',
    }
    assert wire.repaired == ["call_bad", "call_arr", "call_empty"], "it says what it replaced"


@pytest.mark.parametrize(
    ("call_id", "arguments"),
    [("call_bad", CUT_OFF), ("call_arr", '["cat","a"]'), ("call_empty", ""), ("call_obj", '{"cmd":"cat a"}')],
)
def test_arguments_are_always_sent_as_text(call_id: str, arguments: str) -> None:
    assert view()[call_id]["arguments"] == arguments


def test_the_call_without_an_output_gets_one_in_the_view() -> None:
    sent = prompt_from(Thread.replay(read_lines(FILE)).history, PROFILE, base_instructions=None).input
    outputs = {item["call_id"]: item["output"] for item in sent if item["type"] == "function_call_output"}
    assert outputs["call_empty"] == "aborted"
    assert outputs["call_obj"] == "hello"
    assert len(outputs) == 4


def test_the_file_and_the_history_keep_what_was_written() -> None:
    before = FILE.read_bytes()
    history = Thread.replay(read_lines(FILE)).history
    view()
    assert FILE.read_bytes() == before
    assert [e.item["arguments"] for e in history if e.item.get("call_id") == "call_obj" and "arguments" in e.item] == [
        {"cmd": "cat a"}
    ]


def test_a_call_that_is_cut_off_is_not_run_and_the_model_is_told_where(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    def look(cmd: str) -> str:
        """Look at something."""
        ran.append(cmd)
        return "seen"

    model = ScriptedModel([call_reply("look", CUT_OFF, "call_bad"), "Sorry."])

    async def play() -> None:
        async with Session.start(model=model, tools=[look], cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("Show file a.")

    asyncio.run(play())
    assert ran == []
    (output,) = [item for item in model.requests[1]["input"] if item["type"] == "function_call_output"]
    assert output["call_id"] == "call_bad"
    assert "line 1 column 8" in output["output"]
