"""Consulted: one look into a home's index, and what comes of it where there is none, or a damaged one.

Rule 1: a damaged index is removed and made once more; where that fails too, there is none.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from refold.rollout.index import tree
from refold.rollout.index.database import FILE, forget, open_index, text_fault
from refold.rollout.index.listing import Listing, Step
from refold.rollout.index.names import with_given
from refold.rollout.index.needles import Needles
from refold.rollout.index.search import Found, in_files, in_index, take_texts
from refold.rollout.index.summary import Summary

R = TypeVar("R")


class Searched(msgspec.Struct, frozen=True):
    """What a search found; `fault` says why the files themselves were read for it."""

    found: list[Found]
    fault: str | None = None


class Wanted(msgspec.Struct, frozen=True):
    """What a search looks for, and of it: which sessions, how many of them, and how many hits in each."""

    needles: Needles
    fits: Callable[[Summary], bool]
    limit: int
    hits: int


def listed(homes: list[tuple[Path, bool]]) -> Generator[Step, None, list[Summary] | None]:
    """Every session under (home, own), newest first by its own time; None where there is no index.

    The first home is refold's own: the index lies there.
    """
    return (yield from _consulted(homes, lambda _, listing: _summaries(homes, listing)))


def searched(homes: list[tuple[Path, bool]], wanted: Wanted) -> Generator[Step, None, Searched | None]:
    """The newest sessions in which something is found; None where there is no index."""
    return (yield from _consulted(homes, lambda connection, listing: _searched(homes, wanted, connection, listing)))


def _consulted(
    homes: list[tuple[Path, bool]],
    ask: Callable[[sqlite3.Connection, Listing], Generator[Step, None, R]],
) -> Generator[Step, None, R | None]:
    own = homes[0][0]
    places = tree.roots([(str(home), is_own) for home, is_own in homes])
    if not (own / FILE).exists() and not any(True for root in places for _ in tree.names(root.path)):
        own = None  # there is nothing that an index could be made of
    for _ in range(2):
        connection = open_index(own) if own is not None else None
        if connection is None:
            return None
        with contextlib.closing(connection):
            try:
                listing = Listing(connection, places)
                yield from listing.steps()
                return (yield from ask(connection, listing))
            except sqlite3.OperationalError:  # nothing is wrong with it that making it anew would mend
                return None
            except (sqlite3.DatabaseError, msgspec.DecodeError):
                pass
        forget(homes[0][0])
    return None


def _summaries(homes: list[tuple[Path, bool]], listing: Listing) -> Generator[Step, None, list[Summary]]:
    yield from ()
    found = with_given([file.summary for file in listing.files()], homes)
    found.sort(key=lambda one: one.created, reverse=True)
    return found


def _searched(
    homes: list[tuple[Path, bool]], wanted: Wanted, connection: sqlite3.Connection, listing: Listing
) -> Generator[Step, None, Searched]:
    summaries = yield from _summaries(homes, listing)
    fitting = [one for one in summaries if wanted.fits(one)]
    fault = text_fault(connection)
    if fault is not None:
        return Searched(searched_files(fitting, wanted), fault)
    files = listing.files()
    keys = {file.summary.file: file.key for file in files}
    try:
        yield from take_texts(connection, files)
    except sqlite3.OperationalError as error:
        return Searched(searched_files(fitting, wanted), f"the index cannot be written now: {error}")
    numbered = ((keys[one.file], one) for one in fitting)
    found = in_index(connection, numbered, wanted.needles, limit=wanted.limit, hits=wanted.hits)
    return Searched(found)


def searched_files(sessions: Iterable[Summary], wanted: Wanted) -> list[Found]:
    """The same, looked for in the files themselves."""
    return list(in_files(sessions, wanted.needles, limit=wanted.limit, hits=wanted.hits))
