"""What holds of any input: cuts, pairing and the estimator. (Lines, projections and passes: tests/core.)"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.history import entry
from refold.core.items import OUTPUT_TYPE_OF, Item, message, output_for
from refold.core.pairing import for_prompt
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.tokens import Sizes, estimate, measure
from refold.core.truncate import Budget, cut_middle, cut_parts, exec_output, recording_budget, tokens_for
from refold.core.wire import Identity, Wire
from refold.tools.collector import Collector

sys.path.insert(0, str(Path(__file__).parent.parent / "soak"))
from legal import faults

PROFILE = Profile(slug="m")
WIDEST = 4  # bytes of one character: what a cut may leave of its budget at each end is less


def fixed(examples: int = 200) -> Any:
    """The same examples every time, however slow the machine is."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


# --- cuts ------------------------------------------------------------------------------------------------------------

MODES = st.sampled_from(["bytes", "tokens"])
BYTES = st.binary(max_size=120) | st.text(max_size=60).map(str.encode) | st.binary(max_size=9).map(lambda raw: raw * 30)
TEXTS = BYTES.map(lambda raw: raw.decode("utf-8", "replace"))


@fixed()
@given(TEXTS, st.builds(Budget, MODES, st.integers(0, 60)))
def test_a_cut_text_is_its_two_ends_within_the_budget_around_one_marker(text: str, budget: Budget) -> None:
    cut, size = cut_middle(text, budget), len(text.encode())
    if size <= budget.bytes:
        assert cut == text
        return
    ends = [(head, tail) for head, marker, tail in splits(cut) if is_marker(marker, text, head, tail, budget)]
    assert any(text.startswith(head) and text.endswith(tail) and fits(head, tail, budget) for head, tail in ends)


def splits(cut: str) -> list[tuple[str, str, str]]:
    """Every way to read a cut as head, marker and tail; a text may hold the marker's sign itself."""
    signs = [index for index, sign in enumerate(cut) if sign == "…"]
    return [(cut[:a], cut[a : b + 1], cut[b + 1 :]) for a in signs for b in signs if a < b]


def is_marker(marker: str, text: str, head: str, tail: str, budget: Budget) -> bool:
    if budget.mode == "tokens":
        return marker == f"…{tokens_for(len(text.encode()) - budget.bytes)} tokens truncated…"
    return marker == f"…{len(text) - len(head) - len(tail)} chars truncated…"


def fits(head: str, tail: str, budget: Budget) -> bool:
    """Whether each end uses its half of the budget and no more; the tail's half has the odd byte."""
    left = budget.bytes // 2
    halves = (left, len(head.encode())), (budget.bytes - left, len(tail.encode()))
    return all(0 <= half - used < WIDEST for half, used in halves)


@fixed()
@given(TEXTS, st.builds(Budget, MODES, st.integers(0, 60)))
def test_what_was_cut_to_a_budget_is_not_cut_by_one_that_leaves_room_for_the_marker(text: str, budget: Budget) -> None:
    cut = cut_middle(text, budget)
    assert cut_middle(cut, Budget("bytes", max(budget.bytes, len(cut.encode())))) == cut


@fixed()
@given(st.lists(BYTES, max_size=6), st.integers(0, 400), MODES, st.none() | st.integers(0, 50))
def test_the_output_of_a_command_is_within_the_recording_budget_whatever_its_bytes(
    chunks: list[bytes], limit: int, mode: Any, asked: int | None
) -> None:
    collector = Collector()
    for chunk in chunks:
        collector.feed(chunk)
    policy = Budget(mode, limit)
    allowed = recording_budget(policy)
    text = exec_output(
        collector.captured(), policy, chunk_id="000000", wall_seconds=0, exit_code=0, max_output_tokens=asked
    )
    marker = len(f"…{10**6} tokens truncated…".encode())
    assert len(text.encode("utf-8", "strict")) <= allowed.bytes + marker
    if allowed.bytes > 400:
        assert text.startswith("Chunk ID: 000000\n")
        whole = b"".join(chunks).decode("utf-8", "replace")
        assert text.endswith(whole[-20:]) or asked is not None


@fixed()
@given(st.lists(TEXTS, max_size=6), st.builds(Budget, MODES, st.integers(0, 60)))
def test_the_texts_of_a_list_are_together_within_the_budget_and_one_marker(texts: list[str], budget: Budget) -> None:
    given_parts = [{"type": "input_text", "text": text} for text in texts]
    cut = cut_parts(given_parts, budget)
    same = [part for part in cut if part in given_parts]
    rest = [part["text"] for part in cut if part not in given_parts]
    assert sum(len(part["text"].encode()) for part in same) <= budget.bytes
    assert len(rest) <= 2, "the one that was cut, and how many were left out"
    whole = sum(len(part["text"].encode()) for part in cut)
    assert whole <= budget.bytes + len(f"…{10**6} tokens truncated…[omitted {10**6} text items ...]".encode())


# --- pairing ---------------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(sorted(OUTPUT_TYPE_OF))
IDS = st.sampled_from(["a", "b", "c"])


def call(kind: str, call_id: str) -> Item:
    text = {"custom_tool_call": "input"}.get(kind, "arguments")
    return {"type": kind, "name": "look", text: "{}", "call_id": call_id}


