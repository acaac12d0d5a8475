"""Serve: the command that runs the gateway (docs/gateway.md): its options. What is not given is as `[serve]` of the
settings says.

The gateway is another face: it is named here as text, and loaded when it is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

FACE = "refold.server.starting"


@click.command()
@click.option("--upstream", metavar="URL", help="The provider's base URL, as http://localhost:8000/v1.")
@click.option("--provider", metavar="NAME", help="A provider of the settings instead, with its key and headers.")
@click.option(
    "--upstream-api",
    type=click.Choice(["responses", "chat"]),
    default="responses",
    show_default=True,
    help="What the provider speaks: the Responses API, or Chat Completions only.",
)
@click.option("--key-env", metavar="VAR", help="The environment variable with the provider's key.")
@click.option(
    "--model-map",
    "models",
    metavar="A=B",
    multiple=True,
    help="Who asks for A gets the provider's B; *=B: everything else.",
)
@click.option("--context-window", type=click.IntRange(min=1), metavar="TOKENS", help="What the provider's model holds.")
@click.option(
    "--compaction",
    type=click.Choice(["model", "flattened", "outline"]),
    default="model",
    show_default=True,
    help="Who writes what takes a history's place: the model, item by item or as one text, or no model.",
)
@click.option(
    "--accepts",
    metavar="WHAT",
    multiple=True,
    help="What the provider takes beside messages and functions (custom, an item's type, …); all: everything.",
)
@click.option(
    "--unknown-items",
    type=click.Choice(["drop", "pass", "refuse"]),
    default="drop",
    show_default=True,
    help="What becomes of items that the provider may not know.",
)
@click.option(
    "--developer-role",
    type=click.Choice(["developer", "system", "user"]),
    default="developer",
    show_default=True,
    help="The role that developer messages have for the provider.",
)
@click.option("--leave-out", metavar="KEY", multiple=True, help="A key of requests that the provider does not take.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Any other address needs bearer tokens.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8484, show_default=True, help="0: a free one.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--keys", metavar="FILE", help="The keys that seal compactions (default: made in refold's home).")
@click.option("--tokens", metavar="FILE", help="The bearer tokens that may ask, one a line: TOKEN or NAME=TOKEN.")
@click.option("--store", metavar="FILE", help="Where responses are kept (default: in refold's home).")
@click.option(
    "--retention",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="How long they are; 0: none is stored.",
)
@click.option(
    "--max-body", type=click.IntRange(min=1), default=64, show_default=True, metavar="MIB", help="The largest request."
)
@click.option(
    "--max-requests", type=click.IntRange(min=1), default=2_000, show_default=True, help="At once, of each worker."
)
@click.option(
    "--log-requests/--no-log-requests", help="A line for each request: path, status, time; nothing that it holds."
)
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key.")
@click.pass_context
def serve(context: click.Context, /, *, settings: tuple[str, ...], **options: Any) -> int:
    """Run a gateway: any Responses or Chat Completions provider, with the compaction that it lacks.

    Clients (Codex, the OpenAI SDK, the Agents SDK, refold) get http://127.0.0.1:8484/v1 as their base URL. Stops at
    Ctrl-C or SIGTERM, when open answers have ended. What no option says is as the table [serve] of the settings says.
    """
    from refold.session.home import Home, override

    home, default = Home.find(), ParameterSource.DEFAULT
    given = {name: value for name, value in options.items() if context.get_parameter_source(name) is not default}
    import_module(FACE).start(given, home.config(map(override, settings)), home.path / "gateway", click.echo)
    return 0
