"""A local summary: what is asked, and which reply is one."""

from __future__ import annotations

import json

import pytest

from refold.core.compaction.local import (
    Asking,
    count_for,
    holds_media,
    prompt_of,
    request,
    settle,
    without_media,
    without_oldest,
)
from refold.core.history import Entry, entry
from refold.core.items import Item, function_call_output, message
from refold.core.pairing import for_prompt
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.templates import template
from refold.core.wire import Identity, Wire
from refold.errors import CompactionFailed

PROFILE = Profile(slug="m", supports_parallel_tool_calls=True)
USER, ANSWER = message("user", ["goal"], id="msg_1"), message("assistant", ["done"], id="msg_2")
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "QQ"}
CALL = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": "{}", "call_id": "c"}


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items)]


def test_the_whole_history_goes_out_and_the_handoff_text_after_it_without_an_id() -> None:
    prompt = request(entries(USER, REASONING, CALL, ANSWER), PROFILE, base_instructions="b", handoff=None)
    aborted = {"type": "function_call_output", "call_id": "c", "output": "aborted"}
    *history, asking = prompt.input
    assert [item for item in history if item.get("output") != "aborted"] == [USER, REASONING, CALL, ANSWER]
    assert history[3].items() >= aborted.items()
    assert asking == message("user", [template("handoff")])


def test_no_tools_are_offered() -> None:
    prompt = request(entries(USER), PROFILE, base_instructions="b", handoff=None)
    assert (prompt.tools, prompt.parallel_tool_calls, prompt.base_instructions) == ((), False, "b")
    identity = Identity(thread_id="T", request_kind="compaction")
    body = json.loads(Wire(Provider(), PROFILE).request(prompt, identity).body())
    assert (body["tools"], body["parallel_tool_calls"]) == ([], False)
    assert [item["role"] for item in body["input"]] == ["developer", "user", "user"]


def test_a_text_of_ones_own_is_sent_as_it_is() -> None:
    prompt = request(entries(USER), PROFILE, base_instructions=None, handoff="Sum up.")
    assert prompt.input[-1] == message("user", ["Sum up."])


def test_with_nothing_left_the_handoff_text_goes_out_alone() -> None:
    assert len(request([], PROFILE, base_instructions="b", handoff=None).input) == 1


def test_the_last_answer_is_the_summary() -> None:
    output = [message("assistant", ["thinking"]), REASONING, message("assistant", ["the ", "summary"])]
    assert settle(output) == "the summary"
    assert settle([message("assistant", ["the summary"]), message("assistant", [" \n"])]) == "the summary"


@pytest.mark.parametrize(
    ("output", "told"),
    [([], "nothing"), ([CALL], "function_call"), ([REASONING, message("assistant", [""])], "reasoning, message")],
)
def test_a_reply_without_a_text_is_refused_and_says_what_it_was(output: list[Item], told: str) -> None:
    with pytest.raises(CompactionFailed, match=f"with {told} instead of a text"):
        settle(output)


# --- asking for less -------------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "name": "look", "parameters": {}}]
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def long_history() -> list[Entry]:
    calls = [{**CALL, "id": f"fc_{number}", "call_id": f"c{number}"} for number in range(20)]
    outputs = [function_call_output(f"c{number}", "x" * 400) for number in range(20)]
    return entries(USER, *(item for pair in zip(calls, outputs, strict=True) for item in pair), ANSWER)


def test_with_the_tools_of_the_samplings_the_request_begins_as_they_do() -> None:
    history = long_history()
    sampling = prompt_from(history, PROFILE, base_instructions="b", tools=TOOLS)
    prompt, _ = prompt_of(history, PROFILE, Asking(), base_instructions="b", tools=TOOLS)
    assert (prompt.tools, prompt.parallel_tool_calls) == (sampling.tools, True)
    assert prompt.entries[:-1] == sampling.entries


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 41, 42, 99])
def test_what_is_left_out_is_left_out_with_its_other_half(count: int) -> None:
    history = long_history()
    left = without_oldest(history, count)
    assert min(count, len(history)) <= len(history) - len(left) <= count + 1
    assert [e.item for e in for_prompt(left, ("text",))] == [e.item for e in left], "no half of a pair is left"
    assert left == history[len(history) - len(left) :]


def test_as_many_of_the_oldest_go_as_hold_so_many_tokens() -> None:
    history = long_history()
    pair = history[1].tokens + history[2].tokens
    assert count_for(history, 0) == 1, "at least one"
    assert count_for(history, history[0].tokens + 1) == 3, "a call with its output"
    assert count_for(history, history[0].tokens + 5 * pair) == 11
    assert count_for(history, 10**9) == len(history)
    interleaved = entries(CALL, USER, function_call_output("c", "x"), ANSWER)
    assert count_for(interleaved, 1) == 2
    assert [e.item for e in without_oldest(interleaved, 2)] == [USER, ANSWER]


def test_media_become_a_short_text_and_nothing_else_changes() -> None:
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See"}, PICTURE]}
    seen = function_call_output("c", [PICTURE, {"type": "input_text", "text": "ok"}])
    made = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QQ"}
    history = entries(said, CALL, seen, made, ANSWER)
    assert [holds_media(e) for e in history] == [True, False, True, True, False]
    word = {"type": "input_text", "text": "[image left out]"}
    changed = [without_media(e) for e in history]
    assert changed[0].item["content"] == [{"type": "input_text", "text": "See"}, word]
    assert changed[2].item["output"] == [word, {"type": "input_text", "text": "ok"}]
    assert changed[3].item["result"] == ""
    assert (changed[1], changed[4]) == (history[1], history[4])
    assert [e.address for e in changed] == [e.address for e in history]


def test_a_request_is_the_same_whether_its_history_was_repaired_before() -> None:
    history = entries(USER, CALL, ANSWER, {**CALL, "id": "fc_2"}, function_call_output("c", "x"))
    once, _ = prompt_of(history, PROFILE, Asking(), base_instructions=None)
    twice = request(for_prompt(history, PROFILE.input_modalities), PROFILE, base_instructions=None, handoff=None)
    assert once.input == twice.input
