"""A prompt is computed from a history: repaired for the model, with what stands beside the items."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.fragments import KIND_TYPED, stored_message
from refold.core.history import Entry, entry
from refold.core.items import PASSTHROUGH, Item, message
from refold.core.profile import Profile
from refold.core.prompt import Projection, prompt_from

TOOL = {"type": "function", "name": "look"}
PROFILE = Profile(slug="m")
CALL = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": "{}", "call_id": "c"}
TYPED = stored_message("user", [(KIND_TYPED, "hi")], id="msg_1", turn_id="t1")


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items)]


def test_the_history_is_repaired_and_left_as_it_is() -> None:
    history = entries(CALL, {"type": "function_call_output", "call_id": "gone", "output": "x"})
    prompt = prompt_from(history, PROFILE, base_instructions=None)
    assert [item["type"] for item in prompt.input] == ["function_call", "function_call_output"]
    assert prompt.input[1]["output"] == "aborted"
    assert len(history) == 2


def test_input_is_what_a_host_may_send() -> None:
    prompt = prompt_from(entries(TYPED, {**CALL, "id": "bad", "arguments": {"a": 1}}), PROFILE, base_instructions="b")
    assert PASSTHROUGH not in prompt.input[0]
    assert prompt.input[1] == {"type": "function_call", "name": "look", "arguments": '{"a":1}', "call_id": "c"}
    assert all(item.get("role") != "developer" for item in prompt.input), "base instructions stand beside the items"


def test_a_model_without_images_is_sent_none() -> None:
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:image/png,x"}]}
    blind = Profile(slug="m", input_modalities=("text",))
    assert "input_image" in str(prompt_from(entries(image), PROFILE, base_instructions=None).input)
    assert "input_image" not in str(prompt_from(entries(image), blind, base_instructions=None).input)


@pytest.mark.parametrize(
    ("tools", "supported", "parallel"), [([TOOL], True, True), ([TOOL], False, False), ([], True, False)]
)
def test_calls_run_in_parallel_where_there_are_tools_and_the_model_can(
    tools: list[Item], supported: bool, parallel: bool
) -> None:
    profile = Profile(slug="m", supports_parallel_tool_calls=supported)
    prompt = prompt_from([], profile, base_instructions=None, tools=tools)
    assert (prompt.parallel_tool_calls, prompt.tools) == (parallel, tuple(tools))


def test_the_estimate_counts_base_instructions_and_items_but_no_tools() -> None:
    history = entries(message("user", ["12345678"]))
    assert prompt_from(history, PROFILE, base_instructions="12345", tools=[TOOL]).tokens == 2 + 2


def test_a_schema_is_carried_along() -> None:
    schema = {"type": "object"}
    assert prompt_from([], PROFILE, base_instructions=None, output_schema=schema).output_schema is schema


# --- a history that grows -----------------------------------------------------------------------------------

IMAGE = {**message("user", []), "content": [{"type": "input_image", "image_url": "data:image/png;base64,Q"}]}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "seen"}
SEARCHED = {"type": "tool_search_output", "execution": "server", "tools": []}
ITEMS = st.sampled_from([TYPED, CALL, OUTPUT, {**CALL, "call_id": "d"}, {**OUTPUT, "call_id": "d"}, IMAGE, SEARCHED])


@settings(deadline=None)
@given(st.lists(st.lists(ITEMS, max_size=4), max_size=6), st.sampled_from([("text",), ("text", "image")]))
def test_a_growing_history_is_projected_as_if_it_were_read_whole(
    steps: list[list[Item]], modalities: tuple[str, ...]
) -> None:
    profile = Profile(slug="m", input_modalities=modalities)
    projection, history = Projection(profile), list[Entry]()
    for step in steps:
        history.extend(entries(*step))
        grown = projection.prompt(history, base_instructions="base", tools=[TOOL])
        whole = prompt_from(history, profile, base_instructions="base", tools=[TOOL])
        assert grown.input == whole.input
        assert (grown.tokens, grown.tools, grown.parallel_tool_calls) == (whole.tokens, whole.tools, True)


def test_another_history_is_projected_from_its_start() -> None:
    projection = Projection(PROFILE)
    first, second = entries(TYPED, CALL), entries(TYPED)
    assert len(projection.prompt(first, base_instructions=None).entries) == 3
    assert projection.prompt(second, base_instructions=None).entries == tuple(second)
    assert projection.prompt(second[:0], base_instructions=None).entries == ()