def sent(history: list[Item]) -> list[Item]:
    """What is sent of a history; the request is legal, and what is sent would be sent again as it is."""
    prompt = prompt_from([entry(item, f"T:{n}") for n, item in enumerate(history)], PROFILE, base_instructions=None)
    for provider in (Provider(), Provider(name="other")):
        assert faults(Wire(provider, PROFILE).request(prompt, Identity(thread_id="T")).body(), provider) == []
    assert [e.item for e in for_prompt(prompt.entries, PROFILE.input_modalities)] == [e.item for e in prompt.entries]
    return prompt.input


CALLS = st.builds(call, KINDS, IDS)
OUTPUTS = CALLS.map(lambda one: output_for(one, "seen"))
TALK = st.sampled_from(
    [message("user", ["go on"]), message("assistant", ["yes"]), {"type": "reasoning", "summary": []}]
)


@fixed()
@given(st.lists(CALLS | OUTPUTS | TALK, max_size=14))
def test_any_interleaving_of_calls_and_outputs_is_sent_complete_and_would_be_sent_again_as_it_is(
    history: list[Item],
) -> None:
    sent(history)


@fixed()
@given(st.lists(CALLS | OUTPUTS | TALK, max_size=8), st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_what_was_sent_may_be_recorded_behind_it_again_and_again(history: list[Item], places: list[int]) -> None:
    for place in places:
        history = [*history, *sent(history)[place:]]
    sent(history)


@fixed()
@given(st.lists(KINDS, max_size=6), st.data())
def test_pairs_of_calls_and_outputs_are_sent_in_the_order_in_which_they_were_recorded(
    kinds: list[str], data: st.DataObject
) -> None:
    """However they are interleaved, as long as every output comes behind its call and no user in between."""
    waiting: list[Item] = []
    calls = [call(kind, f"c{number}") for number, kind in enumerate(kinds)]
    history: list[Item] = []
    while calls or waiting:
        if calls and (not waiting or data.draw(st.booleans())):
            waiting.append(calls.pop())
            history.append(waiting[-1])
        else:
            history.append(output_for(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))), "seen"))
    assert sent(history) == history


# --- the estimator ---------------------------------------------------------------------------------------------------

SIZES = st.builds(Sizes, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
COUNTED: list[Any] = [  # items that hold a text where it counts
    lambda text: message("user", [text]),
    lambda text: message("assistant", ["a", text]),
    lambda text: {"type": "message", "role": "user", "content": text},
    lambda text: {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": text}]},
    lambda text: {"type": "message", "role": "user", "content": [{"type": "of_tomorrow", "what": text}]},
    lambda text: {"type": "agent_message", "content": [{"type": "encrypted_content", "encrypted_content": text}]},
    lambda text: {"type": "function_call", "name": "f", "arguments": text, "call_id": "c"},
    lambda text: {"type": "function_call", "name": "f", "arguments": {"a": text}, "call_id": "c"},
    lambda text: {"type": "custom_tool_call", "name": text, "input": text, "call_id": "c"},
    lambda text: {"type": "function_call_output", "call_id": "c", "output": text},
    lambda text: {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": text}]},
    lambda text: {"type": "reasoning", "summary": [], "encrypted_content": text},
    lambda text: {"type": "compaction", "encrypted_content": text},
    lambda text: {"type": "image_generation_call", "revised_prompt": text, "result": text},
    lambda text: {"type": "web_search_call", "action": {"query": text}},
    lambda text: {"type": "tool_search_output", "call_id": "c", "tools": [text]},
]


@fixed()
@given(st.sampled_from(COUNTED), st.text(max_size=40), st.text(max_size=40))
def test_a_longer_text_never_costs_less(item_with: Any, text: str, more: str) -> None:
    assert measure(item_with(text)).tokens <= measure(item_with(text + more)).tokens


@fixed()
@given(st.sampled_from(COUNTED), st.text(max_size=40))
def test_an_address_that_turns_out_to_be_a_picture_never_costs_less(item_with: Any, text: str) -> None:
    steps = [f"data:image/png;base64,{text}"[:length] for length in range(15, 40)]
    costs = [measure(item_with(step)).tokens for step in steps]
    assert costs == sorted(costs)


@fixed()
@given(st.lists(SIZES, max_size=6), SIZES, st.text(max_size=40), st.text(max_size=40))
def test_a_longer_history_or_base_never_costs_less(history: list[Sizes], one: Sizes, base: str, more: str) -> None:
    cost = estimate(history, base)
    assert cost <= estimate([*history, one], base) == cost + one.tokens
    assert cost <= estimate(history, base + more)
    assert estimate(history, None) == estimate(history, "") <= cost
    assert estimate(reversed(history), base) == cost, "the order does not matter"


@fixed()
@given(SIZES, SIZES)
def test_each_size_counts_and_two_items_cost_no_less_than_one_of_both(one: Sizes, more: Sizes) -> None:
    both = Sizes(one.text + more.text, one.image + more.image, one.blob + more.blob)
    assert max(one.tokens, more.tokens) <= both.tokens <= one.tokens + more.tokens
