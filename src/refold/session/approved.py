"""Approved: what a person allowed for good, remembered in `approved.json`, and what that covers.

Rule 1: an approval is for words and for the file that the first word means, in one workspace; each part of a command
        has to be covered by itself.
Rule 2: what does not stand in a command's words is not covered: piped input, what is typed later.
Rule 3: a program in a folder that commands can write is covered by nothing: it may be another one by now.
Rule 4: what leaves the sandbox obeys no repository that a command may have made: git is covered in the workspace's own.
Rule 5: a file that cannot be understood approves nothing and is not written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from refold.core.permissions import CommandAsked
from refold.core.plain_command import BUILTINS, Part, parts_of, prefix_of, reads_only, understood

FILE = "approved.json"
OBEYS_REPOSITORY = ("git", "gh")  # its settings and hooks run programs


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file: every command in `workspace` that begins with `words`, where `program` is what runs.

    `outside`: also without a sandbox.
    """

    words: tuple[str, ...]
    program: str  # the file that the first word meant, symlinks resolved
    workspace: str
    outside: bool = False


class Place(NamedTuple):
    """Where a command is asked for: the workspace, where its shell looks for programs, what commands can write.

    `leaving`: it asks to run outside a sandbox that is there. Then reading is no small thing: keys are hidden inside.
    """

    workspace: str
    search_path: str
    writable: tuple[str, ...]
    leaving: bool = False


class Damaged(Exception):
    """The file is there and cannot be understood."""


class _File(msgspec.Struct, frozen=True):
    approved: tuple[Approval, ...] = ()


# --- the file ------------------------------------------------------------------------------------------------


def read_approvals(home: Path) -> tuple[Approval, ...]:
    """What was allowed for good. Raises Damaged."""
    try:
        return msgspec.json.decode((home / FILE).read_bytes(), type=_File).approved
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        raise Damaged(f"{home / FILE} approves nothing: {error}; mend it or remove it") from error


def prefixes_in(approvals: Sequence[Approval], workspace: str) -> tuple[tuple[str, ...], ...]:
    """The words with which commands begin that were allowed for good in a workspace, in the order of the file."""
    real = os.path.realpath(workspace)
    return tuple(dict.fromkeys(approval.words for approval in approvals if approval.workspace == real))


def remember(home: Path, *new: Approval) -> None:
    """Add to what was allowed for good. Raises Damaged, OSError."""
    import tempfile  # only here, and slow to import

    approvals = tuple(dict.fromkeys((*read_approvals(home), *new)))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{FILE}.", dir=home)  # readable by nobody else
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_File(approvals)), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(home / FILE)
    finally:
        beside.unlink(missing_ok=True)


# --- what it covers ------------------------------------------------------------------------------------------


def plain_parts(asked: CommandAsked) -> tuple[Part, ...] | None:
    """The parts of a command whose every word is known; None for any other."""
    return parts_of(asked.command) if understood(asked.shell) else None


def is_harmless(parts: Sequence[Part], place: Place) -> bool:
    """Whether every part is known to do no more than read."""
    return all(_reads(part, place) for part in parts)


def covers(
    approvals: Sequence[Approval], asked: CommandAsked, parts: Sequence[Part], place: Place, *, outside: bool
) -> bool:
    """Whether a command was allowed for good, for where it would run."""
    return all(
        _needs_none(part, place) or any(_covers(approval, asked, part, place, outside) for approval in approvals)
        for part in parts
    )


def offered(asked: CommandAsked, parts: Sequence[Part] | None, place: Place, *, outside: bool) -> Approval | None:
    """What a person may allow for good so that this command is covered; None when nothing can be.

    One approval: where two parts of a command would each need one, the command is asked each time.
    """
    rest = [part for part in parts or () if not _needs_none(part, place)]
    prefixes = {prefix_of(part.words) for part in rest}
    if len(prefixes) != 1 or () in prefixes:
        return None
    approval = Approval(
        words=prefixes.pop(),
        program=_program(rest[0].words[0], asked.cwd, place) or "",
        workspace=os.path.realpath(place.workspace),
        outside=outside,
    )
    return approval if approval.program and covers((approval,), asked, parts or (), place, outside=outside) else None


def _reads(part: Part, place: Place) -> bool:
    name = part.words[0]
    return reads_only(part.words) and (name in BUILTINS or _found(name, place, strict=False) is not None)


def _needs_none(part: Part, place: Place) -> bool:
    return part.words[0] in BUILTINS if place.leaving else _reads(part, place)


def _covers(approval: Approval, asked: CommandAsked, part: Part, place: Place, outside: bool) -> bool:
    return (
        prefix_of(part.words) == approval.words
        and not (part.piped or asked.interactive)
        and (approval.outside or not outside)
        and approval.workspace == os.path.realpath(place.workspace)
        and _inside(asked.cwd, place.workspace)
        and not (place.leaving and _obeys_another(part.words[0], asked.cwd, place.workspace))
        and approval.program == _program(part.words[0], asked.cwd, place)
    )


def _obeys_another(program: str, cwd: str, workspace: str) -> bool:
    """Whether it would obey a repository other than the workspace's own, which the sandbox guards."""
    real = os.path.realpath(cwd)
    own = real == os.path.realpath(workspace) and os.path.exists(Path(real, ".git"))  # noqa: PTH110 - never raises
    return not own and program.rpartition("/")[2] in OBEYS_REPOSITORY


# --- which file a word means ---------------------------------------------------------------------------------


def _program(word: str, cwd: str, place: Place) -> str | None:
    """The file that a first word means, symlinks resolved; None when there is none, or when commands can change it."""
    if "/" not in word:
        return _found(word, place, strict=True)
    path = str(Path(cwd, word))
    return _unchanging(path, place)


def _found(word: str, place: Place, *, strict: bool) -> str | None:
    """The file that the shell finds. `strict`: and no command can put another one before it."""
    for folder in place.search_path.split(":"):
        if not folder.startswith("/") or (strict and _changeable(folder, place)):
            return None  # another file in another folder, or at another time
        path = str(Path(folder, word))
        if _runs(path):
            return _unchanging(path, place)
    return None


def _unchanging(path: str, place: Place) -> str | None:
    changeable = _changeable(path, place) or _changeable(str(Path(path).parent), place)
    return os.path.realpath(path) if _runs(path) and not changeable else None


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113 - never raises


def _changeable(path: str, place: Place) -> bool:
    return any(_inside(path, folder) for folder in (*place.writable, place.workspace))


def _inside(path: str, folder: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
