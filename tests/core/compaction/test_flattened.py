"""A history as one text: who said what, within a budget, with nothing that could be answered by a call."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.compaction.flattened import OUTPUT_TOKENS, UNREADABLE, paragraph, request, transcript
from refold.core.compaction.local import Asking, prompt_of
from refold.core.fragments import KIND_ENVIRONMENT, KIND_SUMMARY, KIND_TYPED, SUMMARY_MARK, stored_message
from refold.core.history import Entry, entry
from refold.core.items import Item, function_call_output, message, message_text
from refold.core.profile import Profile
from refold.core.templates import template
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for

PICTURE = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 400}
CALL = {"type": "function_call", "id": "fc_1", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "c"}
CONTEXT = stored_message(
    "user", [(KIND_ENVIRONMENT, "<environment_context>x</environment_context>")], id="m", turn_id=None
)


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items)]


def size(text: str) -> int:
    return tokens_for(utf8_len(text))


def test_everybody_is_told_with_what_they_said_called_and_got() -> None:
    history = entries(
        CONTEXT,
        message("user", ["List the files."]),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ls it is"}], "encrypted_content": "QQ"},
        {"type": "reasoning", "summary": [], "encrypted_content": "QQ"},
        CALL,
        function_call_output("c", "a.py\nb.py\n"),
        message("assistant", ["Two files."]),
    )
    assert transcript(history[1:], 1_000).text == (
        "[user]\nList the files.\n\n"
        "[assistant, thinking]\nls it is\n\n"
        '[assistant calls exec_command]\n{"cmd":"ls"}\n\n'
        "[output of exec_command]\na.py\nb.py\n\n"
        "[assistant]\nTwo files."
    )


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See"}, PICTURE]},
            "[user]\nSee\n[image left out]",
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            "[user]\n[audio left out]",
        ),
        ({"type": "function_call_output", "call_id": "c", "output": [PICTURE]}, "[output of a tool]\n[image left out]"),
        ({"type": "function_call_output", "call_id": "c", "output": ""}, "[output of a tool]\n(empty)"),
        ({"type": "function_call_output", "call_id": "c", "output": {"n": 1}}, '[output of a tool]\n{"n":1}'),
        ({"type": "custom_tool_call", "name": "patch", "input": "+ x", "call_id": "c"}, "[assistant calls patch]\n+ x"),
        ({"type": "function_call", "name": "f", "arguments": "", "call_id": "c"}, "[assistant calls f]\n(nothing)"),
        (
            {"type": "agent_message", "author": "/root/a", "content": [{"type": "input_text", "text": "Done."}]},
            "[agent /root/a]\nDone.",
        ),
        ({"type": "compaction", "encrypted_content": "QQ"}, UNREADABLE),
        (
            {"type": "image_generation_call", "id": "ig_1", "result": "QQ", "revised_prompt": "a cat"},
            "[assistant draws]\na cat\n[image left out]",
        ),
        (
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
            '[assistant, web_search_call]\n{"action":{"query":"x"}}',
        ),
        ({"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []}, "[output of a tool]\n[]"),
        ({"type": "from_tomorrow", "words": "hello"}, '[assistant, from_tomorrow]\n{"words":"hello"}'),
        ({"type": "message", "role": "assistant", "content": []}, ""),
    ],
)
def test_each_kind_of_item_is_told_in_words(item: dict[str, Any], told: str) -> None:
    assert paragraph(item, {}) == told


def test_a_long_output_is_told_by_its_ends() -> None:
    told = paragraph(function_call_output("c", "first line\n" + "x" * 100_000 + "\nlast line"), {"c": "look"})
    assert told.startswith("[output of look]\nfirst line") and told.endswith("last line")
    assert "tokens truncated" in told and size(told) <= OUTPUT_TOKENS + 20


@pytest.mark.parametrize("budget", [20, 200, 1_000, 5_000])
def test_the_newest_are_told_within_the_budget_and_the_rest_is_counted(budget: int) -> None:
    history = entries(*(message("user", [f"message {number} " + "w" * 200]) for number in range(50)))
    found = transcript(history, budget)
    assert size(found.text) <= budget + 20, "the line that counts is on top"
    assert "message 49" in found.text
    assert found.left_out == 50 - found.text.count("[user]")
    assert found.text.startswith(f"({found.left_out} earlier items left out)") is bool(found.left_out)


def test_an_earlier_summary_stays_a_message_and_what_was_injected_is_not_told() -> None:
    summary = stored_message("user", [(KIND_SUMMARY, SUMMARY_MARK + "FIRST")], id="msg_s", turn_id=None)
    typed = stored_message("user", [(KIND_TYPED, "Go on.")], id="msg_t", turn_id=None)
    prompt, left_out = request(entries(typed, CONTEXT, summary, message("assistant", ["Yes."])), 1_000, handoff=None)
    texts = [message_text(item) for item in prompt.input]
    assert texts == [SUMMARY_MARK + "FIRST", "[user]\nGo on.\n\n[assistant]\nYes.", template("handoff")]
    assert left_out == 0


def test_nothing_in_the_request_can_be_answered_by_a_call() -> None:
    history = entries(message("user", ["goal"]), CALL, function_call_output("c", "x"))
    asking = Asking(budget=1_000)
    prompt, _ = prompt_of(history, Profile(slug="m"), asking, base_instructions="WORK", tools=[{"name": "f"}])
    assert (prompt.tools, prompt.parallel_tool_calls) == ((), False)
    assert prompt.base_instructions == template("flattened")
    assert {item["type"] for item in prompt.input} == {"message"}


def test_an_empty_history_asks_for_the_summary_alone() -> None:
    prompt, left_out = request([], 1_000, handoff="Sum up.")
    assert ([message_text(item) for item in prompt.input], left_out) == (["Sum up."], 0)
