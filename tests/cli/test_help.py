"""Help: every command explains itself and names its options."""

from __future__ import annotations

from typing import get_args

import click
import pytest

from refold import __version__
from refold.cli.group import COMMANDS, cli
from refold.cli.options import APPROVAL_POLICIES, SANDBOX_MODES
from refold.core.permissions import ApprovalPolicy, SandboxMode


@pytest.mark.parametrize("name", sorted(COMMANDS))
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_command_explains_itself_and_its_options(here, name, flag):
    ended = here(name, flag)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"Usage: refold {name} ")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.help
    assert " ".join(command.help.split())[:40] in " ".join(ended.out.split())
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.hidden:
            assert not any(option in ended.out for option in parameter.opts)
        elif isinstance(parameter, click.Option):
            assert all(option in ended.out for option in parameter.opts)
            assert parameter.help and " ".join(parameter.help.split())[:30] in " ".join(ended.out.split())
        else:
            assert parameter.make_metavar(click.Context(command)) in ended.out


def test_program_lists_its_commands(here):
    ended = here("--help")
    assert (ended.status, ended.err) == (0, "")
    for name in COMMANDS:
        assert f"\n  {name} " in ended.out


def test_version_is_told_by_program_and_module(here, machine):
    assert here("--version").out == f"refold {__version__}\n"
    assert machine.refold("--version").out == f"refold {__version__}\n"


def test_program_without_words_shows_its_help(here):
    ended = here()
    assert ended.status == 2
    assert "Usage: refold" in ended.out + ended.err and "Traceback" not in ended.err


def test_options_for_permissions_name_every_value() -> None:
    assert get_args(SandboxMode) == SANDBOX_MODES
    assert get_args(ApprovalPolicy) == APPROVAL_POLICIES
