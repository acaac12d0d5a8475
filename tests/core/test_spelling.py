"""Spelling: what a provider's and a model's settings change in a request; everything else stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from refold.core.config import parse_config
from refold.core.history import Entry, entry
from refold.core.items import PASSTHROUGH, Item, message
from refold.core.profile import Profile, Provider, parse_catalog
from refold.core.prompt import prompt_from
from refold.core.wire import LITE_HEADER, Identity, Request, Wire
from refold.errors import ConfigError

PROFILE = Profile(slug="m")
LITE = Profile(slug="m", lite=True)
LOCAL = Provider(id="local", name="local", base_url="http://127.0.0.1/v1", env_key=None)
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
RULES = message("developer", ["Be terse."], id="msg_r")
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "high"}
SHOWN: Item = {**message("user", ["see"], id="msg_u"), "content": [IMAGE], PASSTHROUGH: {"turn_id": "t"}}
CALL: Item = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": '{"a', "call_id": "c"}
SEEN: Item = {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": [IMAGE]}


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items)]


def request(provider: Provider, profile: Profile = PROFILE, tools: Any = (TOOL,)) -> Request:
    prompt = prompt_from(entries(RULES, SHOWN, CALL, SEEN), profile, base_instructions="BASE", tools=tools)
    return Wire(provider, profile).request(prompt, Identity(thread_id="T"))


def body(provider: Provider, profile: Profile = PROFILE) -> Any:
    return json.loads(request(provider, profile).body())


def test_base_instructions_are_the_first_message_or_a_key_of_their_own() -> None:
    first = body(LOCAL)
    assert (first["input"][0]["role"], first["input"][0]["content"][0]["text"]) == ("developer", "BASE")
    assert "instructions" not in first
    apart = body(replace(LOCAL, base_instructions_as="instructions"))
    assert list(apart)[:2] == ["model", "instructions"]
    assert apart["instructions"] == "BASE"
    assert apart["input"] == first["input"][1:]


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_provider_that_knows_no_developer_gets_another_role(role: Any) -> None:
    roles = [item.get("role") for item in body(replace(LOCAL, developer_role=role))["input"]]
    assert roles == [role, role, "user", None, None]


def test_ids_can_be_left_out() -> None:
    assert all("id" in item for item in body(LOCAL)["input"])
    without = body(replace(LOCAL, send_item_ids=False))["input"]
    assert not any("id" in item for item in without)
    assert [item.get("call_id") for item in without] == [None, None, None, "c", "c"]


def test_bad_arguments_are_sent_as_they_are_unless_a_strict_server_asks_for_repair() -> None:
    assert body(LOCAL)["input"][3]["arguments"] == '{"a'
    wire = Wire(replace(LOCAL, repair_call_arguments=True), PROFILE)
    history = entries(CALL, SEEN)
    sent = json.loads(
        wire.request(prompt_from(history, PROFILE, base_instructions=None), Identity(thread_id="T")).body()
    )
    assert sent["input"][0]["arguments"] == "{}"
    assert wire.repaired == ["c"]
    assert history[0].item["arguments"] == '{"a', "the history keeps what the model wrote"


def test_only_openai_gets_the_metadata() -> None:
    assert PASSTHROUGH not in body(LOCAL)["input"][2]
    assert body(Provider())["input"][2][PASSTHROUGH] == {"turn_id": "t"}


def test_a_lite_model_gets_tools_and_base_instructions_as_its_first_items() -> None:
    sent, plain = body(LOCAL, LITE), body(LOCAL)
    assert "tools" not in sent
    assert sent["parallel_tool_calls"] is False
    assert sent["reasoning"] == {"context": "all_turns"}
    tools, base, *rest = sent["input"]
    assert (tools["type"], tools["role"], tools["tools"]) == ("additional_tools", "developer", [TOOL])
    assert (base["role"], base["content"][0]["text"]) == ("developer", "BASE")
    assert tools["id"].partition("_")[2] == base["id"].partition("_")[2]
    assert "detail" not in json.dumps(rest)
    assert [item["type"] for item in rest] == [item["type"] for item in plain["input"][1:]]
    assert request(LOCAL, LITE).headers[LITE_HEADER] == "true"
    assert LITE_HEADER not in request(LOCAL).headers


def test_tools_that_a_log_of_a_lite_model_holds_are_not_sent_again() -> None:
    told = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [TOOL]}
    prompt = prompt_from(entries(told, RULES), PROFILE, base_instructions=None)
    assert [item["type"] for item in prompt.input] == ["message"]


def test_the_catalogue_says_which_model_is_lite() -> None:
    found = parse_catalog({"models": [{"slug": "a", "use_responses_lite": True}, {"slug": "b"}]}, "file")
    assert (found["a"].lite, found["b"].lite) == (True, False)


def test_the_settings_are_read_from_a_config_and_wrong_ones_are_named() -> None:
    table = {"base_url": "http://127.0.0.1/v1", "developer_role": "system", "base_instructions_as": "instructions"}
    config = parse_config({"model_provider": "x", "model_providers": {"x": table}}, "config.toml")
    provider = config.provider({})
    assert (provider.developer_role, provider.base_instructions_as) == ("system", "instructions")
    with pytest.raises(ConfigError, match="developer_role"):
        parse_config({"model_providers": {"x": {**table, "developer_role": "boss"}}}, "config.toml")
