"""Sandbox: walls around one command, built by bubblewrap from a list of mounts.

Rule 1: everything can be read but what is hidden; only what is writable can be written. The deeper path decides.
Rule 2: what is read-only or hidden inside a writable folder is a mount, and so is every folder on the way to it: what
        is a mount cannot be renamed or removed, so that nothing else can be put in its place.
Rule 3: without a network there are no sockets of the machine either: a tmux or docker socket would be a way out.
Rule 4: who signals the command's process group reaches the command, not its walls; killing the walls kills it.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from refold.core.permissions import Sandbox, SandboxMode, WorkspaceWrite
from refold.errors import ToolFailed

PROGRAM = "bwrap"
PROBE_SECONDS = 5.0  # the walls stand after 10 ms; a machine that needs longer cannot work with them
GUARDED = (".git", ".refold", ".codex")  # of a writable folder: what git or an agent would run or obey later
OWN_KEYS = ("config.toml", "auth.json", ".env")  # in refold's home and in the real program's: they may hold keys
SLASH_TMP = "/tmp"  # noqa: S108 - the folder itself, for the command

_Access = Literal["write", "pin", "read", "hide"]
_STRENGTH: dict[_Access, int] = {"pin": 0, "write": 1, "read": 2, "hide": 3}
_FLAGS: dict[_Access, str] = {"pin": "--bind", "write": "--bind", "read": "--ro-bind", "hide": "--ro-bind"}

# The walls ignore what their process group is told; `env` lets the command hear it again (rule 4).
_SIGNALS = ("INT", "QUIT", "TERM", "HUP")
_DEAF = f'trap "" {" ".join(_SIGNALS)}; exec "$@"'
_HEARING = ("/usr/bin/env", f"--default-signal={','.join(_SIGNALS)}")
_FILTER = "9"  # the descriptor that the filter of system calls is read from


# --- what the walls are --------------------------------------------------------------------------------------


def sandbox_of(
    mode: SandboxMode, settings: WorkspaceWrite, cwd: str, environ: Mapping[str, str], homes: tuple[Path, ...]
) -> Sandbox | None:
    """The walls of a mode; None where there are none.

    `cwd` is the workspace; `homes` are refold's folder and, where it is, the real program's: their keys are hidden,
    and nothing in them can be changed. `environ` tells where temporary files go.
    """
    if mode == "danger-full-access":
        return None
    writable = _writable(settings, cwd, environ) if mode == "workspace-write" else ()
    for home in homes:
        if any(_inside(os.path.realpath(home), root) for root in writable):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is missing cannot be guarded (rule 2)
    return Sandbox(
        writable=writable,
        network=mode == "workspace-write" and settings.network_access,
        hidden=tuple(str(home / name) for home in homes for name in OWN_KEYS),
        guarded=tuple(str(home) for home in homes),
    )


def _writable(settings: WorkspaceWrite, cwd: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The folders that can be written, resolved: a symlink is no folder of its own."""
    folders = [cwd, *(str(Path(root).expanduser()) for root in settings.writable_roots)]
    folders += [] if settings.exclude_slash_tmp else [SLASH_TMP]
    folders += [] if settings.exclude_tmpdir_env_var else [environ.get("TMPDIR", "")]
    found = (os.path.realpath(folder) for folder in folders if Path(folder).is_absolute())
    return tuple(dict.fromkeys(folder for folder in found if Path(folder).is_dir()))


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# --- how bubblewrap is told ----------------------------------------------------------------------------------


def argv_in(sandbox: Sandbox, argv: list[str], cwd: str) -> list[str]:
    """The command line that runs `argv` inside its walls, in `cwd`.

    To be started in a session of its own (so that no terminal of ours is its controlling one), from a thread that
    outlives it, with the environment that the command may see. What it leaves running ends with it. Raises ToolFailed
    where no walls can be built.
    """
    program = shutil.which(PROGRAM)
    where = () if program is None else (os.path.realpath(program), os.path.realpath(Path(program).parent))
    if program is None or any(_inside(path, root) for path in where for root in sandbox.writable):
        why = "is not installed" if program is None else f"is {program}, where commands can write"
        raise ToolFailed(f"the command was not run: {PROGRAM}, which builds the sandbox, {why}")
    walls = [program, *_mounts(sandbox), "--chdir", cwd]
    walls += ["--unshare-user", "--unshare-ipc", "--unshare-uts", "--unshare-pid", "--cap-drop", "ALL"]
    walls += ["--die-with-parent", *([] if sandbox.network else ["--unshare-net", "--seccomp", _FILTER])]
    start = [_DEAF, "sh"] if sandbox.network else [f'{_DEAF} {_FILTER}<"$0"', _filter_path()]
    return ["/bin/sh", "-c", *start, *walls, "--", *_HEARING, *argv]


def _mounts(sandbox: Sandbox) -> Iterator[str]:
    """Everything read-only, then the rest from the outside in."""
    yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
    for path, access in sorted(_accesses(sandbox).items(), key=lambda found: found[0].rstrip("/").count("/")):
        yield from (_FLAGS[access], "/dev/null" if access == "hide" else path, path)


