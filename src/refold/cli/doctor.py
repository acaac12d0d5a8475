"""Doctor: the command that examines a rollout (cli/examine.py), or a provider: what it can do, which settings fit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from refold.cli.style import paint
from refold.core.jsonio import dump

if TYPE_CHECKING:
    from refold.core.config import Config
    from refold.core.profile import Provider
    from refold.model.probe import Examination, Finding

EXAMINABLE = {
    "ID|PATH": "a session's file: what it is, what is damaged in it, and a repaired copy (--fix)",
    "--provider [NAME]": "what the provider can do, and the settings that fit; sends about ten small requests",
}
COLOURS = {"ok": "green", "no": "red", "unknown": "yellow"}
LONGEST_DETAIL = 300  # characters of a provider's words
UNTOLD_KEYS = ("query_params", "http_headers", "env_http_headers", "extra_body")  # they may hold what is secret


@click.command()
@click.argument("reference", required=False, metavar="[ID|PATH]")
@click.option("--last", is_flag=True, help="The session that was written last.")
@click.option("--fix", is_flag=True, help="Write a repaired copy; the old file is kept.")
@click.option("--dry-run", is_flag=True, help="Say what --fix would do, and write nothing.")
@click.option(
    "--provider", is_flag=False, flag_value="", metavar="[NAME]", help="Examine this provider, or the configured one."
)
@click.option("-m", "--model", metavar="MODEL", help="The model that is asked (default: the configured one).")
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key.")
@click.option("--overflow", is_flag=True, help="Also send one request larger than the context window: it may cost.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="Time for each request.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def doctor(
    reference: str | None,
    last: bool,
    fix: bool,
    dry_run: bool,
    provider: str | None,
    model: str | None,
    settings: tuple[str, ...],
    overflow: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Examine a session's file: what it is, what is damaged in it and what that means; or a provider.

    The exit code of a file is 0 where nothing is damaged, or all of it was repaired, else 1; that of --provider is 0
    if a turn works, else 1.
    """
    if (reference is not None) + last + (provider is not None) > 1:
        raise click.UsageError("give a session, --last or --provider: one of them")
    reference = _newest() if last else reference
    if reference is not None:
        from refold.cli.examine import examine_rollout

        return examine_rollout(reference, fix=fix, dry_run=dry_run, as_json=as_json)
    if fix or dry_run:
        raise click.UsageError("which session? --fix and --dry-run take an ID, a PATH, or --last")
    from refold.cli.options import settings_from

    named = (f"model_provider={dump(provider).decode()}",) if provider else ()
    _, config = settings_from((*settings, *named))
    if provider is None:
        return _tell_what_can_be_examined(config, as_json)
    return _examine_provider(config, model, timeout, overflow, as_json)


def _newest() -> str:
    from refold.session.home import Home

    return str(Home.find().catalogue().newest()[0])


def _tell_what_can_be_examined(config: Config, as_json: bool) -> int:
    known = sorted({"openai", *config.model_providers})
    if as_json:
        print(dump({"examinable": EXAMINABLE, "providers": known, "configured": config.model_provider}).decode())
        return 0
    print("What can be examined:")
    for option, what in EXAMINABLE.items():
        print(f"  {paint(option, 'bold')}  {what}")
    print(f"Providers: {', '.join(known)}; configured: {config.model_provider}")
    return 0


def _examine_provider(config: Config, model: str | None, timeout: float, overflow: bool, as_json: bool) -> int:
    import asyncio

    from refold.errors import ConfigError
    from refold.model.probe import Examination
    from refold.model.responses import api_key_from
    from refold.session.beginning import model_name
    from refold.session.home import profile_of

    profile, provider = profile_of(model_name(model, config), config), config.provider(os.environ)
    if provider.wire_api == "chat":
        raise ConfigError("wire_api", '"chat" is not examined: --provider asks the Responses API only')
    key = api_key_from(provider, os.environ)
    examination = Examination(profile, provider, api_key=key, seconds=timeout, overflow=overflow)
    if not as_json:
        print(paint(f"{provider.id} ({provider.name}) at {provider.base_url}, model {profile.slug}", "bold"))
    findings = asyncio.run(_findings(examination, as_json))
    if as_json:
        print(dump(_document(examination, findings)).decode())
    else:
        _conclude(examination)
    return 0 if examination.works else 1


async def _findings(examination: Examination, quiet: bool) -> list[Finding]:
    """All of them, each shown as it comes."""
    from refold.views.shown import one_line

    findings: list[Finding] = []
    async for finding in examination.run():
        findings.append(finding)
        if not quiet:
            verdict = paint(f"{finding.verdict:<7}", COLOURS[finding.verdict])
            line = f"  {verdict}  {finding.name:<17} {one_line(finding.detail)[:LONGEST_DETAIL]}"
            print(line.rstrip(), flush=True)
    return findings


def _document(examination: Examination, findings: list[Finding]) -> dict[str, Any]:
    provider = examination.provider
    return {
        "provider": {"id": provider.id, "name": provider.name, "base_url": provider.base_url},
        "model": examination.profile.slug,
        "works": examination.works,
        "findings": [{"name": one.name, "verdict": one.verdict, "detail": one.detail} for one in findings],
        "settings": examination.fitting,
        "model_context_window": examination.window,
        "requests": examination.requests,
        "requests_without_usage": examination.uncounted,
        "usage": {
            "input_tokens": examination.usage.input_tokens,
            "cached_input_tokens": examination.usage.cached_input_tokens,
            "output_tokens": examination.usage.output_tokens,
        },
        "toml": snippet(examination),
    }


def _conclude(examination: Examination) -> None:
    used = examination.usage
    untold = f"; {examination.uncounted} told no usage" if examination.uncounted else ""
    cost = f"{examination.requests} requests, {used.input_tokens:,} input and {used.output_tokens:,} output tokens"
    print(paint(cost + untold, "dim"))
    if not examination.works:
        print(paint("A turn does not work with this provider and model.", "red"))
        return
    found = snippet(examination)
    print(f"\n{found}" if found else "The defaults fit; there is nothing to set.")


def snippet(examination: Examination) -> str:
    """What to write into config.toml: the settings that differ from the defaults, and the context window; "" for none.

    A provider's table needs its address too. What may hold a secret is never printed, only named.
    """
    from refold.views.shown import one_line

    provider, lines = examination.provider, []
    if examination.window:
        lines.append(f"model_context_window = {examination.window}  # {one_line(examination.profile.slug)}")
    if examination.fitting:
        lines += ["", f"[model_providers.{_key(provider.id)}]", *_identity(provider)]
        lines += [f"{key} = {_value(value)}" for key, value in examination.fitting.items()]
    return "\n".join(lines).strip("\n")


def _identity(provider: Provider) -> list[str]:
    from refold.core.profile import Provider as Defaults

    lines = [f"name = {_value(provider.name)}", f"base_url = {_value(provider.base_url)}"]
    if provider.env_key:
        lines.append(f"env_key = {_value(provider.env_key)}")
    kept = [key for key in UNTOLD_KEYS if getattr(provider, key) != getattr(Defaults(), key)]
    return lines + ([f"# and {', '.join(kept)} as they are"] if kept else [])


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _value(name)


def _value(value: Any) -> str:
    """A text, a truth or a list of texts in TOML; JSON's spelling is TOML's, save for the character DEL."""
    return dump(value).decode().replace("\x7f", "\\u007f")
