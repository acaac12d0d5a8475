"""Search: transcripts, word for word: in the index, which is brought up to date first, or in the files themselves."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from refold.errors import RolloutError
from refold.rollout.index.database import ROWS_OF_A_FILE, writing
from refold.rollout.index.listing import BATCH_SECONDS, Step
from refold.rollout.index.needles import Needles
from refold.rollout.index.reading import lines_from
from refold.rollout.index.said import Said, said
from refold.rollout.index.summary import Summary
from refold.rollout.index.tree import File
from refold.rollout.index.whole import Whole
from refold.rollout.reader import damage, is_zstd, open_rollout


class Hit(msgspec.Struct, frozen=True):
    """A record that holds every word: its address, what it is, and the text around the first word."""

    address: str
    kind: str
    snippet: str


class Found(msgspec.Struct, frozen=True):
    """A session in which something was found: how many records, and the first of them."""

    summary: Summary
    count: int
    hits: tuple[Hit, ...]


class _Unread(msgspec.Struct, frozen=True):
    """A file of whose lines not all are in the index's texts."""

    key: int
    path: str
    offset: int  # bytes; that are read, of which so many are in the texts already
    texted: int
    lines: int  # before that


# --- in the index ----------------------------------------------------------------------------------------------------


def take_texts(connection: sqlite3.Connection, files: Iterable[File]) -> Iterator[Step]:
    """Bring the texts up to date. Raises sqlite3.OperationalError where that cannot be stored."""
    wanted = {file.key for file in files}
    query = "SELECT key, path, offset, texted, texted_lines FROM files WHERE texted < offset"
    left = [_Unread(*row) for row in connection.execute(query) if row[0] in wanted]
    count, size = len(left), sum(one.offset - one.texted for one in left)
    while left:
        until = time.monotonic() + BATCH_SECONDS
        with writing(connection):
            while left and time.monotonic() < until:
                if _take(connection, left[-1], until):
                    left.pop()
        rest = sum(one.offset - one.texted for one in left)
        yield Step(count - len(left), count, size - rest, size)


def _take(connection: sqlite3.Connection, file: _Unread, until: float) -> bool:
    """Take the texts of one file, as many as there is time for; whether that was all."""
    query = "SELECT key, path, offset, texted, texted_lines FROM files WHERE key = ?"
    row = connection.execute(query, (file.key,)).fetchone()
    if row is None:
        return True  # another process saw that it is gone
    now = _Unread(*row)
    rows: list[tuple[int, str, int, str]] = []
    offset, lines, whole = now.texted, now.lines, Whole(Path(now.path))
    try:
        packed = is_zstd(Path(now.path))  # it can only be read from its start
        with open_rollout(Path(now.path)) as opened:
            start = (0, 0) if packed else (offset, lines)
            for number, end, raw in lines_from(opened, *start, now.offset):
                offset, lines = end, number
                if (text := said(raw, number, whole)) is not None:
                    rows.append((now.key << ROWS_OF_A_FILE | number, text.body, _stored(text.ordinal), text.kind))
                if not packed and time.monotonic() > until:
                    break
            else:
                offset = now.offset
    except Exception as error:
        if not isinstance(error, RolloutError) and damage(Path(now.path), error, lines) is None:
            raise
        offset = now.offset  # its problem is listed
    connection.executemany("INSERT OR REPLACE INTO texts(rowid, body, ordinal, kind) VALUES (?, ?, ?, ?)", rows)
    connection.execute("UPDATE files SET texted = ?, texted_lines = ? WHERE key = ?", (offset, lines, now.key))
    return offset >= now.offset


def _stored(ordinal: int) -> int:
    return ordinal if -(1 << 63) <= ordinal < 1 << 63 else -1


def in_index(
    connection: sqlite3.Connection, sessions: Iterable[tuple[int, Summary]], needles: Needles, *, limit: int, hits: int
) -> list[Found]:
    """Of sessions with their numbers in the index, those in which something is found, at most `limit`."""
    rows: dict[int, list[int]] = defaultdict(list)
    for (row,) in connection.execute(*_query(needles)):
        rows[row >> ROWS_OF_A_FILE].append(row)
    found: list[Found] = []
    for key, summary in sessions:
        if len(found) == limit:
            break
        if key in rows:
            shown = [_hit(connection, row, summary, needles) for row in sorted(rows[key])[:hits]]
            found.append(Found(summary, len(rows[key]), tuple(shown)))
    return found


def _query(needles: Needles) -> tuple[str, list[str]]:
    """Short words are not in the index: the texts that are left by the others are looked through."""
    conditions = ["texts MATCH ?"] if needles.indexed else []
    conditions += ["body LIKE ? ESCAPE '^'" for _ in needles.patterns]
    values = ([needles.indexed] if needles.indexed else []) + needles.patterns
    return f"SELECT rowid FROM texts WHERE {' AND '.join(conditions)}", values  # noqa: S608 (made of constants)


def _hit(connection: sqlite3.Connection, row: int, summary: Summary, needles: Needles) -> Hit:
    query = "SELECT body, ordinal, kind FROM texts WHERE rowid = ?"
    body, ordinal, kind = connection.execute(query, (row,)).fetchone()
    return Hit(f"{summary.id}:{ordinal}", kind, needles.snippet(body))


# --- in the files ----------------------------------------------------------------------------------------------------


def in_files(sessions: Iterable[Summary], needles: Needles, *, limit: int, hits: int) -> Iterator[Found]:
    """The same without an index: file by file, until enough is found."""
    for summary in sessions:
        if limit == 0:
            return
        texts = [text for text in texts_of(summary.path) if needles.stand_in(text.body)]
        if texts:
            shown = [Hit(f"{summary.id}:{one.ordinal}", one.kind, needles.snippet(one.body)) for one in texts[:hits]]
            yield Found(summary, len(texts), tuple(shown))
            limit -= 1


def texts_of(path: Path) -> Iterator[Said]:
    """The texts of a file, as far as it can be read."""
    number, whole = 0, Whole(path)
    try:
        with open_rollout(path) as file:
            for number, _, raw in lines_from(file, 0, 0):
                if (text := said(raw, number, whole)) is not None:
                    yield text
    except Exception as error:
        if not isinstance(error, RolloutError) and damage(path, error, number) is None:
            raise