def _accesses(sandbox: Sandbox) -> dict[str, _Access]:
    """What may be done with each path that is mounted by itself."""
    found: dict[str, _Access] = {}

    def put(path: str, access: _Access) -> None:
        real = os.path.realpath(path)
        there = os.path.isfile(real) if access == "hide" else os.path.exists(real)  # noqa: PTH110, PTH113 - never raise
        if there and _STRENGTH[access] >= _STRENGTH[found.get(real, "pin")]:
            found[real] = access

    for root in sandbox.writable:
        put(root, "write")
    for guarded in (*sandbox.guarded, *(f"{root}/{name}" for root in sandbox.writable for name in GUARDED)):
        put(guarded, "read")
    for hidden in sandbox.hidden:
        put(hidden, "hide")
    for path in list(found):
        for folder in _on_the_way(path, found):
            found.setdefault(folder, "pin")
    return found


def _on_the_way(path: str, found: Mapping[str, _Access]) -> Iterator[str]:
    """The folders between a path and the writable folder that it stands in, if it stands in one."""
    between: list[str] = []
    parent = path
    while (parent := os.path.dirname(above := parent)) != above:  # noqa: PTH120 - before each command, so cheaply
        access = found.get(parent, "pin")
        if access != "pin":
            yield from between if access == "write" else ()
            return
        between.append(parent)


# --- which system calls are let through ----------------------------------------------------------------------

_MACHINES = {  # architecture as the kernel counts it, socket, socketpair
    "x86_64": (0xC000003E, 41, 53),
    "aarch64": (0xC00000B7, 198, 199),
    "riscv64": (0xC00000F3, 198, 199),
}
_IO_URING_SETUP = 425  # could open sockets past the filter
_OTHER_ABI = 0x40000000  # x86-64's second numbering of the same calls
_FAMILIES = (2, 10, 16)  # IPv4, IPv6, netlink: all inside the network that the command has to itself
_DATAGRAM = 2  # a pair of these can be pointed at any socket of the machine, unlike a pair of streams
_ALLOWED, _FORBIDDEN, _MISSING = 0x7FFF0000, 0x00050001, 0x00050026  # as it is, EPERM, ENOSYS
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_AT, _SECOND_AT = 0, 4, 16, 24  # in what the kernel shows the filter


def socket_filter(machine: str) -> bytes:
    """A program for the kernel: no sockets but those of a network, no pair of datagram sockets, no io_uring.

    A jump counts the instructions that it leaves out. Raises KeyError for a machine whose calls are not known.
    """
    architecture, socket, socketpair = _MACHINES[machine]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 0, 14, architecture),  # → missing
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 12, 0, _OTHER_ABI),  # → missing
        (_EQUAL, 11, 0, _IO_URING_SETUP),  # → missing
        (_EQUAL, 5, 0, socketpair),
        (_EQUAL, 0, 7, socket),  # else allowed
        (_LOAD, 0, 0, _FIRST_AT),
        (_EQUAL, 5, 0, _FAMILIES[0]),  # → allowed
        (_EQUAL, 4, 0, _FAMILIES[1]),  # → allowed
        (_EQUAL, 3, 4, _FAMILIES[2]),  # → allowed, else forbidden
        (_LOAD, 0, 0, _SECOND_AT),  # socketpair
        (_AND, 0, 0, 0xF),
        (_EQUAL, 1, 0, _DATAGRAM),  # → forbidden
        (_RETURN, 0, 0, _ALLOWED),
        (_RETURN, 0, 0, _FORBIDDEN),
        (_RETURN, 0, 0, _MISSING),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


@cache
def _filter_descriptor() -> int:
    """The filter in memory; the descriptor is as long-lived as this program."""
    descriptor = os.memfd_create("refold-socket-filter")
    os.write(descriptor, socket_filter(platform.machine()))
    return descriptor


def _filter_path() -> str:
    return f"/proc/{os.getpid()}/fd/{_filter_descriptor()}"


# --- whether walls can be built here -------------------------------------------------------------------------


def sandbox_fault() -> str:
    """Why no walls can be built here; empty when they can. Found out once for each search path."""
    return _fault(os.environ.get("PATH", os.defpath))


def sandbox_works() -> bool:
    """Whether walls can be built here."""
    return not sandbox_fault()


@cache
def _fault(search_path: str) -> str:
    if shutil.which(PROGRAM, path=search_path) is None:
        return "bubblewrap (bwrap) is not installed"
    if platform.machine() not in _MACHINES:
        return f"the system calls of {platform.machine()} are not known"
    try:
        ended = subprocess.run(  # noqa: S603
            argv_in(Sandbox(), ["true"], "/"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap (bwrap) does not work here: {error}"
    said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return (
        "" if ended.returncode == 0 else f"bubblewrap (bwrap) does not work here: {said[-1] if said else 'it failed'}"
    )
