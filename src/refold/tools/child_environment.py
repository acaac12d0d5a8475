"""Child environment: which variables a command inherits, and where its shell then looks for programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from refold.core.permissions import EnvironmentPolicy
from refold.core.plain_command import is_of_the_system
from refold.tools.login import LONGEST_SECONDS, Logins, known_login
from refold.tools.process import Process

SECRET_WORDS = ("KEY", "TOKEN", "SECRET")  # a name with one of these in it most likely holds one
CORE = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "USER", "USERNAME", "TMPDIR", "TEMP", "TMP"})
_TELL_PATH = "printf '\\0%s\\0' \"$PATH\""


def child_environment(
    policy: EnvironmentPolicy, secrets: Collection[str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """What a command gets of the `inherited` variables. Those named in `secrets` never go on, whatever the policy.

    In this order: `inherit`, the names that look like secrets, `exclude`, `set`, `include_only`. A variable that `set`
    names is given even if it looks like a secret: a person wrote it there.
    """
    hidden = {name.upper() for name in secrets}
    kept = {
        name: value
        for name, value in inherited.items()
        if name.upper() not in hidden
        and (policy.inherit == "all" or (policy.inherit == "core" and name.upper() in CORE))
        and (policy.ignore_default_excludes or not _looks_secret(name))
        and not _matches(name, policy.exclude)
    }
    kept.update(policy.set)
    if policy.include_only:
        kept = {name: value for name, value in kept.items() if _matches(name, policy.include_only)}
    return kept


def _looks_secret(name: str) -> bool:
    return any(word in name.upper() for word in SECRET_WORDS)


def _matches(name: str, patterns: Collection[str]) -> bool:
    """Whether a name fits one of the patterns, in any case. `[` is no pattern: only `*` and `?` are."""
    return any(fnmatchcase(name.upper(), pattern.upper().replace("[", "[[]")) for pattern in patterns)


async def search_path(
    policy: EnvironmentPolicy,
    secrets: Collection[str],
    shell: str,
    cwd: str,
    inherited: Mapping[str, str],
    told: Logins,
) -> str:
    """Where a command's shell looks for programs, after its login files; empty when that cannot be found out, and for
    a shell that is not the system's: it would be run with the user's rights.

    `told` holds what was found out before, by shell. Raises ToolFailed when the shell cannot be started.
    """
    if not is_of_the_system(shell):
        return ""
    login = await known_login(told, shell, inherited, cwd)
    if login is not None:
        return child_environment(policy, secrets, login.variables).get("PATH", "")
    process = Process([shell, "-lc", _TELL_PATH], cwd, child_environment(policy, secrets, inherited))
    try:
        in_time = await process.ends_within(LONGEST_SECONDS)
    finally:
        if not process.ended.done():
            await process.stop()
    said = process.take().text().split("\0")  # login files may say something, too
    return said[-2] if in_time and len(said) > 2 else ""
