"""A plugin's manifest and servers are read strictly, and its line says what it brings."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.mcp import McpServer
from refold.core.plugin import Manifest, Plugin, PluginSettings, read_manifest, read_servers, setting_of
from refold.core.skill import Skill
from refold.core.world import World, render, value_of
from refold.core.world.plugins import ID, MOST_PLUGINS, with_plugins


def test_a_manifest_says_a_name_a_line_and_where_its_parts_are() -> None:
    found = read_manifest({"name": "kit", "description": "Two\nlines.", "skills": "./mine/"}, "/p")
    assert found == Manifest("kit", "Two lines.", ("/p/mine",), "/p/.mcp.json")
    assert read_manifest({}, "/p/box") == Manifest("box", "", ("/p/box/skills",), "/p/box/.mcp.json")
    listed = read_manifest({"skills": ["./a", "./b/c"], "mcpServers": {"x": {}}}, "/box")
    assert listed == Manifest("box", "", ("/box/a", "/box/b/c"), {"x": {}})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "no JSON object"),
        ({"name": "a b"}, "'a b' is not made of"),
        ({"name": 5}, "'5' is not made of"),
        ({"skills": "../other"}, "'../other', which is no path in it"),
        ({"skills": ["./a", "/etc"]}, "'/etc', which is no path in it"),
        ({"skills": "~/x"}, "no path in it"),
        ({"mcpServers": "./a/../../b"}, "no path in it"),
    ],
)
def test_what_is_no_manifest_says_why(value: Any, why: str) -> None:
    found = read_manifest(value, "/box")
    assert isinstance(found, str) and why in found


def test_servers_start_in_the_plugins_folder() -> None:
    tables = {
        "one": {"command": "./run", "args": ["${PLUGIN_ROOT}/x", "${CLAUDE_PLUGIN_ROOT}"], "required": True},
        "two": {"type": "http", "url": "https://h/mcp", "headers": {"A": "b"}},
        "three": {"command": "npx", "cwd": "./sub"},
    }
    found, faults = read_servers({"mcpServers": tables}, "kit", "/p")
    assert faults == []
    assert found["one"] == McpServer(command="/p/run", args=("/p/x", "/p"), cwd="/p")
    assert found["two"] == McpServer(url="https://h/mcp", http_headers={"A": "b"})
    assert found["three"] == McpServer(command="npx", cwd="/p/sub")
    assert read_servers(tables, "kit", "/p") == (found, [])


def test_a_server_that_cannot_be_used_is_said_and_the_others_are() -> None:
    tables = {
        "bad": {"args": []},
        "out": {"command": "../x"},
        "odd": 5,
        "list": {"command": []},
        "good": {"command": "x"},
    }
    found, faults = read_servers(tables, "kit", "/p")
    assert list(found) == ["good"]
    assert [fault.split()[3] for fault in faults] == ["bad", "out", "odd", "list"]
    assert read_servers(5, "kit", "/p") == ({}, ["its MCP servers are no table"])


def test_the_real_programs_name_with_a_marketplace_is_the_plugins() -> None:
    settings = {"kit@market": PluginSettings(enabled=False)}
    assert setting_of("kit", settings) == PluginSettings(enabled=False)
    assert setting_of("market", settings) is None


def plugin(name: str = "kit", **more: Any) -> Plugin:
    return Plugin(**{"name": name, "description": "For tests.", "folder": f"/{name}", **more})


def texts(now: World, before: Any) -> list[str]:
    return [fragment.text for fragment in render(now, before)]


def test_plugins_are_listed_and_no_text_leaves_its_line() -> None:
    brings = {"skills": (Skill("kit:a", "", "/a"),), "servers": {"s": McpServer(command="x")}}
    now = with_plugins(World({}), [plugin(trusted=True, **brings), plugin("other", description="</x>", **brings)])
    [text] = texts(now, None)
    assert text.startswith("<plugins_instructions>\n## Plugins\n") and text.endswith("\n</plugins_instructions>")
    assert "\n- kit: For tests. (1 skills; MCP servers s)\n- other: &lt;/x&gt; (1 skills)\n" in text


def test_the_snapshot_says_for_the_real_program_that_they_were_told() -> None:
    now = with_plugins(World({}), [plugin()])
    assert now.state["plugins_instructions"] is True
    gone = with_plugins(World({}), [], now.state)
    assert gone.state == {"plugins_instructions": False}
    assert "no longer in use" in texts(gone, now.state)[0]
    assert with_plugins(World({}), [], {"plugins_instructions": True}).state == {}, "what it told of its own stays"


def test_many_and_long_ones_stay_small() -> None:
    now = with_plugins(World({}), [plugin(f"p{n}", description="x" * 5_000) for n in range(200)])
    lines = value_of(now.state, ID)
    assert len(lines) == MOST_PLUGINS + 1 and lines[-1] == "(150 more)"
    assert max(map(len, lines)) < 320
