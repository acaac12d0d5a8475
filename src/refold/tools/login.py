"""Login: what a shell's login files set, read once in a session instead of before each command.

`bash -lc` reads the user's login files each time: 3 ms for empty ones, half a second for many a version manager. Where
all that they do is set variables, `bash -c` with those variables is the same, and so is what the command sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from refold.core.plain_command import is_of_the_system
from refold.tools.process import Process

LONGEST_SECONDS = 10.0  # for the login files; then commands run without them
OWN_OF_A_SHELL = ("_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS")
# What a shell's state is besides its variables, an empty text, the variables: all of it ended by NUL bytes.
_STATE = (
    "compgen -A function; alias; umask; shopt -p | while read -r o; do [[ $o == *login_shell ]] || echo $o; done; "
    "set +o; trap; ulimit -a; printf '\\0'; env -0"
)


class Login(msgspec.Struct, frozen=True):
    """What a shell's login files do. `plain`: they set variables, and nothing else."""

    variables: dict[str, str]
    plain: bool

    def argv(self, shell: str, cmd: str, visible: Mapping[str, str]) -> list[str]:
        """What runs a command that may see the `visible` variables, some of the login shell's.

        Where it has to be a login shell, the files set the others again: they are unset before the command.
        """
        if self.plain:
            return [shell, "-c", cmd]
        hidden = [name for name in self.variables if name not in visible and name.isidentifier()]
        return [shell, "-lc", f"unset -v {' '.join(hidden)}\n{cmd}" if hidden else cmd]


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
        return Login(dict(inherited), True)
    return Login(login[1], login[0] == plain[0])


async def _state(shell: str, flags: str, inherited: Mapping[str, str], cwd: str) -> tuple[str, dict[str, str]] | None:
    """What a shell is like when it has begun: everything but its variables, and these. None when it did not tell."""
    process = Process([shell, flags, _STATE], cwd, inherited)
    try:
        in_time = await process.ends_within(LONGEST_SECONDS)
    finally:
        if not process.ended.done():
            await process.stop()
    told, separator, variables = process.take().text().partition("\0")
    if not in_time or not separator or process.exit_code != 0:
        return None
    pairs = (text.partition("=") for text in variables.split("\0") if "=" in text)
    return told, {name: value for name, _, value in pairs if name not in OWN_OF_A_SHELL}
