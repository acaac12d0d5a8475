"""The toolbox answers every call with an output, whatever the call or the tool does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from refold.errors import ConfigError
from refold.tools import Tool, ToolContext, ToolResult, tool
from refold.tools.commands import exec_command, write_stdin
from refold.tools.toolbox import Toolbox

CONTEXT = ToolContext(call_id="call_1", cwd="/")


@tool
def shout(text: str) -> str:
    return text.upper()


@tool(name="break")
def breaks(how: str = "") -> None:
    raise ValueError(how)


class Patch:
    """A custom tool: its input is text, not JSON."""

    name = "apply_patch"
    parallel = False
    needs_approval = False
    spec = {"type": "custom", "name": "apply_patch"}

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(output=f"patched {arguments['input']}")


class Wild:
    """A tool that raises what no tool should."""

    name = "wild"
    parallel = True
    needs_approval = False
    spec = {"type": "function", "name": "wild", "parameters": {}}

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        raise self.error


def call(name: str, arguments: object) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": "call_1"}


def run(item: dict[str, Any], *tools: Tool) -> ToolResult:
    return asyncio.run(Toolbox(tools or (shout, breaks, Patch())).run(item, CONTEXT))


def test_tools_are_found_by_name_in_the_order_given() -> None:
    toolbox = Toolbox([exec_command, shout, Patch()])
    assert list(toolbox) == ["exec_command", "shout", "apply_patch", "write_stdin"]
    assert toolbox["shout"] is shout
    assert "nothing" not in toolbox
    assert toolbox.specs == (exec_command.spec, shout.spec, Patch.spec, write_stdin.spec)
    assert (len(Toolbox()), Toolbox().specs) == (0, ())


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools are named 'shout'"):
        Toolbox([shout, breaks, shout])


def test_a_call_runs_its_tool_with_the_decoded_arguments() -> None:
    assert run(call("shout", '{"text": "é \\ud83d\\ude80"}')) == ToolResult(output="É 🚀")


def test_arguments_that_are_an_object_already_are_taken_as_they_are() -> None:
    assert run(call("shout", {"text": "a"})).output == "A"


def test_custom_call_gives_its_input_as_it_is() -> None:
    item = {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "call_1"}
    assert run(item).output == "patched *** Begin"


@pytest.mark.parametrize(
    ("item", "output"),
    [
        (call("nothing", "{}"), "unsupported call: nothing"),
        (call("apply_patch", "{}"), "unsupported call: apply_patch"),
        ({"type": "function_call", "call_id": "call_1"}, "unsupported call: function_call"),
        ({"type": "local_shell_call", "action": {}, "call_id": "call_1"}, "unsupported call: local_shell_call"),
        ({"type": "custom_tool_call", "name": "nothing", "input": ""}, "unsupported custom tool call: nothing"),
        ({"type": "custom_tool_call", "name": "shout", "input": ""}, "unsupported custom tool call: shout"),
    ],
)
def test_unknown_tool_is_an_output(item: dict[str, Any], output: str) -> None:
    assert run(item) == ToolResult(output=output, success=False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"cmd":"cat /srv/demo/a', "Unterminated string starting at line 1 column 8"),  # S33 call_bad
        ('["cat","a"]', "invalid type: array, expected an object at line 1 column 1"),  # S33 call_arr
        ("", "Expecting value at line 1 column 1"),  # S33 call_empty
        ('{"a": 1,\n "b" 2}', "Expecting ':' delimiter at line 2 column 6"),
        ('{"a": 1} x', "Extra data at line 1 column 10"),
        ('{"a": "\n"}', "Invalid control character at line 1 column 8"),
        ("\n  null", "invalid type: null, expected an object at line 2 column 3"),
        ('"text"', "invalid type: string, expected an object at line 1 column 1"),
        ("5", "invalid type: number, expected an object at line 1 column 1"),
        (None, "Expecting value at line 1 column 1"),
    ],
)
def test_s33_arguments_that_are_no_json_object_are_not_executed(arguments: object, problem: str) -> None:
    ran: list[str] = []

    @tool
    def act(text: str = "") -> None:
        ran.append(text)

    result = run(call("act", arguments), act)
    assert result == ToolResult(output=f"failed to parse function arguments: {problem}", success=False)
    assert ran == []


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": ' + "1" * 10_000 + "}"], ids=["deep", "long number"])
def test_arguments_that_no_parser_likes_are_an_output(arguments: str) -> None:
    result = run(call("shout", arguments))
    assert str(result.output).startswith("failed to parse function arguments: ")
    assert result.success is False


def test_what_a_tool_refuses_is_the_output() -> None:
    result = run(call("shout", json.dumps({"text": 5})))
    assert result.success is False
    assert result.output == (
        "failed to parse function arguments: `text`: expected `str`, got `int`\nExpected: shout(text: string)"
    )
    assert run(call("break", '{"how": "badly"}')) == ToolResult(output="ValueError: badly", success=False)


@pytest.mark.parametrize("error", [RuntimeError("lost"), SystemExit("lost"), ExceptionGroup("lost", [ValueError()])])
def test_unexpected_exception_is_an_output_that_names_tool_and_type(error: BaseException) -> None:
    result = run(call("wild", "{}"), Wild(error))
    assert result == ToolResult(output=f"tool wild failed: {type(error).__name__}: {error}", success=False)


def test_only_cancellation_is_raised() -> None:
    with pytest.raises(asyncio.CancelledError):
        run(call("wild", "{}"), Wild(asyncio.CancelledError()))


def test_exec_command_runs_and_is_refused_like_any_tool() -> None:
    result = run(call("exec_command", '{"cmd": "echo $((6 * 7))", "shell": "/bin/sh"}'), exec_command)
    assert str(result.output).endswith("Output:\n42\n")
    missing = run(call("exec_command", '{"a":"b"}'), exec_command)
    assert str(missing.output).startswith("failed to parse function arguments: missing field `cmd`\n")
