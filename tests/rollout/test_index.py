"""The index of sessions: it says what the files say, costs what is new, and may be damaged, locked or gone."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.core.lines import decode
from refold.errors import RolloutNotFound
from refold.rollout import Catalogue, Summary
from refold.rollout.catalogue import run_through
from refold.rollout.index.database import FILE, NO_FULL_TEXT, open_index
from refold.rollout.index.listing import Listing
from refold.rollout.index.reading import lines_from
from refold.rollout.index.said import OUTPUT_CHARS
from refold.rollout.index.tree import roots

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DATA = Path(__file__).parents[1] / "data"
ROLLOUTS = sorted((DATA / "oracle" / "rollouts").glob("*.jsonl"))
ONE = "0190aaaa-0000-7000-8000-000000000001"
TWO = "0190aaaa-0000-7000-8000-000000000002"
THREE = "0190aaaa-0000-7000-8000-000000000003"
LONG_AGO = 1_600_000_000  # seconds since 1970
counts_reads = pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="the system does not count reads")


def line(kind: str, payload: dict[str, Any], ordinal: int | None = None) -> dict[str, Any]:
    about = {} if ordinal is None else {"ordinal": ordinal}
    return {"timestamp": "2026-02-03T04:05:06.000Z", **about, "type": kind, "payload": payload}


def meta(thread_id: str, **fields: Any) -> dict[str, Any]:
    about = {"id": thread_id, "timestamp": "2026-02-03T04:00:00.000Z", "cwd": "/srv/demo"}
    return line("session_meta", {**about, **fields})


def said(text: str, role: str = "user") -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return line("response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}]})


def ran(command: str, output: str) -> list[dict[str, Any]]:
    arguments = json.dumps({"cmd": command})
    call = {"type": "function_call", "name": "exec_command", "arguments": arguments, "call_id": "c"}
    answer = {"type": "function_call_output", "call_id": "c", "output": output}
    return [line("response_item", call), line("response_item", answer)]


def event(kind: str, **told: Any) -> dict[str, Any]:
    return line("event_msg", {"type": kind, **told})


def used(total: int) -> dict[str, Any]:
    return event("token_count", info={"total_token_usage": {"total_tokens": total}, "last_token_usage": {}})


def named(name: str, stamp: str = "2026-02-03T04:05:06.000Z") -> dict[str, Any]:
    return {**line("refold", {"kind": "named", "name": name}), "timestamp": stamp}


def raw(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for one in lines)


def session(home: Path, thread_id: str, *lines: dict[str, Any], day: str = "2026/02/03") -> Path:
    """A session's file; its folder's time is long past, so that it is known to hold no more."""
    path = home / "sessions" / day / f"rollout-2026-02-03T04-00-00-{thread_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw([meta(thread_id), *lines]))
    os.utime(path.parent, (LONG_AGO, LONG_AGO))
    return path


def append(path: Path, *lines: dict[str, Any] | bytes) -> None:
    with path.open("ab") as file:
        file.writelines(one if isinstance(one, bytes) else raw([one]) for one in lines)


def bytes_read() -> int:
    return int(Path("/proc/thread-self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def catalogue(home: Path) -> Catalogue:
    return Catalogue(home, indexed=True)


def only(catalogue: Catalogue) -> Summary:
    [one] = catalogue.sessions()
    return one


def fresh(home: Path) -> list[Summary]:
    """What an index says that is made now."""
    for path in home.glob(f"{FILE}*"):
        path.unlink()
    return Catalogue(home, indexed=True).sessions()


# --- what it says -----------------------------------------------------------------------------------------------------


def test_session_is_told_by_all_of_its_lines(home, catalogue):
    session(
        home,
        ONE,
        event("task_started", turn_id="a"),
        line("turn_context", {"model": "older"}),
        said("Fix   the\ntest"),
        said("and do not touch billing"),
        used(100),
        line("compacted", {"message": "done so far", "replacement_history": []}),
        event("task_started", turn_id="b"),
        line("compacted", {"message": "", "replacement_history": [], "refold": {"method": "undo"}}),
        event("task_started", turn_id="c"),
        line("turn_context", {"model": "newer"}),
        said("go on"),
        used(250),
        named("first"),
        named("the   billing\nfix"),
    )
    one = only(catalogue)
    assert (one.first_text, one.name, one.title) == ("Fix the test", "the billing fix", "the billing fix")
    assert (one.turns, one.compactions, one.tokens, one.model) == (2, 1, 250, "newer")
    assert one.named_at is not None and one.problem is None


def test_git_branch_and_parent_are_told(home, catalogue):
    base = {"thread_id": TWO, "end_ordinal_exclusive": 4}
    path = session(home, ONE)
    path.write_bytes(raw([meta(ONE, git={"branch": "main"}, history_base=base)]))
    assert (only(catalogue).branch, only(catalogue).forked_from) == ("main", TWO)
    path.write_bytes(raw([meta(ONE, git="none", history_base={**base, "thread_id": ONE})]))
    assert (only(catalogue).branch, only(catalogue).forked_from) == ("", None), "a revert has no parent"


def test_files_that_mark_no_turns_are_counted_by_what_was_said(home, catalogue):
    session(home, ONE, said("one"), said("answer", "assistant"), said("two"))
    assert only(catalogue).turns == 2


def test_name_of_an_ancestor_in_a_copied_line_is_not_its_own(home, catalogue):
    of_parent = event("thread_name_updated", thread_id=TWO, thread_name="parent")
    session(home, ONE, event("thread_name_updated", thread_id=ONE, thread_name="child"), of_parent)
    assert only(catalogue).name == "child"


def test_name_can_be_taken_away(home, catalogue):
    session(home, ONE, said("hello"), named("gone soon"), named(""))
    assert (only(catalogue).name, only(catalogue).title) == ("", "hello")


@pytest.mark.parametrize("path", ROLLOUTS, ids=lambda path: path.stem)
def test_index_agrees_with_the_heads_of_files(home, catalogue, path):
    shutil.copy(path, session(home, ONE))
    [indexed], [head] = catalogue.sessions(), Catalogue(home).sessions()
    told = {"tokens": None, "compactions": None, "turns": None, "model": "", "name": "", "cwd": "", "named_at": None}
    assert msgspec.structs.replace(indexed, **told) == msgspec.structs.replace(head, **told)
    assert indexed.turns is not None and head.turns is None


@pytest.mark.parametrize("path", ROLLOUTS, ids=lambda path: path.stem)
def test_file_that_grew_in_pieces_is_told_as_one_that_was_read_at_once(home, catalogue, path):
    data, place = path.read_bytes(), session(home, ONE)
    cuts = [len(data) * part // 7 for part in range(1, 8)]
    place.write_bytes(b"")
    for start, end in zip([0, *cuts], cuts, strict=False):
        append(place, data[start:end])
        pieces = catalogue.sessions()
        run_through(catalogue.searching("hello", limit=9))
    texts = run_through(catalogue.searching("say", limit=9)).found
    assert pieces == fresh(home)
    assert run_through(catalogue.searching("say", limit=9)).found == texts


# --- what changed -----------------------------------------------------------------------------------------------------


def test_file_that_did_not_change_is_not_read(home, catalogue):
    path = session(home, ONE, said("before"))
    catalogue.sessions()
    about = path.stat()
    path.write_bytes(path.read_bytes().replace(b"before", b"behind"))
    os.utime(path, ns=(about.st_mtime_ns, about.st_mtime_ns))
    assert only(catalogue).first_text == "before", "its time, size and number are the same"
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert only(catalogue).first_text == "behind"


@counts_reads
def test_appended_file_is_read_on_from_where_it_was_read(home, catalogue):
    path = session(home, ONE, said("start"), *[said("w" * 100_000, "assistant") for _ in range(50)])
    catalogue.sessions()
    append(path, used(7), named("late"))
    before = bytes_read()
    one = only(catalogue)
    assert (one.tokens, one.name, one.first_text, one.size) == (7, "late", "start", path.stat().st_size)
    assert bytes_read() - before < 200_000


def test_appended_file_with_another_head_is_read_from_its_start(home, catalogue):
    path = session(home, ONE, said("before"), used(1))
    catalogue.sessions()
    path.write_bytes(path.read_bytes().replace(b"before", b"behind") + raw([used(2)]))
    assert (only(catalogue).first_text, only(catalogue).tokens) == ("behind", 2)


def test_shortened_file_is_read_from_its_start(home, catalogue):
    path = session(home, ONE, said("one"), named("x"), used(5))
    catalogue.sessions()
    path.write_bytes(raw([meta(ONE), said("one")]))
    assert (only(catalogue).name, only(catalogue).tokens) == ("", None)


def test_half_line_counts_when_it_is_whole(home, catalogue):
    path, late = session(home, ONE, said("one")), raw([named("late"), said("two")])
    for end in (5, len(late) // 2, len(late) - 1):
        path.write_bytes(raw([meta(ONE), said("one")]) + late[:end])
        run_through(catalogue.searching("two", limit=1))
    assert (only(catalogue).name, only(catalogue).turns) == ("late", 2), "the last line lacks no more than its end"
    append(path, b"\n", said("three"))
    assert only(catalogue).turns == 3
    [found] = run_through(catalogue.searching("three", limit=1)).found
    assert found.hits[0].address == f"{ONE}:5"


@counts_reads
def test_moved_file_is_known_again(home, catalogue):
    path = session(home, ONE, said("start"), *[said("w" * 100_000, "assistant") for _ in range(50)])
    run_through(catalogue.searching("start", limit=1))
    (home / "archived_sessions").mkdir()
    moved = Path(shutil.move(path, home / "archived_sessions"))
    before = bytes_read()
    one = only(catalogue)
    assert bytes_read() - before < 200_000
    assert (one.path, one.archived, one.first_text) == (moved, True, "start")
    [found] = run_through(catalogue.searching("start", limit=1)).found
    assert found.summary == one


def test_vanished_file_is_forgotten_with_its_texts(home, catalogue):
    session(home, ONE, said("remember the platypus"))
    path = session(home, TWO, said("forget the platypus"))
    assert len(run_through(catalogue.searching("platypus", limit=9)).found) == 2
    path.unlink()
    assert only(catalogue).id == ONE
    [found] = run_through(catalogue.searching("platypus", limit=9)).found
    assert found.summary.id == ONE
    with closing(sqlite3.connect(home / FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (1,)
        assert [body for (body,) in connection.execute("SELECT body FROM texts")] == ["remember the platypus"]
    assert b"forget the platypus" not in (home / FILE).read_bytes(), "nor does it lie in the file any more"


def test_new_file_in_a_folder_that_was_just_listed_is_seen(home, catalogue):
    """Its folder's time may be the same as at the listing."""
    path = session(home, ONE, said("one"))
    os.utime(path.parent)
    catalogue.sessions()
    then = path.parent.stat().st_mtime_ns
    shutil.copy(path, path.with_name(path.name.replace(ONE, TWO)))
    os.utime(path.parent, ns=(then, then))
    assert len(catalogue.sessions()) == 2


