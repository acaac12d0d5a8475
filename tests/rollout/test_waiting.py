"""Waiting: what was acknowledged and the disk does not take, and what is done when the file itself is taken away."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refold.core.records import ItemRecorded, Record, SessionStarted
from refold.core.thread import Thread
from refold.errors import RolloutError, RolloutLocked, RolloutUnwritten
from refold.rollout import Catalogue, FileStore, read_lines
from refold.rollout.disk import Disk
from refold.rollout.file_store import new_path
from refold.rollout.keeping import free_name
from refold.rollout.waiting import MAX_WAITING_BYTES, LogCaughtUp, LogChanged, LogWaits

THREAD = "0190aaaa-0000-7000-8000-000000000001"
NOW = datetime(2026, 3, 8, 1, 30, tzinfo=UTC)
STAMP = "2026-03-07T17:30:00.000Z"
STARTED = SessionStarted(thread_id=THREAD, timestamp=STAMP, cwd="/w", history_mode="paginated")


class Faulty(Disk):
    """A disk that fails in the ways that are set. Mutable."""

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}  # call → errno
        self.takes: int | None = None  # bytes that a write takes before it fails

    def _check(self, call: str) -> None:
        if call in self.fails:
            raise OSError(self.fails[call], os.strerror(self.fails[call]))

    def open(self, path: Path, flags: int) -> int:
        self._check("open")
        return super().open(path, flags)

    def lock(self, fd: int) -> None:
        self._check("lock")
        super().lock(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._check("read")
        return super().read(fd, size, offset)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.takes is not None:
            taken, self.takes = data[: self.takes], None
            return super().write(fd, taken)
        self._check("write")
        return super().write(fd, data)

    def cut(self, fd: int, size: int) -> None:
        self._check("cut")
        super().cut(fd, size)

    def sync(self, fd: int) -> None:
        self._check("sync")
        super().sync(fd)


def output(text: str = "ok") -> ItemRecorded:
    return ItemRecorded({"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": text})


def append(store: FileStore, *records: Record) -> list[int]:
    return store.append(records, turn_id=None, timestamp=STAMP)


@contextmanager
def no_room_beyond(size: int) -> Generator[None]:
    """Inside, no file of this process may grow beyond so many bytes: a full disk, as far as it can tell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def disk() -> Faulty:
    return Faulty()


@pytest.fixture
def store(tmp_path: Path, disk: Faulty) -> Iterator[FileStore]:
    store = FileStore(new_path(tmp_path, THREAD, NOW), THREAD, disk=disk, rescue=(tmp_path / "rescue",))
    (tmp_path / "rescue").mkdir()
    append(store, STARTED, output("first"))
    yield store
    disk.fails.clear()
    store.close()


def expected(folder: Path, *records: Record) -> bytes:
    """What a file holds into which these records went without trouble, behind the two that every store here has."""
    store = FileStore.create(folder / "expected", THREAD, NOW)
    append(store, STARTED, output("first"))
    for record in records:
        append(store, record)
    store.close()
    data = store.path.read_bytes()
    shutil.rmtree(folder / "expected")
    return data


def told(store: FileStore) -> list[tuple[str, Any]]:
    """The facts, each with what matters of it."""
    facts = store.take_facts()
    assert all("\n" not in str(fact) and str(fact.path) in str(fact) for fact in facts)
    return [(type(fact).__name__, getattr(fact, "what", getattr(fact, "records", None))) for fact in facts]


# --- the disk takes nothing ------------------------------------------------------------------------------------------


