"""S14: half of a surrogate pair never reaches a request, a log or a later turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.local import request
from refold.core.history import Entry, entry
from refold.core.items import Item, message
from refold.core.jsonio import load
from refold.core.lines import decode, encode
from refold.core.profile import Profile, Provider
from refold.core.prompt import Prompt, prompt_from
from refold.core.records import ItemRecorded, well_formed
from refold.core.thread import Thread, same_state
from refold.core.wire import Identity, Wire
from refold.rollout import read_lines
from refold.session import Memory

CASE = Path(__file__).parent.parent / "data" / "cases" / "S14-lone-surrogates"
BROKEN: Item = json.loads((CASE / "item.json").read_text(encoding="utf-8"))  # as a host's parser gives it: with halves
TEXT = "title: café \ufffd mid \ufffd end \U0001f680."
PROFILE = Profile(slug="m")
HALVES = "a \ud83d b \ude00 c \ud83d\ude80"
WHOLE = "a \ufffd b \ufffd c \U0001f680"


def body(prompt: Prompt) -> dict[str, Any]:
    raw = Wire(Provider(), PROFILE).request(prompt, Identity(thread_id="T")).body()
    return json.loads(raw.decode("utf-8", "strict"))


def prompts(history: list[Entry]) -> list[Prompt]:
    """The ordinary request and the one for a summary."""
    return [
        prompt_from(history, PROFILE, base_instructions="b"),
        request(history, PROFILE, base_instructions="b", handoff=None),
    ]


def test_both_files_are_read_and_the_replacement_is_reported() -> None:
    assert load((CASE / "item.json").read_bytes())[0]["output"] == TEXT
    lines = list(read_lines(CASE / "rollout.jsonl"))
    assert [line.warning is None for line in lines] == [True, True, True, False]
    assert str(lines[3].warning).endswith("half surrogate pairs were replaced")
    assert Thread.replay(lines).history[-1].item["output"] == TEXT


@pytest.mark.parametrize("from_file", [True, False])
def test_both_requests_hold_the_replaced_text(from_file: bool) -> None:
    history = Thread.replay(read_lines(CASE / "rollout.jsonl")).history
    if not from_file:
        history = [*history[:-1], entry(BROKEN, "T:4")]
    for prompt in prompts(history):
        assert [item["output"] for item in prompt.input if "output" in item] == [TEXT]
        assert [item["output"] for item in body(prompt)["input"] if "output" in item] == [TEXT]


def test_a_new_line_is_strict_utf8_and_says_what_the_view_says() -> None:
    raw, _, _ = encode(well_formed(ItemRecorded(BROKEN)), thread_id="T", turn_id=None, timestamp="", ordinal=None)
    assert raw.decode("utf-8", "strict")
    line = decode(raw, 1)
    assert line is not None
    assert (line.record, line.warning) == (ItemRecorded({**BROKEN, "output": TEXT}), None)


@pytest.mark.parametrize(
    "item",
    [
        message("user", [HALVES]),
        message("assistant", [HALVES]),
        {"type": "function_call", "name": "look", "arguments": f'{{"cmd":"{HALVES}"}}', "call_id": "c"},
        {"type": "function_call", "name": "look", "arguments": {"cmd": HALVES}, "call_id": "c"},
        {"type": "custom_tool_call", "name": "edit", "input": HALVES, "call_id": "c"},
        {"type": "tool_search_call", "arguments": {"query": HALVES}, "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": HALVES}]},
    ],
    ids=lambda item: f"{item['type']}-{item.get('role')}",
)
def test_it_holds_wherever_the_half_stands(item: Item, tmp_path: Path) -> None:
    call = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}
    before = [call] if item["type"] == "function_call_output" else []
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add([*before, item])
        assert memory.path is not None
        for prompt in prompts(memory.thread.history):
            for sent in (prompt.input, body(prompt)["input"]):
                assert WHOLE in json.dumps(sent, ensure_ascii=False)
        assert same_state(memory.thread, Thread.replay(read_lines(memory.path)))
