"""MCP: settings, and what a server's tools and results become."""

from __future__ import annotations

import re
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.mcp import (
    LONGEST_NAME,
    McpServer,
    function_spec,
    offered,
    output_of,
    progress_text,
    server_environment,
    server_headers,
    tool_names,
)
from refold.errors import ConfigError


def refused(table: Any) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        parse_config({"mcp_servers": {"docs": table}}, "config.toml")
    assert "config.toml" in raised.value.why
    return raised.value


# --- settings ----------------------------------------------------------------------------------------------------


def test_both_kinds_of_server_are_read_as_the_real_program_writes_them() -> None:
    document = {
        "files": {"command": "npx", "args": ["-y", "files"], "env": {"A": "1"}, "env_vars": ["B"], "cwd": "sub"},
        "docs": {"url": "https://x/mcp", "bearer_token_env_var": "T", "http_headers": {"X": "y"}, "required": True},
        "off": {"command": "x", "enabled": False, "startup_timeout_sec": 3, "tool_timeout_sec": 1.5, "scopes": ["a"]},
    }
    found = parse_config({"mcp_servers": document}, "config.toml").mcp_servers
    assert list(found) == ["files", "docs", "off"]
    assert found["files"] == McpServer(command="npx", args=("-y", "files"), env={"A": "1"}, env_vars=("B",), cwd="sub")
    assert (found["docs"].url, found["docs"].required) == ("https://x/mcp", True)
    assert (found["docs"].startup_timeout_sec, found["docs"].tool_timeout_sec) == (10, 60)
    assert (found["off"].enabled, found["off"].startup_timeout_sec, found["off"].tool_timeout_sec) == (False, 3, 1.5)


