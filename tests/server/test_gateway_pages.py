"""docs/gateway/: the pages' settings are settings, their commands are read by the real command, and their code runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.core import ParameterSource

from refold.cli.serve import serve
from refold.core.config import Config, parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import message_text
from refold.core.serve_settings import ServeSettings
from refold.core.templates import template
from refold.server.settings import GatewaySettings, checked
from refold.server.starting import settings_of
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply

Gateways = Callable[..., Any]
DOCS = Path(__file__).parents[2] / "docs"
OVERVIEW = (DOCS / "gateway.md").read_text(encoding="utf-8")
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((DOCS / "gateway").glob("*.md"))}
CLIENTS = ("agents-sdk", "codex", "openai-sdk", "refold")
UPSTREAMS = ("llama-cpp", "lm-studio", "ollama", "vllm")
HERE = "http://127.0.0.1:8484/v1"  # where a gateway listens that is told nothing else


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def commands(page: str, program: str) -> list[str]:
    """The lines of a page's shell blocks that run a program."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(program + " ")]


def settings_by(line: str, folder: Path) -> GatewaySettings:
    """What a `refold serve …` line of a page says, read by the command itself."""
    words = shlex.split(line, comments=True)
    assert words[:2] == ["refold", "serve"]
    context = serve.make_context("serve", words[2:])
    given = {
        name: value
        for name, value in context.params.items()
        if name != "settings" and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    return settings_of(given, Config(), folder, {})


SERVED = [(name, line) for name, page in PAGES.items() for line in commands(page, "refold serve")]


def test_every_client_and_upstream_has_a_page_that_the_overview_names() -> None:
    assert set(PAGES) == {*CLIENTS, *UPSTREAMS}
    for name, page in PAGES.items():
        assert f"(gateway/{name}.md)" in OVERVIEW
        assert "\n## Does it work?\n" in page and commands(page, "refold serve")
    for name in UPSTREAMS:
        assert "\n## What lacks\n" in PAGES[name]


@pytest.mark.parametrize(("name", "line"), SERVED)
def test_a_command_of_a_page_is_one(name: str, line: str, tmp_path: Path) -> None:
    settings = checked(settings_by(line, tmp_path))
    assert (settings.host, settings.port) == ("127.0.0.1", 8484)
    assert settings.key_env is None or f"export `{settings.key_env}`" in PAGES[name]


def test_links_lead_somewhere() -> None:
    for name, page in PAGES.items():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page):
            assert (DOCS / "gateway" / target).exists(), f"{name}: {target}"


def test_table_of_the_overview_has_every_key_and_its_settings_are_read(tmp_path: Path) -> None:
    part = OVERVIEW.split("\n### In a file\n")[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("| `")]
    named = {key for row in rows for key in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert named == set(ServeSettings.__struct_fields__)
    (block,) = blocks(part, "toml")
    config = parse_config(tomllib.loads(block), "docs/gateway.md")
    assert checked(settings_of({}, config, tmp_path, {})).idle_seconds == 600


# --- clients ---


def test_codex_asks_the_gateway_to_compact() -> None:
    """Its own rules: it does so for a provider of exactly this name, and asks `base_url` + `/responses`."""
    (block,) = blocks(PAGES["codex"], "toml")
    document = tomllib.loads(block)
    provider = document["model_providers"][document["model_provider"]]
    assert (provider["name"], provider["base_url"]) == ("OpenAI", HERE)
    assert provider["wire_api"] == "responses" and provider["supports_websockets"] is True
    assert document["model_context_window"] > 0 and document["model"]


def test_refold_asks_the_gateway_to_compact() -> None:
    (block,) = blocks(PAGES["refold"], "toml")
    provider = parse_config(tomllib.loads(block), "docs/gateway/refold.md").provider({})
    assert provider.base_url == HERE and provider.compacts and provider.supports_websockets


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if commands(page, "curl")])
def test_check_of_a_page_gives_what_it_says(gateway: Gateways, name: str, tmp_path: Path) -> None:
    """Where the page's own `refold serve` says something, in front of an upstream that takes only what it maps to."""
    page = PAGES[name]
    settings = settings_by(commands(page, "refold serve")[0], tmp_path)
    with ResponsesServer(lambda _: text_reply("the summary")) as upstream:
        running = gateway(upstream, model_map=settings.model_map, developer_role=settings.developer_role)
        for line in commands(page, "curl"):
            words = shlex.split(line)
            url = next(word for word in words if word.startswith("http"))
            body = json.loads(words[words.index("-d") + 1])
            answer = running.post(url.removeprefix(HERE), body)
            assert (answer.status_code, answer.json()["object"]) == (200, "response.compaction"), answer.text
            assert answer.json()["output"][-1]["type"] == "compaction"
            assert upstream.requests[-1].json["model"] == settings.model_for(body["model"])


def ran(code: str, url: str, folder: Path) -> list[str]:
    """The lines that a page's Python prints, as it stands there, with the two variables that the page names."""
    environ = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def texts(request: LoggedRequest) -> list[str]:
    return [message_text(item) or str(item.get("content")) for item in request.input]


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the OpenAI SDK is not installed")
def test_page_of_the_openai_sdk_runs(gateway: Gateways, tmp_path: Path) -> None:
    (code,) = blocks(PAGES["openai-sdk"], "python")
    replies = ["two", "three", "THE SUMMARY", "nothing", "gone on"]
    with ResponsesServer(replies) as upstream:
        said = ran(code, gateway(upstream).url, tmp_path)
        assert [request.json["model"] for request in upstream.requests] == ["qwen3"] * 5
        assert texts(upstream.requests[1])[-2:] == ["two", "And another one."]
        assert texts(upstream.requests[3])[-2:] == [SUMMARY_MARK + "THE SUMMARY", "What is left to do?"]
        assert texts(upstream.requests[4])[-2:] == ["nothing", "Go on."]
    assert said[:4] == ["two", "three", "['message', 'compaction']", "nothing"]
    assert re.fullmatch(r"\d+ tokens", said[4])


@pytest.mark.skipif(importlib.util.find_spec("agents") is None, reason="the Agents SDK is not installed")
def test_page_of_the_agents_sdk_runs(gateway: Gateways, tmp_path: Path) -> None:
    (code,) = blocks(PAGES["agents-sdk"], "python")

    def model(request: LoggedRequest) -> Reply:
        last = request.input[-1]
        if message_text(last) == template("handoff"):
            return text_reply("THE SUMMARY")
        if last.get("type") == "function_call_output":
            return text_reply(f"I read: {last['output']}")
        number = re.findall(r"Measure (\d)", json.dumps(last))[-1]
        return call_reply("measure", {"number": int(number)}, f"call_{number}")

    settings = settings_by(commands(PAGES["agents-sdk"], "refold serve")[0], tmp_path)
    with ResponsesServer(model) as upstream:
        said = ran(code, gateway(upstream, model_map=settings.model_map).url, tmp_path)
        assert {request.json["model"] for request in upstream.requests} == {"qwen3"}
        compactions = [one for one in upstream.requests if message_text(one.input[-1]) == template("handoff")]
    assert said[:5] == [f"I read: reading {number}: {number * number}" for number in range(5)]
    assert len(compactions) >= 2 and said[5].endswith("'compaction']")
