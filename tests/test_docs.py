"""What is public is documented: names, commands and their help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

import refold

ROOT = Path(__file__).parents[1]


def documentation() -> str:
    """README and everything under docs/, without the decision records, which tell why and not how."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in page.parts]
    return "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *pages])


def mentions(text: str, phrase: str) -> bool:
    """Whether the phrase stands in the text as whole words; any white space counts as a space."""
    words = r"\s+".join(re.escape(word) for word in phrase.split())
    return re.search(rf"(?<![\w-]){words}(?![\w-])", text) is not None


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every visible command below a group, by its whole name."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{path} lists {name} but does not have it"
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def every_command() -> dict[str, click.Command]:
    from refold.cli.group import cli

    return {"refold": cli, **dict(commands(cli, "refold"))}


def test_every_public_name_is_there_and_documented():
    text = documentation()
    names = [name for name in refold.__all__ if not name.startswith("__")]
    assert names
    assert not [name for name in names if not hasattr(refold, name)]
    assert not [name for name in names if not mentions(text, name)]


def test_every_command_has_help():
    assert not [name for name, command in every_command().items() if not (command.help or "").strip()]


def test_every_option_has_help():
    assert not [
        f"{name} {parameter.opts[0]}"
        for name, command in every_command().items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and not (parameter.help or "").strip()
    ]


def test_every_command_is_documented():
    text = documentation()
    assert not [name for name in every_command() if not mentions(text, name)]


def test_mention_is_a_whole_word():
    assert mentions("run `refold\nshow ID`", "refold show")
    assert not mentions("refold showcase, prefold show", "refold show")
