"""Settings are checked when they are read, and a wrong one is named with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.config import Config, parse_config, with_override
from refold.core.permissions import EnvironmentPolicy, WorkspaceWrite
from refold.core.profile import Profile, Provider
from refold.core.truncate import Budget
from refold.errors import ConfigError

MINE = {"base_url": "http://127.0.0.1:9/v1"}


def refused(document: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(document, "config.toml")
    assert "config.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_nothing_set_is_the_default() -> None:
    assert parse_config({}, "config.toml") == Config()


def test_what_is_set_is_taken() -> None:
    document = {
        "model": "mine",
        "model_context_window": 128_000,
        "model_auto_compact_token_limit_scope": "body_after_prefix",
        "tool_output_token_limit": 500,
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",
    }
    config = parse_config(document, "config.toml")
    assert {key: getattr(config, key) for key in document} == document


def test_reading_no_agents_md_is_a_choice() -> None:
    assert parse_config({"project_doc_max_bytes": 0}, "x").project_doc_max_bytes == 0
    assert refused({"project_doc_max_bytes": -1}).why.startswith("must be at least 0")


@pytest.mark.parametrize("key", ["profiles", "notify", "plan_mode_reasoning_effort", "model_instructions_file", "x"])
def test_a_key_of_the_real_program_that_refold_does_not_use_is_ignored(key: str) -> None:
    assert parse_config({key: {"anything": 1}}, "config.toml") == Config()


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("model_contex_window", "model_context_window"),
        ("model_auto_compact_token_limits", "model_auto_compact_token_limit"),
        ("tool_output_tokens_limit", "tool_output_token_limit"),
        ("sandbox_modes", "sandbox_mode"),
        ("models_provider", "model_provider"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_one_that_was_meant(misspelt: str, meant: str) -> None:
    error = refused({misspelt: 1})
    assert error.key == misspelt
    assert f"did you mean {meant}?" in error.why


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("model", 5, "expected a text, got a whole number"),
        ("model", ["a"], "expected a text, got a list"),
        ("model_context_window", "128k", "expected a whole number, got a text"),
        ("model_context_window", 1.5, "expected a whole number, got a number with a fraction"),
        ("model_context_window", True, "expected a whole number, got true or false"),
        ("model_auto_compact_token_limit_scope", "all", "invalid enum value 'all'"),
        ("model_providers", [], "must be tables"),
    ],
)
def test_a_wrong_type_is_refused_in_plain_words(key: str, value: Any, why: str) -> None:
    error = refused({key: value})
    assert error.key == key
    assert why in error.why
    assert "$" not in error.why
    assert "`" not in error.why


@pytest.mark.parametrize(
    "key",
    ["model_context_window", "model_auto_compact_token_limit", "tool_output_token_limit"],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_must_be_above_zero(key: str, value: int) -> None:
    error = refused({key: value})
    assert (error.key, f"must be above 0, not {value}" in error.why) == (key, True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sandbox_mode", "read-only"),
        ("sandbox_mode", "workspace-write"),
        ("approval_policy", "untrusted"),
        ("approval_policy", "on-request"),
        ("approval_policy", "on-failure"),
    ],
)
def test_every_permission_of_the_real_program_can_be_set(key: str, value: str) -> None:
    assert getattr(parse_config({key: value}, "x"), key) == value


def test_the_tables_of_permissions_are_the_real_programs() -> None:
    config = parse_config(
        {
            "sandbox_workspace_write": {"writable_roots": ["/more", "~/less"], "network_access": True},
            "shell_environment_policy": {"inherit": "core", "exclude": ["AWS_*"], "set": {"CI": "1"}},
        },
        "x",
    )
    assert config.sandbox_workspace_write == WorkspaceWrite(writable_roots=("/more", "~/less"), network_access=True)
    assert config.shell_environment_policy == EnvironmentPolicy(inherit="core", exclude=("AWS_*",), set={"CI": "1"})


def test_a_writable_folder_is_absolute() -> None:
    assert "writable_roots" in refused({"sandbox_workspace_write": {"writable_roots": ["build"]}}).why


# --- providers ----------------------------------------------------------------------------------------------


def test_a_provider_of_ones_own_is_used_by_its_name() -> None:
    document = {
        "model_provider": "mine",
        "model_providers": {"mine": {**MINE, "stream_max_retries": 2, "wire_api": "responses"}},
    }
    provider = parse_config(document, "config.toml").provider({})
    assert provider == Provider(id="mine", name="mine", base_url=MINE["base_url"], env_key=None, stream_max_retries=2)
    assert not provider.is_openai


def test_a_provider_that_is_not_defined_is_refused_with_the_known_ones() -> None:
    config = parse_config({"model_provider": "mime", "model_providers": {"mine": MINE}}, "config.toml")
    with pytest.raises(ConfigError, match=r"no \[model_providers\.mime\] is defined \(known: mine, openai\)"):
        config.provider({})


@pytest.mark.parametrize(
    ("table", "key", "why"),
    [
        ({}, "base_url", "is missing"),
        ({"base_url": ""}, "base_url", "is missing"),
        ({**MINE, "bas_url": "x"}, "bas_url", "did you mean base_url?"),
        ({**MINE, "http_header": {}}, "http_header", "did you mean http_headers?"),
    ],
)
def test_a_wrong_provider_is_refused_by_the_key(table: dict[str, Any], key: str, why: str) -> None:
    error = refused({"model_providers": {"mine": table}})
    assert error.key == f"model_providers.mine.{key}"
    assert why in error.why


@pytest.mark.parametrize("table", [5, {**MINE, "stream_max_retries": "many"}, {**MINE, "http_headers": {"a": 1}}])
def test_a_provider_of_another_shape_is_refused(table: Any) -> None:
    assert refused({"model_providers": {"mine": table}}).key == "model_providers.mine"


def test_the_environment_names_another_address_for_the_built_in_provider() -> None:
    config = Config()
    assert config.provider({}) == Provider()
    assert config.provider({"OPENAI_BASE_URL": " "}) == Provider()
    proxy = config.provider({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    assert (proxy.base_url, proxy.is_openai) == ("http://127.0.0.1:9/v1", False)
    assert config.provider({"OPENAI_BASE_URL": "https://api.openai.com/v1"}).is_openai


# --- the model's facts after what was set -------------------------------------------------------------------

FACTS = Profile(slug="m", context_window=100_000, max_context_window=200_000, verbosity="low")


def test_what_was_set_wins_over_the_facts() -> None:
    config = Config(
        model_context_window=150_000,
        model_auto_compact_token_limit=9_000,
        tool_output_token_limit=50,
        model_reasoning_effort="high",
        model_verbosity="high",
    )
    profile = config.profile(FACTS)
    assert (profile.context_window, profile.compact_limit) == (150_000, 9_000)
    assert (profile.reasoning_effort, profile.verbosity) == ("high", "high")
    assert profile.truncation == Budget("bytes", 200), "the limit is set in tokens, the policy keeps its unit"


def test_a_window_is_never_larger_than_the_model_has() -> None:
    assert Config(model_context_window=10**9).profile(FACTS).context_window == 200_000


def test_a_limit_that_the_real_program_uses_for_never_is_clamped() -> None:
    config = parse_config({"model_auto_compact_token_limit": 9_223_372_036_854_775_807}, "config.toml")
    assert config.profile(FACTS).compact_limit == 90_000


def test_nothing_set_leaves_the_facts() -> None:
    assert Config().profile(FACTS) == FACTS
    unknown = Profile(slug="m", context_window=None)
    assert Config().profile(unknown) == unknown


# --- overrides ----------------------------------------------------------------------------------------------


def test_an_override_sets_one_value_and_shares_the_rest() -> None:
    document = {"model": "a", "model_providers": {"mine": MINE, "other": {}}}
    changed = with_override(document, "model_providers.mine.base_url", "http://x")
    assert changed["model_providers"] == {"mine": {"base_url": "http://x"}, "other": {}}
    assert changed["model_providers"]["other"] is document["model_providers"]["other"]
    assert document["model_providers"]["mine"] == MINE


def test_an_override_makes_the_tables_that_it_needs() -> None:
    assert with_override({}, "a.b.c", 1) == {"a": {"b": {"c": 1}}}
    assert with_override({"a": 5}, "a.b", 1) == {"a": {"b": 1}}
    assert with_override({"a": 5}, "a", 1) == {"a": 1}


@pytest.mark.parametrize(
    ("table", "misspelt", "meant"),
    [
        ("sandbox_workspace_write", "writable_rots", "writable_roots"),
        ("sandbox_workspace_write", "network_acess", "network_access"),
        ("shell_environment_policy", "exlude", "exclude"),
        ("shell_environment_policy", "include_onyl", "include_only"),
        ("limits", "turn_step", "turn_steps"),
        ("model_price", "imput", "input"),
    ],
)
def test_a_misspelt_key_inside_a_table_is_told_with_the_right_one(table: str, misspelt: str, meant: str) -> None:
    error = refused({table: {misspelt: 1}})
    assert (error.key, error.why) == (f"{table}.{misspelt}", f"is not a setting; did you mean {meant}? (config.toml)")


def test_a_key_of_the_real_program_inside_its_table_is_ignored_and_one_in_ours_is_not() -> None:
    assert parse_config({"shell_environment_policy": {"experimental_use_profile": True}}, "x") == Config()
    assert "there are turn_steps, turn_seconds" in refused({"limits": {"moon": 1}}).why
    assert refused({"limits": 5}).why == "must be a table (config.toml)"


def test_a_wrong_value_is_told_with_the_right_ones() -> None:
    error = refused({"sandbox_mode": "readonly"})
    assert error.why.startswith("invalid enum value 'readonly'; one of read-only, workspace-write, danger-full-access")
