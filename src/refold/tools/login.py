"""Login: what a shell's login files set, read once in a session instead of before each command.

`bash -lc` reads the user's login files each time: 3 ms for empty ones, half a second for many a version manager, and
inside a sandbox such a one complains that it cannot write. What the files set is carried over instead: variables in
the environment, functions and options as text before the command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from refold.core.plain_command import is_of_the_system
from refold.tools.process import Process

LONGEST_SECONDS = 10.0  # for the login files; then commands run without them
LONGEST_PREAMBLE = 100_000  # bytes; a command line takes little more in one argument
OWN_OF_A_SHELL = ("_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS")
# What a shell is like when it has begun: functions, options, what cannot be carried over, variables; NUL bytes between
# and before them, because login files may say something, too. Aliases do nothing in a command.
_MARK = "refold-login-state"
_STATE = (
    f"printf '\\0%s\\0' {_MARK}; declare -f; printf '\\0'; "
    "shopt -p | while read -r o; do [[ $o == *login_shell ]] || echo $o; done; "
    "set +o; echo umask $(umask); printf '\\0'; "
    "trap; ulimit -a; printf '\\0'; env -0"
)


class Login(msgspec.Struct, frozen=True):
    """What a shell's login files do: the variables that they leave, and what else has to be said before a command;
    None where that cannot be said (traps, limits, functions without end): then each command reads them anew."""

    variables: dict[str, str]
    preamble: str | None

    def argv(self, shell: str, cmd: str, visible: Mapping[str, str]) -> list[str]:
        """What runs a command that may see the `visible` variables, some of the login shell's.

        Where it has to be a login shell, the files set the others again: they are unset before the command.
        """
        if self.preamble is not None:
            return [shell, "-c", f"{self.preamble}\n{cmd}" if self.preamble else cmd]
        hidden = [name for name in self.variables if name not in visible and name.isidentifier()]
        return [shell, "-lc", f"unset -v {' '.join(hidden)}\n{cmd}" if hidden else cmd]


Logins: TypeAlias = dict[str, Login | None]  # by shell: what its login files do


class _Shell(msgspec.Struct, frozen=True):
    """A shell that has begun."""

    functions: str
    options: tuple[str, ...]
    rest: str
    variables: dict[str, str]


async def known_login(told: Logins, shell: str, inherited: Mapping[str, str], cwd: str) -> Login | None:
    """The same as `login_of`, found out once for each shell; `told` keeps it."""
    if shell not in told:
        told[shell] = await login_of(shell, inherited, cwd)
    return told[shell]


async def login_of(shell: str, inherited: Mapping[str, str], cwd: str) -> Login | None:
    """What the login files of a shell do; None for one that is not the system's bash: it is run with the user's rights.

    Login files that have not ended after ten seconds are stopped, and count as doing nothing.
    """
    if not is_of_the_system(shell) or Path(shell).name != "bash":
        return None
    plain, login = await asyncio.gather(*(_state(shell, flags, inherited, cwd) for flags in ("-c", "-lc")))
    if plain is None:
        return None
    if login is None:
        return Login(dict(inherited), "")
    return Login(login.variables, _preamble(plain, login))


def _preamble(plain: _Shell, login: _Shell) -> str | None:
    """What makes a plain shell like the login shell, variables aside."""
    functions = [login.functions] if login.functions.strip() and login.functions != plain.functions else []
    options = [line for line in login.options if line not in plain.options]
    text = "\n".join([*functions, *options])
    return text if login.rest == plain.rest and len(text.encode()) <= LONGEST_PREAMBLE else None


async def _state(shell: str, flags: str, inherited: Mapping[str, str], cwd: str) -> _Shell | None:
    """What a shell is like when it has begun; None when it did not tell."""
    process = Process([shell, flags, _STATE], cwd, inherited)
    try:
        in_time = await process.ends_within(LONGEST_SECONDS)
    finally:
        if not process.ended.done():
            await process.stop()
    told = process.take().text().partition(f"\0{_MARK}\0")[2].split("\0", 3)
    if not in_time or len(told) < 4 or process.exit_code != 0:
        return None
    functions, options, rest, variables = told
    pairs = (text.partition("=") for text in variables.split("\0") if "=" in text)
    kept = {name: value for name, _, value in pairs if name not in OWN_OF_A_SHELL}
    return _Shell(functions, tuple(options.splitlines()), rest, kept)
