"""The requests of Codex 0.171.0 in small: the keys it sends, its lite shape, what it says over a WebSocket, bodies that
are compressed. What a plain upstream is told of them, and what comes back. `make interop` asks the program itself."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_websocket import Talk

from refold.core.fragments import SUMMARY_MARK
from refold.core.templates import template
from refold.errors import RequestRefused
from refold.server.unpacking import unpacked
from refold.testing import ResponsesServer, call_reply, text_reply

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Gateways = Callable[..., Any]
Items = list[dict[str, Any]]
TURN = "01a22fb3-c5dd-77f0-8f78-b2507514b8c0"
ABOUT = "internal_chat_message_metadata_passthrough"
METADATA = {"session_id": TURN, "turn_id": TURN, "x-codex-window-id": f"{TURN}:0", "x-codex-turn-metadata": "{}"}
COMMAND = {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}}
AGENT = {"type": "function", "name": "spawn_agent", "strict": False, "parameters": {"type": "object"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "s: x"}
PATCHES = {"type": "custom", "name": "apply_patch", "format": GRAMMAR}
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "", "tools": [AGENT]}
TOOLS = [COMMAND, AGENTS, {"type": "web_search", "external_web_access": True}]
FUNCTIONS = {"type": "namespace", "name": "functions", "description": "", "tools": [COMMAND, PATCHES]}
LITE = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [FUNCTIONS, AGENTS]}
TRIGGER = {"type": "compaction_trigger"}
PATCH = "*** Begin Patch\n*** Add File: a\n+b\n*** End Patch\n"


def said(role: str, text: str) -> dict[str, Any]:
    about = {"turn_id": TURN, "create_time": 1796096640.5, "content_item_kinds": ["user.text"]}
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": f"msg_{text}", "role": role, "content": content, ABOUT: about}


BASE, RIGHTS = said("developer", "base"), said("developer", "rights")
PLACE, ONE = said("user", "place"), said("user", "1")
WORK = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAA", ABOUT: {}},
    {
        "type": "function_call",
        "id": "fc_1",
        "name": "exec_command",
        "arguments": '{"cmd":"ls"}',
        "call_id": "c1",
        ABOUT: {"turn_id": TURN},
    },
    {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "a b", ABOUT: {"turn_id": TURN}},
]


def request(items: Items, **changes: Any) -> dict[str, Any]:
    """A request with the keys, and in the order, that Codex sends."""
    body: dict[str, Any] = {
        "model": "m",
        "stream": True,
        "input": items,
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": TURN,
        "client_metadata": METADATA,
    }
    return {key: value for key, value in {**body, **changes}.items() if value is not None}


def lite(items: Items) -> dict[str, Any]:
    reasoning = {"summary": "auto", "context": "all_turns"}
    return request([LITE, *items], tools=None, parallel_tool_calls=False, reasoning=reasoning)


def plain(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != ABOUT}


def words(sent: Any) -> list[str]:
    """The items of a request of the upstream, a word each."""
    return [_word(item) for item in sent.input]


def _word(item: dict[str, Any]) -> str:
    if item["type"] != "message":
        return item["type"]
    content = item["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    return "handoff" if text == template("handoff") else text.replace(SUMMARY_MARK, "summary: ")


def names(sent: Any) -> list[str]:
    assert {tool["type"] for tool in sent.json["tools"]} == {"function"}
    return [tool["name"] for tool in sent.json["tools"]]


def done(events: Items) -> Items:
    """The items of an answer."""
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


# --- over HTTP -------------------------------------------------------------------------------------------------------


def test_turn_reaches_the_upstream_without_what_only_openai_takes(gateway: Gateways) -> None:
    with ResponsesServer([call_reply("multi_agent_v1__spawn_agent", {})]) as upstream:
        running = gateway(upstream)
        headers = {"originator": "codex_exec", "x-codex-window-id": f"{TURN}:0", "openai-beta": "x", "version": "1"}
        items = done(running.events(request([BASE, RIGHTS, PLACE, ONE, *WORK]), headers=headers))
        (sent,) = upstream.requests
    assert (items[0]["name"], items[0]["namespace"]) == ("spawn_agent", "multi_agent_v1")
    assert sent.input == [plain(item) for item in [BASE, RIGHTS, PLACE, ONE, *WORK[1:]]]
    assert names(sent) == ["exec_command", "multi_agent_v1__spawn_agent"]
    left = {"input", "tools", "include"}
    asked = request([])
    assert {key: value for key, value in sent.json.items() if key not in left} == {
        key: value for key, value in asked.items() if key not in left
    }
    assert list(sent.json) == [key for key in asked if key != "include"]
    assert [sent.header(name) for name in headers] == ["codex_exec", f"{TURN}:0", None, None]


def test_compaction_and_the_window_that_codex_makes_of_it(gateway: Gateways) -> None:
    """Codex keeps what people said, tells its surroundings anew before the last of it, and puts the item behind."""
    with ResponsesServer([text_reply("S1"), text_reply("on"), text_reply("S2"), text_reply("on")]) as upstream:
        running = gateway(upstream)
        history = [BASE, RIGHTS, PLACE, ONE, *WORK]
        (first,) = done(running.events(request([*history, TRIGGER])))
        window = [BASE, RIGHTS, PLACE, ONE, first]
        running.events(request([*window, said("user", "2")]))
        (second,) = done(running.events(request([*window, said("user", "2"), TRIGGER])))
        running.events(request([BASE, ONE, RIGHTS, PLACE, said("user", "2"), second, said("user", "3")]))
        told = [words(sent) for sent in upstream.requests]
        assert [len(sent.json.get("tools", [])) for sent in upstream.requests] == [0, 2, 0, 2]
    begins = ["base", "rights", "place", "1"]
    assert told == [
        [*begins, "function_call", "function_call_output", "handoff"],
        [*begins, "summary: S1", "2"],
        [*begins, "summary: S1", "2", "handoff"],
        ["base", "1", "rights", "place", "2", "summary: S2", "3"],
    ]
    assert set(first) == {"id", "type", "encrypted_content"} and "S1" not in first["encrypted_content"]


# --- lite ------------------------------------------------------------------------------------------------------------


def test_tools_that_an_item_brings_are_functions_and_their_calls_come_back_with_their_namespace(
    gateway: Gateways,
) -> None:
    patch = call_reply("functions__apply_patch", {"input": PATCH}, "c1")
    command = call_reply("functions__exec_command", {"cmd": "ls"}, "c2")
    with ResponsesServer([patch, command, text_reply("end")]) as upstream:
        running = gateway(upstream)
        items = [BASE, RIGHTS, PLACE, ONE]
        (call,) = done(running.events(lite(items)))
        output = {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "c1", "output": "Done", ABOUT: {}}
        items += [{**call, ABOUT: {}}, output]
        (other,) = done(running.events(lite(items)))
        items += [other, {"type": "function_call_output", "call_id": "c2", "output": "a"}]
        running.events(lite(items))
        sent = upstream.requests[-1]
    assert call["type"] == "custom_tool_call" and call["input"] == PATCH
    assert [(one["name"], one["namespace"]) for one in (call, other)] == [
        ("apply_patch", "functions"),
        ("exec_command", "functions"),
    ]
    assert words(sent)[:4] == ["base", "rights", "place", "1"]
    calls = [(item["type"], item.get("name"), item["call_id"]) for item in sent.input[4:]]
    assert calls == [
        ("function_call", "functions__apply_patch", "c1"),
        ("function_call_output", None, "c1"),
        ("function_call", "functions__exec_command", "c2"),
        ("function_call_output", None, "c2"),
    ]
    assert json.loads(sent.input[4]["arguments"]) == {"input": PATCH}
    assert names(sent) == ["functions__exec_command", "functions__apply_patch", "multi_agent_v1__spawn_agent"]


def test_compaction_of_a_lite_history_asks_without_the_item_that_brings_tools(gateway: Gateways) -> None:
    with ResponsesServer([text_reply("S"), text_reply("on")]) as upstream:
        running = gateway(upstream)
        (item,) = done(running.events(lite([BASE, ONE, *WORK, TRIGGER])))
        running.events(lite([BASE, ONE, item, said("user", "2")]))
        asked, after = upstream.requests
    assert words(asked) == ["base", "1", "function_call", "function_call_output", "handoff"]
    assert "tools" not in asked.json
    assert words(after) == ["base", "1", "summary: S", "2"] and len(names(after)) == 3


def test_search_for_tools_comes_back_as_one_and_what_it_found_is_offered(gateway: Gateways) -> None:
    search = {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}
    with ResponsesServer([call_reply("tool_search", {"query": "agent"}, "c1"), text_reply("end")]) as upstream:
        running = gateway(upstream)
        (call,) = done(running.events(request([ONE], tools=[COMMAND, search])))
        found = {"type": "tool_search_output", "call_id": "c1", "status": "completed", "execution": "client"}
        running.events(request([ONE, call, {**found, "tools": [AGENTS]}], tools=[COMMAND, search]))
        before, after = map(names, upstream.requests)
    assert (call["type"], call["arguments"], call["execution"]) == ("tool_search_call", {"query": "agent"}, "client")
    assert (before, after) == (
        ["exec_command", "tool_search"],
        ["exec_command", "tool_search", "multi_agent_v1__spawn_agent"],
    )


# --- over a WebSocket ------------------------------------------------------------------------------------------------


def test_websocket_is_warmed_up_says_what_is_new_and_everything_after_a_compaction(gateway: Gateways) -> None:
    """The warm-up of a lite client has no item at all; a compaction is asked for with what is new, behind the response
    before; the request after it says the whole window, behind no response."""

    async def talk(url: str) -> tuple[Items, Items]:
        async with Talk(url, **{"openai-beta": "responses_websockets=2026-02-06"}) as client:
            warm = await client.ask(**lite([]) | {"input": [], "generate": False})
            first = lite([BASE, RIGHTS, PLACE, ONE]) | {"previous_response_id": warm[-1]["response"]["id"]}
            called = await client.ask(**first)
            output = {"type": "function_call_output", "call_id": "c1", "output": "a"}
            new = {"input": [output, TRIGGER], "previous_response_id": called[-1]["response"]["id"]}
            (item,) = done(await client.ask(**lite([]) | new))
            await client.ask(**lite([BASE, RIGHTS, PLACE, ONE, item]))
            return warm, called

    script = [call_reply("functions__exec_command", {"cmd": "ls"}, "c1"), text_reply("S"), text_reply("on")]
    with ResponsesServer(script) as upstream:
        warm, called = asyncio.run(talk(gateway(upstream).url))
        sent = upstream.requests
    assert [event["type"] for event in warm] == ["response.created", "response.completed"]
    assert done(called)[0]["namespace"] == "functions"
    begins = ["base", "rights", "place", "1"]
    assert [words(one) for one in sent] == [
        begins,
        [*begins, "function_call", "function_call_output", "handoff"],
        [*begins, "summary: S"],
    ]
    assert [len(one.json.get("tools", [])) for one in sent] == [3, 0, 3]
    assert not any("previous_response_id" in one.json or "generate" in one.json for one in sent)


# --- compressed bodies -----------------------------------------------------------------------------------------------

ZSTD = {"content-encoding": "zstd"}


def test_body_that_is_compressed_with_zstd_is_unpacked(gateway: Gateways) -> None:
    """Codex compresses for whoever is signed in with ChatGPT, whatever the address is."""
    body = json.dumps(request([BASE, ONE])).encode()
    with ResponsesServer([text_reply("one"), text_reply("two")]) as upstream:
        running = gateway(upstream)
        packed = running.post("/responses", zstd.compress(body), headers=ZSTD)
        assert (packed.status_code, running.post("/responses", body).status_code) == (200, 200)
        assert upstream.requests[0].body == upstream.requests[1].body
        assert upstream.requests[0].header("content-encoding") is None


def test_compressed_body_keeps_to_the_limit_of_bodies(gateway: Gateways) -> None:
    with ResponsesServer([]) as upstream:
        running = gateway(upstream, max_body_bytes=10_000)
        bomb = zstd.compress(b'{"model":"m","input":"' + b" " * 50_000_000)
        assert len(bomb) < 10_000
        answers = [running.post("/responses", body, headers=ZSTD) for body in (bomb, b"{}", b"", bomb[:-9])]
        assert [answer.status_code for answer in answers] == [413, 400, 400, 413]
        assert not upstream.requests


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_unpacked_gives_back_what_was_packed_up_to_the_limit(size: int) -> None:
    body = os.urandom(size)
    assert unpacked(zstd.compress(body), 100) == body


def test_unpacked_refuses_more_than_one_frame_half_a_frame_and_a_window_that_takes_much_memory() -> None:
    frame = zstd.compress(b"x" * 50)
    large = zstd.compress(os.urandom(9 << 20), options={zstd.CompressionParameter.window_log: 27})
    for body, status in ((frame + frame, 400), (frame + b"x", 400), (frame[:-1], 400), (large, 400)):
        with pytest.raises(RequestRefused) as refused:
            unpacked(body, 64 << 20)
        assert refused.value.status == status
    with pytest.raises(RequestRefused) as refused:
        unpacked(frame, 49)
    assert refused.value.status == 413
