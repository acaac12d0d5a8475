"""Tree: the rollout files under a home as they lie there now, by stats alone.

A folder whose own time did not change since it was listed holds the same names: it is not listed again. Appending to a
file changes the file's time and size only, so each file is asked for its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from refold.rollout.blobs import SUFFIX
from refold.rollout.file_name import NAME
from refold.rollout.index.summary import Summary

FOLDERS = ("sessions", "archived_sessions")  # of a home
BEGINNING = "rollout-"
SETTLED = 2_000_000_000  # ns after a change of a folder; before that, another may hide in the same tick of its clock


class Root(msgspec.Struct, frozen=True):
    """A folder of rollouts."""

    path: str
    own: bool
    archived: bool


class File(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it was when it was read; `key` is its number in the index, 0 where it is not stored."""

    name: str
    mtime: int  # ns
    size: int  # bytes
    inode: int
    key: int
    summary: Summary


class Folder(msgspec.Struct, frozen=True, array_like=True):
    """A folder as it was when its names were listed, at `looked`; times in ns."""

    mtime: int
    inode: int
    looked: int
    folders: list[str]
    files: list[File]


class Place(msgspec.Struct, frozen=True):
    """A folder as it lies there; times in ns. Its files are those with a rollout's name."""

    path: str
    mtime: int
    inode: int
    looked: int
    folders: list[str]
    same: list[File]  # as they are known
    changed: dict[str, os.stat_result]  # by name; or new


def roots(homes: list[tuple[str, bool]]) -> list[Root]:
    """The folders of rollouts under (home, own); the order in which the same file counts."""
    return [Root(f"{home}/{folder}", own, folder != FOLDERS[0]) for home, own in homes for folder in FOLDERS]


def walk(path: str, known: Mapping[str, Folder] | None = None) -> Iterator[Place]:
    """Every folder from this one down; what cannot be read is left out. Folders that are links are not followed."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        place = _place(path, folder, (known or {}).get(path))
    except OSError:
        return
    finally:
        os.close(folder)
    yield place
    for name in place.folders:
        yield from walk(f"{path}/{name}", known)


def names(path: str) -> Iterator[tuple[str, str]]:
    """(folder, name) of every rollout from a folder down, in order, without asking for more."""
    try:
        with os.scandir(path) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError:
        return
    for name, is_folder in found:
        if name.startswith(BEGINNING) and NAME.fullmatch(name):
            yield path, name
        elif is_folder and not name.endswith(SUFFIX):
            yield from names(f"{path}/{name}")


def _place(path: str, folder: int, known: Folder | None) -> Place:
    about = os.fstat(folder)
    looked = time.time_ns()
    files: Iterable[str]
    if known is not None and (known.mtime, known.inode) == (about.st_mtime_ns, about.st_ino) and _is_settled(known):
        looked, folders, files = known.looked, known.folders, [file.name for file in known.files]
    else:
        folders, files = _listed(folder)
    same, changed = _stats(folder, files, known.files if known is not None else [])
    return Place(path, about.st_mtime_ns, about.st_ino, looked, folders, same, changed)


def _is_settled(known: Folder) -> bool:
    return known.looked - known.mtime > SETTLED


def _listed(folder: int) -> tuple[list[str], list[str]]:
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(BEGINNING) and NAME.fullmatch(entry.name):
                files.append(entry.name)
            elif entry.is_dir(follow_symlinks=False) and not entry.name.endswith(SUFFIX):
                folders.append(entry.name)
    return sorted(folders), sorted(files)


def _stats(folder: int, names: Iterable[str], known: list[File]) -> tuple[list[File], dict[str, os.stat_result]]:
    """The files that are as they were known, and the others. Most of a list's time goes here."""
    stat, files = os.stat, {file.name: file for file in known}
    same: list[File] = []
    changed: dict[str, os.stat_result] = {}
    for name in names:
        try:
            about = stat(name, dir_fd=folder)
        except OSError:  # it vanished, or is a link to nowhere
            continue
        file = files.get(name)
        if (
            file is not None
            and file.mtime == about.st_mtime_ns
            and file.size == about.st_size
            and file.inode == about.st_ino
        ):
            same.append(file)
        else:
            changed[name] = about
    return same, changed