@pytest.mark.parametrize(
    ("table", "key", "why"),
    [
        ({"comand": "x"}, "docs.comand", "did you mean command?"),
        ({"command": "x", "tool_timeout_secs": 3}, "docs.tool_timeout_secs", "did you mean tool_timeout_sec?"),
        ({}, "docs", "needs a command or a url"),
        ({"command": "x", "url": "http://x"}, "docs", "has a command and a url"),
        ({"url": "x/mcp"}, "docs.url", "must be an address like https://host/mcp"),
        ({"url": "http://x", "args": ["a"]}, "docs.args", "means nothing beside url"),
        ({"command": "x", "http_headers": {"a": "b"}}, "docs.http_headers", "means nothing beside command"),
        ({"command": "x", "tool_timeout_sec": 0}, "docs.tool_timeout_sec", "seconds above 0"),
        ({"command": "x", "startup_timeout_sec": float("nan")}, "docs.startup_timeout_sec", "seconds above 0"),
        ({"command": ["x"]}, "docs", "a text"),
        ({"url": "http://x", "bearer_token": "s"}, "docs.bearer_token", "bearer_token_env_var"),
        ([], "docs", "must be a table"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_do(table: Any, key: str, why: str) -> None:
    error = refused(table)
    assert error.key == f"mcp_servers.{key}"
    assert why in error.why


def test_a_process_inherits_no_key_that_was_not_named() -> None:
    server = McpServer(command="x", env={"MODE": "fast", "LANG": "C"}, env_vars=("DOCS_TOKEN", "MISSING"))
    environ = {"PATH": "/bin", "HOME": "/h", "LANG": "de", "OPENAI_API_KEY": "s", "DOCS_TOKEN": "t", "PYTHONPATH": "p"}
    assert server_environment(server, environ) == {
        "PATH": "/bin",
        "HOME": "/h",
        "LANG": "C",
        "DOCS_TOKEN": "t",
        "MODE": "fast",
    }


def test_headers_take_secrets_from_variables() -> None:
    server = McpServer(
        url="https://x", http_headers={"A": "b"}, env_http_headers={"C": "VAR", "D": "NONE"}, bearer_token_env_var="TOK"
    )
    environ = {"VAR": " v\n", "TOK": " t\n"}
    assert server_headers("mcp_servers.docs", server, environ) == {"A": "b", "C": "v", "Authorization": "Bearer t"}
    with pytest.raises(ConfigError, match=r"mcp_servers\.docs\.bearer_token_env_var: names TOK, which is not set"):
        server_headers("mcp_servers.docs", server, {})


def test_tools_are_let_through_by_name() -> None:
    server = McpServer(command="x", enabled_tools=("a", "b"), disabled_tools=("b",))
    assert [name for name in "abc" if server.offers(name)] == ["a"]
    assert McpServer(command="x").offers("anything")


# --- tools ---------------------------------------------------------------------------------------------------------


def test_names_are_what_every_provider_takes_and_differ() -> None:
    tools = [
        ("docs", "search"),
        ("docs", "a.b"),
        ("docs", "a/b"),
        ("docs", "ä"),
        ("docs", "x" * 80),
        ("docs", "x" * 81),
        ("a", "b__c"),
        ("a__b", "c"),
        ("own", "taken"),
    ]
    names = tool_names(tools, {"mcp__own__taken", "exec_command"})
    assert names[0] == "mcp__docs__search"
    assert names[3] == "mcp__docs___"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert [len(name) for name in names[4:6]] == [LONGEST_NAME, LONGEST_NAME]
    assert "mcp__own__taken" not in names
    # wherever they stand: a session that is resumed with another order of servers calls them the same
    assert tool_names(tools[::-1], {"mcp__own__taken"}) == names[::-1]


def test_a_spec_keeps_the_schema_and_makes_it_an_object() -> None:
    schema = {"$schema": "s", "properties": {"a": {"default": None, "x-y": 1}}, "required": ["a"], "anyOf": [{}]}
    tool = offered({"name": "t", "title": "T", "inputSchema": schema})
    assert function_spec("mcp__d__t", tool) == {
        "type": "function",
        "name": "mcp__d__t",
        "description": "T",
        "strict": False,
        "parameters": {**schema, "type": "object"},
    }
    assert function_spec("n", offered({"name": "t", "inputSchema": {"type": "object"}}))["parameters"] == {
        "type": "object",
        "properties": {},
    }


@pytest.mark.parametrize(
    ("hints", "parallel", "asked"),
    [
        (None, True, True),
        ({}, True, True),
        ({"readOnlyHint": True}, True, False),
        ({"readOnlyHint": True, "openWorldHint": True}, True, False),
        ({"readOnlyHint": True, "destructiveHint": True}, True, True),
        ({"readOnlyHint": False}, True, True),
        ({"destructiveHint": True}, False, True),
        ({"destructiveHint": False}, True, True),
        ({"destructiveHint": False, "openWorldHint": False}, True, False),
    ],
)
def test_a_person_is_asked_unless_a_tool_promises_to_do_no_harm(hints: Any, parallel: bool, asked: bool) -> None:
    tool = offered({"name": "t", "inputSchema": {}, "annotations": hints})
    assert (tool.parallel, tool.needs_approval) == (parallel, asked)


# --- results -------------------------------------------------------------------------------------------------------


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_texts_become_one_text() -> None:
    assert output_of({"content": [text("a"), text("b")], "structuredContent": {"a": 1}}) == "a\nb"
    assert output_of({"content": []}) == ""


def test_structured_content_counts_where_there_is_no_text() -> None:
    assert output_of({"content": [], "structuredContent": {"a": None}}) == '{"a":null}'
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    assert output_of({"content": [image], "structuredContent": [1]}) == [
        {"type": "input_text", "text": "[1]"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    ]


def test_every_kind_of_content_reaches_the_model() -> None:
    content = [
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///n", "name": "n", "mimeType": "text/plain", "description": "notes"},
        {"type": "resource_link", "uri": "file:///n", "name": "n"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA", "mimeType": "application/zip"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "AAAA", "mimeType": "image/gif"}},
        {"type": "hologram", "depth": 3},
    ]
    assert output_of({"content": content}) == [
        {"type": "input_audio", "audio_url": "data:audio/wav;base64,AAAA"},
        {"type": "input_text", "text": "n <file:///n> (text/plain): notes"},
        {"type": "input_text", "text": "n <file:///n>"},
        {"type": "input_text", "text": "file:///a:\ninside"},
        {"type": "input_text", "text": "file:///b: 3 bytes of application/zip, not shown"},
        {"type": "input_image", "image_url": "data:image/gif;base64,AAAA"},
        {"type": "input_text", "text": '{"type":"hologram","depth":3}'},
    ]


def test_progress_is_a_line() -> None:
    assert progress_text(3, 10, "copying") == "3 of 10: copying"
    assert progress_text(0.5, None, None) == "0.5"