def test_compressed_session_is_told_whole(home, catalogue):
    path = session(home, ONE, said("one"), named("packed"), said("find the platypus", "assistant"))
    path.with_name(path.name + ".zst").write_bytes(zstd.compress(path.read_bytes()))
    path.unlink()
    assert (only(catalogue).name, only(catalogue).path.suffix) == ("packed", ".zst")
    [found] = run_through(catalogue.searching("platypus", limit=9)).found
    assert found.hits[0].address == f"{ONE}:4"


def test_broken_compressed_file_and_what_is_no_file_stop_nothing(home, catalogue):
    session(home, ONE, said("fine"))
    broken = session(home, TWO)
    broken.with_name(broken.name + ".zst").write_bytes(zstd.compress(broken.read_bytes())[:-3])
    broken.unlink()
    broken.with_name(broken.name.replace(TWO, THREE)).mkdir()
    found = {one.path.name[28:64]: one for one in catalogue.sessions()}
    assert found[ONE].problem is None
    assert "the compressed file ends in its middle" in str(found[TWO].problem)
    assert "is not a regular file" in str(found[THREE].problem)
    assert len(run_through(catalogue.searching("fine", limit=9)).found) == 1


def test_of_a_line_beyond_all_bounds_only_the_beginning_is_held(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"first\n" + b"y" * 95 + b"\n" + b"last\n")
    with path.open("rb") as file:
        found = list(lines_from(file, 0, 0, longest=10))
    assert found == [(1, 6, b"first\n"), (2, 102, b"y" * 10), (3, 107, b"last\n")]


