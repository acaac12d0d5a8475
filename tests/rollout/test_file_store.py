"""File store: where a session's file lies, what is written when, who may write, and what survives a fault."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.core.items import message
from refold.core.records import ItemRecorded, Record, SessionStarted, TurnEnded, TurnStarted, well_formed
from refold.core.thread import Thread
from refold.errors import RolloutError, RolloutLocked
from refold.rollout import FileStore, Store, read_lines
from refold.rollout.file_store import new_path
from refold.rollout.waiting import LogChanged

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CASES = Path(__file__).parents[1] / "data" / "cases"
ROLLOUTS = Path(__file__).parents[1] / "data" / "oracle" / "rollouts"
THREAD = "0190aaaa-0000-7000-8000-000000000001"
NOW = datetime(2026, 3, 8, 1, 30, tzinfo=timezone(timedelta(hours=8)))
STAMP = "2026-03-07T17:30:00.000Z"


def started(**fields: Any) -> SessionStarted:
    return SessionStarted(thread_id=THREAD, timestamp=STAMP, cwd="/w", history_mode="paginated", **fields)


def said(role: Any, text: str) -> ItemRecorded:
    return ItemRecorded(message(role, [text], id="msg_1"))


def output(text: str = "ok") -> ItemRecorded:
    return ItemRecorded({"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": text})


def append(store: Store, *records: Record) -> list[int]:
    return store.append(records, turn_id=None, timestamp=STAMP)


def reopened(path: Path) -> FileStore:
    thread = Thread.replay(read_lines(path))
    return FileStore.reopen(path, thread.id, thread.next_ordinal)


def raw_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def child(code: str, *arguments: Any) -> list[str]:
    """The command of a Python process that can import refold."""
    start = f"import sys; sys.path.insert(0, {str(Path(refold.__file__).parents[1])!r})\n"
    return [sys.executable, "-c", start + code, *map(str, arguments)]


# --- where and when -----------------------------------------------------------------------------------------------


def test_folder_and_name_carry_local_time(tmp_path):
    path = new_path(tmp_path, THREAD, NOW)  # half past five in the afternoon before, in UTC (S25.4)
    assert path == tmp_path / "sessions/2026/03/08" / f"rollout-2026-03-08T01-30-00-{THREAD}.jsonl"


def test_nothing_is_on_disk_before_the_first_append(tmp_path):
    store = FileStore.create(tmp_path / "home", THREAD, NOW)
    assert not (tmp_path / "home").exists()
    store.close()
    assert not (tmp_path / "home").exists()


def test_file_appears_with_its_first_records_for_its_owner_only(tmp_path):
    store = FileStore.create(tmp_path, THREAD, NOW)
    append(store, started(), output())
    assert store.path.is_file()
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["type"] for line in raw_lines(store.path)] == ["session_meta", "response_item"]
    store.close()


def test_lines_have_the_real_programs_keys_in_its_order(tmp_path):
    store = FileStore.create(tmp_path, THREAD, NOW)
    append(store, started(), output())
    for number, line in enumerate(raw_lines(store.path)):
        value = json.loads(line)
        assert list(value) == ["timestamp", "ordinal", "type", "payload"]
        assert (value["timestamp"], value["ordinal"]) == (STAMP, number)
    assert b", " not in raw_lines(store.path)[1]
    store.close()


def test_ordinals_count_every_line_and_name_the_records_own(tmp_path):
    store = FileStore.create(tmp_path, THREAD, NOW)
    assert append(store, started(), said("user", "hello")) == [0, 1]  # line 2 is the mirror of what was said
    assert append(store, said("assistant", "hi"), output()) == [4, 5]  # the mirror comes first
    lines = list(store.lines())
    assert [line.ordinal for line in lines] == [0, 1, 2, 3, 4, 5]
    assert isinstance(lines[4].record, ItemRecorded) and lines[4].record.item["role"] == "assistant"
    store.close()


@pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="the system does not count writes")
def test_batch_is_one_write(tmp_path):
    def writes() -> int:
        return int(Path("/proc/thread-self/io").read_text().split("syscw: ")[1].split()[0])

    store = FileStore.create(tmp_path, THREAD, NOW)
    append(store, started())
    before = writes()
    append(store, *[output("x" * 10_000) for _ in range(300)])
    assert writes() - before == 1
    assert len(raw_lines(store.path)) == 301
    store.close()


def test_closing_twice_is_harmless_and_syncing_a_file_that_is_not_there_too(tmp_path):
    store = FileStore.create(tmp_path, THREAD, NOW)
    store.sync()
    append(store, started())
    store.sync()
    store.close()
    store.close()
    store.sync()


# --- going on -----------------------------------------------------------------------------------------------------


def test_reopened_file_goes_on_with_its_ordinals(tmp_path):
    path = Path(shutil.copy(ROLLOUTS / "a_one_turn.jsonl", tmp_path))
    before = path.read_bytes()
    newest = json.loads(raw_lines(path)[-1])["ordinal"]
    store = reopened(path)
    assert append(store, output(), said("user", "more")) == [newest + 1, newest + 2]
    store.close()
    assert path.read_bytes().startswith(before)
    added = [json.loads(line)["ordinal"] for line in path.read_bytes()[len(before) :].splitlines()]
    assert added == [newest + 1, newest + 2, newest + 3]


def test_file_without_ordinals_stays_so_and_records_are_known_by_line_number(tmp_path):
    path = Path(shutil.copy(CASES / "S26-fork-identity" / "parent.jsonl", tmp_path))
    count = len(raw_lines(path))
    store = reopened(path)
    assert append(store, output()) == [count + 1]
    store.close()
    assert "ordinal" not in json.loads(raw_lines(path)[-1])
    assert [line.ordinal for line in read_lines(path)][-1] == count + 1


def test_line_numbers_count_blank_lines_at_the_end(tmp_path):
    path = Path(shutil.copy(CASES / "S26-fork-identity" / "parent.jsonl", tmp_path))
    path.write_bytes(path.read_bytes() + b"\n  \n")
    store = reopened(path)
    ordinals = append(store, output())
    store.close()
    assert ordinals == [[line.ordinal for line in read_lines(path)][-1]]


def test_newer_records_keep_their_ordinals_unique(tmp_path):
    path = Path(shutil.copy(CASES / "S21-records-from-a-newer-version" / "rollout.jsonl", tmp_path))
    store = reopened(path)
    assert append(store, output(), output()) == [11, 12]  # S21.5
    store.close()
    ordinals = [json.loads(line)["ordinal"] for line in raw_lines(path)]
    assert len(set(ordinals)) == len(ordinals)


def test_torn_last_line_is_closed_and_stays(tmp_path):
    path = Path(shutil.copy(CASES / "S18-partial-line" / "tail_cut.jsonl", tmp_path))
    before = path.read_bytes()
    assert not before.endswith(b"\n")
    store = reopened(path)
    append(store, output())
    append(store, TurnEnded(turn_id=None, outcome="completed"))
    store.close()
    assert path.read_bytes().startswith(before + b"\n")
    lines = list(read_lines(path))
    assert len(lines) == 10
    assert [line.warning is not None for line in lines] == [False] * 7 + [True, False, False]  # S18.2


def test_file_with_ordinals_keeps_them_after_a_torn_or_broken_line(tmp_path):
    whole = (ROLLOUTS / "a_one_turn.jsonl").read_bytes()
    for name, tail in (("torn.jsonl", b'{"timestamp":"2026'), ("broken.jsonl", b"junk\n"), ("both.jsonl", b"junk\nju")):
        path = tmp_path / name
        path.write_bytes(whole + tail)
        newest = json.loads(whole.splitlines()[-1])["ordinal"]
        store = reopened(path)
        assert append(store, output())[0] > newest, name
        store.close()
        assert json.loads(raw_lines(path)[-1])["ordinal"] > newest, name


def test_newest_ordinal_is_found_behind_a_very_long_line(tmp_path):
    store = FileStore.create(tmp_path, THREAD, NOW)
    append(store, started(), output("x" * 3_000_000))
    store.close()
    again = reopened(store.path)
    assert append(again, output()) == [2]
    again.close()


def test_crlf_file_is_continued_with_lf_and_read_whole(tmp_path):
    source = next((CASES / "S19-bom-and-crlf").rglob("*0013.jsonl"))
    path = Path(shutil.copy(source, tmp_path))
    before = path.read_bytes()
    store = reopened(path)
    append(store, output())
    store.close()
    assert path.read_bytes().startswith(before)  # S19.4
    assert path.read_bytes()[len(before) :].count(b"\r") == 0
    assert not [line.warning for line in read_lines(path) if line.warning]


@pytest.mark.parametrize("name", ["a_one_turn", "e_midturn", "r_images"])
def test_reading_changes_neither_bytes_nor_time(tmp_path, name):
    path = Path(shutil.copy(ROLLOUTS / f"{name}.jsonl", tmp_path))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    before = path.read_bytes()
    store = reopened(path)
    list(store.lines())
    store.close()
    assert path.read_bytes() == before
    assert path.stat().st_mtime == 1_700_000_000


# --- one writer ---------------------------------------------------------------------------------------------------


def test_second_writer_is_refused_with_the_owners_process(tmp_path):
    store = FileStore.create(tmp_path, THREAD, NOW)
    append(store, started())
    before = store.path.read_bytes()
    with pytest.raises(RolloutLocked) as refused:
        reopened(store.path)
    assert refused.value.owner in (os.getpid(), None)
    assert store.path.read_bytes() == before
    assert list(read_lines(store.path)), "reading goes on"
    store.close()
    reopened(store.path).close()


HOLDER = """
from pathlib import Path
from refold.core.thread import Thread
from refold.rollout import FileStore, read_lines
path = Path(sys.argv[1])
thread = Thread.replay(read_lines(path))
store = FileStore.reopen(path, thread.id, thread.next_ordinal)
print("holds", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("end", ["in order", "kill -9"])
def test_lock_holds_across_processes_and_ends_with_its_owner(tmp_path, end):
    path = Path(shutil.copy(ROLLOUTS / "a_one_turn.jsonl", tmp_path))
    with subprocess.Popen(child(HOLDER, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "holds\n"
        with pytest.raises(RolloutLocked) as refused:
            reopened(path)
        assert refused.value.owner == holder.pid
        assert f"process {holder.pid} ({sys.executable}"[:40] in str(refused.value)
        before = path.read_bytes()
        assert not [line.warning for line in read_lines(path) if line.warning], "it can be looked at meanwhile"
        assert path.read_bytes() == before
        if end == "kill -9":
            holder.send_signal(signal.SIGKILL)
        else:
            holder.stdin.close()
        holder.wait()
    store = reopened(path)
    append(store, output())
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "no lock file is left over"


LEAVER = """
import os, time
from pathlib import Path
from refold.core.thread import Thread
from refold.rollout import FileStore, read_lines
path = Path(sys.argv[1])
thread = Thread.replay(read_lines(path))
store = FileStore.reopen(path, thread.id, thread.next_ordinal)
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    time.sleep(60)
print(os.getpid(), child, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who holds a lock")
def test_lock_that_an_ended_process_left_to_a_child_is_told_as_that(tmp_path):
    path = Path(shutil.copy(ROLLOUTS / "a_one_turn.jsonl", tmp_path))
    ended = subprocess.run(child(LEAVER, path), capture_output=True, text=True, check=True)
    owner, left = map(int, ended.stdout.split())
    try:
        with pytest.raises(RolloutLocked, match=f"by what process {owner} left running when it ended"):
            reopened(path)
    finally:
        os.kill(left, signal.SIGKILL)


def test_file_that_was_written_while_it_was_read_is_not_continued(tmp_path):
    path = Path(shutil.copy(ROLLOUTS / "a_one_turn.jsonl", tmp_path))
    seen = Thread.replay(read_lines(path))
    other = reopened(path)
    append(other, output())
    other.close()
    with pytest.raises(RolloutLocked, match="while it was read"):
        FileStore.reopen(path, seen.id, seen.next_ordinal)
    reopened(path).close()


def test_command_that_outlives_its_session_does_not_hold_the_lock(tmp_path):
    store = FileStore.create(tmp_path, THREAD, NOW)
    append(store, started())
    with subprocess.Popen(["sleep", "60"], close_fds=False) as sleeper:
        store.close()
        reopened(store.path).close()
        sleeper.kill()


# --- faults -------------------------------------------------------------------------------------------------------

FULL_DISK = """
import json, resource
from datetime import datetime
from pathlib import Path
from refold.core.records import ItemRecorded, SessionStarted
from refold.errors import RolloutError
from refold.rollout import FileStore

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def append(*records):
    try:
        return store.append(records, turn_id=None, timestamp="t")
    except RolloutError as error:
        return str(error)

def output(text):
    return ItemRecorded({"type": "function_call_output", "call_id": "c", "output": text})

started = SessionStarted(thread_id="thread", timestamp="t", cwd="/w")
store = FileStore.create(Path(sys.argv[1]), "thread", datetime(2026, 1, 2))
told = {}
room(10)
told["first"] = append(started)
told["left"] = [str(path) for path in Path(sys.argv[1]).rglob("*") if path.is_file()]
room(resource.RLIM_INFINITY)
told["again"] = append(started, output("a"))
before = store.path.read_bytes()
room(len(before) + 300)
told["full"] = append(output("b" * 50), output("c" * 1000))
told["why"], told["records"] = store.behind.why, store.behind.records
told["same"] = store.path.read_bytes() == before
room(resource.RLIM_INFINITY)
told["after"] = append(output("d"))
told["behind"] = store.behind
told["lines"] = [json.loads(line)["ordinal"] for line in store.path.read_bytes().splitlines()]
print(json.dumps(told))
"""


def test_first_write_that_fails_leaves_nothing_and_a_later_one_waits_without_a_half_line(tmp_path):
    ended = subprocess.run(child(FULL_DISK, tmp_path), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert "cannot be written: File too large" in told["first"]
    assert told["left"] == []
    assert told["again"] == [0, 1]
    assert told["full"] == [2, 3], "they wait in memory"
    assert (told["why"], told["records"]) == ("File too large", 2)
    assert told["same"]
    assert told["after"] == [4]
    assert told["behind"] is None
    assert told["lines"] == [0, 1, 2, 3, 4]


def test_home_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "home").write_text("a file")
    store = FileStore.create(tmp_path / "home", THREAD, NOW)
    with pytest.raises(RolloutError, match=r"home/sessions/2026/03/08 cannot be made: Not a directory"):
        append(store, started())


def test_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(RolloutError, match=r"gone\.jsonl"):
        FileStore.reopen(tmp_path / "gone.jsonl", THREAD, 3)


# --- compressed ---------------------------------------------------------------------------------------------------


def compressed(folder: Path) -> Path:
    source = next((CASES / "S22-compressed-rollouts").rglob("*000016.jsonl.zst"))
    return Path(shutil.copy(source, folder))


def test_compressed_file_is_continued_in_a_plain_one_beside_it(tmp_path):
    packed = compressed(tmp_path)
    before = packed.read_bytes()
    plain = zstd.decompress(before)
    store = reopened(packed)
    append(store, output())
    store.close()
    assert packed.read_bytes() == before  # S22.3
    assert store.path == packed.with_suffix("")
    assert store.path.read_bytes().startswith(plain)
    assert len(list(read_lines(store.path))) == len(plain.splitlines()) + 1
    assert sorted(file.name for file in tmp_path.iterdir()) == [store.path.name, packed.name], "nothing aside is left"


def test_plain_file_beside_a_compressed_one_is_never_replaced(tmp_path):
    packed = compressed(tmp_path)
    store = reopened(packed)
    append(store, output("newer"))
    store.close()
    newer = store.path.read_bytes()
    with pytest.raises(RolloutError, match=rf"{store.path.name}, which counts, does not hold what .* holds"):
        reopened(packed)
    again = reopened(store.path)
    append(again, output("newest"))
    again.close()
    assert again.path.read_bytes().startswith(newer)


def test_compressed_copy_of_a_plain_file_is_gone_on_with_as_the_plain_one(tmp_path):
    packed = compressed(tmp_path)
    plain = packed.with_suffix("")
    plain.write_bytes(zstd.decompress(packed.read_bytes()))
    store = reopened(packed)
    assert store.path == plain
    append(store, output())
    store.close()


@pytest.mark.parametrize("odd", ["larger", "newer"])
def test_compressed_file_that_is_newer_or_larger_than_the_plain_one_is_told_and_stays(tmp_path, odd):
    packed = compressed(tmp_path)
    plain = packed.with_suffix("")
    lines = zstd.decompress(packed.read_bytes()).splitlines(keepends=True)
    plain.write_bytes(b"".join(lines[:-1] if odd == "newer" else lines[:1]))
    os.utime(packed, (2_000_000_000 if odd == "newer" else 1_000_000_000,) * 2)
    before = packed.read_bytes()
    store = reopened(plain)
    (fact,) = store.take_facts()
    assert isinstance(fact, LogChanged)
    assert (fact.what, fact.path) == ("copy differs", plain)
    assert str(packed) in str(fact) and f"is {odd} than" in str(fact)
    store.close()
    with pytest.raises(RolloutError, match="go on with that one"):
        reopened(packed)  # it holds lines that the plain one lacks: going on there would leave a hole
    assert packed.read_bytes() == before


def test_compressed_file_of_several_frames_is_gone_on_with_whole(tmp_path):
    packed = compressed(tmp_path)
    plain = zstd.decompress(packed.read_bytes())
    frames = [zstd.compress(line) for line in plain.splitlines(keepends=True)]
    packed.write_bytes(b"".join(frames))
    store = reopened(packed)
    append(store, output())
    store.close()
    assert store.path.read_bytes().startswith(plain)
    assert len(list(read_lines(packed))) == len(frames)


def test_compressed_file_that_ends_between_two_frames_is_what_it_holds(tmp_path):
    packed = compressed(tmp_path)
    plain = zstd.decompress(packed.read_bytes())
    packed.write_bytes(zstd.compress(plain) + zstd.compress(b'{"timestamp":"x"')[:-3])
    with pytest.raises(RolloutError, match="compressed file ends in its middle"):
        reopened(packed)
    assert [file.name for file in tmp_path.iterdir()] == [packed.name]


UNPACKER = """
import os, signal
from pathlib import Path
from refold.rollout import FileStore
from refold.rollout.disk import Disk

path, where = Path(sys.argv[1]), sys.argv[2]

class Killed(Disk):
    def sync(self, fd):
        if where == "while it is written":
            os.kill(os.getpid(), signal.SIGKILL)
    def sync_folder(self, folder):
        os.kill(os.getpid(), signal.SIGKILL)

FileStore.reopen(path, "thread", 10, disk=Killed())
"""


@pytest.mark.parametrize("where", ["while it is written", "after it has its name"])
def test_killed_while_it_is_decompressed_the_plain_file_is_whole_or_absent(tmp_path, where):
    packed = compressed(tmp_path)
    ended = subprocess.run(child(UNPACKER, packed, where), check=False)
    assert ended.returncode == -signal.SIGKILL
    plain = packed.with_suffix("")
    whole = zstd.decompress(packed.read_bytes())
    assert len(list(tmp_path.iterdir())) > 1, "something was left"
    assert plain.exists() == (where == "after it has its name")
    store = reopened(plain if plain.exists() else packed)
    append(store, output())
    store.close()
    assert store.path.read_bytes().startswith(whole)
    left = [file.name for file in tmp_path.iterdir() if file.name.endswith(".part")]
    assert len(left) <= (where == "after it has its name")


def test_broken_compressed_file_leaves_no_plain_one(tmp_path):
    packed = compressed(tmp_path)
    packed.write_bytes(packed.read_bytes()[:200])
    with pytest.raises(RolloutError, match="compressed file ends in its middle"):
        FileStore.reopen(packed, THREAD, 3)
    assert [file.name for file in tmp_path.iterdir()] == [packed.name]


def test_file_that_is_no_zstd_at_all_is_told_and_leaves_no_plain_one(tmp_path):
    packed = compressed(tmp_path)
    packed.write_bytes(packed.read_bytes()[:10] + b"\0" * 300)
    with pytest.raises(RolloutError, match=r"zstd|compressed"):
        FileStore.reopen(packed, THREAD, 3)
    assert [file.name for file in tmp_path.iterdir()] == [packed.name]


def test_compressed_file_with_a_plain_name_is_not_written_to(tmp_path):
    packed = compressed(tmp_path)
    misnamed = packed.rename(packed.with_suffix(""))
    before = misnamed.read_bytes()
    assert list(read_lines(misnamed)), "it is known by its content (S22.4)"
    with pytest.raises(RolloutError, match=r"compressed but not named \.zst"):
        reopened(misnamed)
    assert misnamed.read_bytes() == before


# --- what is written is what is read --------------------------------------------------------------------------------


def test_records_come_back_as_they_went_in(tmp_path):
    records: list[Record] = [
        started(base_instructions="be brief", window_id="w1", forked_from="parent"),
        TurnStarted("turn", 1, 100),
        said("user", "Grüße, 你好 🙂 \u2028 \x7f"),
        well_formed(output("half a pair: \ud83d")),
        said("assistant", "hi"),
        TurnEnded(turn_id="turn", outcome="failed", error="no"),
    ]
    store = FileStore.create(tmp_path, THREAD, datetime.now(UTC))
    ordinals = append(store, *records)
    store.close()
    found = {line.ordinal: line.record for line in read_lines(store.path)}
    assert [type(found[ordinal]) for ordinal in ordinals] == [type(record) for record in records]
    assert found[ordinals[2]] == records[2]
    assert found[ordinals[3]].item["output"] == "half a pair: \ufffd"
    store.path.read_bytes().decode("utf-8", "strict")
