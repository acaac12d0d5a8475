"""S15: cached tokens are a part of the input tokens, not an addition to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import message
from refold.core.profile import Profile
from refold.core.usage import usage_from_api
from refold.session import Memory

CASE = Path(__file__).parent.parent / "data" / "cases" / "S15-cached-tokens-are-part-of-input"
DATA: dict[str, Any] = json.loads((CASE / "usage.json").read_text(encoding="utf-8"))
PROFILE = Profile(slug="m", context_window=DATA["model_context_window"])


@pytest.fixture
def memory() -> Memory:
    memory = Memory.open(model=PROFILE)
    memory.add([message("user", ["hi"]), message("assistant", ["ho"])], usage=DATA["usage"])
    return memory


def test_the_context_holds_the_reported_total(memory: Memory) -> None:
    assert memory.tokens == 170_920


def test_the_limit_is_not_reached(memory: Memory) -> None:
    assert PROFILE.compact_limit == 244_800
    assert memory.due("pre_turn") is None


def test_the_gauge_shows_what_is_left(memory: Memory) -> None:
    assert PROFILE.percent_left(memory.tokens) == 39


def test_what_was_not_cached_is_told() -> None:
    usage = usage_from_api(DATA["usage"])
    assert usage is not None
    assert usage.uncached_input_tokens == 1_540
    assert usage.uncached_input_tokens + usage.output_tokens == 1_960


def test_more_cached_than_input_is_no_negative_number() -> None:
    usage = usage_from_api({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 99}})
    assert usage is not None
    assert usage.uncached_input_tokens == 0


def test_missing_details_are_zero() -> None:
    bare = {key: value for key, value in DATA["usage"].items() if not key.endswith("_details")}
    usage = usage_from_api(bare)
    assert usage is not None
    assert (usage.cached_input_tokens, usage.reasoning_output_tokens, usage.total_tokens) == (0, 0, 170_920)
