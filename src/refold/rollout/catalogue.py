"""Catalogue: which sessions lie under a home, found by id, by its beginning, by name, by path, or newest (spec §8.1).

With an index (docs/sessions.md) it tells all of each session, and searches; without one, it reads the heads of files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from refold.errors import RolloutError, RolloutNotFound
from refold.rollout.index.summary import Summary, summary_of
from refold.rollout.index.tree import BEGINNING, Root, names, roots, walk

if TYPE_CHECKING:
    from refold.rollout.index.consulted import Searched
    from refold.rollout.index.listing import Step

MOST_NAMED = 4  # sessions that an ambiguous beginning or name fits
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # a whole id, which nobody gives as a name
ID_AT = len(BEGINNING) + len("2026-02-03T04-05-06-")  # where the id begins in a file's name
HITS = 3  # of a session that a search shows

T = TypeVar("T")


class Catalogue:
    """The sessions of refold's own home and, read-only, of the real program's.

    `indexed`: keep an index of them in the own home, so that a list costs what is new. Without one, or where it cannot
    be had, a list says only what the heads of files say.
    """

    def __init__(self, home: Path, foreign: Iterable[Path] = (), *, indexed: bool = False) -> None:
        self.home = home
        self.foreign = tuple(foreign)
        self.indexed = indexed

    @property
    def homes(self) -> list[tuple[Path, bool]]:
        """(home, own), the own one first."""
        return [(self.home, True), *((other, False) for other in self.foreign)]

    def paths(self) -> Iterator[tuple[str, Path, bool]]:
        """(id, path, own) of every rollout; a plain file wins over its compressed copy."""
        for thread_id, path, own, _ in self._files():
            yield thread_id, Path(path), own

    # --- one session --------------------------------------------------------------------------------------------------

    def find(self, reference: str) -> tuple[Path, bool]:
        """The file that an id, an id's beginning, a name or a path means, and whether it lies in the own home.

        A name is taken exactly, else in any case if only one session has it. Raises RolloutNotFound, also when a
        reference fits several sessions, naming them; RolloutError for a path that cannot be looked at.
        """
        if not reference:
            raise RolloutNotFound("which session? the ID is empty")
        if "/" in reference or reference.endswith((".jsonl", ".zst")):
            return self._by_path_or_name(reference)
        fitting = [one for one in self._files() if one[0].startswith(reference)]
        exact = [one for one in fitting if one[0] == reference] or fitting
        if len({one[0] for one in exact}) == 1:
            return _first((Path(path), own) for _, path, own, _ in exact)
        if not exact and os.path.lexists(reference):
            return self._by_path(Path(reference))
        if (named := self._by_name(reference)) is not None:
            return named
        if not exact:
            raise RolloutNotFound(f"no session {reference!r} under {self.home} (refold sessions lists them)")
        raise _ambiguous(reference, {one[0] for one in exact}, "more of the id")

    def newest(self) -> tuple[Path, bool]:
        """The session that was written last, an archived one only where there is no other.

        Raises RolloutNotFound when there is none.
        """
        found = [
            (not root.archived, about.st_mtime_ns, f"{place.path}/{name}", root.own)
            for root in self._roots()
            for place in walk(root.path)
            for name, about in place.changed.items()
        ]
        if not found:
            raise RolloutNotFound(f"there is no session under {self.home} yet")
        _, _, path, own = max(found)
        return Path(path), own

    # --- all of them --------------------------------------------------------------------------------------------------

    def sessions(self) -> list[Summary]:
        """Every session, newest first by its own creation time. One that vanishes meanwhile is left out."""
        return run_through(self.listing())

    def listing(self) -> Generator[Step, None, list[Summary]]:
        """The same, step by step: each says how far the reading of what is new has come."""
        if self.indexed:
            from refold.rollout.index.consulted import listed  # sqlite3 is only loaded where it is used

            found = yield from listed(self.homes)
            if found is not None:
                return found
        return self._heads()

    def searching(
        self, text: str, *, limit: int, fits: Callable[[Summary], bool] = lambda _: True, hits: int = HITS
    ) -> Generator[Step, None, Searched]:
        """The newest sessions, at most `limit`, with a record that holds every word of the text, step by step.

        `fits` says which sessions to look in. Without an index the files themselves are read.
        """
        from refold.rollout.index.consulted import Searched, Wanted, searched, searched_files
        from refold.rollout.index.needles import needles

        wanted = Wanted(needles(text), fits, limit, hits)
        if not wanted.needles.words:
            return Searched([])
        found = (yield from searched(self.homes, wanted)) if self.indexed else None
        if found is not None:
            return found
        fault = "there can be no index now" if self.indexed else None
        return Searched(searched_files(filter(fits, self._heads()), wanted), fault)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _roots(self) -> list[Root]:
        return roots([(str(home), own) for home, own in self.homes])

    def _files(self) -> Iterator[tuple[str, str, bool, bool]]:
        """(id, path, own, archived) of every rollout."""
        seen: set[tuple[str, str]] = set()
        for root in self._roots():
            home = root.path.rpartition("/")[0]
            for folder, name in names(root.path):
                plain = name.removesuffix(".zst")
                if (home, plain) not in seen:
                    seen.add((home, plain))
                    yield plain[ID_AT:].removesuffix(".jsonl"), f"{folder}/{name}", root.own, root.archived

    def _heads(self) -> list[Summary]:
        """Every session, as far as the head of its file tells of it."""
        from refold.rollout.index.names import with_given

        found: list[Summary] = []
        for thread_id, path, own, archived in self._files():
            with contextlib.suppress(RolloutNotFound):
                found.append(summary_of(thread_id, Path(path), own, archived=archived))
        return sorted(with_given(found, self.homes), key=lambda one: one.created, reverse=True)

    def _by_path_or_name(self, reference: str) -> tuple[Path, bool]:
        if not reference.startswith(("/", "./", "../", "~")) and not os.path.lexists(reference):
            named = self._by_name(reference)
            if named is not None:
                return named
        return self._by_path(Path(reference))

    def _by_path(self, path: Path) -> tuple[Path, bool]:
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise RolloutNotFound(f"no such file: {path}") from None
        except OSError as error:
            raise RolloutError(f"{path} cannot be read: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            raise RolloutNotFound(f"{path} is a folder, not a rollout file")
        return path, path.resolve().is_relative_to(self.home.resolve())

    def _by_name(self, reference: str) -> tuple[Path, bool] | None:
        """The session that has this name; None when none has. Raises RolloutNotFound when several have."""
        name = " ".join(reference.split())
        if not name or UUID.fullmatch(name):
            return None
        named = [one for one in self._named() if one.name.casefold() == name.casefold()]
        fitting = [one for one in named if one.name == name] or named
        if len({one.id for one in fitting}) > 1:
            raise _ambiguous(reference, {one.id for one in fitting}, "an id")
        return _first((one.path, one.own) for one in fitting) if fitting else None

    def _named(self) -> list[Summary]:
        """The sessions that have a name; without an index all files are looked through for them."""
        from refold.rollout.index.names import named_in, with_given

        if self.indexed:
            found = self.sessions()
            if not any(one.turns is None for one in found):  # they are from the index
                return [one for one in found if one.name]
        files = (named_in(Path(path), thread_id, own) for thread_id, path, own, _ in self._files())
        return [one for one in with_given([one for one in files if one is not None], self.homes) if one.name]


def run_through(steps: Generator[object, None, T]) -> T:
    """What comes of it in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _first(found: Iterable[tuple[Path, bool]]) -> tuple[Path, bool]:
    """Of the files of one session, the own one; of several, the one written last."""
    return max(found, key=lambda one: (one[1], _written(one[0])))


def _ambiguous(reference: str, ids: set[str], wanted: str) -> RolloutNotFound:
    shown = ", ".join(sorted(ids)[:MOST_NAMED])
    more = ", …" if len(ids) > MOST_NAMED else ""
    return RolloutNotFound(f"{reference!r} fits {len(ids)} sessions ({shown}{more}); give {wanted}")


def _written(path: Path) -> float:
    """When a file was last written; the beginning of time for one that vanished."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
