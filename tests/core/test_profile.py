"""Limits and gauges of a model, and the catalogue that a person may bring."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.profile import KNOWN_MODELS, Profile, Provider, parse_catalog, profile_for
from refold.core.truncate import Budget
from refold.errors import ConfigError

# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "configured", "limit"),
    [
        (50_000, None, 45_000),
        (272_000, None, 244_800),
        (50_000, 1_000, 1_000),
        (50_000, 1_000_000, 45_000),
        (None, 1_000, 1_000),
        (None, None, None),
        (15, None, 13),
    ],
)
def test_compaction_is_due_at_nine_tenths_or_at_a_smaller_configured_limit(
    window: int | None, configured: int | None, limit: int | None
) -> None:
    assert Profile(slug="m", context_window=window, auto_compact_token_limit=configured).compact_limit == limit


def test_ninety_five_percent_of_the_window_may_be_used() -> None:
    assert Profile(slug="m", context_window=50_000).usable_window == 47_500
    assert Profile(slug="m").usable_window == 258_400
    assert Profile(slug="m", context_window=None).usable_window is None


@pytest.mark.parametrize(
    ("window", "used", "left"),
    [
        (272_000, 0, 100),
        (272_000, 12_000, 100),
        (272_000, 170_920, 39),
        (272_000, 272_000, 0),
        (272_000, 999_999, 0),
        (12_000, 0, 0),
        (16_384, 20_000, 0),
        (None, 20_000, None),
        (12_200, 12_001, 100),  # 99.5 is rounded up
        (12_200, 12_002, 99),
    ],
)
def test_the_gauge_does_not_count_what_every_session_holds(window: int | None, used: int, left: int | None) -> None:
    assert Profile(slug="m", context_window=window).percent_left(used) == left


@given(st.integers(1, 10**7), st.integers(-5, 10**7))
def test_the_gauge_stays_between_empty_and_full(window: int, used: int) -> None:
    left = Profile(slug="m", context_window=window).percent_left(used)
    assert left is not None
    assert 0 <= left <= 100


# --- which facts --------------------------------------------------------------------------------------------


def test_a_known_model_has_its_facts_and_an_unknown_one_says_so() -> None:
    assert profile_for("gpt-5.5").truncation == Budget("tokens", 10_000)
    assert profile_for("gpt-5.2-codex").truncation == Budget("bytes", 10_000)
    assert all(profile.known and slug == profile.slug for slug, profile in KNOWN_MODELS.items())
    unknown = profile_for("my-model")
    assert (unknown.slug, unknown.known, unknown.context_window) == ("my-model", False, 272_000)
    assert unknown.truncation == Budget("bytes", 10_000)


def test_the_catalogue_wins_over_the_built_in_table() -> None:
    mine = Profile(slug="gpt-5.5", context_window=1_000)
    assert profile_for("gpt-5.5", {"gpt-5.5": mine}) is mine
    assert profile_for("gpt-5.4", {"gpt-5.5": mine}) is KNOWN_MODELS["gpt-5.4"]


def test_only_the_provider_of_that_name_is_openai() -> None:
    assert Provider().is_openai
    assert not Provider(name="openai").is_openai
    assert not Provider(name="azure").is_openai


# --- the catalogue ------------------------------------------------------------------------------------------

ENTRY = {
    "slug": "mine",
    "context_window": 50_000,
    "max_context_window": 60_000,
    "auto_compact_token_limit": 9_000,
    "truncation_policy": {"mode": "tokens", "limit": 500},
    "comp_hash": "0001",
    "base_instructions": "Be terse.",
    "input_modalities": ["text"],
    "supports_parallel_tool_calls": False,
    "default_reasoning_level": "medium",
    "support_verbosity": True,
    "default_verbosity": "low",
    "something_new": {"a": 1},
}


def parsed(**entry: Any) -> Profile:
    return parse_catalog({"models": [{"slug": "mine", **entry}]}, "models.json")["mine"]


def test_a_catalogue_entry_is_a_profile() -> None:
    assert parse_catalog({"models": [ENTRY, {"slug": "other"}]}, "models.json") == {
        "mine": Profile(
            slug="mine",
            context_window=50_000,
            max_context_window=60_000,
            auto_compact_token_limit=9_000,
            truncation=Budget("tokens", 500),
            comp_hash="0001",
            base_instructions="Be terse.",
            input_modalities=("text",),
            supports_parallel_tool_calls=False,
            reasoning_effort="medium",
            verbosity="low",
        ),
        "other": Profile(slug="other", context_window=None),
    }


def test_the_largest_window_stands_in_for_a_missing_one() -> None:
    assert parsed(max_context_window=60_000).context_window == 60_000
    assert parsed(context_window=0).context_window is None


def test_verbosity_counts_only_where_the_model_supports_it() -> None:
    assert parsed(default_verbosity="low").verbosity is None


@pytest.mark.parametrize("document", [None, [], {}, {"models": {}}, {"models": None}, "x"])
def test_a_catalogue_of_another_shape_is_refused(document: Any) -> None:
    with pytest.raises(ConfigError, match=r"models\.json must hold"):
        parse_catalog(document, "models.json")


@pytest.mark.parametrize("entry", [5, {}, {"slug": 5}, None])
def test_a_model_without_a_slug_is_refused(entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"models\.json: a model has no slug"):
        parse_catalog({"models": [entry]}, "models.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context_window", -1),
        ("context_window", "large"),
        ("context_window", True),
        ("max_context_window", 1.5),
        ("auto_compact_token_limit", -5),
        ("truncation_policy", "bytes"),
        ("truncation_policy", {"mode": "lines", "limit": 5}),
        ("truncation_policy", {"mode": "bytes", "limit": "5"}),
        ("truncation_policy", {"mode": "bytes"}),
        ("input_modalities", 5),
        ("input_modalities", [5]),
        ("base_instructions", {}),
        ("comp_hash", 1),
        ("supports_parallel_tool_calls", "yes"),
        ("default_reasoning_level", 5),
    ],
)
def test_a_wrong_fact_is_named_with_its_file_and_model(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^model_catalog_json: models\.json: mine\.{key} ") as refused:
        parsed(**{key: value})
    assert refused.value.key == "model_catalog_json"
