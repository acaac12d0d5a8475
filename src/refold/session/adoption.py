"""Adoption: a session from elsewhere, or a list of items, as a session under refold's home (docs/export.md).

Rule 1: what comes from elsewhere is only read.
Rule 2: a session appears whole, and only once it was seen to fold to what it folded to where it came from.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from refold.core.config import Config
from refold.core.items import Item
from refold.core.jsonio import dump, dump_strict, is_list, is_object, load
from refold.core.records import JSON, SessionStarted
from refold.core.templates import template
from refold.core.thread import Thread
from refold.errors import RolloutCorrupt, RolloutError
from refold.rollout.blobs import BLOBS, BlobWriter, copy_blobs, folder_of
from refold.rollout.catalogue import Catalogue
from refold.rollout.export import OURS, give_name, likeness, self_contained, write_new
from refold.rollout.file_name import can_be_named_by, day_in, id_in
from refold.rollout.file_store import new_path
from refold.rollout.lineage import base_of, find_base
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.home import profile_of
from refold.session.memory import Memory, read_thread

ASIDE = ".import-"  # how the folder in which a session is written aside is called; then comes the process
SWEPT_SECONDS = 24 * 3600.0  # no import takes so long
ITEMS_HEAD = 4_096  # bytes in which a list of items shows its bracket

What: TypeAlias = Literal["imported", "known"]


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one source; `what`: imported, or known (it is in the home already, perhaps with more)."""

    what: What
    id: str
    path: Path
    source: Path
    items: int  # in its active history
    forked_from: str | None = None
    notes: tuple[str, ...] = ()  # what is missing


# --- a session -------------------------------------------------------------------------------------------------------


def adopt(source: Path, home: Path, clock: Clock, *, as_new: bool = False, blobs: bool = False) -> Adopted:
    """Take a rollout into a home under its own id, standing alone; `as_new`: under a new one that names the old.

    `blobs`: its long texts go beside it, once. Its name keeps the session's time, and the file its own.
    Raises RolloutNotFound, RolloutCorrupt, and RolloutError where another session has this id, or it can name no file.
    """
    thread = read_thread(source)
    assert thread.meta is not None
    notes: dict[str, None] = {}

    def lines() -> Iterator[bytes]:
        return self_contained(source, notes.setdefault)

    if not as_new and not can_be_named_by(thread.id):
        raise RolloutError(
            f"{source.name} has the id {thread.id!r}, which cannot name a file; --as-new gives a new one"
        )
    if not as_new and (known := _known(home, thread.id)):
        if all(likeness(lines(), self_contained(one, notes.setdefault)) == "differs" for one in known):
            raise RolloutError(
                f"another session in {home} has the id {thread.id} ({known[0].name}); --as-new gives this one a new id"
            )
        return Adopted(what="known", id=thread.id, path=known[0], source=source, items=len(thread.history))
    new_id = clock.uuid() if as_new else thread.id
    target = _place(home, source, thread, new_id)
    found = _renamed(lines(), thread.id, new_id) if as_new else lines()
    _appear(found, target, thread, home, blobs=blobs)
    about = source.stat()
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
    told = tuple(notes)
    parent = thread.id if as_new else None
    count = len(thread.history)
    return Adopted(what="imported", id=new_id, path=target, source=source, items=count, forked_from=parent, notes=told)


def superseded(sources: Iterable[Path]) -> dict[Path, Path]:
    """Files that another one of the same thread goes on from (a revert): those are part of it, as far as they count."""
    found: dict[Path, Path] = {}
    for source in sources:
        try:
            meta = next((one.record for one in read_lines(source, head=1)), None)
            base = base_of(meta) if isinstance(meta, SessionStarted) else None
            if base is not None and isinstance(meta, SessionStarted) and base.thread_id == meta.thread_id:
                found[find_base(source, base)] = source
        except RolloutError:
            continue  # what is wrong with it is told when it is its turn
    return found


def _known(home: Path, thread_id: str) -> list[Path]:
    return [path for found, path, _ in Catalogue(home).paths() if found == thread_id]


def _place(home: Path, source: Path, thread: Thread, new_id: str) -> Path:
    """Where it goes: by its name, which holds the local time of its beginning, else by its identity."""
    name = source.name.removesuffix(".zst")
    if id_in(name) == new_id:
        return home.joinpath("sessions", *day_in(name), name)
    assert thread.meta is not None
    try:
        told = datetime.fromisoformat(thread.meta.timestamp)
        began = (told if told.tzinfo else told.replace(tzinfo=UTC)).astimezone()
    except (ValueError, OverflowError):  # also a time that is in no year here
        began = datetime.fromtimestamp(source.stat().st_mtime).astimezone()
    return new_path(home, new_id, began)