# --- homes ------------------------------------------------------------------------------------------------------------


def test_nothing_is_written_into_another_home(home, tmp_path):
    theirs = tmp_path / "codex"
    session(theirs, ONE, said("theirs"))
    before = sorted(theirs.rglob("*"))
    [one] = Catalogue(home, [theirs], indexed=True).sessions()
    assert (one.own, one.first_text) == (False, "theirs")
    assert sorted(theirs.rglob("*")) == before
    assert (home / FILE).exists()


def test_home_that_is_not_asked_for_is_kept_in_mind_until_it_is_gone(home, catalogue, tmp_path):
    theirs = tmp_path / "codex"
    session(theirs, ONE, said("theirs"))
    session(home, TWO, said("ours"))
    Catalogue(home, [theirs], indexed=True).sessions()

    def stored() -> int:
        with closing(sqlite3.connect(home / FILE)) as connection:
            return connection.execute("SELECT count(*) FROM files").fetchone()[0]

    assert only(catalogue).id == TWO and stored() == 2
    shutil.rmtree(theirs)
    assert only(catalogue).id == TWO and stored() == 1


def test_without_a_session_there_is_no_index(home, catalogue):
    assert catalogue.sessions() == []
    assert not home.exists()


def test_index_is_its_owners_alone(home, catalogue):
    session(home, ONE, said("secret"))
    run_through(catalogue.searching("secret", limit=1))
    for path in home.glob(f"{FILE}*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- an index that is no good -----------------------------------------------------------------------------------------


def other_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5_000])


