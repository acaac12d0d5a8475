"""Export: the commands that give a session away as one file, and take sessions from elsewhere in."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from refold.cli.options import one_session, settings_from
from refold.cli.style import paint
from refold.core.config import Config
from refold.core.jsonio import dump
from refold.errors import RefoldError, RolloutNotFound
from refold.rollout.blobs import MISSING
from refold.rollout.export import self_contained, write_new
from refold.rollout.file_name import id_in
from refold.rollout.lineage import active_lines
from refold.session.adoption import Adopted, adopt, adopt_items, is_items, superseded
from refold.session.beginning import model_name
from refold.session.clock import Clock
from refold.session.home import Home
from refold.session.memory import read_thread
from refold.views.shown import one_line

STANDARD_OUTPUT = "-"


@click.command()
@one_session()
@click.option("-o", "--output", metavar="FILE", help="Where to (default: its own name, here); - is standard output.")
@click.option("--items", is_flag=True, help="Only the active history, as a JSON list of Responses items.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def export(reference: str, output: str | None, items: bool, force: bool) -> int:
    """Write a session into one file that needs no other: for another machine, the real program, or an archive."""
    path, _ = Home.find().catalogue().find(reference)
    thread = read_thread(path, headless=items)
    notes: dict[str, None] = {}
    lines: Iterable[bytes] = self_contained(path, notes.setdefault)
    if items:
        lines = [dump([e.item for e in thread.history])]
        notes.update(dict.fromkeys(_missing(path)))
    if output == STANDARD_OUTPUT:
        for line in lines:
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
    else:
        target = Path(output or (f"{thread.id or path.stem}.json" if items else path.name.removesuffix(".zst")))
        if target.resolve() == path.resolve():
            raise click.UsageError(f"{target} is the session itself: give another file with -o")
        if target.is_dir():
            raise click.UsageError(f"{target} is a folder: give a file in it with -o")
        size = write_new(lines, target, replace=force)
        print(f"{target}  {size:,} bytes, {len(thread.history)} items in the active history")
    _tell(notes)
    return 0


@click.command(name="import")
@click.argument("sources", nargs=-1, required=True, metavar="FILE|FOLDER…")
@click.option("--as-new", is_flag=True, help="Under a new id that names the old one, also where that is known.")
@click.option("-m", "--model", metavar="MODEL", help="For a list of items: the model it is for.")
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Set one config key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a source, for programs.")
def import_(sources: tuple[str, ...], as_new: bool, model: str | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Take sessions into refold's home: rollouts (also compressed, also the real program's), or lists of items.

    A folder means every rollout in it. What is imported is only read. The exit code is 1 if one could not be imported.
    """
    home, config = settings_from(settings)
    status = 0
    files = list(_files(sources))
    parts = superseded(files)
    for source in files:
        if source in parts and parts[source] in files:
            _tell([f"{source.name} is part of {parts[source].name}, which goes on from it: not imported by itself"])
            continue
        try:
            done = _take(source, home, config, model, as_new)
        except RefoldError as error:
            status = 1
            _tell_failed(source, error, as_json)
        else:
            _tell_done(done, as_json)
    return status


def _missing(path: Path) -> Iterator[str]:
    """What of an active history is named by words in its place."""
    for line in active_lines(path):
        if line.warning is not None and MISSING in line.warning:
            yield f"{path.name}: {line.warning}"


def _take(source: Path, home: Home, config: Config, model: str | None, as_new: bool) -> Adopted:
    clock = Clock()
    if is_items(source):
        name, cwd = model_name(model, config), str(Path.cwd())
        return adopt_items(source, home.path, clock, config, model=name, cwd=cwd)
    return adopt(source, home.path, clock, as_new=as_new, blobs=config.rollout.blobs)


def _files(sources: Iterable[str]) -> Iterator[Path]:
    """The files that are meant. Raises RolloutNotFound where there are none."""
    for name in sources:
        source = Path(name).expanduser()
        if not source.is_dir():
            if not source.exists():
                raise RolloutNotFound(f"no such file: {source}")
            yield source
            continue
        found = [path for path in sorted(source.rglob("*.jsonl*")) if id_in(path.name)]
        plain = {path.name for path in found}
        if not found:
            raise RolloutNotFound(f"there is no rollout (rollout-….jsonl) in {source}")
        for path in found:
            if not (path.name.endswith(".zst") and path.name.removesuffix(".zst") in plain):
                yield path


def _tell_done(done: Adopted, as_json: bool) -> None:
    if as_json:
        print(dump({**msgspec.structs.asdict(done), "path": str(done.path), "source": str(done.source)}).decode())
        return
    what = "imported" if done.what == "imported" else "is there already"
    where = f", a copy of {done.forked_from}" if done.forked_from else ""
    print(f"{paint(done.id, 'cyan')}  {what}{where}  {done.items} items  {one_line(str(done.source))}", flush=True)
    _tell(done.notes)


def _tell_failed(source: Path, error: RefoldError, as_json: bool) -> None:
    if as_json:
        print(dump({"what": "failed", "source": str(source), "message": one_line(str(error))}).decode(), flush=True)
    why = str(error) if str(source) in str(error) or source.name in str(error) else f"{source}: {error}"
    print(paint(f"refold: {one_line(why)}", "red", stream=sys.stderr), file=sys.stderr, flush=True)


def _tell(notes: Iterable[str]) -> None:
    sys.stdout.flush()
    for note in notes:
        print(paint(one_line(note), "yellow", stream=sys.stderr), file=sys.stderr)
