"""Keeping: the commands for whole sessions: rename, archive, unarchive, delete, prune."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from refold.cli.options import one_session, required, settings_from
from refold.cli.style import paint
from refold.cli.terminal import is_terminal
from refold.core.jsonio import dump
from refold.errors import RefoldError, RolloutError, RolloutNotFound
from refold.rollout import holdings
from refold.rollout.catalogue import Catalogue, summary_of
from refold.rollout.holdings import NOT_OURS, Child, Going, deletion, id_of, names_in, prunable, rollouts_of
from refold.session.home import Home
from refold.views.shown import one_line

LONGEST_TITLE = 60  # characters of what a session is known by
UNITS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400}  # seconds

F = TypeVar("F", bound=Callable[..., Any])


def _as_json(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a session, for programs.")(function)


def _yes(function: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask; needed where nobody can be asked.")(function)


@click.command()
@one_session("name")
@click.argument("name", required=False, metavar="NAME")
@click.option("--in-place", is_flag=True, help="Also in a file outside refold's home: append to it.")
@_as_json
def rename(reference: str, name: str | None, in_place: bool, as_json: bool) -> int:
    """Give a session a name ("" takes it away). One line is appended to its file."""
    name = required("name", name)
    from refold.session.beginning import model_name
    from refold.session.clock import Clock
    from refold.session.home import profile_of
    from refold.session.memory import Memory, read_thread
    from refold.session.rename import rename as renamed

    home, config = settings_from(())
    path, own = home.catalogue().find(reference)
    if not own and not in_place:
        raise click.UsageError(f"{path.name} is not in refold's home, and this appends to it: --in-place allows that")
    thread = read_thread(path)
    profile = profile_of(model_name(None, config, thread), config)
    with Memory.reopen(path, profile, config, Clock(), thread=thread) as memory:
        kept = renamed(memory, name, home.path)
        if as_json:
            _print_json("refold.rename.completed", memory.id, name=kept)
        else:
            said = f"is called {one_line(kept)}" if kept else "has no name any more"
            print(f"{paint(one_line(memory.id), 'cyan')} {said}")
    return 0


# --- archiving -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("references", metavar="ID|PATH...", nargs=-1, required=True)
@_as_json
def archive(references: tuple[str, ...], as_json: bool) -> int:
    """Put sessions away: their files move into `archived_sessions`. They can still be read, resumed and forked."""
    return _each_moved(references, holdings.archive, "archived", as_json)


@click.command()
@click.argument("references", metavar="ID|PATH...", nargs=-1, required=True)
@_as_json
def unarchive(references: tuple[str, ...], as_json: bool) -> int:
    """Bring archived sessions back to where they were."""
    return _each_moved(references, holdings.unarchive, "unarchived", as_json)


def _each_moved(references: Sequence[str], move: Callable[[Path, Path], Path | None], word: str, as_json: bool) -> int:
    """Move the files of each session; one that cannot be moved does not stop the others."""
    home, status = Home.find(), 0
    for reference in references:
        try:
            found = _own_files(home, reference)
            moved = [target for path in found if (target := move(home.path, path)) is not None]
            thread_id = id_of(moved[0] if moved else found[0])
        except RefoldError as error:
            if len(references) == 1:
                raise
            print(f"refold: {one_line(str(error))}", file=sys.stderr)
            status = 1
            continue
        if as_json:
            _print_json(f"refold.{word}", thread_id, paths=[str(path) for path in moved])
        else:
            where = f"{word}: {', '.join(map(str, moved))}" if moved else f"was {word} already"
            print(f"{paint(one_line(thread_id), 'cyan')} {one_line(where)}")
    return status


def _own_files(home: Home, reference: str) -> list[Path]:
    """The files of a session of the own home. Raises RolloutError for another one's; RolloutNotFound."""
    path, own = home.catalogue().find(reference)
    if not own:
        raise RolloutError(f"{path} is not in refold's home ({home.path}): {NOT_OURS}")
    return rollouts_of(home.path, id_of(path)) or [path]


# --- deleting ------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("references", metavar="ID|PATH...", nargs=-1, required=True)
@click.option("--with-children", is_flag=True, help="Also the sessions that could not be read without its file.")
@_yes
@_as_json
def delete(references: tuple[str, ...], with_children: bool, yes: bool, as_json: bool) -> int:
    """Delete sessions for good, after showing what goes. Forks that hold all themselves stay."""
    home = Home.find()
    ids = [id_of(_own_files(home, reference)[0]) for reference in references]
    going = deletion(home.path, ids, with_children=with_children)
    return _deleted(home, going, yes=yes, as_json=as_json)


