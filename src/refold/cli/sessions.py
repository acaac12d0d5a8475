"""Sessions: the command that lists sessions, and searches in them."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from refold.cli.status import StatusLine, cut_to, width_of
from refold.cli.style import paint
from refold.cli.terminal import is_terminal
from refold.core.jsonio import dump
from refold.rollout.catalogue import Catalogue, Summary
from refold.session.home import Home
from refold.views.shown import one_line

if TYPE_CHECKING:
    from refold.rollout.index.listing import Step
    from refold.rollout.index.needles import Needles
    from refold.rollout.index.search import Found, Hit

SHOWN = 50  # sessions on a terminal that asks for no number
FOUND = 20  # sessions that a search shows
JSON_HITS = 100  # of a session, for programs
LONGEST_TITLE = 80  # characters in a list for a pipe
LEAST_TITLE = 20  # columns that it gets on any terminal
ID_WIDTHS = (8, 13, 18, 23)  # where the groups of a UUID end
LEAST_TEXT = 8  # columns below which first words tell nothing beside a name
PATIENCE = 0.3  # seconds that reading goes on before a person is told of it
BAR_CELLS = 24
AGES = ((60, "s"), (60, "min"), (24, "h"), (60, "d"))  # each so many of a unit; older is a date
HEADS = ("ID", "BEGUN", "USED", "TOKENS", "COMPACTED", "SIZE")

T = TypeVar("T")


@click.command()
@click.option("--here", is_flag=True, help="Only those that work in this folder.")
@click.option("--search", metavar="TEXT", help='Only where a record holds every word; "…" keeps words together.')
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most N; 0: all.")
@click.option("--archived", is_flag=True, help="The archived ones instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def sessions(here: bool, search: str | None, limit: int | None, archived: bool, as_json: bool) -> int:
    """List the sessions of refold's home and, read only, of the real program's, newest first."""
    home = Home.find()
    catalogue = home.catalogue()
    folder = os.path.realpath(Path.cwd()) if here else None
    real = lru_cache(maxsize=None)(os.path.realpath)

    def fits(one: Summary) -> bool:
        return one.archived == archived and (folder is None or real(one.cwd) == folder)

    if search is not None:
        return _search(catalogue, search, fits, limit, as_json)
    every = _watched(catalogue.listing())
    found = [one for one in every if fits(one)]
    usual = SHOWN if is_terminal(sys.stdout) and not as_json else 0
    shown = found[: (usual if limit is None else limit) or None]
    if as_json:
        for one in shown:
            print(dump(_told(one)).decode())
        return 0
    if not every:
        print(f'no session under {home.path} yet: refold run "…" starts one', file=sys.stderr)
    elif not found:
        print(_nothing(every, here, archived), file=sys.stderr)
    Table(every, shown).show()
    if len(shown) < len(found) and limit is None:
        print(paint(f"{len(found) - len(shown):,} more: --limit 0 shows all", "dim"))
    return 0


def _nothing(every: Sequence[Summary], here: bool, archived: bool) -> str:
    what = "no archived session" if archived else "no session"
    where = f" works in {Path.cwd()}" if here else ""
    hint = "" if archived or not any(one.archived for one in every) else " (--archived lists those that are put away)"
    return f"{what}{where}{hint}"


def _told(one: Summary) -> dict[str, Any]:
    """A session for programs."""
    fields = msgspec.structs.asdict(one)
    return {"id": fields.pop("id"), "path": fields.pop("file"), "title": one.title, **fields}


# --- searching -------------------------------------------------------------------------------------------------------


def _search(catalogue: Catalogue, text: str, fits: Callable[[Summary], bool], limit: int | None, as_json: bool) -> int:
    from refold.rollout.index.needles import needles

    wanted = needles(text)
    if not wanted.words:
        raise click.UsageError("--search: there is no word to look for")
    most = {None: sys.maxsize if as_json else FOUND, 0: sys.maxsize}.get(limit, limit)
    more = {"hits": JSON_HITS} if as_json else {}
    done = _watched(catalogue.searching(text, limit=most or sys.maxsize, fits=fits, **more))
    if done.fault:
        print(f"refold: the files themselves are read, which takes longer: {done.fault}", file=sys.stderr)
    if as_json:
        for one in done.found:
            print(dump({**_told(one.summary), "count": one.count, "hits": one.hits}).decode())
        return 0
    if not done.found:
        print(f"nothing found for {one_line(text)!r}", file=sys.stderr)
    _show_found(done.found, wanted)
    return 0


def _show_found(found: Sequence[Found], wanted: Needles) -> None:
    table = Table([one.summary for one in found], [one.summary for one in found], whole_ids=True)
    for one in found:
        print(table.row(one.summary))
        for hit in one.hits:
            print(_hit_line(hit, wanted))
        if one.count > len(one.hits):
            print(paint(f"    and {one.count - len(one.hits):,} more", "dim"))


def _hit_line(hit: Hit, wanted: Needles) -> str:
    """Where it stands, what it is, and the words in it."""

    def mark(found: re.Match[str]) -> str:
        return paint(found[0], "bold", "yellow")

    text = wanted.marks.sub(mark, one_line(hit.snippet))
    return f"    {paint(one_line(hit.address), 'dim')} {paint(one_line(hit.kind), 'cyan')}  {text}"


# --- the table -------------------------------------------------------------------------------------------------------


class Table:
    """Sessions in rows. On a terminal ids are as short as `refold show` needs them, and ages tell when; in a pipe both
    are whole, one session a line."""

    def __init__(self, every: Sequence[Summary], shown: Sequence[Summary], *, whole_ids: bool = False) -> None:
        self._for_person = is_terminal(sys.stdout)
        self._shown = shown
        self._now = datetime.now().astimezone()
        self._id_width = None if whole_ids or not self._for_person else _unique_width([one.id for one in every])
        self._cells = {one.file: self._cells_of(one) for one in shown}
        heads = [HEADS] if self._for_person and not whole_ids else []
        self._widths = [
            max(map(width_of, column), default=0) for column in zip(*self._cells.values(), *heads, strict=True)
        ]

    def show(self) -> None:
        if self._for_person and self._shown:
            print(paint("  ".join(self._laid_out(HEADS)), "dim"))
        for one in self._shown:
            print(self.row(one))

    def row(self, one: Summary) -> str:
        first, *others = self._laid_out(self._cells[one.file])
        columns = "  ".join([paint(first, "cyan"), *others, ""])
        told = columns + self._title(one, width_of("  ".join([first, *others, ""])))
        problem = f"\n{paint(f'    {one_line(one.problem)}', 'red')}" if one.problem else ""
        return told.rstrip() + problem

    def _cells_of(self, one: Summary) -> list[str]:
        modified = one.modified.astimezone()
        age = _age((self._now - modified).total_seconds()) if self._for_person else ""
        return [
            one_line(one.id)[: self._id_width],
            one.created.astimezone().strftime("%Y-%m-%d %H:%M"),
            age or modified.strftime("%Y-%m-%d" if self._for_person else "%Y-%m-%d %H:%M"),
            "–" if one.tokens is None else _short(one.tokens),
            "–" if one.compactions is None else f"{one.compactions} ×" if one.compactions else "",
            _size(one.size),
        ]

    def _laid_out(self, cells: Sequence[str]) -> list[str]:
        """Each as wide as its column; numbers at the right."""
        gaps = [" " * (width - width_of(text)) for text, width in zip(cells, self._widths, strict=True)]
        return [
            text + gap if place < 2 else gap + text for place, (text, gap) in enumerate(zip(cells, gaps, strict=True))
        ]

    def _title(self, one: Summary, used: int) -> str:
        """What it is known by, and whose it is, in what is left of the line."""
        marks = ("" if one.own else "(real program's) ") + ("(archived) " if one.archived else "")
        columns = StatusLine(sys.stdout).columns - used - len(marks) if self._for_person else LONGEST_TITLE
        name, text = one_line(one.name), one_line(one.first_text)
        room = max(LEAST_TITLE, columns)
        if not name:
            shown = cut_to(text, room) or ("" if one.problem else paint("nothing said yet", "dim"))
            return (paint(marks, "dim") if marks else "") + shown
        shown = cut_to(name, room)
        left = room - width_of(shown) - 3
        rest = paint(f" · {cut_to(text, left)}", "dim") if text and left > LEAST_TEXT else ""
        return (paint(marks, "dim") if marks else "") + paint(shown, "bold") + rest


def _unique_width(ids: Sequence[str]) -> int | None:
    """How many characters of each id tell it from all others, to the end of a group; None: only all of them."""
    different = set(ids)
    return next((width for width in ID_WIDTHS if len({one[:width] for one in different}) == len(different)), None)


def _age(seconds: float) -> str:
    """How long ago, in one unit; empty for long ago, which a date tells better."""
    amount = max(0.0, seconds)
    for count, unit in AGES:
        if amount < count:
            return f"{int(amount)} {unit} ago"
        amount /= count
    return ""


def _short(count: int) -> str:
    """A number of tokens in three digits or so."""
    amount = float(count)
    for unit in ("", "k", "M"):
        if amount < 1000:
            return f"{amount:.{1 if unit and amount < 100 else 0}f}{unit}"
        amount /= 1000
    return f"{amount:.1f}G"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


# --- how far it is ---------------------------------------------------------------------------------------------------


def _watched(steps: Generator[Step, None, T]) -> T:
    """What comes of it in the end; a person at a terminal sees how far it is, where it takes long."""
    line, began = StatusLine(), time.monotonic()
    try:
        while True:
            step = next(steps)
            if time.monotonic() - began > PATIENCE and step.files < step.of_files:
                line.show(cut_to(_progress(step), line.columns - 1))
    except StopIteration as end:
        return end.value
    finally:
        line.hide()


def _progress(step: Step) -> str:
    filled = BAR_CELLS * step.bytes // max(1, step.of_bytes)
    bar = "█" * filled + "░" * (BAR_CELLS - filled)
    return f"reading sessions {bar} {step.files:,} of {step.of_files:,} files, {_size(step.bytes)}"
