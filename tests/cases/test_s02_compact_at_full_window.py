"""S02: a compaction that does not fit leaves out the oldest pairs until it does (checks 1 to 6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.history import Entry
from refold.core.items import is_call, is_output, message_text
from refold.core.profile import Profile, Provider
from refold.core.templates import template
from refold.errors import ContextWindowExceeded
from refold.model.scripted import Reply, ScriptedModel
from refold.session import Memory
from refold.session.events import CompactionEnded

CASE = Path(__file__).parent.parent / "data" / "cases" / "S02-compact-at-full-window"
ITEMS: list[dict[str, Any]] = [json.loads(line) for line in (CASE / "history.jsonl").read_text("utf-8").splitlines()]
PROFILE = Profile(slug="m")
NO_RETRIES = Provider(
    name="p", base_url="http://127.0.0.1:1", env_key=None, stream_max_retries=0, request_max_retries=0
)


def reply_of(name: str) -> Reply:
    """The answer that a file of the case holds."""
    lines = (CASE / name).read_text("utf-8").splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    last = events[-1]["response"]
    if "error" in last:
        return Reply(fail=last["error"])
    items = tuple(event["item"] for event in events if event["type"] == "response.output_item.done")
    told = last["usage"]
    return Reply.from_json({"items": items, "response_id": last["id"], "usage": told})


FAIL, OK = reply_of("fail.sse"), reply_of("ok.sse")


def compacted(replies: Sequence[Reply]) -> tuple[Memory, ScriptedModel, CompactionEnded | ContextWindowExceeded]:
    """The memory after a compaction with these replies, what was asked, and how it ended."""
    memory = Memory.open(None, model=PROFILE)
    memory.add(ITEMS)
    before = list(memory.thread.history)
    seen: list[list[Entry]] = []

    def answer(reply: Reply) -> Any:
        def answered(_: Any) -> Reply:
            seen.append(list(memory.thread.history))  # what is live while the model answers
            return reply

        return answered

    model = ScriptedModel([answer(reply) for reply in replies], profile=PROFILE, provider=NO_RETRIES)
    try:
        ended: Any = asyncio.run(memory.make_room(model, force=True))
    except ContextWindowExceeded as error:
        ended = error
    assert all(one == before for one in seen) and len(seen) == len(model.requests)
    return memory, model, ended


def test_each_request_carries_less_and_the_instruction_last() -> None:
    _, model, _ = compacted([FAIL, FAIL, OK])
    inputs = [request["input"] for request in model.requests]
    assert [len(items) for items in inputs] == [8 + 1, 6 + 1, 5 + 1]
    assert all(message_text(items[-1]) == template("handoff") for items in inputs)
    ids = [[item.get("call_id") for item in items if is_call(item)] for items in inputs]
    assert ids == [["call_old", "call_new"], ["call_new"], ["call_new"]]
    assert message_text(inputs[1][0]) == "Reading the log first.", "it lay between the call and its output"


def test_no_request_holds_half_of_a_pair() -> None:
    _, model, _ = compacted([FAIL] * 7)
    for request in model.requests:
        calls = [item["call_id"] for item in request["input"] if is_call(item)]
        assert calls == [item["call_id"] for item in request["input"] if is_output(item)]


def test_with_only_the_instruction_left_it_fails_with_the_history_as_it_was() -> None:
    memory, model, ended = compacted([FAIL] * 7)
    assert isinstance(ended, ContextWindowExceeded)
    assert "input too long for this model" in str(ended)
    assert [len(request["input"]) for request in model.requests] == [9, 7, 6, 5, 3, 2, 1]
    assert message_text(model.requests[-1]["input"][0]) == template("handoff")
    assert [entry.item.get("call_id") for entry in memory.thread.history] == [item.get("call_id") for item in ITEMS]
    assert memory.thread.compactions == 0


def test_afterwards_there_are_the_user_messages_and_one_summary() -> None:
    memory, _, _ = compacted([FAIL, FAIL, OK])
    texts = [message_text(entry.item) for entry in memory.thread.history]
    assert texts[:-1] == ["Summarise the errors in big.log.", "Fix ERR 17."]
    assert texts[-1] == template("summary_prefix") + "\n" + message_text(OK.items[0])
    assert texts[-1].endswith("Handoff: ERR 17 is a full disk; next step: clean /var/tmp.")


def test_the_result_says_how_many_items_were_left_out() -> None:
    _, _, ended = compacted([FAIL, FAIL, OK])
    assert isinstance(ended, CompactionEnded)
    assert (ended.installed, ended.dropped) == (True, 3)


@pytest.mark.parametrize("fails", [1, 2, 5])
def test_leaving_out_is_no_retry(fails: int) -> None:
    assert (NO_RETRIES.stream_max_retries, NO_RETRIES.request_max_retries) == (0, 0)
    _, model, ended = compacted([*[FAIL] * fails, OK])
    assert isinstance(ended, CompactionEnded) and len(model.requests) == fails + 1
