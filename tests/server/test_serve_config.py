"""`[serve]` of config.toml: options count before it, and what is wrong in it is named with its file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.core.chat_completions_settings import ChatSettings
from refold.core.config import Config, parse_config
from refold.core.serve_settings import ServeSettings
from refold.errors import ConfigError
from refold.server.settings import GatewaySettings, read_secrets
from refold.server.starting import settings_of
from refold.testing import LoggedRequest, Reply, ResponsesServer, text_reply

UPSTREAM = "http://localhost:8000/v1"
NOT_IN_THE_TABLE = {"makes_keys"}  # follows from what is
MINE = {"base_url": "https://mine.example/v1", "env_key": "MINE_KEY"}


def config(serve: dict[str, Any], **more: Any) -> Config:
    return parse_config({"serve": serve, **more}, "/home/me/config.toml")


def settings(serve: dict[str, Any], folder: Path, *, given: dict[str, Any] | None = None, **more: Any) -> Any:
    return settings_of(given or {}, config(serve, **more), folder, {})


def test_table_has_every_setting_of_the_gateway_with_its_type() -> None:
    names = set(GatewaySettings.__struct_fields__) - NOT_IN_THE_TABLE
    assert set(ServeSettings.__struct_fields__) == names | {"provider"}


def test_without_a_table_the_built_in_settings_count(tmp_path: Path) -> None:
    found = settings({}, tmp_path, given={"upstream": UPSTREAM})
    own = GatewaySettings(
        upstream=UPSTREAM,
        keys_file=str(tmp_path / "keys"),
        makes_keys=True,
        store=str(tmp_path / "responses.sqlite"),
    )
    assert found == own


def test_every_setting_can_be_given_by_file(tmp_path: Path) -> None:
    table: dict[str, Any] = {
        "upstream": UPSTREAM,
        "upstream_api": "chat",
        "key_env": "UP",
        "query_params": {"v": "1"},
        "http_headers": {"x-team": "blue"},
        "env_http_headers": {"x-key": "OTHER"},
        "model_map": {"gpt-5.5": "qwen3", "*": "small"},
        "chat": {"developer_role": "user", "alternate": True},
        "context_window": 32_768,
        "compaction": "flattened",
        "outline_when_it_fails": False,
        "accepts": ["custom", "namespace"],
        "unknown_items": "refuse",
        "developer_role": "system",
        "leave_out": ["prompt_cache_key"],
        "host": "localhost",
        "port": 9000,
        "workers": 2,
        "keys_file": "/etc/keys",
        "tokens_file": "/etc/tokens",
        "store": "/var/responses.sqlite",
        "retention_days": 7,
        "max_body_bytes": 1_000_000,
        "max_requests": 10,
        "max_requests_per_tenant": 5,
        "body_seconds": 10,
        "idle_seconds": 20.5,
        "shutdown_seconds": 0,
        "log_requests": True,
    }
    assert {*table, "provider"} == set(ServeSettings.__struct_fields__)
    found = msgspec.to_builtins(settings(table, tmp_path))
    chat = msgspec.to_builtins(ChatSettings(developer_role="user", alternate=True))
    wanted = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    assert found == {**wanted, "chat": chat, "makes_keys": False}


def test_options_count_before_the_table(tmp_path: Path) -> None:
    table = {"upstream": UPSTREAM, "port": 9000, "max_body_bytes": 5, "model_map": {"a": "b"}, "log_requests": True}
    given = {"port": 0, "max_body": 2, "models": ("c=d",), "log_requests": False, "retention": 1.0, "keys": "/k"}
    found = settings(table, tmp_path, given=given)
    assert (found.upstream, found.port, found.max_body_bytes, found.log_requests) == (UPSTREAM, 0, 2 << 20, False)
    assert (found.model_map, found.retention_days, found.keys_file) == ({"c": "d"}, 1.0, "/k")


def test_files_may_lie_in_the_home(tmp_path: Path) -> None:
    found = settings({"upstream": UPSTREAM, "keys_file": "~/keys", "store": "~/s.sqlite"}, tmp_path)
    assert (found.keys_file, found.store) == (str(Path.home() / "keys"), str(Path.home() / "s.sqlite"))


# --- a provider of the settings ---


def test_provider_of_the_settings_is_the_upstream(tmp_path: Path) -> None:
    mine = {
        **MINE,
        "wire_api": "chat",
        "query_params": {"api-version": "1"},
        "http_headers": {"X-Team": "blue"},
        "env_http_headers": {"Api-Key": "MINE_OTHER"},
        "leave_out": ["include"],
        "developer_role": "user",
        "stream_idle_timeout_ms": 5_000,
        "chat": {"alternate": True},
    }
    found = settings({"provider": "mine", "idle_seconds": 9}, tmp_path, model_providers={"mine": mine})
    assert (found.upstream, found.upstream_api, found.key_env) == (MINE["base_url"], "chat", "MINE_KEY")
    assert (found.query_params, found.http_headers) == (mine["query_params"], mine["http_headers"])
    assert (found.leave_out, found.developer_role, found.chat.alternate) == (("include",), "user", True)
    assert found.idle_seconds == 9  # the table counts before the provider
    secrets = read_secrets(found, {"MINE_KEY": "sk-1", "MINE_OTHER": "other"})
    assert (secrets.upstream_key, secrets.upstream_headers) == ("sk-1", {"api-key": "other"})


def test_other_upstream_is_not_sent_the_key_of_the_tables(tmp_path: Path) -> None:
    table = {"upstream": UPSTREAM, "key_env": "UP", "http_headers": {"x": "y"}, "context_window": 9}
    found = settings(table, tmp_path, given={"upstream": "http://localhost:1/v1"})
    assert (found.upstream, found.key_env, found.http_headers, found.context_window) == (
        "http://localhost:1/v1",
        None,
        {},
        9,
    )
    found = settings(table, tmp_path, given={"provider": "mine"}, model_providers={"mine": MINE})
    assert (found.upstream, found.key_env) == (MINE["base_url"], "MINE_KEY")
    found = settings({"provider": "mine"}, tmp_path, given={"upstream": UPSTREAM}, model_providers={"mine": MINE})
    assert (found.upstream, found.key_env) == (UPSTREAM, None)


@pytest.mark.parametrize(
    ("serve", "given", "key", "said"),
    [
        ({"provider": "mien"}, {}, "provider", "no [model_providers.mien] is defined (known: mine, openai)"),
        ({}, {"upstream": UPSTREAM, "provider": "mine"}, "--provider", "give one of them"),
        ({}, {}, "upstream", "give --upstream URL, --provider NAME, or `upstream` or `provider` in [serve]"),
        ({"upstream": UPSTREAM, "workers": 2, "port": 0}, {}, "port", "several workers"),
    ],
)
def test_what_cannot_be_served_is_named(
    serve: dict[str, Any], given: dict[str, Any], key: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(serve, tmp_path, given=given, model_providers={"mine": MINE})
    assert caught.value.key == key and said in caught.value.why


def test_headers_of_a_provider_reach_it_and_the_clients_bearer_does_not(gateway: Callable[..., Any]) -> None:
    settings: dict[str, Any] = {
        "query_params": {"api-version": "1"},
        "http_headers": {"X-Team": "blue"},
        "env_http_headers": {"Api-Key": "OTHER"},
    }
    environ = {"OTHER": "secret-of-the-header", "REFOLD_GATEWAY_KEYS": "A" * 43 + "="}
    secrets = read_secrets(GatewaySettings(upstream=UPSTREAM, **settings), environ)
    assert "secret-of-the-header" not in repr(secrets)

    def answer(request: LoggedRequest) -> Reply:
        if b"echo" in request.body:
            return Reply(status=400, body={"error": {"message": f"no: {request.header('api-key')}"}})
        return text_reply("said, or summed up")

    with ResponsesServer(answer) as upstream:
        running = gateway(upstream, secrets=secrets, **settings)
        own = {"headers": {"authorization": "Bearer of-the-client"}}
        assert running.post("/responses", {"model": "m", "input": "hi"}, **own).status_code == 200
        assert running.post("/responses/compact", {"model": "m", "input": "hi"}, **own).status_code == 200
        refused = running.post("/responses", {"model": "m", "input": "echo"}, **own)
        sent = [(one.header("x-team"), one.header("api-key"), one.header("authorization")) for one in upstream.requests]
        assert {one.path for one in upstream.requests} == {"/v1/responses?api-version=1"}
    assert sent == [("blue", "secret-of-the-header", None)] * 3
    assert refused.json()["error"]["message"] == "no: ***"


# --- what is wrong ---


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ({"upstreams": UPSTREAM}, "serve.upstreams", "is not a setting; did you mean upstream?"),
        ({"retention": 3}, "serve.retention", "did you mean retention_days?"),
        ({"tokens": ["t"]}, "serve.tokens", "did you mean tokens_file?"),
        ({"zzz": 1}, "serve.zzz", "is not a setting; there are upstream, provider, "),
        ({"api_key": "sk-secret"}, "serve.api_key", "would be a secret in a file"),
        ({"port": "8484"}, "serve.port", "expected a whole number, got a text"),
        ({"port": 70_000}, "serve.port", "expected a whole number <= 65535"),
        ({"idle_seconds": 0}, "serve.idle_seconds", "expected a number with a fraction > 0"),
        ({"compaction": "modle"}, "serve.compaction", "one of model, flattened, outline"),
        ({"accepts": "all"}, "serve.accepts", "expected a list, got a text"),
        ({"model_map": ["a"]}, "serve.model_map", "expected a table, got a list"),
        ({"chat": {"alternat": True}}, "serve.chat.alternat", "did you mean alternate?"),
        ({"chat": {"alternate": 1}}, "serve.chat", "expected true or false"),
        ({"upstream": "localhost:8000"}, "serve.upstream", "must be an address like"),
        ({"upstream": UPSTREAM, "provider": "mine"}, "serve.provider", "remove one of them"),
    ],
)
def test_what_is_wrong_in_the_table_is_named_with_its_file(table: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(table)
    assert caught.value.key == key and said in caught.value.why
    assert "(/home/me/config.toml)" in str(caught.value) and "sk-secret" not in str(caught.value)


def test_table_must_be_one() -> None:
    with pytest.raises(ConfigError, match=r"serve: must be a table: \[serve\]"):
        parse_config({"serve": 1}, "config.toml")


# --- the command ---


def served(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    environ = {**kept, "REFOLD_HOME": str(home), "HOME": str(home)}
    command = [sys.executable, "-m", "refold", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=30, check=False)


def test_command_reads_the_table_and_its_options_count_before_it(tmp_path: Path) -> None:
    """A taken port ends the command at once, and its error says which settings counted."""
    with ResponsesServer([]) as taken:
        (tmp_path / "config.toml").write_text(f'[serve]\nupstream = "{UPSTREAM}"\nport = {taken.port}\n')
        by_file = served(tmp_path)
        by_option = served(tmp_path, "--port", "0", "--host", "localhost", "--key-env", "NOT_THERE")
        by_key = served(tmp_path, "-c", "serve.key_env=NOT_HERE")
        (tmp_path / "config.toml").write_text("[serve]\nports = 1\n")
        misspelt = served(tmp_path)
    assert (by_file.returncode, by_option.returncode, misspelt.returncode) == (2, 2, 2)
    assert f":{taken.port} cannot be listened at" in by_file.stderr
    assert "NOT_THERE: is not set" in by_option.stderr
    assert "NOT_HERE: is not set" in by_key.stderr
    assert re.search(r"serve\.ports: is not a setting; did you mean port\? \(.*config\.toml", misspelt.stderr)
