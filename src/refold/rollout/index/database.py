"""Database: the index's file. It is made anew where it is damaged or older, and gone without where that fails.

Rule 1: one writer at a time, for a fraction of a second; nobody who only looks waits for it.
Rule 2: transcripts stand in it, so it is its owner's alone, and what is deleted is overwritten.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator
from pathlib import Path

FILE = "index.sqlite"  # in refold's home
VERSION = 1  # of what stands in it: one more with each change of Facts, File, Folder, Summary or Said
MARK = 0x7266_6C64  # the file is an index of refold's
PATIENCE = 2.0  # seconds to wait for another writer
COMPANIONS = ("", "-wal", "-shm", "-journal")
ROWS_OF_A_FILE = 32  # bits: rows of `texts` are numbered by file, then by text

SCHEMA = """
CREATE TABLE folders(path TEXT PRIMARY KEY, listing BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE files(
    key INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, facts BLOB NOT NULL, mark BLOB NOT NULL,
    offset INTEGER NOT NULL, lines INTEGER NOT NULL,
    texted INTEGER NOT NULL DEFAULT 0, texted_lines INTEGER NOT NULL DEFAULT 0
);
"""
TEXTS = "CREATE VIRTUAL TABLE texts USING fts5(body, ordinal UNINDEXED, kind UNINDEXED, tokenize='trigram')"
NO_FULL_TEXT = "this Python's sqlite3 has no full-text search (FTS5 with trigrams)"


def open_index(home: Path) -> sqlite3.Connection | None:
    """The index in a home; None where there can be none now: no right to write, a newer version's, a full disk.

    Raises nothing about the file; the home is made if it is not there.
    """
    path = home / FILE
    for attempt in range(2):
        try:
            return _opened(path)
        except sqlite3.OperationalError:  # the system says no, or another writer does not end
            return None
        except (sqlite3.DatabaseError, ValueError):  # damaged, or an older version's
            if attempt or not _removed(path):
                return None
        except OSError:
            return None
    return None


def forget(home: Path) -> None:
    """Remove a damaged index; the next one is made from the files."""
    _removed(home / FILE)


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Generator[None]:
    """A transaction: whole or not at all. Raises sqlite3.OperationalError where another writer does not end."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def reading(connection: sqlite3.Connection) -> Generator[None]:
    """A look at one moment of the index; inside of a transaction, at what that holds."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


def text_fault(connection: sqlite3.Connection) -> str | None:
    """Why transcripts cannot be searched here; None when they can. Their table is made when it is first asked for."""
    try:
        if not holds_texts(connection):
            with writing(connection):
                connection.execute(TEXTS.replace("TABLE", "TABLE IF NOT EXISTS"))
        connection.execute("SELECT rowid FROM texts WHERE texts MATCH '\"abc\"' LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        return NO_FULL_TEXT if "no such" in str(error) else f"the index cannot be written now: {error}"
    return None


def holds_texts(connection: sqlite3.Connection) -> bool:
    """Whether there is a table of transcripts."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'texts'").fetchone() is not None


def rows_of(key: int) -> tuple[int, int]:
    """The first and the last number that rows of a file's texts may have."""
    return key << ROWS_OF_A_FILE, ((key + 1) << ROWS_OF_A_FILE) - 1


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # sqlite's own files take its mode over
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        if _version(connection) == 0:
            with writing(connection):
                if _version(connection) == 0:  # else another process was quicker
                    _make(connection)
        if _version(connection) > VERSION:
            raise sqlite3.OperationalError("a newer version's")
        if _version(connection) < VERSION or _number(connection, "application_id") != MARK:
            raise ValueError("not an index of this version")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise ValueError("not an index")
    for statement in SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {MARK}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return _number(connection, "user_version")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _removed(path: Path) -> bool:
    try:
        for ending in COMPANIONS:
            path.with_name(path.name + ending).unlink(missing_ok=True)
    except OSError:
        return False
    return True
