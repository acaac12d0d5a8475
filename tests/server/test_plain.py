"""Down-conversion: what a plain upstream is told in place of what it does not know, and how its answer comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from refold.model.scripted import Reply
from refold.testing import ResponsesServer, call_reply

Gateways = Callable[..., Any]
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": {"type": "text"}}
FUNCTION = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}, "strict": False}
SHELL, SEARCH = {"type": "local_shell"}, {"type": "web_search"}
SPACE = {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "find", "parameters": {}}]}
USER = {"role": "user", "content": "go"}


def asked(running: Any, upstream: ResponsesServer, *items: Any, **more: Any) -> dict[str, Any]:
    answer = running.post("/responses", {"model": "m", "store": False, "input": [USER, *items], **more})
    assert answer.status_code == 200, answer.text
    return upstream.requests[-1].json


def test_short_form_of_what_the_model_said_gets_its_type(gateway: Gateways) -> None:
    """llama.cpp refuses it without one; what other people said it takes as it is."""
    short = {"role": "assistant", "content": 'I said "message".'}
    parts = {"content": [{"type": "output_text", "text": "so"}], "role": "assistant"}
    with ResponsesServer(["ok"]) as upstream:
        told = asked(gateway(upstream), upstream, short, parts)
    assert told["input"] == [USER, {**short, "type": "message"}, {**parts, "type": "message"}]


# --- there -----------------------------------------------------------------------------------------------------------


def test_calls_that_are_no_functions_are_told_as_functions(gateway: Gateways) -> None:
    items = [
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
        {
            "type": "local_shell_call",
            "call_id": "c2",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"]},
        },
        {"type": "function_call_output", "call_id": "c2", "output": "a b"},
        {"type": "function_call", "call_id": "c3", "name": "find", "namespace": "mcp__docs", "arguments": "{}"},
        {"type": "tool_search_call", "call_id": "c4", "arguments": {"query": "x"}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "c4", "tools": [FUNCTION]},
    ]
    with ResponsesServer(["ok"]) as upstream:
        told = asked(gateway(upstream), upstream, *items, tools=[CUSTOM, FUNCTION, SHELL, SPACE])
    calls = [(item["type"], item["call_id"], item.get("name")) for item in told["input"][1:]]
    assert calls == [
        ("function_call", "c1", "apply_patch"),
        ("function_call_output", "c1", None),
        ("function_call", "c2", "local_shell"),
        ("function_call_output", "c2", None),
        ("function_call", "c3", "mcp__docs__find"),
        ("function_call", "c4", "tool_search"),
        ("function_call_output", "c4", None),
    ]
    assert json.loads(told["input"][1]["arguments"]) == {"input": "*** Begin"}
    assert json.loads(told["input"][3]["arguments"]) == {"command": ["ls"]}
    assert "namespace" not in told["input"][5]
    assert {tool["name"] for tool in told["tools"]} == {"apply_patch", "run", "local_shell", "mcp__docs__find"}
    assert all(tool["type"] == "function" for tool in told["tools"]) and FUNCTION in told["tools"]


def test_what_only_another_provider_reads_is_left_out_and_told(gateway: Gateways) -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "agent_message", "author": "a", "recipient": "b", "content": [{"type": "input_text", "text": "news"}]},
        {**USER, "type": "message", "internal_chat_message_metadata_passthrough": {"turn_id": "t"}},
    ]
    with ResponsesServer(["ok"]) as upstream:
        running = gateway(upstream)
        body = {"model": "m", "input": [USER, *items], "tools": [SEARCH], "include": ["reasoning.encrypted_content"]}
        answer = running.post("/responses", body)
        told = upstream.requests[0].json
    assert [item.get("id") or item["content"] for item in told["input"][:2]] == ["go", "rs_2"]
    assert told["input"][2]["content"][0]["text"] == "news" and told["input"][3] == {**USER, "type": "message"}
    assert "include" not in told and told["tools"] == []
    left_out = answer.headers["x-refold-left-out"]
    for what in ("web_search", "web_search_call", "reasoning.encrypted_content"):
        assert what in left_out
    assert running.metric("refold_gateway_left_out_total") == 1


def test_upstream_is_told_as_it_was_what_it_accepts(gateway: Gateways) -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "x"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "mystery", "x": 1},
    ]
    body = {
        "model": "m",
        "store": False,
        "input": [USER, *items],
        "tools": [CUSTOM, SEARCH],
        "include": ["reasoning.encrypted_content"],
    }
    raw = json.dumps(body).encode()
    some = ("custom", "encrypted_reasoning", "mystery", "web_search")
    with ResponsesServer(["ok", "ok"]) as upstream:
        for accepts in (some, ("all",)):
            assert gateway(upstream, accepts=accepts).post("/responses", raw).status_code == 200
        assert [request.body for request in upstream.requests] == [raw, raw]


@pytest.mark.parametrize(("policy", "status", "told"), [("drop", 200, 1), ("pass", 200, 2), ("refuse", 400, 0)])
def test_items_that_nobody_knows_go_as_the_setting_says(gateway: Gateways, policy: str, status: int, told: int) -> None:
    with ResponsesServer(["ok"]) as upstream:
        answer = gateway(upstream, unknown_items=policy).post(
            "/responses", {"model": "m", "input": [USER, {"type": "new"}]}
        )
        assert answer.status_code == status
        assert sum(len(request.input) for request in upstream.requests) == told
    if status == 400:
        assert answer.json()["error"]["param"] == "input[1].type"


def test_role_and_keys_that_the_upstream_does_not_know_are_changed(gateway: Gateways) -> None:
    with ResponsesServer(["ok"]) as upstream:
        running = gateway(upstream, developer_role="system", leave_out=("prompt_cache_key",))
        told = asked(running, upstream, {"type": "message", "role": "developer", "content": "x"}, prompt_cache_key="k")
    assert told["input"][1]["role"] == "system" and "prompt_cache_key" not in told


def test_choice_of_a_custom_tool_is_one_of_a_function(gateway: Gateways) -> None:
    with ResponsesServer(["ok"]) as upstream:
        told = asked(gateway(upstream), upstream, tools=[CUSTOM], tool_choice={"type": "custom", "name": "apply_patch"})
    assert told["tool_choice"] == {"type": "function", "name": "apply_patch"}


def test_tools_that_an_item_brings_are_offered(gateway: Gateways) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION, CUSTOM]}
    with ResponsesServer(["ok"]) as upstream:
        told = asked(gateway(upstream), upstream, item)
    assert {tool["name"] for tool in told["tools"]} == {"run", "apply_patch"} and len(told["input"]) == 1


# --- and back --------------------------------------------------------------------------------------------------------


def test_call_of_a_custom_tool_comes_back_as_one(gateway: Gateways) -> None:
    with ResponsesServer([call_reply("apply_patch", {"input": "*** Begin"}, "c1")] * 2) as upstream:
        running = gateway(upstream)
        events = running.events({"input": [USER], "tools": [CUSTOM]})
        document = running.post("/responses", {"model": "m", "input": [USER], "tools": [CUSTOM]}).json()
    names = [event["type"] for event in events]
    item = events[-1]["response"]["output"][0]
    assert (item["type"], item["call_id"], item["input"], item["name"]) == (
        "custom_tool_call",
        "c1",
        "*** Begin",
        "apply_patch",
    )
    assert "arguments" not in item and item["id"].startswith("ctc_") and events[-1]["response"]["tools"] == [CUSTOM]
    assert names[2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert document["output"][0]["type"] == "custom_tool_call" and document["output"][0]["input"] == "*** Begin"


def test_shell_call_and_namespaced_call_come_back_as_such(gateway: Gateways) -> None:
    shell = call_reply("local_shell", {"command": ["ls"]}, "c1").items[0]
    found = call_reply("mcp__docs__find", {}, "c2").items[0]
    plain = call_reply("run", {}, "c3").items[0]
    with ResponsesServer([Reply(items=(shell, found, plain))]) as upstream:
        events = gateway(upstream).events({"input": [USER], "tools": [SHELL, SPACE, FUNCTION]})
    first, second, third = events[-1]["response"]["output"]
    assert (first["type"], first["action"]["command"]) == ("local_shell_call", ["ls"])
    assert (second["type"], second["namespace"], second["name"]) == ("function_call", "mcp__docs", "find")
    assert (third["type"], third["name"]) == ("function_call", "run")
    assert [event["sequence_number"] for event in events] == [*range(len(events))]


def test_stored_call_is_told_again_as_a_function(gateway: Gateways) -> None:
    with ResponsesServer([call_reply("apply_patch", {"input": "x"}, "c1"), "ok"]) as upstream:
        running = gateway(upstream)
        first = running.events({"input": [USER], "tools": [CUSTOM]})[-1]["response"]["id"]
        output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"}
        running.post("/responses", {"model": "m", "previous_response_id": first, "input": [output], "tools": [CUSTOM]})
        told = upstream.requests[1].input
    assert [item.get("type", "message") for item in told] == ["message", "function_call", "function_call_output"]