def wrong_listing(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE folders SET listing = x'93c0'")
        connection.commit()


def others_database(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs(x)")
        connection.commit()


def scrambled(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(b"no database at all, but long enough to be looked at" * 100),
        lambda path: path.write_bytes(b""),
        lambda path: other_version(path, -1),
        cut,
        wrong_listing,
        others_database,
        scrambled,
    ],
    ids=["garbage", "empty", "older", "cut", "wrong listing", "another program's", "scrambled"],
)
def test_index_that_is_no_good_is_made_anew(home, catalogue, harm):
    session(home, ONE, said("one"), used(9))
    session(home, TWO, said("two"), used(10), day="2026/02/04")
    right = catalogue.sessions()
    for companion in home.glob(f"{FILE}-*"):
        companion.unlink()
    harm(home / FILE)
    assert catalogue.sessions() == right
    assert catalogue.sessions() == right
    assert len(run_through(catalogue.searching("two", limit=9)).found) == 1
    with closing(sqlite3.connect(home / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (2,)


def test_index_of_a_newer_version_is_left_alone_and_gone_without(home, catalogue):
    session(home, ONE, said("one"), used(9))
    catalogue.sessions()
    other_version(home / FILE, 1_000)
    before = (home / FILE).read_bytes()
    one = only(catalogue)
    assert (one.first_text, one.tokens) == ("one", None), "only the head was read"
    done = run_through(catalogue.searching("one", limit=9))
    assert len(done.found) == 1 and done.fault == "there can be no index now"
    assert (home / FILE).read_bytes() == before


def test_index_that_cannot_be_opened_is_gone_without(home, catalogue):
    session(home, ONE, said("one"), named("me"))
    (home / FILE).mkdir()
    assert only(catalogue).first_text == "one"
    assert catalogue.find("me")[0] == only(catalogue).path
    assert len(run_through(catalogue.searching("one", limit=9)).found) == 1


def test_index_that_another_process_writes_for_long_is_gone_without(home, catalogue):
    path = session(home, ONE, said("one"), used(1))
    catalogue.sessions()
    with closing(sqlite3.connect(home / FILE, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        append(path, used(2), said("two platypuses"))
        assert only(catalogue).tokens == 2, "it is read, and not stored"
        done = run_through(catalogue.searching("platypus", limit=9))
        assert len(done.found) == 1 and "cannot be written now" in str(done.fault)
        writer.execute("ROLLBACK")
    assert only(catalogue).tokens == 2
    assert run_through(catalogue.searching("platypus", limit=9)).fault is None


def test_what_another_process_has_read_meanwhile_is_taken(home):
    path = session(home, ONE, said("before"))
    places = roots([(str(home), True)])
    quick, slow = open_index(home), open_index(home)
    assert quick is not None and slow is not None
    with closing(quick), closing(slow):
        late, early = Listing(slow, places), Listing(quick, places)
        assert [step.files for step in early.steps()] == [1]
        about = path.stat()
        path.write_bytes(path.read_bytes().replace(b"before", b"behind"))
        os.utime(path, ns=(about.st_mtime_ns, about.st_mtime_ns))
        assert [step.files for step in late.steps()] == [1]
        assert [file.summary.first_text for file in late.files()] == ["before"], "it was not read again"
        assert late.files() == early.files()


def test_processes_that_index_at_once_come_to_the_same(home, catalogue):
    for number in range(1_500):
        day = f"2026/03/{1 + number % 20:02}"
        session(home, f"0190aaaa-0000-7000-8000-{number:012}", said(f"number {number}"), used(number), day=day)
    program = (
        "import sys; from pathlib import Path; from refold.rollout import Catalogue;"
        "from refold.rollout.catalogue import run_through;"
        "c = Catalogue(Path(sys.argv[1]), indexed=True); found = c.sessions();"
        "hits = run_through(c.searching('number 777', limit=9)).found;"
        "print(len(found), sum(one.tokens for one in found), len(hits))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(refold.__file__).parents[1])}
    command = [sys.executable, "-c", program, str(home)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) for _ in range(4)]
    told = [process.communicate(timeout=120)[0].split() for process in running]
    assert told == [["1500", str(sum(range(1_500))), "1"]] * 4
    with closing(sqlite3.connect(home / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*), count(DISTINCT path) FROM files").fetchone() == (1_500, 1_500)
        assert connection.execute("SELECT count(*) FROM texts").fetchone() == (1_500,)


# --- searching --------------------------------------------------------------------------------------------------------


@pytest.fixture
def talk(home: Path) -> Path:
    """Two sessions, one of them with ordinals."""
    session(
        home,
        ONE,
        said("<environment_context>\n  <cwd>/srv/hidden</cwd>\n</environment_context>"),
        said('Fix the Invoice totals: 100% of them are_wrong, said O\'Brien "twice"'),
        *ran("pytest -k rounding", "1 failed: assert 41 == 42\n"),
        said("修复了结算错误，请检查账单。", "assistant"),
        line("compacted", {"message": "Rounding was mended.", "replacement_history": [said("a copy")["payload"]]}),
        named("quarterly platypus"),
    )
    output = "x" * 3_500 + "middle" + "y" * 3_500 + "last"
    lines = [meta(TWO), said("Überprüfe den ROUNDING Fehler"), *ran("ls", output)]
    path = session(home, TWO)
    path.write_bytes(raw({**one, "ordinal": 10 + place} for place, one in enumerate(lines)))
    return home


QUERIES = {
    "invoice": [f"{ONE}:3 user"],
    "INVOICE tot": [f"{ONE}:3 user"],
    '"the invoice"': [f"{ONE}:3 user"],
    '"invoice the"': [],
    "invoice rounding": [],
    "rounding": [f"{TWO}:11 user", f"{ONE}:4 call", f"{ONE}:7 summary"],
    "überprüfe": [f"{TWO}:11 user"],
    "ÜBERPRÜFE": [f"{TWO}:11 user"],
    "100%": [f"{ONE}:3 user"],
    "0% ar": [f"{ONE}:3 user"],
    "e_w": [f"{ONE}:3 user"],
    "_w": [f"{ONE}:3 user"],
    "x_": [],
    "^": [],
    "o'brien": [f"{ONE}:3 user"],
    "41 == 42": [f"{ONE}:5 output"],
    "==": [f"{ONE}:5 output"],
    "-k": [f"{ONE}:4 call"],
    "NOT": [],
    "wrong AND": [],
    "NEAR( *": [],
    "结算错": [f"{ONE}:6 assistant"],
    "结算": [f"{ONE}:6 assistant"],
    "账": [f"{ONE}:6 assistant"],
    "结算 账": [f"{ONE}:6 assistant"],
    "结算 账单。 修复": [f"{ONE}:6 assistant"],
    "platypus": [f"{ONE}:8 name"],
    "hidden": [],
    "copy": [],
    "xxxx": [f"{TWO}:13 output"],
    "middle": [],
    "last": [f"{TWO}:13 output"],
    " ": [],
}


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "files"])
@pytest.mark.parametrize("text", QUERIES)
def test_every_word_is_found_where_it_was_said(talk, text, indexed):
    done = run_through(Catalogue(talk, indexed=indexed).searching(text, limit=9))
    assert sorted(f"{hit.address} {hit.kind}" for one in done.found for hit in one.hits) == sorted(QUERIES[text])
    assert done.fault is None


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "files"])
def test_snippet_shows_the_word_in_its_surroundings(home, indexed):
    session(home, ONE, said("a" * 500 + " before the Needle stands more " + "z" * 500))
    [found] = run_through(Catalogue(home, indexed=indexed).searching("needle", limit=1)).found
    snippet = found.hits[0].snippet
    assert " before the Needle stands more z" in snippet
    assert snippet.startswith("…a") and snippet.endswith("z…") and len(snippet) < 200


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "files"])
def test_search_shows_the_first_records_of_the_newest_sessions(home, indexed):
    for number in range(5):
        thread_id = f"{ONE[:-1]}{number}"
        path = session(home, thread_id)
        began = meta(thread_id) | {"payload": {"id": thread_id, "timestamp": f"2026-02-0{number + 1}T00:00:00Z"}}
        path.write_bytes(raw([began, *[said(f"same {count}") for count in range(7)]]))
    catalogue = Catalogue(home, indexed=indexed)
    found = run_through(catalogue.searching("same", limit=2, hits=3)).found
    assert [one.summary.id[-1] for one in found] == ["4", "3"]
    assert [one.count for one in found] == [7, 7]
    assert [hit.snippet for hit in found[0].hits] == ["same 0", "same 1", "same 2"]
    fitting = run_through(catalogue.searching("same", limit=9, fits=lambda one: one.id.endswith("1"))).found
    assert [one.summary.id[-1] for one in fitting] == ["1"]