@click.command()
@click.option("--older-than", "age", metavar="AGE", required=True, help="Last written so long ago: 30d, 12h, 8w.")
@click.option("--archived", is_flag=True, help="Only archived sessions.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@_yes
@_as_json
def prune(age: str, archived: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Delete the sessions of refold's home that were last written long ago, after showing what goes.

    The real program's home is never touched. What is being written, or younger sessions go on from, stays.
    """
    before = time.time() - _seconds(age)
    home = Home.find()
    going, stays = prunable(home.path, before, only_archived=archived)
    for thread_id, why in stays.items():
        print(f"{one_line(thread_id)} stays: {one_line(why)}", file=sys.stderr)
    if not going:
        if not as_json:
            print(f"no session to delete was last written more than {age} ago")
        return 0
    return _deleted(home, going, yes=yes, as_json=as_json, dry_run=dry_run)


def _deleted(home: Home, going: Sequence[Going], *, yes: bool, as_json: bool, dry_run: bool = False) -> int:
    """Show what goes, ask, delete."""
    if not as_json:
        _show(home, going)
    if dry_run:
        for one in going if as_json else ():
            _print_json("refold.delete.preview", one.id, **_told(one))
        return 0
    if not yes:
        _ask(len(going))
    freed, status = 0, 0
    for one in going:
        try:
            freed += holdings.delete(home.path, one)
        except RolloutError as error:
            print(f"refold: {one_line(str(error))}", file=sys.stderr)
            status = 1
            continue
        if as_json:
            _print_json("refold.delete.completed", one.id, **_told(one))
    _forget(home, going)
    if not as_json:
        print(f"{shown_size(freed)} are free now")
    return status


def _forget(home: Home, going: Sequence[Going]) -> None:
    """What else says something of deleted sessions: the list of names; the index, with their texts after a search."""
    from refold.rollout.index.database import FILE

    gone = {one.id for one in going if not any(path.exists() for path in one.rollouts)}
    with contextlib.suppress(OSError):  # the sessions are gone; a name that nobody can take out harms none
        holdings.forget_names(home.path, gone)
    if (home.path / FILE).exists():
        Catalogue(home.path, [home.codex] if home.codex else [], indexed=True).sessions()


def _ask(count: int) -> None:
    """Raises click.Abort on a no, click.UsageError where nobody can be asked."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise click.UsageError("nobody is here to be asked: --yes deletes without asking")
    click.confirm(f"delete {'it' if count == 1 else f'these {count} sessions'} for good?", abort=True, err=True)


def _show(home: Home, going: Sequence[Going]) -> None:
    names = names_in(home.path)
    for one in going:
        when = datetime.fromtimestamp(one.written).astimezone().strftime("%Y-%m-%d %H:%M")
        title = one_line(names.get(one.id) or _title(one))[:LONGEST_TITLE] or paint("nothing said", "dim")
        print(f"{paint(one_line(one.id), 'cyan')}  {when}  {shown_size(one.size):>8}  {title}")
        for child in one.children:
            print(paint(f"    its fork {one_line(child.id)} stays: it holds all that it took over", "dim"))
    print(f"{len(going)} session{'s' if len(going) > 1 else ''}, {shown_size(sum(one.size for one in going))}")


def _title(one: Going) -> str:
    try:
        return summary_of(one.id, one.rollouts[0], True).title
    except RolloutNotFound:
        return ""


def _told(one: Going) -> dict[str, Any]:
    return {"size": one.size, "paths": [str(path) for path in one.files], "forks": _ids(one.children)}


def _ids(children: Iterable[Child]) -> list[str]:
    return [child.id for child in children]


def _seconds(age: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([hdw])", age.strip().lower())
    if found is None:
        raise click.UsageError(f"--older-than {age!r}: a number and a unit, such as 30d, 12h or 8w")
    return float(found[1]) * UNITS[found[2]]


def shown_size(count: float) -> str:
    """Bytes in the unit that a person reads best."""
    for unit in ("B", "kB", "MB"):
        if count < 1_000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} GB"


def _print_json(kind: str, thread_id: str, **told: Any) -> None:
    sys.stdout.write(dump({"type": kind, "thread_id": thread_id, **told}).decode() + "\n")
