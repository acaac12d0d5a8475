"""The outline of anything: odd items, odd addresses and any budget; and that its work grows with the history only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.compaction.outline import outline
from refold.core.history import Entry, entry
from refold.core.items import Item, message
from refold.core.jsonio import without_lone_surrogates

sys.path.insert(0, str(Path(__file__).parents[2] / "soak"))
from odd_items import Draw

THREAD = "019be65b-1d89-77d0-8feb-712a8b5ae816"


def tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "strict")) // 4)


def test_controls_and_half_pairs_do_not_reach_the_outline() -> None:
    item = {"type": "message", "role": "user", "content": "\ud83d red \x1b[31mtext\x1b]0;t\x07\u202e\x00 end"}
    text = outline([Entry(item, "typed", 1, "T\n:1\x1b[2J")], 500)
    assert text.endswith("## Goals\n[T :1] \ufffd red text end")


@pytest.mark.parametrize("seed", range(40))
def test_no_item_is_too_odd(seed: int) -> None:
    draw = Draw(f"outline {seed}")
    threads = ["T", THREAD, draw.text()]
    entries = [
        entry(without_lone_surrogates(draw.item()), f"{draw.one_of(threads)}:{n}", draw.one_of(["t", None]))
        for n in range(60)
    ]
    for budget in (40, 300, 3_000):
        text = outline(entries, budget, earlier=draw.text())
        assert tokens(text) <= budget
        assert all(line.replace("\u200d", "").isprintable() for line in text.split("\n"))


words = st.text(max_size=30) | st.sampled_from(
    [
        "rm a",
        "> b",
        "Exit code: 1",
        "I decided on a.",
        "- [ ] x",
        "```",
        "<<X",
        "'\"\\",
        "## Goals",
        "[T:1] x",
        "(3 more)",
    ]
)
KEYS = ["cmd", "command", "plan", "step", "status", "text", "input", "session_id", "workdir", "action"]
bodies = st.recursive(
    words | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)
KINDS = ["message", "agent_message", "function_call", "function_call_output", "custom_tool_call"]
KINDS += ["custom_tool_call_output", "local_shell_call", "tool_search_call", "tool_search_output"]
TOOLS = ["exec_command", "shell", "update_plan", "apply_patch", "exec", "write_stdin", None, 7]
odd_items = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "role": st.sampled_from(["user", "assistant"]),
        "content": bodies,
        "output": bodies,
        "input": bodies,
        "action": bodies,
        "arguments": bodies | bodies.map(json.dumps),
        "call_id": st.sampled_from(["a", "b", "", None, 5]),
        "name": st.sampled_from(TOOLS),
    },
)


@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(st.lists(odd_items, max_size=12), st.integers(-1, 300), st.lists(words, max_size=5).map("\n".join))
def test_any_items_have_one_outline_within_any_budget(items: list[Item], budget: int, earlier: str) -> None:
    entries = [entry(item, f"T:{n}", "t" if n % 3 else None) for n, item in enumerate(items)]
    text = outline(entries, budget, earlier=earlier)
    assert tokens(text) <= max(0, budget)
    assert text == outline(entries, budget, earlier=earlier)
    if text:
        assert outline(entries, budget, earlier=text) == text, "its own outline adds nothing"


def session(turns: int) -> list[Entry]:
    """So many turns of five items, each with a command of its own."""
    items: list[tuple[str, Item]] = []
    for n in range(turns):
        arguments = json.dumps({"cmd": f"make {n} > out/{n % 7}.log"})
        result = f"Process exited with code {n % 9 == 0:d}\nOutput:\nline {n}\n"
        items += [(f"t{n}", message("user", [f"Goal {n}"])), (f"t{n}", message("assistant", [f"I look at {n}."]))]
        items += [
            (f"t{n}", {"type": "function_call", "name": "exec_command", "arguments": arguments, "call_id": f"c{n}"})
        ]
        items += [(f"t{n}", {"type": "function_call_output", "call_id": f"c{n}", "output": result})]
        items += [(f"t{n}", {"type": "reasoning", "summary": []})]
    return [entry(item, f"{THREAD}:{n}", turn) for n, (turn, item) in enumerate(items, 1)]


def work(turns: int) -> int:
    """How many functions, Python's own too, an outline of so many turns calls."""
    entries, calls = session(turns), 0

    def count(_frame: Any, event: str, _value: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        outline(entries, 1_000)
    finally:
        sys.setprofile(before)
    return calls


def test_the_work_grows_no_faster_than_the_history() -> None:
    small, large = work(500), work(4_000)
    assert large < small * 8.5
    assert large < 4_000 * 5 * 60, "so many calls for an entry are too many"
