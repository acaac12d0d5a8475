"""A local summary: what is asked, and which reply is one."""

from __future__ import annotations

import json

import pytest

from refold.core.compaction.local import request, settle
from refold.core.history import Entry, entry
from refold.core.items import Item, message
from refold.core.profile import Profile, Provider
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