def test_what_a_full_disk_does_not_take_waits_in_order_and_comes_later(tmp_path: Path, store: FileStore) -> None:
    texts = [output(f"{number} " + "x" * 100) for number in range(10)]
    with no_room_beyond(store.path.stat().st_size + 400):  # one more line
        ordinals = [append(store, text)[0] for text in texts]
        on_disk = store.path.read_bytes()
        assert store.behind is not None
        assert (store.behind.why, store.behind.records) == ("File too large", 9)
        assert [line.ordinal for line in store.lines()] == list(range(12)), "it is read with what waits"
    assert ordinals == list(range(2, 12))
    assert on_disk.endswith(b"\n")
    append(store, output("there is room again"))
    assert store.behind is None
    assert store.path.read_bytes() == expected(tmp_path, *texts, output("there is room again"))
    assert told(store) == [("LogWaits", 1), ("LogCaughtUp", 9)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
def test_fault_of_any_kind_is_told_once_and_tried_with_each_sync(store: FileStore, disk: Faulty, number: int) -> None:
    disk.fails["write"] = number
    for _ in range(3):
        append(store, output())
        store.sync()
    assert store.behind is not None and store.behind.records == 3
    (fact,) = store.take_facts()
    assert isinstance(fact, LogWaits)
    assert os.strerror(number) in str(fact) and "1 record waits in memory only" in str(fact)
    disk.fails.clear()
    store.sync()
    assert store.behind is None
    assert told(store) == [("LogCaughtUp", 3)]
    assert [line.ordinal for line in read_lines(store.path)] == [0, 1, 2, 3, 4]


def test_half_of_a_piece_that_cannot_be_taken_back_is_finished_and_not_written_twice(
    tmp_path: Path, store: FileStore, disk: Faulty
) -> None:
    records = [output("a" * 100), output("b" * 100)]
    disk.takes, disk.fails = 150, {"write": errno.ENOSPC, "cut": errno.EIO}
    append(store, *records)
    assert not store.path.read_bytes().endswith(b"\n"), "the fault is what it is meant to be"
    disk.takes = 50
    store.sync()  # a second half
    disk.fails.clear()
    disk.fails["cut"] = errno.EIO
    store.sync()
    append(store, output("c"))
    assert store.path.read_bytes() == expected(tmp_path, *records, output("c"))
    assert store.behind is None


def test_piece_that_got_through_is_not_tried_again(store: FileStore, disk: Faulty) -> None:
    disk.fails["write"] = errno.ENOSPC
    for _ in range(3):
        append(store, output("x" * 100))
    disk.fails.clear()
    with no_room_beyond(store.path.stat().st_size + 400):
        store.sync()
        assert store.behind is not None
        assert 0 < store.behind.records < 3
    store.sync()
    assert [line.ordinal for line in read_lines(store.path)] == [0, 1, 2, 3, 4]
    assert told(store)[-1] == ("LogCaughtUp", 3)


def test_what_waits_is_bounded_and_what_is_beyond_is_not_acknowledged(
    tmp_path: Path, store: FileStore, disk: Faulty
) -> None:
    disk.fails["write"] = errno.ENOSPC
    large = output("x" * (MAX_WAITING_BYTES // 4))
    for _ in range(3):
        append(store, large)
    with pytest.raises(RolloutError, match=r"No space left on device; 3 records wait .* at most 67,108,864 bytes"):
        append(store, large)
    assert store.behind is not None and store.behind.records == 3
    assert append(store, output("small")) == [5], "the refused one has no ordinal"
    disk.fails.clear()
    store.sync()
    assert [line.ordinal for line in read_lines(store.path)] == [0, 1, 2, 3, 4, 5]


def test_session_that_never_had_a_file_fails_at_once(tmp_path: Path, disk: Faulty) -> None:
    disk.fails["write"] = errno.ENOSPC
    store = FileStore(tmp_path / "new.jsonl", THREAD, disk=disk)
    with pytest.raises(RolloutError, match=r"new\.jsonl cannot be written: No space left on device"):
        append(store, STARTED)
    assert list(tmp_path.iterdir()) == []
    assert store.behind is None
    disk.fails.clear()
    assert append(store, STARTED) == [0]
    store.close()


def test_failed_sync_is_told_and_the_lines_are_given_to_the_disk_again(
    tmp_path: Path, store: FileStore, disk: Faulty
) -> None:
    store.sync()
    append(store, output("a"))
    disk.fails["sync"] = errno.EIO
    store.sync()
    assert store.behind is not None and (store.behind.records, store.behind.why) == (0, "Input/output error")
    append(store, output("b"))
    assert [line.ordinal for line in read_lines(store.path)] == [0, 1, 2, 3], "writing goes on"
    (fact,) = store.take_facts()
    assert "not safe on its disk" in str(fact)
    disk.fails.clear()
    store.sync()
    assert store.behind is None
    assert told(store) == [("LogCaughtUp", 0)]
    assert store.path.read_bytes() == expected(tmp_path, output("a"), output("b"))


def test_file_system_without_sync_has_kept_what_it_can(store: FileStore, disk: Faulty) -> None:
    disk.fails["sync"] = errno.EINVAL
    store.sync()
    assert (store.behind, told(store)) == (None, [])


def test_dead_descriptor_is_opened_anew(tmp_path: Path) -> None:
    class Away(Disk):
        dead = -1

        def write(self, fd: int, data: bytes | memoryview) -> int:
            if fd == self.dead:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return super().write(fd, data)

        def open(self, path: Path, flags: int) -> int:
            fd = super().open(path, flags)
            opened.append(fd)
            return fd

    opened: list[int] = []
    disk = Away()
    store = FileStore(new_path(tmp_path, THREAD, NOW), THREAD, disk=disk)
    append(store, STARTED, output("first"))
    disk.dead = opened[-1]
    append(store, output("a"))
    assert store.behind is not None
    store.sync()
    assert store.behind is None
    with pytest.raises(RolloutLocked):
        FileStore.reopen(store.path, THREAD, 3)  # the new one is locked as the old one was
    store.close()
    assert store.path.read_bytes() == expected(tmp_path, output("a"))


# --- the file is taken away ------------------------------------------------------------------------------------------


def deleted(path: Path) -> None:
    path.unlink()


def with_its_folders(path: Path) -> None:
    shutil.rmtree(path.parents[3])


def hidden(path: Path) -> None:
    """Deleted on NFS, where an open file is given such a name until it is closed."""
    path.rename(path.parent / ".nfs0000001")


@pytest.mark.parametrize("away", [deleted, with_its_folders])
def test_deleted_file_is_there_again_with_all_its_lines(
    tmp_path: Path, store: FileStore, away: Callable[[Path], None]
) -> None:
    path = store.path
    away(path)
    assert append(store, output("a")) == [2]
    assert store.path == path
    assert path.read_bytes() == expected(tmp_path, output("a"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing aside is left"
    assert told(store) == [("LogChanged", "restored")]
    with pytest.raises(RolloutLocked):
        FileStore.reopen(path, THREAD, 3)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell an open file's name")
def test_file_that_is_deleted_on_a_network_disk_is_made_again(tmp_path: Path, store: FileStore) -> None:
    hidden(store.path)
    store.sync()
    append(store, output("a"))
    assert store.path.read_bytes() == expected(tmp_path, output("a"))
    assert told(store) == [("LogChanged", "restored")]


def test_file_that_cannot_be_made_again_waits_until_it_can(tmp_path: Path, store: FileStore) -> None:
    with_its_folders(store.path)
    sessions = store.path.parents[3]
    sessions.write_text("in the way")
    append(store, output("a"))
    append(store, output("b"))
    assert store.behind is not None and store.behind.records == 2
    sessions.unlink()
    store.sync()
    assert told(store) == [("LogWaits", 1), ("LogChanged", "restored"), ("LogCaughtUp", 2)]
    assert store.path.read_bytes() == expected(tmp_path, output("a"), output("b"))


def test_file_of_somebody_else_at_its_place_is_never_written_into(tmp_path: Path, store: FileStore) -> None:
    path = store.path
    other = path.with_name("other")
    other.write_bytes(b"theirs\n")
    other.replace(path)
    append(store, output("a"))
    append(store, output("b"))
    assert path.read_bytes() == b"theirs\n"
    assert store.path == path.with_name(f"rollout-2026-03-08T01-30-01-{THREAD}.jsonl")
    assert store.path.read_bytes() == expected(tmp_path, output("a"), output("b"))
    assert told(store) == [("LogChanged", "replaced")]
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert Catalogue(tmp_path).find(THREAD) == (store.path, True), "by its id the log is found, not the other file"


def test_moved_file_is_followed(tmp_path: Path, store: FileStore) -> None:
    archive = tmp_path / "archived_sessions"
    archive.mkdir()
    before, moved = store.path, store.path.rename(archive / store.path.name)
    append(store, output("a"))
    store.sync()
    append(store, output("b"))
    assert not before.exists()
    assert moved.read_bytes() == expected(tmp_path, output("a"), output("b"))
    assert told(store) == [("LogChanged", "moved")]
    assert store.path == (moved if Path("/proc/self/fd").exists() else before)


def test_lines_that_another_program_writes_stay_and_are_told_once(store: FileStore) -> None:
    with store.path.open("ab") as other:
        other.write(b'{"timestamp":"x","type":"other","payload":{}}\nhalf')
    append(store, output("a"))
    append(store, output("b"))
    lines = store.path.read_bytes().splitlines()
    assert len(lines) == 6
    assert lines[3] == b"half"
    assert told(store) == [("LogChanged", "shared")]


@pytest.mark.parametrize("way", ["cut short", "gone and unreadable"])
def test_log_whose_lines_are_lost_waits_for_a_checkpoint_and_begins_anew(
    tmp_path: Path, store: FileStore, disk: Faulty, way: str
) -> None:
    path = store.path
    if way == "cut short":
        os.truncate(path, 10)
    else:
        path.unlink()
        disk.fails["read"] = errno.EIO
    assert append(store, output("a")) == [2]
    assert store.is_lost
    assert store.behind is not None and store.behind.records == 1
    store.begin_anew(STARTED, 0)
    append(store, output("checkpoint"))
    assert (store.is_lost, store.behind) == (False, None)
    assert [line.ordinal for line in read_lines(store.path)] == [0, 2, 3]
    assert (path.read_bytes() == b'{"timestam') == (way == "cut short")
    assert told(store) == [("LogWaits", 1), ("LogChanged", "begun anew"), ("LogCaughtUp", 1)]


def test_next_free_name_means_the_same_session(tmp_path: Path) -> None:
    named = tmp_path / f"rollout-2026-12-31T23-59-59-{THREAD}.jsonl"
    assert free_name(named) == named
    named.touch()
    assert free_name(named).name == f"rollout-2027-01-01T00-00-00-{THREAD}.jsonl"
    for name in ("notes.jsonl", "notes-2.jsonl"):
        (tmp_path / name).touch()
    assert free_name(tmp_path / "notes.jsonl").name == "notes-3.jsonl"


# --- the end ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_written_at_the_end_is_saved_elsewhere_and_completes_the_file(
    tmp_path: Path, store: FileStore, disk: Faulty
) -> None:
    with no_room_beyond(store.path.stat().st_size + 10):
        append(store, output("a"))
        append(store, output("b"))
        with pytest.raises(RolloutUnwritten, match=r"2 records could not be written to .*: File too large") as raised:
            store.close()
    assert (raised.value.records, raised.value.rescued) == (2, next((tmp_path / "rescue").iterdir()))
    assert raised.value.rescued is not None
    assert f"cat {raised.value.rescued} >> {store.path}" in str(raised.value)
    assert raised.value.rescued.stat().st_mode & 0o777 == 0o600
    whole = store.path.read_bytes() + raised.value.rescued.read_bytes()
    assert whole == expected(tmp_path, output("a"), output("b"))
    store.close()  # a second time there is nothing to say
    FileStore.reopen(store.path, THREAD, 2).close()  # and nobody holds it


def test_rescued_file_is_whole_where_the_log_is_gone(tmp_path: Path, store: FileStore) -> None:
    with_its_folders(store.path)
    store.path.parents[3].write_text("in the way")
    append(store, output("a"))
    with pytest.raises(RolloutUnwritten) as raised:
        store.close()
    assert raised.value.rescued is not None
    store.path.parents[3].unlink()
    assert raised.value.rescued.read_bytes() == expected(tmp_path, output("a"))
    assert Thread.replay(read_lines(raised.value.rescued)).id == THREAD


def test_what_no_folder_takes_is_said_to_be_lost(tmp_path: Path, store: FileStore, disk: Faulty) -> None:
    shutil.rmtree(tmp_path / "rescue")
    disk.fails["write"] = errno.ENOSPC
    append(store, output("a"))
    with pytest.raises(RolloutUnwritten, match=r"1 record could not be written .* lost") as raised:
        store.close()
    assert (raised.value.records, raised.value.rescued) == (1, None)


def test_end_tries_once_more(tmp_path: Path, store: FileStore, disk: Faulty) -> None:
    disk.fails["write"] = errno.ENOSPC
    append(store, output("a"))
    disk.fails.clear()
    store.close()
    assert store.path.read_bytes() == expected(tmp_path, output("a"))
    with pytest.raises(RolloutError, match="is closed"):
        append(store, output("b"))


def test_lines_that_the_disk_never_kept_for_sure_are_said_at_the_end(store: FileStore, disk: Faulty) -> None:
    append(store, output("a"))
    disk.fails["sync"] = errno.EIO
    store.sync()
    with pytest.raises(RolloutUnwritten, match="may not be safe on its disk: Input/output error"):
        store.close()


# --- locks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_written_to_with_a_warning_in_whole_lines(tmp_path: Path, number: int) -> None:
    disk = Faulty()
    disk.fails["lock"] = number
    one = FileStore(tmp_path / "log.jsonl", THREAD, disk=disk)
    append(one, STARTED)
    assert told(one) == [("LogChanged", "unlocked")]
    two = FileStore.reopen(one.path, THREAD, 1, disk=disk)  # nobody can refuse it
    for number in range(200):
        append(one, output(f"one {number}"))
        append(two, output(f"two {number}"))
    one.close()
    two.close()
    lines = list(read_lines(tmp_path / "log.jsonl"))
    assert len(lines) == 401
    assert not [line.warning for line in lines if line.warning]
    assert ("LogChanged", "shared") in told(one), "each sees that it is not alone"


def test_facts_are_one_line_for_a_person() -> None:
    path = Path("/home/me/log.jsonl")
    assert str(LogWaits(path, "No space left on device", 2, 100)) == (
        "the log cannot be written: /home/me/log.jsonl: No space left on device;"
        " 2 records wait in memory only and will be tried again"
    )
    assert str(LogCaughtUp(path, 3)) == "the log is on its disk again: /home/me/log.jsonl, with 3 that waited"
    assert str(LogCaughtUp(path, 0)) == "the log is on its disk again: /home/me/log.jsonl"
    assert str(LogChanged(path, "moved", "so it is")) == "so it is"
