"""S01: a call that never got its output is answered in every request, and only there."""

from __future__ import annotations

import json
from pathlib import Path

from refold.core.compaction.local import request
from refold.core.history import Entry, entry
from refold.core.profile import Profile, Provider
from refold.core.prompt import Prompt, prompt_from
from refold.core.thread import Thread
from refold.core.wire import Identity, Wire
from refold.session import Memory
from refold.views.context import context

CASE = Path(__file__).parent.parent / "data" / "cases" / "S01-compact-with-unanswered-call"
ITEMS = [json.loads(line) for line in (CASE / "history.jsonl").read_text(encoding="utf-8").splitlines()]
PROFILE = Profile(slug="m")


def history() -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(ITEMS)]


def ordinary() -> Prompt:
    return prompt_from(history(), PROFILE, base_instructions=None, tools=[{"type": "function", "name": "exec_command"}])


def compaction() -> Prompt:
    return request(history(), PROFILE, base_instructions=None, handoff=None)


def body(prompt: Prompt) -> bytes:
    return Wire(Provider(), PROFILE).request(prompt, Identity(thread_id="T")).body()


def test_both_views_answer_the_call_right_behind_it() -> None:
    for prompt in (ordinary(), compaction()):
        sent = prompt.input
        place = next(number for number, item in enumerate(sent) if item["type"] == "function_call")
        assert sent[place + 1] == {"type": "function_call_output", "call_id": "call_A", "output": "aborted"}
        assert sum(item["type"] == "function_call_output" for item in sent) == 1


def test_the_repair_is_in_the_view_alone(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add(ITEMS)
        assert memory.path is not None
        before = memory.path.read_bytes()
        assert len(memory.prompt().input) == 5
        assert len(memory.thread.history) == 4
        assert memory.path.read_bytes() == before


def test_building_a_view_twice_gives_the_same_bytes() -> None:
    assert body(ordinary()) == body(ordinary())
    assert body(compaction()) == body(compaction())


def test_the_compaction_request_is_the_repaired_view_and_one_item() -> None:
    asked = compaction()
    assert asked.input[:-1] == ordinary().input
    sent = json.loads(body(asked))
    assert (sent["tools"], sent["parallel_tool_calls"]) == ([], False)


def test_a_look_at_the_history_names_the_call() -> None:
    thread = Thread()
    thread.history = history()
    assert context(thread, PROFILE).unanswered == ("call_A",)
