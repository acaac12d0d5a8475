"""Which variables a command gets, and where its shell then looks for programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from refold.core.permissions import EnvironmentPolicy
from refold.tools.child_environment import child_environment, search_path

INHERITED = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "EDITOR": "vi",
    "AWS_REGION": "north",
    "OPENAI_API_KEY": "k",
    "github_token": "t",
    "MySecretWord": "s",
    "PROVIDER": "mine",
}
SAFE = {"PATH", "HOME", "EDITOR", "AWS_REGION", "PROVIDER"}


def names(secrets: tuple[str, ...] = (), **policy: object) -> set[str]:
    return set(child_environment(EnvironmentPolicy(**policy), secrets, INHERITED))  # type: ignore[arg-type]


def test_names_that_look_like_secrets_are_left_out_in_any_case():
    assert names() == SAFE


def test_a_providers_key_is_left_out_whatever_its_name_and_the_policy():
    assert names(("provider",), ignore_default_excludes=True) == set(INHERITED) - {"PROVIDER"}
    assert names(("PROVIDER",), include_only=("*",)) == SAFE - {"PROVIDER"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"ignore_default_excludes": True}, set(INHERITED)),
        ({"inherit": "core"}, {"PATH", "HOME"}),
        ({"inherit": "none"}, set()),
        ({"exclude": ("aws_*", "ED?TOR")}, {"PATH", "HOME", "PROVIDER"}),
        ({"exclude": ("[A-Z]*",)}, SAFE),
        ({"include_only": ("pat*", "*region")}, {"PATH", "AWS_REGION"}),
        ({"include_only": ("*KEY*",)}, set()),
        ({"inherit": "none", "set": {"A": "1", "B_KEY": "2"}}, {"A", "B_KEY"}),
        ({"set": {"A": "1"}, "include_only": ("PATH",)}, {"PATH"}),
    ],
)
def test_policy_says_what_is_inherited(policy, expected):
    assert names(**policy) == expected


def test_what_is_set_wins():
    policy = EnvironmentPolicy(set={"PATH": "/mine", "OPENAI_API_KEY": "for the command"})
    given = child_environment(policy, ("OPENAI_API_KEY",), INHERITED)
    assert (given["PATH"], given["OPENAI_API_KEY"]) == ("/mine", "for the command")


# --- the search path -------------------------------------------------------------------------------------------------


def found(home: Path, profile: str, policy: EnvironmentPolicy | None = None, shell: str = "/bin/bash") -> str:
    (home / ".profile").write_text(profile)
    inherited = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    return asyncio.run(search_path(policy or EnvironmentPolicy(), (), shell, str(home), inherited, {}))


@pytest.mark.parametrize(
    "profile", ["PATH=/first:$PATH", "echo noise; f() { :; }; PATH=/first:$PATH", "umask 077; PATH=/first:$PATH"]
)
@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_programs_are_looked_for_where_the_login_shell_does(tmp_path, profile, shell):
    assert found(tmp_path, profile, shell=shell).startswith("/first:/")


def test_a_search_path_that_is_set_counts(tmp_path):
    assert found(tmp_path, "", EnvironmentPolicy(set={"PATH": "/set"})) == "/set"


def test_a_shell_that_says_nothing_has_no_search_path(tmp_path):
    assert found(tmp_path, "", shell="/bin/false") == ""