def test_appended_texts_are_found_once(home, catalogue):
    path = session(home, ONE, said("one platypus"))
    for count in range(2, 6):
        assert run_through(catalogue.searching("platypus", limit=1)).found[0].count == count - 1
        append(path, said(f"{count} platypuses", "assistant"))
    [found] = run_through(catalogue.searching("platypus", limit=1, hits=9)).found
    assert [hit.address.rpartition(":")[2] for hit in found.hits] == ["2", "3", "4", "5", "6"]


def test_file_that_was_written_anew_is_searched_as_it_is(home, catalogue):
    path = session(home, ONE, said("a platypus"), said("b"))
    run_through(catalogue.searching("platypus", limit=1))
    path.write_bytes(raw([meta(ONE), said("an otter")]))
    assert run_through(catalogue.searching("platypus", limit=1)).found == []
    assert len(run_through(catalogue.searching("otter", limit=1)).found) == 1


def test_sqlite_without_full_text_search_is_told_and_files_are_read(home, catalogue):
    session(home, ONE, said("a platypus"))
    catalogue.sessions()
    with closing(sqlite3.connect(home / FILE)) as connection:
        connection.execute("CREATE TABLE texts(x)")  # it knows no MATCH, as no table does without the module
        connection.commit()
    done = run_through(catalogue.searching("platypus", limit=9))
    assert done.fault == NO_FULL_TEXT
    assert [one.summary.id for one in done.found] == [ONE]


