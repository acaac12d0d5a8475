"""Listing: every session under some homes, from the index where files are as they were, read where they are not.

Rule 1: what is listed is what lies there now: each file is asked for its time, size and number.
Rule 2: what was read is stored in short transactions; where another process has read it meanwhile, that is taken.
Rule 3: where nothing can be stored, the same is found, and found again the next time.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from refold.rollout.index import tree
from refold.rollout.index.database import holds_texts, reading, rows_of, writing
from refold.rollout.index.reading import Known, Reading, read_on
from refold.rollout.index.summary import summed_up
from refold.rollout.index.tree import File, Folder

BATCH_SECONDS = 0.25  # that others wait to write, and of which an interrupt loses the work


class Step(msgspec.Struct, frozen=True):
    """How far the reading of what is new has come."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int


class _New(msgspec.Struct, frozen=True):
    """A file that has to be read."""

    root: tree.Root
    folder: str
    name: str
    about: os.stat_result

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    @property
    def state(self) -> tuple[int, int, int]:
        return self.about.st_mtime_ns, self.about.st_size, self.about.st_ino


_folder = msgspec.msgpack.Decoder(Folder).decode
_packed = msgspec.msgpack.Encoder().encode


class Listing:
    """Mutable: it learns of files as they are read. `steps` has to be run through before `files` are all.

    Raises sqlite3.DatabaseError, msgspec.DecodeError for a damaged index.
    """

    def __init__(self, connection: sqlite3.Connection, roots: list[tree.Root]) -> None:
        self._connection = connection
        self._roots = roots
        self._stored: dict[str, Folder] = {}
        self._version = 0
        self._found: dict[str, dict[str, File]] = {}  # folder → name → file
        self._new: list[_New] = []
        self._gone: dict[str, File] = {}  # by path
        self._read: dict[str, File] = {}  # in this run, by path
        self._can_store = True
        self._load()
        self._places = [(root, place) for root in roots for place in tree.walk(root.path, self._stored)]
        self._compare()

    # --- what is there -------------------------------------------------------------------------------------------

    def files(self) -> list[File]:
        """Each session's file; a plain one wins over its compressed copy in the same home."""
        found: list[File] = []
        seen: set[tuple[str, str]] = set()
        for root, place in self._places:
            home = root.path.rpartition("/")[0]
            for file in sorted(self._found[place.path].values(), key=lambda one: one.name):
                plain = (home, file.name.removesuffix(".zst"))
                if plain not in seen:
                    seen.add(plain)
                    found.append(file)
        return found

    def steps(self) -> Iterator[Step]:
        """Read what is new or changed, newest first."""
        files, size = len(self._new), sum(new.about.st_size for new in self._new)
        if not (self._new or self._gone or self._unstored()):
            return
        while True:
            self._batch()
            left = sum(new.about.st_size for new in self._new)
            yield Step(files - len(self._new), files, size - left, size)
            if not self._new:
                return

    # --- comparing ------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """What is stored, as of one moment."""
        with reading(self._connection):
            rows = self._connection.execute("SELECT path, listing FROM folders").fetchall()
            self._version = self._data_version()
        self._stored = {path: _folder(listing) for path, listing in rows if self._is_ours(path)}

    def _is_ours(self, path: str) -> bool:
        """Whether a folder is one of those that are listed; or of a home that is not there any more."""
        if any(path == root.path or path.startswith(f"{root.path}/") for root in self._roots):
            return True
        return not os.path.lexists(path)

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _compare(self) -> None:
        """Tell apart what is known, what is new, and what is gone."""
        self._new = []
        self._gone = {}
        for root, place in self._places:
            stored = self._stored.get(place.path)
            known = {file.name: file for file in stored.files} if stored is not None else {}
            kept = self._found[place.path] = {file.name: file for file in place.same}
            for name, about in place.changed.items():
                new = _New(root, place.path, name, about)
                file = known.get(name)  # another process may have read it meanwhile
                if file is None or (file.mtime, file.size, file.inode) != new.state:
                    file = self._read.get(new.path)
                if file is not None:
                    kept[name] = file
                else:
                    self._new.append(new)
            gone = known.keys() - kept.keys() - place.changed.keys()
            self._gone |= {f"{place.path}/{name}": known[name] for name in gone}
        there = {place.path for _, place in self._places}
        for path in self._stored.keys() - there:
            self._gone |= {f"{path}/{file.name}": file for file in self._stored[path].files}
        self._new.sort(key=lambda new: new.about.st_mtime)  # taken from the end

    def _unstored(self) -> bool:
        """Whether a folder is known better than it is stored."""
        return bool(self._changed_folders() or self._stored.keys() - self._found.keys())

    def _changed_folders(self) -> list[tree.Place]:
        found: list[tree.Place] = []
        for _, place in self._places:
            stored = self._stored.get(place.path)
            same = stored and (stored.mtime, stored.inode) == (place.mtime, place.inode)
            settled = place.looked - place.mtime > tree.SETTLED
            if not stored or not same or (settled and stored.looked != place.looked):
                found.append(place)
        return found

    # --- reading --------------------------------------------------------------------------------------------------

    def _batch(self) -> None:
        """As much as may be kept from others at once; all that is left where nothing can be stored."""
        if self._can_store:
            try:
                with writing(self._connection):
                    self._store_some()
                return
            except sqlite3.OperationalError:  # a full disk, a writer that does not end
                if self._data_version() != self._version:  # but goes on: what it has stored need not be read here
                    self._load()
                    self._compare()
                    return
                self._can_store = False
                for path in self._read:
                    folder, _, name = path.rpartition("/")
                    self._found[folder][name] = replace(self._found[folder][name], key=0)
        self._gone = {}
        self._read_some(stored=False)

    def _store_some(self) -> None:
        if self._data_version() != self._version:
            self._load()
            self._compare()
        changed = {place.path for place in self._changed_folders()}
        changed |= {path.rpartition("/")[0] for path in self._gone}
        changed |= self._move()
        self._forget()
        changed |= self._read_some(stored=True)
        self._store(changed)

    def _read_some(self, *, stored: bool) -> set[str]:
        """Read for a while; the folders in which something was."""
        until = time.monotonic() + BATCH_SECONDS
        folders: set[str] = set()
        while self._new:
            new = self._new.pop()
            self._take(new, self._read_one(new, stored=stored))
            folders.add(new.folder)
            if time.monotonic() > until:
                break
        return folders

    def _take(self, new: _New, file: File) -> None:
        self._read[new.path] = self._found[new.folder][new.name] = file

    def _read_one(self, new: _New, *, stored: bool) -> File:
        row = None
        if stored:
            query = "SELECT key, facts, mark, offset, lines FROM files WHERE path = ?"
            row = self._connection.execute(query, (new.path,)).fetchone()
        found = read_on(Path(new.path), Known(*row[1:]) if row else None)
        key = self._store_one(new.path, row[0] if row else None, found) if stored else 0
        matched = tree.NAME.match(new.name)
        summary = summed_up(
            found.facts,
            matched["id"] if matched else new.name,
            new.path,
            new.about,
            own=new.root.own,
            archived=new.root.archived,
        )
        return File(new.name, *new.state, key, summary)

    # --- storing --------------------------------------------------------------------------------------------------

    def _store_one(self, path: str, key: int | None, found: Reading) -> int:
        known = (found.known.facts, found.known.mark, found.known.offset, found.known.lines)
        if key is None:
            query = "INSERT INTO files(path, facts, mark, offset, lines) VALUES (?, ?, ?, ?, ?)"
            stored = self._connection.execute(query, (path, *known)).lastrowid
            assert stored is not None
            return stored
        query = "UPDATE files SET facts = ?, mark = ?, offset = ?, lines = ? WHERE key = ?"
        self._connection.execute(query, (*known, key))
        if not found.is_more:
            self._connection.execute("UPDATE files SET texted = 0, texted_lines = 0 WHERE key = ?", (key,))
            self._drop_texts(key)
        return key

    def _move(self) -> set[str]:
        """Let new files that are only in another place be known; the folders they are in."""
        gone = {(file.mtime, file.size, file.inode): (path, file) for path, file in self._gone.items() if file.key}
        folders: set[str] = set()
        left: list[_New] = []
        for new in self._new:
            path, file = gone.pop(new.state, ("", None))
            if file is None or file.summary.problem or file.name != new.name:
                left.append(new)
                continue
            del self._gone[path]
            self._drop(new.path)
            self._connection.execute("UPDATE files SET path = ? WHERE key = ?", (new.path, file.key))
            told = replace(file.summary, file=new.path, own=new.root.own, archived=new.root.archived)
            self._take(new, replace(file, summary=told))
            folders.add(new.folder)
        self._new = left
        return folders

    def _forget(self) -> None:
        """Remove what is not there any more."""
        for path in self._gone:
            self._drop(path)
        for path in self._stored.keys() - self._found.keys():
            self._connection.execute("DELETE FROM folders WHERE path = ?", (path,))
            del self._stored[path]
        self._gone = {}

    def _store(self, changed: set[str]) -> None:
        """The folders in which something changed; one that is not read to its end is to be looked at again."""
        unread = {new.folder for new in self._new}
        for _, place in self._places:
            if place.path in changed:
                looked = 0 if place.path in unread else place.looked
                files = list(self._found[place.path].values())
                folder = Folder(place.mtime, place.inode, looked, place.folders, files)
                query = "INSERT OR REPLACE INTO folders(path, listing) VALUES (?, ?)"
                self._connection.execute(query, (place.path, _packed(folder)))
                self._stored[place.path] = folder

    def _drop(self, path: str) -> None:
        row = self._connection.execute("SELECT key FROM files WHERE path = ?", (path,)).fetchone()
        if row is not None:
            self._connection.execute("DELETE FROM files WHERE key = ?", (row[0],))
            self._drop_texts(row[0])

    def _drop_texts(self, key: int) -> None:
        if holds_texts(self._connection):
            self._connection.execute("DELETE FROM texts WHERE rowid BETWEEN ? AND ?", rows_of(key))
