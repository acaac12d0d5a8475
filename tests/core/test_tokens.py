"""What items cost: the recorded totals of the real program, and what each kind of item counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.items import Item
from refold.core.tokens import IMAGE_BYTES, Sizes, estimate, measure, utf8_len
from refold.core.usage import Usage, usage_from_api

DATA = Path(__file__).parent.parent / "data" / "oracle" / "token_estimates.json"
VECTORS: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["vectors"]


def item_of(recorded: dict[str, Any]) -> Item:
    """An item with the recorded byte lengths."""
    if recorded["type"] == "compaction":
        return {"type": "compaction", "id": "cmp_1", "encrypted_content": "x" * recorded["encrypted_content_len"]}
    parts = [{"type": "input_text", "text": "x" * length} for length in recorded["content_text_bytes"]]
    return {"type": "message", "id": "msg_1", "role": recorded["role"], "content": parts}


def test_the_vectors_are_all_there() -> None:
    assert len(VECTORS) == 98


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['scenario']}-{vector['window_number']}")
def test_a_context_is_estimated_as_the_real_program_does(vector: dict[str, Any]) -> None:
    sizes = [measure(item_of(recorded)) for recorded in vector["items"]]
    assert estimate(sizes, "x" * vector["base_instructions_bytes"]) == vector["total_tokens"]


# --- each kind of item --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "sizes"),
    [
        ({"type": "message", "content": "é"}, Sizes(text=2)),
        ({"type": "message", "content": [{"text": "ab"}, {"text": "é"}, "stray"]}, Sizes(text=4)),
        ({"type": "message", "content": None}, Sizes()),
        ({"type": "agent_message", "content": [{"text": "ab"}]}, Sizes(text=2)),
        ({"type": "function_call", "name": "ab", "namespace": "c", "arguments": "{}"}, Sizes(text=5)),
        ({"type": "function_call", "name": "ab", "arguments": {"cmd": "é"}}, Sizes(text=2 + 12)),
        ({"type": "custom_tool_call", "name": "ab", "input": "xyz"}, Sizes(text=5)),
        ({"type": "function_call_output", "call_id": "call_1", "output": "abc"}, Sizes(text=9)),
        ({"type": "custom_tool_call_output", "call_id": "c", "name": "n", "output": [{"text": "abc"}]}, Sizes(text=5)),
        ({"type": "reasoning", "encrypted_content": "x" * 12, "summary": [{"text": "not counted"}]}, Sizes(blob=12)),
        ({"type": "reasoning", "encrypted_content": None}, Sizes()),
        ({"type": "context_compaction"}, Sizes()),
        ({"type": "image_generation_call", "revised_prompt": "cat", "result": "QQ"}, Sizes(text=3, image=IMAGE_BYTES)),
        ({"type": "image_generation_call", "result": ""}, Sizes()),
        ({"type": "web_search_call", "id": "ws_1"}, Sizes(text=len('{"type":"web_search_call","id":"ws_1"}'))),
    ],
)
def test_what_a_model_sees_of_an_item_is_what_counts(item: Item, sizes: Sizes) -> None:
    assert measure(item) == sizes


@pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 1), (12, 1), (13, 2), (24, 2), (25, 3)])
def test_encrypted_content_costs_a_token_for_twelve_characters(length: int, tokens: int) -> None:
    assert measure({"type": "compaction", "encrypted_content": "x" * length}).tokens == tokens


@pytest.mark.parametrize(("length", "size"), [(0, 0), (16, 9), (17, 10)])
def test_an_encrypted_part_costs_nine_sixteenths_of_its_length(length: int, size: int) -> None:
    part = {"type": "encrypted_content", "encrypted_content": "x" * length}
    assert measure({"type": "agent_message", "content": [part]}) == Sizes(text=size)


def test_each_part_of_an_unknown_type_counts_its_texts() -> None:
    part = {"type": "xy", "body": "abc", "deep": {"not": "counted"}}
    assert measure({"type": "message", "content": [part]}) == Sizes(text=5)


def test_the_length_of_a_picture_does_not_matter() -> None:
    head = "data:image/png;base64,"
    small, large = (
        measure({"type": "message", "content": [{"type": "input_image", "image_url": head + "x" * n}]})
        for n in (1, 10**6)
    )
    assert small == large == Sizes(image=IMAGE_BYTES, text=len(head))


def test_tool_schemas_and_absent_base_instructions_cost_nothing() -> None:
    assert estimate([], None) == 0
    assert estimate([Sizes(text=1), Sizes(text=1)], "x") == 3, "each is rounded up by itself"


def test_an_items_half_of_a_surrogate_pair_cannot_be_measured_but_a_bare_texts_can() -> None:
    assert utf8_len("\ud83d") == utf8_len("\ufffd")
    with pytest.raises(UnicodeEncodeError):
        measure({"type": "message", "content": "\ud83d"})


@given(st.text())
def test_bytes_are_those_of_utf8(text: str) -> None:
    assert utf8_len(text) == len(text.encode())
    assert measure({"type": "message", "content": text}).text == len(text.encode())


# --- usage --------------------------------------------------------------------------------------------------

API = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 5},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 8},
    "total_tokens": 121,
}


def test_usage_is_read_from_a_response() -> None:
    assert usage_from_api(API) == Usage(100, 40, 5, 20, 8, 121)


@pytest.mark.parametrize("value", [None, 5, "x", []])
def test_no_usage_is_none(value: Any) -> None:
    assert usage_from_api(value) is None


def test_missing_or_odd_details_are_zero() -> None:
    assert usage_from_api({}) == Usage()
    odd = {"input_tokens": "7", "output_tokens": True, "input_tokens_details": 5, "total_tokens": None}
    assert usage_from_api(odd) == Usage()


def test_a_missing_total_is_input_and_output() -> None:
    told = usage_from_api({"input_tokens": 7, "output_tokens": 2})
    assert told is not None
    assert told.total_tokens == 9


def test_usages_add_and_subtract_field_by_field() -> None:
    one, other = Usage(1, 2, 3, 4, 5, 6), Usage(10, 20, 30, 40, 50, 60)
    assert one + other == Usage(11, 22, 33, 44, 55, 66)
    assert one + other - other == one


def test_uncached_input_is_never_negative() -> None:
    assert Usage(input_tokens=10, cached_input_tokens=4).uncached_input_tokens == 6
    assert Usage(input_tokens=10, cached_input_tokens=40).uncached_input_tokens == 0
