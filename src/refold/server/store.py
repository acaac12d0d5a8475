"""ResponseStore: responses by id, in SQLite, so that a request may name the one that it goes on from.

A response holds the items of its own request and points at the one before it; where a compaction stands between, it
holds the window that began then instead. Rule 1: every question names a tenant; nobody is told of another's.
Rule 2: what is older than the retention is not there, and is deleted at the start and with the next writing; save what
a younger response goes on from: that stays, for this purpose only, as long as the younger one.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from refold.core.jsonio import dump
from refold.errors import ConfigError, RequestRefused
from refold.server.incoming import Given, read_items

VERSION = 1  # of the tables; a file of another version is not touched
BUSY_SECONDS = 10.0  # that another worker may hold the file
LONGEST_ID = 200  # characters of an id that an error repeats
LONGEST_CHAIN = 10_000  # responses; no conversation is longer without a compaction
SWEEP_SECONDS = 60.0  # between two deletions of what is too old

_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL,
    previous TEXT, input BLOB NOT NULL, output BLOB NOT NULL, is_window INTEGER NOT NULL, document BLOB NOT NULL,
    PRIMARY KEY (tenant, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created);
CREATE INDEX IF NOT EXISTS responses_by_previous ON responses (tenant, previous, created);
"""
# Of what is too old: all but what leads to something young. It looks at old ones only, whatever else is there.
_SWEEP = """
WITH RECURSIVE needed (tenant, id) AS (
    SELECT old.tenant, old.id FROM responses AS old WHERE old.created < :limit AND EXISTS (
        SELECT 1 FROM responses AS young INDEXED BY responses_by_previous
        WHERE young.tenant = old.tenant AND young.previous = old.id AND young.created >= :limit)
    UNION
    SELECT one.tenant, one.previous FROM needed JOIN responses AS one USING (tenant, id)
    WHERE one.previous IS NOT NULL)
DELETE FROM responses WHERE created < :limit AND (tenant, id) NOT IN needed
"""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A response to keep: `items` of its request (with `is_window`: all that it goes on from) and of its output, as
    JSON lists; `document` as a client may get it."""

    id: str
    previous: str | None
    items: bytes
    output: bytes
    document: bytes
    is_window: bool = False


def list_of(items: Sequence[Given]) -> bytes:
    """Items as they are stored."""
    return b"[" + b",".join(given.raw for given in items) + b"]"


class ResponseStore:
    """The responses of all tenants. Mutable: it holds a connection, used by one thread at a time."""

    def __init__(self, path: str | None, retention_days: float) -> None:
        """`path` None: in memory. Raises ConfigError for a file that cannot be one."""
        self._seconds = retention_days * 86_400
        self._lock = threading.Lock()
        self._swept = 0.0
        self._db = _opened(path)
        try:
            self._sweep(time.time())
        except sqlite3.Error as error:
            raise ConfigError("store", f"{path} cannot be used: {error}") from None

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    async def save(self, tenant: str, stored: Stored) -> None:
        """Keep a response; one of the same id is replaced. Nothing is written where nothing is to be kept."""
        if self._seconds > 0:
            await asyncio.to_thread(self._save, tenant, stored)

    async def document(self, tenant: str, response_id: str) -> bytes:
        """The response object. Raises RequestRefused (404)."""
        row = await asyncio.to_thread(self._row, tenant, response_id, "document", self._since())
        if row is None:
            raise _missing(response_id)
        return row[0]

    async def delete(self, tenant: str, response_id: str) -> None:
        """Raises RequestRefused (404) for one that is not there."""
        if not await asyncio.to_thread(self._delete, tenant, response_id):
            raise _missing(response_id)

    async def window(self, tenant: str, response_id: str) -> tuple[Given, ...]:
        """All items that the next request goes on from. Raises RequestRefused (400, `previous_response_not_found`)."""
        pieces = await asyncio.to_thread(self._window, tenant, response_id)
        return tuple(given for piece in pieces for given in read_items(piece))

    # --- in a thread ---

    def _close(self) -> None:
        with self._lock:
            self._db.close()

    def _save(self, tenant: str, stored: Stored) -> None:
        now = time.time()
        row = (tenant, stored.id, now, stored.previous, stored.items, stored.output, stored.is_window, stored.document)
        with self._lock:
            with self._db:
                self._db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if now - self._swept > SWEEP_SECONDS:
                with suppress(sqlite3.Error):  # this response is stored; the next one tries again
                    self._sweep(now)

    def _sweep(self, now: float) -> None:
        with self._db:
            gone = self._db.execute(_SWEEP, {"limit": now - self._seconds}).rowcount
        self._swept = now
        if gone:
            self._forget()

    def _forget(self) -> None:
        """Empty the log of writings, which still holds what was deleted; another worker that reads may put it off."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _row(self, tenant: str, response_id: str, columns: str, since: float = 0.0) -> tuple[bytes, ...] | None:
        with self._lock:
            query = f"SELECT {columns} FROM responses WHERE tenant = ? AND id = ? AND created >= ?"  # noqa: S608
            return self._db.execute(query, (tenant, response_id, since)).fetchone()

    def _since(self) -> float:
        """Seconds since 1970: what is older is not there."""
        return time.time() - self._seconds

    def _delete(self, tenant: str, response_id: str) -> bool:
        with self._lock:
            with self._db:
                query = "DELETE FROM responses WHERE tenant = ? AND id = ?"
                gone = self._db.execute(query, (tenant, response_id)).rowcount > 0
            if gone:
                self._forget()
            return gone

    def _window(self, tenant: str, response_id: str) -> list[bytes]:
        pieces: list[bytes] = []
        wanted, since = response_id, self._since()
        for _ in range(LONGEST_CHAIN):
            row = self._row(tenant, wanted, "input, output, is_window, previous", since)
            if row is None:
                break
            items, output, is_window, previous = row
            pieces += [output, items]
            if is_window or previous is None:
                return pieces[::-1]
            wanted, since = str(previous), 0.0  # what a young response goes on from may be old
        raise not_found(response_id)


def _opened(path: str | None) -> sqlite3.Connection:
    """A connection to a file with the tables. Raises ConfigError."""
    try:
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            Path(path).touch(mode=0o600)
        db = sqlite3.connect(path or ":memory:", timeout=BUSY_SECONDS, check_same_thread=False)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA secure_delete=ON")
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, VERSION):
            raise ConfigError("store", f"{path} is of version {found}, this refold writes {VERSION}: name another file")
        db.executescript(_TABLE)
        db.execute(f"PRAGMA user_version={VERSION}")
    except (sqlite3.Error, OSError) as error:
        raise ConfigError("store", f"{path} cannot be used: {error}") from None
    return db


def check(path: str | None) -> None:
    """Raises ConfigError for a file that cannot be a store: it is said before anything is listened for."""
    _opened(path).close()


def stored_output(output: Sequence[dict[str, object]]) -> bytes:
    """A response's output as it is stored."""
    return dump(list(output))


def not_found(response_id: str) -> RequestRefused:
    """The error of a `previous_response_id` that names nothing this tenant has."""
    return RequestRefused(
        f"Previous response with id '{response_id[:LONGEST_ID]}' not found.",
        code="previous_response_not_found",
        param="previous_response_id",
    )


def _missing(response_id: str) -> RequestRefused:
    return RequestRefused(f"Response with id '{response_id[:LONGEST_ID]}' not found.", status=404)
