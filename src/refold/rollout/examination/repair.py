"""Repair: a mended copy of a rollout under a name of its own, with the old file kept, whatever happens.

Rule 1: no byte of the old file changes. Where the copy takes its name, the old one is kept beside it as `….damaged`.
Rule 2: the copy appears whole, with its name, or not at all; before that it is folded, and resumes if the old file did.
Rule 3: a file that somebody writes is not repaired.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from refold.core.records import SessionStarted
from refold.errors import RolloutError, RolloutLocked
from refold.rollout.blobs import BLOBS, NUMBERED_MODES, PLAIN, copy_blobs, folder_of, refers
from refold.rollout.catalogue import Catalogue
from refold.rollout.compressed import COMPRESSED, aside_of, give_name
from refold.rollout.examination.active import active_of
from refold.rollout.examination.examine import Examination
from refold.rollout.examination.mend import Mender
from refold.rollout.file_name import DAMAGED, can_be_named_by, day_in, id_in
from refold.rollout.owner import held
from refold.rollout.reader import open_rollout, raw_lines

AS_NEW = "refold import --as-new makes another session of this file, which can be repaired"
FAULTS_OF_THE_FILE = ("byte_order_mark", "packed_name", "plain_name", "packed_cut", "line_too_long", "no_line_end")


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair does, or did: the file, the mended one, and what the old one is called afterwards."""

    source: Path
    target: Path
    kept: Path  # the old file; `source` itself where the mended one has another name
    done: dict[str, int]  # kind of finding → how often it is mended; empty = there is nothing to do
    renumbered: int  # lines whose ordinal, and address, changes
    lines_before: int
    lines_after: int
    meta: SessionStarted | None = None  # what is written where the session's identity is lost
    why: str | None = None  # what still keeps it from being resumed, once it was done


def plan_repair(examined: Examination, *, new_id: str, home: Path | None = None) -> Repair:
    """What a repair of a file would do; nothing is written.

    `home`: where the mended file goes (None: beside the old one). `new_id`: of a session whose id is lost.
    Raises RolloutError where that home has another file of this session, or no file can be named by its id.
    """
    source = Path(examined.path)
    mender, meta = _tried(examined, None), None
    if any(one.kind == "meta_missing" for one in examined.findings) and not mender.found_meta:
        meta = _identity(examined, new_id)
        mender = _tried(examined, meta)
    found = {one.kind: one.count for one in examined.findings if one.kind in FAULTS_OF_THE_FILE}
    done = {**found, **mender.done} if examined.items or examined.checkpoints else {}
    thread_id = meta.thread_id if meta else examined.thread_id
    target = _beside(source) if home is None or not done else _under(home, source, thread_id)
    return Repair(
        source=source,
        target=target,
        kept=_free(target) if target == source else source,
        done=done,
        renumbered=mender.renumbered,
        lines_before=examined.lines,
        lines_after=mender.lines,
        meta=meta,
    )