def _appear(lines: Iterable[bytes], target: Path, thread: Thread, home: Path, *, blobs: bool) -> None:
    """Write it aside, read it again, and let it appear. Raises RolloutError with nothing left."""
    _sweep(home)
    aside = home / f"{ASIDE}{os.getpid()}" / target.name
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        writer = BlobWriter(aside) if blobs else None
        write_new(lines if writer is None else _stored(lines, writer), aside, replace=True)
        if writer is not None:
            writer.sync()
        if _held(read_thread(aside)) != _held(thread):
            raise RolloutError(f"{target.name} would not go on where it stopped; nothing was imported")
        _beside(folder_of(aside), folder_of(target))
        give_name(aside, target)
    except FileExistsError:
        raise RolloutError(
            f"{target} is there already, and holds another session; --as-new imports beside it"
        ) from None
    except OSError as error:
        raise RolloutError(f"{target} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(aside.parent, ignore_errors=True)


def _sweep(home: Path) -> None:
    """Take away what an import left that was killed long ago."""
    for left in home.glob(f"{ASIDE}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > SWEPT_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _beside(folder: Path, target: Path) -> None:
    """Let blobs appear before what refers to them; a folder that is there keeps its own."""
    if target.is_dir():
        copy_blobs(folder, target)
    elif folder.is_dir():
        folder.rename(target)


def _held(thread: Thread) -> Any:
    """What goes on: the same in a copy under another id."""
    texts = [text for _, text in thread.pins], [text for _, text in thread.dropped_rules]
    items = [e.item for e in thread.history]
    return items, thread.window, thread.world, thread.settings, thread.total_usage, thread.steers, texts


def _stored(lines: Iterable[bytes], writer: BlobWriter) -> Iterator[bytes]:
    """The lines with their long texts beside them; their identity says so, and what it said before."""
    begun = False
    for raw in lines:
        try:
            value, _ = load(raw.strip(b" \t\r\n"))
        except ValueError:
            value = None
        if not is_object(value):
            yield raw
            continue
        payload = value.get("payload")
        if not begun and value.get("type") == "session_meta" and is_object(payload):
            begun = True
            mode = payload.get("history_mode", "legacy")
            told = payload.get(OURS)
            own = {**(told if is_object(told) else {}), "history_mode": mode}
            yield dump({**value, "payload": {**payload, "history_mode": BLOBS, OURS: own}})
            continue
        found = writer.stored(value)
        yield raw if found is value else dump_strict(found)


# --- under a new id --------------------------------------------------------------------------------------------------


def _renamed(lines: Iterable[bytes], old: str, new: str) -> Iterator[bytes]:
    """The lines of a session under another id: its identity, and what refold's own keys say of it by address."""
    begun, mark = False, old.encode()
    for raw in lines:
        try:
            value = load(raw.strip(b" \t\r\n"))[0] if mark in raw else None
        except ValueError:
            value = None
        payload = value.get("payload") if is_object(value) else None
        if not is_object(value) or not is_object(payload):
            yield raw
            continue
        kind = value.get("type")
        if kind == "session_meta" and not begun:
            begun = True
            payload = {**payload, "session_id": new, "id": new, "forked_from_id": old}
        elif kind == "compacted" and is_object(payload.get("refold")):
            payload = {**payload, "refold": _readdressed(payload["refold"], old, new)}
        elif kind == "refold" and payload.get("kind") in ("pinned", "unpinned", "rule_dropped"):
            payload = _readdressed(payload, old, new)
        else:
            yield raw
            continue
        yield dump({**value, "payload": payload})


def _readdressed(told: JSON, old: str, new: str) -> JSON:
    """What refold says beside a checkpoint, or in a line of its own, with addresses in the new session."""

    def address(value: Any) -> Any:
        text = str(value)
        return new + text[len(old) :] if text == old or text.startswith(f"{old}:") else value

    found = dict(told)
    for key in ("address", "undoes"):
        if isinstance(told.get(key), str):
            found[key] = address(told[key])
    if is_list(told.get("addresses")):
        found["addresses"] = [address(one) for one in told["addresses"]]
    for key in ("pins", "dropped_rules"):
        if is_list(told.get(key)):
            found[key] = [{**one, "address": address(one.get("address"))} for one in told[key] if is_object(one)]
    carried = told.get("carried")
    if is_object(carried):
        found["carried"] = {**carried, "thread": address(carried.get("thread"))}
    return found


# --- a list of items -------------------------------------------------------------------------------------------------


def is_items(source: Path) -> bool:
    """Whether a file is a JSON list. Raises RolloutError when it cannot be read."""
    try:
        if not source.is_file():
            raise RolloutError(f"{source} is not a regular file")
        with source.open("rb") as file:
            return file.read(ITEMS_HEAD).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except OSError as error:
        raise RolloutError(f"{source} cannot be read: {error.strerror}") from None


def adopt_items(source: Path, home: Path, clock: Clock, config: Config, *, model: str, cwd: str) -> Adopted:
    """A new session that holds a JSON list of Responses items as they are. Raises RolloutCorrupt, RolloutError."""
    items = _items(source)
    profile = profile_of(model, config)
    base = profile.base_instructions or template("base_instructions")
    with Memory.new(home, profile, config, clock, cwd=cwd, instructions=base) as memory:
        memory.record(*(memory.item(item, shaped=True) for item in items))
        memory.store.sync()
        assert memory.path is not None
        count = len(memory.thread.history)
        return Adopted(what="imported", id=memory.id, path=memory.path, source=source, items=count)


def _items(source: Path) -> Sequence[Item]:
    try:
        value, _ = load(source.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise RolloutError(f"{source} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RolloutCorrupt(f"{source} is not JSON: {error}") from None
    if not is_list(value) or not value:
        raise RolloutCorrupt(f"{source} holds no items: a list of Responses items is needed")
    for number, item in enumerate(value):
        if (
            not is_object(item)
            or not isinstance(item.get("type", "message"), str)
            or not ("type" in item or "role" in item)
        ):
            raise RolloutCorrupt(f"{source}: item {number} of the list is no Responses item: it has no type")
    return [{"type": "message", **item} for item in value]