def test_text_that_is_kept_of_an_output_is_bounded(home, catalogue):
    session(home, ONE, *ran("cat", "z" * 1_000_000))
    run_through(catalogue.searching("zzz", limit=1))
    with closing(sqlite3.connect(home / FILE)) as connection:
        assert connection.execute("SELECT max(length(body)) FROM texts").fetchone()[0] <= OUTPUT_CHARS + 3


def test_addresses_are_those_of_the_reader(home, catalogue):
    """Also behind damage: of the line itself, or its number."""
    path = session(home, ONE, said("one"))
    append(path, b"{torn\n", b"\n", {**said("two platypuses"), "ordinal": 44}, said("three platypuses"))
    [found] = run_through(catalogue.searching("platypus", limit=1)).found
    lines = [decode(one, number) for number, one in enumerate(path.read_bytes().split(b"\n"), 1)]
    told = [f"{ONE}:{one.ordinal}" for one in lines if one is not None and "platypus" in str(one.record)]
    assert [hit.address for hit in found.hits] == told == [f"{ONE}:44", f"{ONE}:6"]


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "files"])
def test_session_is_found_by_its_name(home, indexed):
    path = session(home, ONE, said("hello"), named("Billing fix"))
    other = session(home, TWO, said("hello"), named("billing FIX"))
    third = session(home, THREE, said("hello"), named("feature/Parser v2"))
    catalogue = Catalogue(home, indexed=indexed)
    assert catalogue.find("Billing fix") == (path, True)
    assert catalogue.find("billing FIX") == (other, True)
    assert catalogue.find("feature/parser V2") == (third, True)
    with pytest.raises(RolloutNotFound, match=r"'BILLING fix' fits 2 sessions .*; give an id"):
        catalogue.find("BILLING fix")
    with pytest.raises(RolloutNotFound, match="no session 'Billing'"):
        catalogue.find("Billing")


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "files"])
def test_id_comes_before_a_name(home, indexed):
    path = session(home, ONE, said("hello"))
    other = session(home, TWO, said("hello"), named(ONE))
    third = session(home, THREE, said("hello"), named("0190"))
    catalogue = Catalogue(home, indexed=indexed)
    assert catalogue.find(ONE) == (path, True)
    assert catalogue.find(TWO) == (other, True)
    assert catalogue.find("0190") == (third, True), "the beginning fits several"


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "files"])
def test_newest_name_counts_wherever_it_stands(home, tmp_path, indexed):
    theirs = tmp_path / "codex"
    session(theirs, ONE, said("x"), event("thread_name_updated", thread_id=ONE, thread_name="in the file"))
    session(theirs, TWO, said("x"), named("in the file too", "2026-02-03T04:05:06.000Z"))
    rows = [
        {"id": ONE, "thread_name": "older", "updated_at": "2026-02-01T00:00:00Z"},
        {"id": ONE, "thread_name": "in the list", "updated_at": "2026-02-05T00:00:00.123456Z"},
        {"id": TWO, "thread_name": "too old", "updated_at": "2026-02-01T00:00:00Z"},
    ]
    (theirs / "session_index.jsonl").write_bytes(raw(rows) + b"junk\n[]\n{\n")
    catalogue = Catalogue(home, [theirs], indexed=indexed)
    assert catalogue.find("in the list")[0].name.endswith(f"{ONE}.jsonl")
    assert catalogue.find("In the file too")[0].name.endswith(f"{TWO}.jsonl")
    with pytest.raises(RolloutNotFound):
        catalogue.find("in the file")
