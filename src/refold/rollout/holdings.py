"""Holdings: the files that a home holds, which of them need each other, and how one is put away, brought back, deleted.

Rule 1: only the own home is changed. Rule 2: never a file that somebody writes.
Rule 3: a file that others go on from stays, unless they go with it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from refold.core.jsonio import dump
from refold.core.records import SessionStarted
from refold.errors import RolloutError, RolloutNotFound
from refold.rollout.blobs import folder_of
from refold.rollout.catalogue import Catalogue
from refold.rollout.compressed import COMPRESSED, PART, aside_of
from refold.rollout.disk import Disk
from refold.rollout.file_name import DAMAGED, day_in, id_in
from refold.rollout.index.names import NAMES, given_by, given_in
from refold.rollout.lineage import base_of
from refold.rollout.owner import held
from refold.rollout.reader import read_lines

SESSIONS, ARCHIVED = "sessions", "archived_sessions"  # of a home; the second has no folders of days
NOT_OURS = "only its own program may move or delete it; refold fork makes a session of refold's own from it"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What the first line of a file says of whose it is, and what it came from."""

    id: str
    path: Path
    forked_from: str | None = None
    goes_on_from: str | None = None  # the session whose file it cannot be read without (`history_base`)


class Child(msgspec.Struct, frozen=True):
    """A session that came from another one. `needs`: it goes on from the other's file; else it holds all itself."""

    id: str
    path: Path
    needs: bool


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be deleted: its rollouts, all that goes, its size in bytes, and the forks that stay."""

    id: str
    rollouts: tuple[Path, ...]
    files: tuple[Path, ...]  # and folders
    size: int
    written: float  # seconds since 1970
    children: tuple[Child, ...]


# --- who is there --------------------------------------------------------------------------------------------------


def heads(home: Path) -> list[Head]:
    """The head of each rollout in a home; of one that cannot be read, what its name says."""
    return [_head(thread_id, path) for thread_id, path, own in Catalogue(home).paths() if own]


def children_of(home: Path, thread_id: str, among: Sequence[Head] | None = None) -> list[Child]:
    """The sessions in a home that came from one; `among`: its heads, where they were read already."""
    found: dict[str, Child] = {}
    for head in heads(home) if among is None else among:
        needs = head.goes_on_from == thread_id
        if head.id != thread_id and (needs or head.forked_from == thread_id):
            before = found.get(head.id)
            found[head.id] = Child(head.id, head.path, needs or (before is not None and before.needs))
    return list(found.values())


def rollouts_of(home: Path, thread_id: str, among: Sequence[Head] | None = None) -> list[Path]:
    """The files of a session: usually one; after a revert of the real program several."""
    return [head.path for head in (heads(home) if among is None else among) if head.id == thread_id]


def id_of(path: Path) -> str:
    """The session that a file holds, by its first line, else by its name. Raises RolloutNotFound."""
    head = _head(id_in(path.name) or "", path)
    if not head.id:
        raise RolloutNotFound(f"{path} is not a rollout: no session_meta line in it")
    return head.id


def is_archived(path: Path) -> bool:
    """Whether a file lies in the folder of archived sessions."""
    return path.parent.name == ARCHIVED


def _head(thread_id: str, path: Path) -> Head:
    try:
        for line in read_lines(path, head=1):
            if isinstance(line.record, SessionStarted):
                base = base_of(line.record)
                return Head(
                    id=line.record.thread_id,
                    path=path,
                    forked_from=line.record.forked_from,
                    goes_on_from=base.thread_id if base else None,
                )
    except RolloutError:
        pass
    return Head(id=thread_id, path=path)


# --- putting away --------------------------------------------------------------------------------------------------


def archive(home: Path, path: Path) -> Path | None:
    """Move a file of the home into `archived_sessions`: where it lies now; None where it lay there already.

    Raises RolloutLocked while somebody writes it; RolloutError for another home, or where a file has its name.
    """
    return None if is_archived(path) else _moved(home, path, home / ARCHIVED)


def unarchive(home: Path, path: Path) -> Path | None:
    """Move a file back to the folder of its day: where it lies now; None where it is not archived. Raises as above."""
    if not is_archived(path):
        return None
    return _moved(home, path, home.joinpath(SESSIONS, *day_in(path.name)))


def _moved(home: Path, path: Path, folder: Path) -> Path:
    _check_own(home, path)
    target, disk = folder / path.name, Disk()
    with held(path):
        if target.exists():
            raise RolloutError(f"{target} is there already: {path} stays where it is; look at both (refold show PATH)")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for one in (*beside(path), path):  # the session last: until then it can be done again
                _move(one, folder / one.name, disk)
            for changed in (folder, path.parent):
                disk.sync_folder(changed)
        except OSError as error:
            raise RolloutError(f"{path} cannot be moved to {folder}: {error.strerror}") from None
    _without_empty_folders(home, path.parent)
    return target


def _move(path: Path, target: Path, disk: Disk) -> None:
    """Give a file or a folder another name, also on another file system. Raises OSError."""
    try:
        path.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        move_by_copy(path, target, disk)


def move_by_copy(path: Path, target: Path, disk: Disk) -> None:
    """The same where a name alone will not do: whole and synced in the new place before it leaves the old one."""
    aside = aside_of(target)
    try:
        if path.is_dir():
            shutil.copytree(path, aside)
        else:
            shutil.copy2(path, aside)
        for file in (one for one in (aside, *aside.rglob("*")) if one.is_file()):
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                disk.sync(fd)
            finally:
                os.close(fd)
        aside.rename(target)
        disk.sync_folder(target.parent)
    finally:
        _remove(aside)
    _remove(path)


def _check_own(home: Path, path: Path) -> None:
    if not path.resolve().is_relative_to(home.resolve()):
        raise RolloutError(f"{path} is not in refold's home ({home}): {NOT_OURS}")


def _without_empty_folders(home: Path, folder: Path) -> None:
    """Remove the folders of days on which no session is left."""
    with contextlib.suppress(OSError):
        while folder.parent != home and folder.is_relative_to(home / SESSIONS):
            folder.rmdir()
            folder = folder.parent


# --- deleting ------------------------------------------------------------------------------------------------------


def deletion(home: Path, thread_ids: Iterable[str], *, with_children: bool = False) -> list[Going]:
    """What would go with sessions of a home. `with_children`: also those, and theirs, that could not be read without.

    Raises RolloutError where such children would be left; RolloutNotFound for a session that is not in this home.
    """
    among, going = heads(home), dict.fromkeys(thread_ids)
    queue = list(going)
    for thread_id in queue:
        needing = _needing(home, thread_id, among, going)
        if needing and not with_children:
            why = f"{_counted(needing)} on from its file and could not be read without it"
            raise RolloutError(f"{thread_id}: {why}; delete them with it (--with-children), or keep it")
        going.update(dict.fromkeys(needing))
        queue += needing
    return [_going(home, thread_id, among, going) for thread_id in going]


def prunable(home: Path, before: float, *, only_archived: bool = False) -> tuple[list[Going], dict[str, str]]:
    """The sessions of a home that were last written before a time (seconds since 1970), and may go.

    And those that stay although they are old: id → why (somebody writes it, or younger sessions go on from it).
    """
    among = heads(home)
    files: dict[str, list[Path]] = {}
    for head in among:
        files.setdefault(head.id, []).append(head.path)
    old = {one for one, paths in files.items() if all(_is_old(path, before, only_archived) for path in paths)}
    stays = {one: why for one in old if (why := _writer(files[one]))}
    old -= stays.keys()
    while kept := {one: needing for one in old if (needing := _needing(home, one, among, old))}:
        stays.update({one: f"{_counted(needing)} on from its file" for one, needing in kept.items()})
        old -= kept.keys()
    return [_going(home, one, among, old) for one in files if one in old], stays


def delete(home: Path, going: Going) -> int:
    """Remove a session: bytes that are free now. Raises RolloutLocked with all of it left; RolloutError."""
    with contextlib.ExitStack() as locks:
        for path in going.rollouts:
            _check_own(home, path)
            locks.enter_context(held(path))
        for path in going.files:
            try:
                _remove(path)
            except OSError as error:
                raise RolloutError(f"{path} cannot be deleted: {error.strerror}") from None
    for folder in {path.parent for path in going.rollouts}:
        _without_empty_folders(home, folder)
    return going.size


def beside(path: Path) -> list[Path]:
    """What else belongs to a rollout, and is moved and deleted with it: its compressed copy, its long texts (blobs),
    what a repair kept of it, what was left half made."""
    plain = path.name.removesuffix(COMPRESSED)
    copies = [path.with_name(plain + COMPRESSED)] if path.name == plain else []
    more = (one for end in (f".*{PART}", f"{DAMAGED}*") for one in path.parent.glob(glob.escape(plain) + end))
    return [one for one in (*copies, folder_of(path), *sorted(more)) if one.exists()]


def _going(home: Path, thread_id: str, among: Sequence[Head], all_going: Collection[str]) -> Going:
    rollouts = rollouts_of(home, thread_id, among)
    if not rollouts:
        raise RolloutNotFound(f"no session {thread_id!r} in {home}")
    files = [one for path in rollouts for one in (path, *beside(path))]
    return Going(
        id=thread_id,
        rollouts=tuple(rollouts),
        files=tuple(files),
        size=sum(_size(path) for path in files),
        written=max(_written(path) for path in rollouts),
        children=tuple(child for child in children_of(home, thread_id, among) if child.id not in all_going),
    )


def _needing(home: Path, thread_id: str, among: Sequence[Head], going: Collection[str]) -> list[str]:
    return [child.id for child in children_of(home, thread_id, among) if child.needs and child.id not in going]


def _counted(ids: Sequence[str]) -> str:
    return f"{len(ids)} sessions ({', '.join(ids)}) go" if len(ids) > 1 else f"the session {ids[0]} goes"


def _writer(paths: Iterable[Path]) -> str | None:
    """Why files cannot go now: somebody writes one."""
    for path in paths:
        try:
            with held(path):
                pass
        except RolloutError as error:
            return str(error)
    return None


def _is_old(path: Path, before: float, only_archived: bool) -> bool:
    return _written(path) < before and (is_archived(path) or not only_archived)


def _written(path: Path) -> float:
    """When a file was last written; never for one that vanished: it is nobody's oldest."""
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")


def _size(path: Path) -> int:
    """Bytes of a file, or of all in a folder."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        return path.stat().st_size
    return 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# --- names ---------------------------------------------------------------------------------------------------------


def note_name(home: Path, thread_id: str, name: str, timestamp: str) -> None:
    """Say in a home's list of names what a session is called, for the real program. Raises OSError."""
    line = dump({"id": thread_id, "thread_name": name, "updated_at": timestamp}) + b"\n"
    fd = os.open(home / NAMES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, line)
    finally:
        os.close(fd)


def forget_names(home: Path, thread_ids: Collection[str]) -> None:
    """Take what sessions were called out of a home's list of names. Raises OSError."""
    try:
        fd = os.open(home / NAMES, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(fd, "r+b") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        lines = file.readlines()
        kept = [raw for raw in lines if (told := given_by(raw)) is None or told[0] not in thread_ids]
        if len(kept) < len(lines):
            file.seek(0)
            file.writelines(kept)
            file.truncate()


def names_in(home: Path) -> dict[str, str]:
    """What the sessions of a home are called, by its list of names: the newest line counts; a log may know better."""
    return {thread_id: name for thread_id, (name, _) in given_in(home)}
