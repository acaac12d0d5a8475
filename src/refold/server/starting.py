"""Starting: the gateway from the command's options: its settings, where its files are, and what it says.

`options` are those of `refold serve`, by the names that the command gives them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from refold.errors import ConfigError
from refold.server import running
from refold.server.settings import KEYS_VARIABLE, GatewaySettings, Secrets, checked

KEYS_NAME, STORE_NAME = "keys", "responses.sqlite"


def start(options: Mapping[str, Any], folder: Path, say: Callable[[str], object]) -> None:
    """Run until it is stopped. `folder` is for the files that no option names. Raises ConfigError."""
    running.require_extra()
    settings = settings_of(options, folder)
    if settings.log_requests:
        import logging

        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
        logging.getLogger("refold.gateway").setLevel(logging.INFO)
    running.serve(settings, lambda address, secrets: say(welcome(settings, address, secrets)))


def settings_of(options: Mapping[str, Any], folder: Path) -> GatewaySettings:
    """The settings that the options say. Raises ConfigError."""
    keys = options["keys"] or (None if os.environ.get(KEYS_VARIABLE) else str(folder / KEYS_NAME))
    return checked(
        GatewaySettings(
            upstream=options["upstream"],
            upstream_api=options["upstream_api"],
            key_env=options["key_env"],
            model_map=_model_map(options["models"]),
            context_window=options["context_window"],
            compaction=options["compaction"],
            accepts=options["accepts"],
            unknown_items=options["unknown_items"],
            developer_role=options["developer_role"],
            leave_out=options["leave_out"],
            host=options["host"],
            port=options["port"],
            workers=options["workers"],
            keys_file=keys,
            makes_keys=options["keys"] is None,
            tokens_file=options["tokens"],
            store=options["store"] or str(folder / STORE_NAME),
            retention_days=options["retention"],
            max_body_bytes=options["max_body"] << 20,
            max_requests=options["max_requests"],
            log_requests=options["log_requests"],
        )
    )


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
        ]
    )
