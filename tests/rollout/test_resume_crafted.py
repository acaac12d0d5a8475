"""Damaged files, crafted for the real program: what refold resumes from them is what that sent (oracle §8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config
from refold.core.items import message, spelled
from refold.core.pairing import for_prompt
from refold.core.profile import Profile
from refold.core.thread import same_state
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread

CASES: dict[str, Any] = {
    case["case"]: case
    for case in json.loads((Path(__file__).parents[1] / "data" / "oracle" / "resume_crafted.json").read_text())
}
PROFILE = Profile(slug="m")


def rollout(case: Any, folder: Path) -> Path:
    path = folder / "rollout-2026-11-30T08-13-13-#1.jsonl"
    path.write_text("\n".join(case["rollout_lines"]) + ("\n" if case["ends_with_newline"] else ""))
    return path


def sent(case: Any) -> list[Any]:
    """What the real program sent of the file: without its instructions, and without what was said then."""
    return case["request_input"][1:-1]


def resumed(path: Path) -> list[Any]:
    return [spelled(e.item) for e in for_prompt(read_thread(path).history, ("text", "image"))]


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"no_ordinals", "only_meta"}))
def test_a_damaged_file_resumes_to_what_the_real_program_sent(name: str, tmp_path: Path) -> None:
    assert bare(resumed(rollout(CASES[name], tmp_path))) == bare(sent(CASES[name]))


def bare(items: list[Any]) -> list[Any]:
    """Items without ids that were made up on the way: of the output that stands for a missing one."""
    return [{k: v for k, v in item.items() if k != "id" or item.get("output") != "aborted"} for item in items]


def test_a_file_of_nothing_but_its_identity_resumes_as_a_new_session(tmp_path: Path) -> None:
    thread = read_thread(rollout(CASES["only_meta"], tmp_path))
    assert (thread.id, thread.history, thread.world, thread.turns) == ("#1", [], None, 0)
    context = [item["role"] for item in sent(CASES["only_meta"])]
    assert context == ["developer", "user"], "which tells the context, as for a new one"


def test_a_file_without_ordinals_resumes_by_line_numbers_which_the_real_program_refuses(tmp_path: Path) -> None:
    case = CASES["no_ordinals"]
    assert case["exit_code_nonzero"] and "missing an ordinal" in case["stderr"]
    (tmp_path / "whole").mkdir()
    path = rollout(case, tmp_path)
    whole = rollout(CASES["unknown_type"], tmp_path / "whole")  # the same session, undamaged but for a line
    assert resumed(path) == resumed(whole)
    assert [e.address for e in read_thread(path).history][:2] == ["#1:3", "#1:4"]


@pytest.mark.parametrize("name", sorted(CASES))
def test_each_of_them_takes_what_is_said_next_and_loses_nothing(name: str, tmp_path: Path) -> None:
    path = rollout(CASES[name], tmp_path)
    before = path.read_bytes()
    with Memory.reopen(path, PROFILE, Config(), Clock()) as memory:
        had = [e.item for e in memory.thread.history]
        memory.add(message("user", ["go on"]))
        live = memory.thread
    assert path.read_bytes().startswith(before)
    again = read_thread(path)
    assert same_state(again, live)
    assert [e.item for e in again.history[:-1]] == had
