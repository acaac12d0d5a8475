"""A call and its result as a person reads them."""

from __future__ import annotations

import pytest

from refold.views.calls import arguments_of, call_text, command_in, result_shown, visible, visible_line

EXEC = {"type": "function_call", "name": "exec_command", "call_id": "c"}


def test_what_hides_is_spelled_out_and_lines_stay_lines():
    assert visible("a\tb\n\x1b[2J\u202e") == "a\tb\n\\x1b[2J\\u202e"
    assert visible_line("a\nb") == "a\\nb"


@pytest.mark.parametrize("arguments", ['{"cmd": "ls -l"}', {"cmd": "ls -l"}])
def test_the_command_is_read_as_its_tool_reads_it(arguments):
    call = {**EXEC, "arguments": arguments}
    assert command_in(call) == call_text(call) == "ls -l"


@pytest.mark.parametrize("arguments", [None, "{", "[]", '{"cmd": 1}', 7])
def test_what_asks_for_no_command_is_shown_whole(arguments):
    call = {**EXEC, "arguments": arguments}
    assert command_in(call) is None and arguments_of(call) in ({}, {"cmd": 1})
    assert call_text(call) == f"exec_command {arguments or ''}"


@pytest.mark.parametrize(
    ("details", "success", "end", "well"),
    [
        ({"exit_code": 0, "duration": 1.25}, True, "ok, 1.2 s", True),
        ({"exit_code": 3}, False, "exit 3", False),
        ({}, False, "failed", False),
        ({"exit_code": None, "session_id": 1234, "duration": 10.0}, True, "goes on in the background, 10.0 s", True),
    ],
)
def test_how_a_call_ended(details, success, end, well):
    shown = result_shown("one\ntwo", details, success=success)
    assert (shown.lines, shown.end, shown.well) == (["one", "two"], end, well)


def test_of_a_long_output_the_last_lines_are_shown_and_the_rest_is_counted():
    shown = result_shown(
        "Warning: truncated output (original token count: 90)\n" + "x" * 400 + "\n1\n2\n3", {}, success=True
    )
    assert shown.lines == ["x" * 160, "1", "2", "3"]
    assert ", 1 lines before; limited for the model: " in shown.end and shown.end.endswith(" of 90 tokens")
