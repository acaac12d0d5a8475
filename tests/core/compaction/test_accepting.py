"""Accepting: which replies are a summary, and which must not pass for one."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.compaction.accepting import GROWTH_ALLOWED, Unfit, is_larger, judged
from refold.core.compaction.local import request
from refold.core.fragments import KIND_SUMMARY, SUMMARY_MARK, stored_message
from refold.core.history import entry
from refold.core.items import Item, function_call_output, message
from refold.core.profile import Profile
from refold.core.prompt import Prompt
from refold.core.templates import template

CALL = {"type": "function_call", "id": "fc_1", "name": "exec_command", "arguments": "{}", "call_id": "c"}
LOG = "\n".join(f"step {number:02d} of the build took {number * 7} ms and went well" for number in range(30))
ANSWER = "I moved the parser into a module of its own and all 41 tests of it pass, as you asked me to."
HISTORY = [
    message("user", ["Make the parser faster and keep the old error codes, please."]),
    CALL,
    function_call_output("c", LOG),
    message("assistant", [ANSWER]),
]
SUMMARY = """The parser is a module of its own now (src/parser.py) and its 41 tests pass.

- the old error codes are kept, as the user asked
- next: measure it on the large file, then write the changelog
"""


def asked(*more: Item, handoff: str | None = None) -> Prompt:
    entries = [entry(item, f"T:{number}") for number, item in enumerate([*HISTORY, *more])]
    return request(entries, Profile(slug="m"), base_instructions=None, handoff=handoff)


def said(*texts: str) -> list[Item]:
    return [message("assistant", [text]) for text in texts]


def kind_of(output: list[Item], prompt: Prompt | None = None) -> str | None:
    found = judged(output, prompt or asked())
    return found.kind if isinstance(found, Unfit) else None


def refusal(words: str, *texts: str) -> Item:
    parts: list[dict[str, Any]] = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "role": "assistant", "content": [*parts, {"type": "refusal", "refusal": words}]}


def test_a_summary_is_a_summary_and_the_last_message_counts() -> None:
    assert judged(said(SUMMARY), asked()) == SUMMARY
    assert judged(said("First I look at it all.", SUMMARY), asked()) == SUMMARY
    assert judged(said("SUMMARY"), asked()) == "SUMMARY"


@pytest.mark.parametrize("output", [[], said(""), said(" \n"), [{"type": "reasoning", "summary": []}]])
def test_a_reply_without_a_text_is_empty(output: list[Item]) -> None:
    found = judged(output, asked())
    assert isinstance(found, Unfit) and found.kind == "empty"
    assert "instead of a text" in found.why


@pytest.mark.parametrize("output", [[CALL], [*said("I look at the log first."), CALL], [CALL, *said(SUMMARY)]])
def test_a_reply_with_a_tool_call_went_on_working(output: list[Item]) -> None:
    assert kind_of(output) == "tool call"


def test_a_refusal_in_the_apis_own_part_is_none_and_its_words_are_told() -> None:
    found = judged([refusal("I must not do that.\nReally.")], asked())
    assert found == Unfit("refusal", "the model refused to write a summary: I must not do that.")
    assert kind_of([refusal("No.", "Well, to begin with:")]) == "refusal"
    assert kind_of([refusal("No."), *said(SUMMARY)]) is None, "the last message counts"


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I\N{RIGHT SINGLE QUOTATION MARK}m sorry, but I can\N{RIGHT SINGLE QUOTATION MARK}t assist with that request.",
        "Sorry, I cannot comply.",
        "I can't help.",
        "Unfortunately, I am unable to process your request.",
        "As an AI language model, I cannot provide a summary of such things.",
        "I cannot summarize this conversation.",
        "I won't do that.",
    ],
)
def test_a_text_that_only_refuses_is_none(text: str) -> None:
    assert kind_of(said(text)) == "refusal"


@pytest.mark.parametrize(
    "text",
    [
        "I can't continue before the disk has room: clean /var/tmp, then run the tests again.",
        "I cannot complete the test run: two tests need the network. Next: mock them.",
        "Unfortunately, the tests still fail. Next: read tests/test_parser.py.",
        "I'm unable to reproduce the crash with seed 7; seed 9 crashes. Next: bisect.",
        "Sorry state of the code base: 41 tests fail. Next: the parser.",
        "I can't help with that." + " The user then asked for the parser, which is done." * 20,
    ],
)
def test_work_that_could_not_be_done_is_no_refusal(text: str) -> None:
    assert kind_of(said(text)) is None


@pytest.mark.parametrize(
    "text",
    [LOG, "Output:\n" + LOG, ANSWER, f"{LOG}\n\n{ANSWER}", "\n".join(f"   {line}  " for line in LOG.splitlines())],
    ids=["an output", "under a heading", "an older answer", "several items", "spaced otherwise"],
)
def test_a_reply_that_repeats_the_transcript_is_an_echo(text: str) -> None:
    found = judged(said(text), asked())
    assert isinstance(found, Unfit) and found.kind == "echo"
    assert "repeated what it was given" in found.why


def test_a_reply_that_repeats_the_request_is_an_echo() -> None:
    found = judged(said(template("handoff")), asked())
    assert isinstance(found, Unfit) and "repeated the request" in found.why
    own = "Write down what was done so far.\nThen write down what is left to be done, and who wants it.\n"
    assert kind_of(said(own), asked(handoff=own)) == "echo"


def test_a_summary_may_quote() -> None:
    quoting = f"{SUMMARY}\nThe newest output:\n" + "\n".join(LOG.splitlines()[:6])
    assert kind_of(said(quoting)) is None
    assert kind_of(said("41 tests pass")) is None, "a short text may be the same by chance"


def test_a_summary_may_repeat_the_one_before_it() -> None:
    earlier = stored_message("user", [(KIND_SUMMARY, SUMMARY_MARK + SUMMARY * 3)], id="msg_s", turn_id=None)
    assert kind_of(said(SUMMARY * 3), asked(earlier)) is None


def test_a_summary_may_be_larger_by_the_growth_that_is_allowed() -> None:
    assert not is_larger(60 + GROWTH_ALLOWED, 60)
    assert is_larger(61 + GROWTH_ALLOWED, 60)
