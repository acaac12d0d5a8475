"""Starting: the gateway from the command's options and `[serve]` of the settings: where its files are, what it says.

`given` are the options of `refold serve` that were given, by the names that the command gives them.
Rule 1: an option counts before the table, the table before a provider that is named, that before what is built in.
Rule 2: another upstream, named by an option, is not sent what the table says about its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from refold.core.config import Config
from refold.core.serve_settings import OF_AN_ADDRESS
from refold.errors import ConfigError
from refold.server import running
from refold.server.settings import KEYS_VARIABLE, GatewaySettings, Secrets, checked, readable_by_others

KEYS_NAME, STORE_NAME = "keys", "responses.sqlite"
# What some options are called in the settings, and the megabytes that bytes are told in.
NAMES = {"models": "model_map", "keys": "keys_file", "tokens": "tokens_file", "retention": "retention_days"}
MEBIBYTES = {"max_body": "max_body_bytes"}
FILES = ("keys_file", "tokens_file", "store")


def start(given: Mapping[str, Any], config: Config, folder: Path, say: Callable[[str], object]) -> None:
    """Run until it is stopped. `folder` is for the files that nothing names. Raises ConfigError."""
    running.require_extra()
    settings = settings_of(given, config, folder, os.environ)
    if settings.log_requests:
        import logging

        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
        logging.getLogger("refold.gateway").setLevel(logging.INFO)
    running.serve(settings, lambda address, secrets: say(welcome(settings, address, secrets)))


def settings_of(given: Mapping[str, Any], config: Config, folder: Path, environ: Mapping[str, str]) -> GatewaySettings:
    """The settings that options, table and provider say. Raises ConfigError."""
    asked = _by_name(given)
    table: dict[str, Any] = config.serve.said()
    if "upstream" in asked or "provider" in asked:
        table = {name: value for name, value in table.items() if name not in ("upstream", "provider", *OF_AN_ADDRESS)}
    said: dict[str, Any] = {name: value for name, value in (table | asked).items() if value != ""}
    if "provider" in said:
        said = _of_provider(said.pop("provider"), config, environ) | said
    if "upstream" not in said:
        where = f"`upstream` or `provider` in [serve] of {folder.parent / 'config.toml'}"
        raise ConfigError("upstream", f"is not known: give --upstream URL, --provider NAME, or {where}")
    said |= {name: str(Path(said[name]).expanduser()) for name in FILES if name in said}
    if "keys_file" not in said and not environ.get(KEYS_VARIABLE):
        said |= {"keys_file": str(folder / KEYS_NAME), "makes_keys": True}
    return checked(GatewaySettings(**{"store": str(folder / STORE_NAME), **said}))


def _by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of GatewaySettings (and `provider`). Raises ConfigError."""
    said: dict[str, Any] = {NAMES.get(name, name): value for name, value in given.items() if name not in MEBIBYTES}
    said |= {MEBIBYTES[name]: value << 20 for name, value in given.items() if name in MEBIBYTES}
    if "model_map" in said:
        said["model_map"] = _model_map(said["model_map"])
    if "upstream" in said and "provider" in said:
        raise ConfigError("--provider", "stands beside --upstream: give one of them")
    return said


def _of_provider(name: str, config: Config, environ: Mapping[str, str]) -> dict[str, Any]:
    """What a configured provider says that a gateway in front of it needs. Raises ConfigError for one that is none."""
    try:
        provider = msgspec.structs.replace(config, model_provider=name).provider(environ)
    except ConfigError as error:
        raise ConfigError("provider" if error.key == "model_provider" else error.key, error.why) from None
    return {
        "upstream": provider.base_url,
        "upstream_api": provider.wire_api,
        "chat": provider.chat,
        "key_env": provider.env_key,
        "query_params": provider.query_params,
        "http_headers": provider.http_headers,
        "env_http_headers": provider.env_http_headers,
        "developer_role": provider.developer_role,
        "leave_out": provider.leave_out,
        "idle_seconds": provider.stream_idle_timeout_ms / 1000,
    }


def _model_map(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        asked, separator, given = pair.partition("=")
        if not (separator and asked.strip() and given.strip()):
            raise ConfigError("--model-map", f"{pair!r} is not ASKED=GIVEN, as gpt-5.5=qwen3 is")
        found[asked.strip()] = given.strip()
    return found


def welcome(settings: GatewaySettings, address: str, secrets: Secrets) -> str:
    """What is said when the gateway listens: no secret is in it."""
    ways = {
        "model": "by the upstream's model, from the handoff text",
        "flattened": "by the upstream's model, from one text",
        "outline": "by an outline, without a model",
    }
    api = "Chat Completions" if settings.upstream_api == "chat" else "Responses"
    if secrets.tenants:
        asking = f"{len(secrets.tenants)} bearer token{'s' if len(secrets.tenants) > 1 else ''} may ask"
    else:
        asking = "whoever is on this machine may ask"
    key = f"its key: {settings.key_env}" if settings.key_env else "sent the client's own bearer"
    key = key if settings.key_env or secrets.passes_bearer else "sent no key"
    return "\n".join(
        [
            f"refold's gateway listens at {address}/v1 ({asking})",
            f"  upstream    {settings.upstream} ({api} API; {key})",
            f"  compaction  {ways[settings.compaction]}",
            f"  keys        {settings.keys_file or 'from the environment'}",
            f"  responses   {settings.store}, for {settings.retention_days:g} days",
            f"  health {address}/healthz · metrics {address}/metrics · API {address}/openapi.json",
            *(f"  warning     {name} can be read by others: chmod 600" for name in readable_by_others(settings)),
        ]
    )