def repair(examined: Examination, plan: Repair) -> Repair:
    """Do it. Raises RolloutLocked when somebody writes the file, RolloutError with nothing changed."""
    target = plan.target
    if target != plan.source and target.exists():
        raise RolloutError(f"{target} is there already, and is not touched; examine that one, or move it away")
    aside = aside_of(target)
    with held(plan.source):
        before = plan.source.stat()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(aside, _mended(plan.source, _mender(examined), plan.meta), before.st_mode)
            why = _still_wrong(aside, examined, plan)
            now = plan.source.stat()
            if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise RolloutLocked(f"{plan.source.name} was written while it was repaired; try again")
            kept = _give_names(aside, plan)
        except OSError as error:
            raise RolloutError(f"{target} cannot be written: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()
    return msgspec.structs.replace(plan, kept=kept, why=why)


def _tried(examined: Examination, meta: SessionStarted | None) -> Mender:
    """A mender that has mended all lines, and written none."""
    mender = _mender(examined)
    for _ in _mended(Path(examined.path), mender, meta):
        pass
    return mender


def _mender(examined: Examination) -> Mender:
    return Mender(numbered=examined.is_numbered, from_start=examined.history_mode in NUMBERED_MODES)


def _mended(source: Path, mender: Mender, meta: SessionStarted | None) -> Iterator[bytes]:
    """The lines of the mended file, as far as the old one can be read."""
    if meta is not None:
        yield from mender.begin(meta)
    with open_rollout(source) as file, contextlib.suppress(RolloutError):
        for _, offset, raw in raw_lines(file, source):
            yield from mender.mend(raw, offset)
    yield from mender.finish()


# --- names -----------------------------------------------------------------------------------------------------------


def _identity(examined: Examination, new_id: str) -> SessionStarted:
    """The identity of a session that does not say it: what its file's name and its records tell."""
    source = Path(examined.path)
    numbered = BLOBS if _kept_blobs(source) else PLAIN
    return SessionStarted(
        thread_id=id_in(source.name) or new_id,
        timestamp=examined.started,
        cwd=examined.active.cwd or "",
        history_mode=numbered if examined.is_numbered else "legacy",
        payload={"cli_version": examined.version},
    )


def _kept_blobs(source: Path) -> bool:
    """Whether a file's long texts lie beside it, which its identity said: else a model would be sent the references."""
    with open_rollout(source) as file, contextlib.suppress(RolloutError):
        return folder_of(source).is_dir() or any(refers(raw) for _, _, raw in raw_lines(file, source))
    return False


def _beside(source: Path) -> Path:
    """The old file's name, without what says that it is compressed."""
    return source.with_name(source.name.removesuffix(COMPRESSED))


def _under(home: Path, source: Path, thread_id: str) -> Path:
    """The same name in a home's folder of the day that it says; with the session's id where it is no rollout's name."""
    name = source.name.removesuffix(COMPRESSED)
    if id_in(name) is None:
        if not can_be_named_by(thread_id):
            raise RolloutError(f"{source.name} has the id {thread_id!r}, which cannot name a file; {AS_NEW}")
        written = datetime.fromtimestamp(source.stat().st_mtime).astimezone()
        name = f"rollout-{written.strftime('%Y-%m-%dT%H-%M-%S')}-{thread_id}.jsonl"
    for known, path, own in Catalogue(home).paths():
        if own and known == thread_id and path.name.removesuffix(COMPRESSED) != name:
            raise RolloutError(
                f"refold's home holds the session {thread_id} already ({path}): examine that one, or {AS_NEW}"
            )
    return home.joinpath("sessions", *day_in(name), name)


def _free(path: Path) -> Path:
    """A name for the old file that nobody has."""
    found, count = path.with_name(path.name + DAMAGED), 1
    while os.path.lexists(found):
        count += 1
        found = path.with_name(f"{path.name}{DAMAGED}{count}")
    return found


def _give_names(aside: Path, plan: Repair) -> Path:
    """Let the mended file appear under its name; what the old one is called now. Raises OSError."""
    if plan.target != plan.source:
        copy_blobs(folder_of(plan.source), folder_of(plan.target))
        if not give_name(aside, plan.target):
            raise RolloutError(f"{plan.target} appeared meanwhile, and is not touched; examine that one")
        return plan.source
    kept = _free(plan.target)
    try:
        os.link(plan.source, kept)
    except OSError:
        plan.source.rename(kept)
    aside.replace(plan.target)
    return kept


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(aside: Path, lines: Iterator[bytes], mode: int) -> None:
    with aside.open("xb") as file:
        aside.chmod(mode & 0o777 | 0o600)
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def _still_wrong(aside: Path, examined: Examination, plan: Repair) -> str | None:
    """Why the copy does not resume, where the old file did not either.

    Raises RolloutError where the copy would not do what the old file did.
    """
    active = active_of(aside)
    if active.why is not None and examined.active.why is None:
        raise RolloutError(f"the repaired file would not resume, so nothing was changed: {active.why}")
    parted = "glued_lines" in plan.done  # what they say, a rollback perhaps, did not count before
    if examined.active.why is None and active.items < examined.active.items and not parted:
        raise RolloutError(
            f"the repaired file would have {active.items} items in its history and not {examined.active.items},"
            " so nothing was changed"
        )
    return active.why
