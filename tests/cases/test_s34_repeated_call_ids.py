"""S34: call ids that come again are paired in order and sent once each; history and log keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refold.core.history import Entry, drop_oldest, entry
from refold.core.pairing import for_prompt, view_of
from refold.core.profile import Profile
from refold.core.prompt import Projection, prompt_from
from refold.session.memory import Memory
from refold.views.context import context

CASE = Path(__file__).parent.parent / "data" / "cases" / "S34-repeated-call-ids"
ITEMS = [json.loads(line) for line in (CASE / "history.jsonl").read_text().splitlines()]
PROFILE = Profile(slug="m")
CALLS = {"ls a": "r1", "ls b": "r2", "ls c": "r3", "ls d": "r4"}


def history() -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(ITEMS, 1)]


def sent() -> list[Any]:
    return prompt_from(history(), PROFILE, base_instructions=None).input


def answered(items: list[Any]) -> dict[str, str]:
    """command → output, by call id alone."""
    outputs: dict[str, list[str]] = {}
    for item in items:
        if item["type"] == "function_call_output":
            outputs.setdefault(item["call_id"], []).append(item["output"])
    assert all(len(found) == 1 for found in outputs.values())
    calls = [item for item in items if item["type"] == "function_call"]
    assert len({item["call_id"] for item in calls}) == len(calls) == len(outputs)
    return {json.loads(item["arguments"])["cmd"]: outputs[item["call_id"]][0] for item in calls}


def test_every_call_has_one_output_of_its_own_and_an_id_of_its_own() -> None:
    assert answered(sent()) == CALLS


def test_the_surplus_output_is_left_out_with_a_warning() -> None:
    assert "r4 again" not in json.dumps(sent())
    view = view_of(history(), ["text"])
    assert [odd.address for odd in view.oddities if "second output" in odd.what] == ["T:14"]


def test_the_first_use_keeps_the_id_and_later_ones_are_the_same_every_time() -> None:
    ids = [item["call_id"] for item in sent() if item["type"] == "function_call"]
    assert ids[0] == "terminal:0"
    assert ids[3] == "terminal:1"
    assert ids == [item["call_id"] for item in sent() if item["type"] == "function_call"]
    projection, grown = Projection(PROFILE), list[Entry]()
    for e in history():
        grown.append(e)
        projection.prompt(grown, base_instructions=None)
    assert projection.prompt(grown, base_instructions=None).input == sent()


def test_history_and_log_keep_the_original_ids(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add(ITEMS)
        assert answered(memory.prompt().input) == CALLS
        path = memory.path
        assert path is not None
    again = Memory.open(path, model=PROFILE)
    kept = [e.item["call_id"] for e in again.thread.history if "call_id" in e.item]
    again.close()
    assert kept == [item["call_id"] for item in ITEMS if "call_id" in item]
    assert len(context(again.thread, PROFILE).odd) == 3


def test_the_oldest_call_goes_with_its_own_output() -> None:
    rest = for_prompt(history(), ["text"])
    for _ in range(2):  # the user message, then the call
        rest = drop_oldest(rest)
    commands = dict(CALLS)
    del commands["ls a"]
    assert answered([e.item for e in rest]) == commands
