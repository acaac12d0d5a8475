"""Catalogue: every session that lies under a home, found by what a person knows of it, without reading whole files."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refold.errors import RolloutError, RolloutNotFound
from refold.rollout import Catalogue
from refold.rollout.index.summary import HEAD_BYTES, summary_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CASES = Path(__file__).parents[1] / "data" / "cases"
ONE = "0190aaaa-0000-7000-8000-000000000001"
TWO = "0190aaaa-0000-7000-8000-000000000002"
OTHER = "0190bbbb-0000-7000-8000-000000000003"


def meta(thread_id: str, **fields: Any) -> dict[str, Any]:
    payload = {"id": thread_id, "timestamp": "2026-02-03T04:00:00.000Z", "cwd": "/srv/demo", **fields}
    return {"type": "session_meta", "payload": payload}


def said(text: str, role: str = "user") -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    content = [{"type": kind, "text": text}]
    return {"type": "response_item", "payload": {"type": "message", "role": role, "content": content}}


def session(home: Path, thread_id: str, *lines: dict[str, Any], day: str = "2026/02/03", written: int = 0) -> Path:
    path = home / "sessions" / day / f"rollout-{day.replace('/', '-')}T04-00-00-{thread_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines or (meta(thread_id), said("hello"))))
    if written:
        os.utime(path, (written, written))
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


# --- find -----------------------------------------------------------------------------------------------------------


def test_session_is_found_by_its_id_in_any_folder(home):
    path = session(home, ONE, day="2025/12/31")
    session(home, TWO)
    assert Catalogue(home).find(ONE) == (path, True)


def test_session_is_found_by_the_beginning_of_its_id(home):
    session(home, ONE)
    path = session(home, OTHER)
    assert Catalogue(home).find("0190b") == (path, True)


def test_ambiguous_beginning_names_the_sessions(home):
    session(home, ONE)
    session(home, TWO)
    with pytest.raises(RolloutNotFound, match=r"fits 2 sessions") as refused:
        Catalogue(home).find("0190aaaa")
    assert ONE in str(refused.value) and TWO in str(refused.value)


def test_whole_id_wins_over_a_longer_one_that_begins_with_it(home):
    path = session(home, "abc")
    session(home, "abc_def")
    assert Catalogue(home).find("abc") == (path, True)


@pytest.mark.parametrize("reference", ["ffff", "0190aaaa-0000-7000-8000-0000000000019"])
def test_unknown_id_says_where_was_looked(home, reference):
    session(home, ONE)
    with pytest.raises(RolloutNotFound, match=f"no session '{reference}' under .*home"):
        Catalogue(home).find(reference)


def test_home_that_is_not_there_has_no_sessions(home):
    assert Catalogue(home).sessions() == []
    with pytest.raises(RolloutNotFound, match="no session"):
        Catalogue(home).newest()


def test_path_means_that_file_and_tells_whether_it_is_the_homes_own(home, tmp_path, monkeypatch):
    inside = session(home, ONE)
    outside = Path(shutil.copy(inside, tmp_path / "copy.jsonl"))
    monkeypatch.chdir(tmp_path)
    catalogue = Catalogue(home)
    assert catalogue.find(str(inside)) == (inside, True)
    assert catalogue.find(str(outside)) == (outside, False)
    assert catalogue.find("copy.jsonl") == (Path("copy.jsonl"), False)
    assert catalogue.find("home/../copy.jsonl")[1] is False
    link = tmp_path / "link.jsonl"
    link.symlink_to(inside)
    assert catalogue.find(str(link)) == (link, True)


def test_file_without_a_telling_name_is_found_where_no_id_fits(home, tmp_path, monkeypatch):
    session(home, ONE)
    monkeypatch.chdir(tmp_path)
    shutil.copy(CASES / "S26-fork-identity" / "parent.jsonl", tmp_path / "saved")
    assert Catalogue(home).find("saved") == (Path("saved"), False)
    (tmp_path / "0190aaaa").mkdir()
    assert Catalogue(home).find("0190aaaa")[1], "an id comes before a folder that happens to have its name"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("{tmp}", "is a folder, not a rollout file"),
        ("{tmp}/none.jsonl", "no such file"),
        ("{tmp}/file/none.jsonl", "no such file"),
        ("none.jsonl", "no such file: none.jsonl"),
        ("", "the ID is empty"),
        ("x" * 5_000, "no session 'xxx"),
    ],
)
def test_reference_that_means_nothing_is_named(home, tmp_path, reference, said):
    (tmp_path / "file").write_text("")
    with pytest.raises(RolloutNotFound, match=said):
        Catalogue(home).find(reference.format(tmp=tmp_path))


def test_path_that_cannot_be_looked_at_is_an_error(home, tmp_path):
    with pytest.raises(RolloutError, match="cannot be read: File name too long"):
        Catalogue(home).find(f"{tmp_path}/{'x' * 5_000}")


# --- newest ---------------------------------------------------------------------------------------------------------


def test_newest_is_the_one_that_was_written_last(home):
    session(home, ONE, day="2026/02/04", written=1_000)
    path = session(home, TWO, day="2026/02/03", written=2_000)
    assert Catalogue(home).newest() == (path, True)


# --- homes ----------------------------------------------------------------------------------------------------------


def test_foreign_home_is_found_but_is_not_the_own(home, tmp_path):
    mine, theirs = session(home, ONE), session(tmp_path / "codex", TWO)
    catalogue = Catalogue(home, [tmp_path / "codex"])
    assert catalogue.find(TWO) == (theirs, False)
    assert {(one.path, one.own) for one in catalogue.sessions()} == {(mine, True), (theirs, False)}


def test_own_copy_of_a_foreign_session_comes_first(home, tmp_path):
    mine = session(home, ONE, written=1_000)
    session(tmp_path / "codex", ONE, written=2_000)
    assert Catalogue(home, [tmp_path / "codex"]).find(ONE) == (mine, True)


def test_archived_sessions_are_found_too(home):
    path = session(home, ONE)
    (home / "archived_sessions").mkdir()
    moved = Path(shutil.move(path, home / "archived_sessions"))
    assert Catalogue(home).find(ONE) == (moved, True)
    assert [one.path for one in Catalogue(home).sessions()] == [moved]


# --- the list -------------------------------------------------------------------------------------------------------


def test_list_tells_what_a_person_knows_a_session_by(home):
    path = session(
        home,
        ONE,
        meta(ONE, forked_from_id=TWO),
        said("<environment_context>\n  <cwd>/srv/demo</cwd>\n</environment_context>"),
        said("Fix   the\nfailing test"),
        said("and then this"),
        written=1_770_000_000,
    )
    [one] = Catalogue(home).sessions()
    assert (one.id, one.path, one.cwd, one.forked_from) == (ONE, path, "/srv/demo", TWO)
    assert one.first_text == "Fix the failing test"
    assert one.created == datetime(2026, 2, 3, 4, tzinfo=UTC)
    assert one.modified == datetime.fromtimestamp(1_770_000_000, UTC)
    assert one.size == path.stat().st_size
    assert one.problem is None


def test_forked_session_is_known_by_what_its_parent_was_asked(home):
    history = [said("the parent's goal")["payload"]]
    session(home, ONE, meta(ONE), {"type": "compacted", "payload": {"message": "", "replacement_history": history}})
    [one] = Catalogue(home).sessions()
    assert one.first_text == "the parent's goal"


def test_byte_order_mark_and_crlf_do_not_hide_a_session():
    found = Catalogue(CASES / "S19-bom-and-crlf").sessions()
    assert {one.id[-4:] for one in found} == {"0013", "03fb"}  # S19.1
    assert all(one.cwd and one.first_text and not one.problem for one in found)


def test_compressed_sessions_are_listed_once_and_a_broken_one_stops_nothing():
    catalogue = Catalogue(CASES / "S22-compressed-rollouts")
    found = {one.id[-4:]: one for one in catalogue.sessions()}
    assert len(catalogue.sessions()) == len(found) == 3  # S22.1
    assert found["0016"].first_text and found["0016"].path.suffix == ".zst"
    assert found["03fe"].path.suffix == ".jsonl", "the plain file is used"
    broken = found["07e6"]
    assert broken.problem is not None and broken.path.name in broken.problem
    assert not any(one.problem for key, one in found.items() if key != "07e6")


def test_order_follows_the_records_time_not_the_files_name():
    found = Catalogue(CASES / "S25-local-time-in-file-names").sessions()
    assert [one.id[-4:] for one in found] == ["0401", "0019"]  # S25.1
    for one in found:
        assert Catalogue(CASES / "S25-local-time-in-file-names").find(one.id)[0] == one.path  # S25.2


def test_any_spelling_of_a_time_can_be_sorted(home):
    stamps = {
        "a": "2026-02-03T04:00:00Z",
        "b": "2026-02-03T13:00:00+08:00",
        "c": "2026-02-03T06:00:00",
        "d": "yesterday",
        "e": "",
        "f": "0001-01-01T00:00:00+14:00",
    }
    for name, stamp in stamps.items():
        session(home, name, meta(name, timestamp=stamp), written=1_770_170_000)  # after all of the named times
    found = [one.id for one in Catalogue(home).sessions()]
    assert sorted(found[:3]) == ["d", "e", "f"]  # S25.5: the file's time
    assert found[3:] == ["c", "b", "a"]


def test_fork_is_listed_beside_its_parent(home):
    for name, thread_id in (
        ("parent", "019c2000-0000-7000-8000-00000000001a"),
        ("child", "019c2000-0000-7000-8000-000000000402"),
    ):
        shutil.copy(CASES / "S26-fork-identity" / f"{name}.jsonl", session(home, thread_id))
    found = {one.id[-4:]: one for one in Catalogue(home).sessions()}
    assert found.keys() == {"001a", "0402"}  # S26.1
    assert (found["001a"].cwd, found["001a"].forked_from) == ("/srv/alpha", None)
    assert (found["0402"].cwd, found["0402"].forked_from) == ("/srv/beta", found["001a"].id)


def test_damaged_files_are_listed_with_their_problem(home):
    session(home, "empty").write_bytes(b"")
    session(home, "junk").write_bytes(b"\x00\xff" * 100)
    session(home, "torn").write_bytes((CASES / "S18-partial-line" / "tail_cut.jsonl").read_bytes())
    session(home, "fine")
    found = {one.path.name.rpartition("-")[2].removesuffix(".jsonl"): one for one in Catalogue(home).sessions()}
    assert found.keys() == {"empty", "junk", "torn", "fine"}
    for name in ("empty", "junk"):
        assert found[name].id == name
        problem = found[name].problem
        assert problem is not None and "no session_meta line" in problem and found[name].path.name in problem
    assert found["torn"].problem is None and found["torn"].cwd  # S18.1


def test_folder_with_a_sessions_name_and_a_link_to_nowhere_do_not_stop_the_list(home):
    session(home, ONE)
    folder = home / "sessions/2026/02/03"
    (folder / f"rollout-2026-02-03T05-00-00-{TWO}.jsonl").mkdir()
    (folder / f"rollout-2026-02-03T06-00-00-{OTHER}.jsonl").symlink_to(home / "nowhere")
    (folder / f"rollout-2026-02-03T07-00-00-{OTHER}.jsonl.part").write_text("")
    (folder / "notes.txt").write_text("")
    catalogue = Catalogue(home)
    assert [one.id for one in catalogue.sessions() if not one.problem] == [ONE]
    assert catalogue.newest()[0].exists()


# --- the size of files ------------------------------------------------------------------------------------------------


def bytes_read() -> int:
    return int(Path("/proc/thread-self/io").read_text().split("rchar: ")[1].split()[0])


counts_reads = pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="the system does not count reads")


@counts_reads
def test_listing_reads_only_the_head_of_a_huge_file(home):
    history = [said("kept " + "k" * 1_000_000)["payload"]]
    checkpoint = {"type": "compacted", "payload": {"message": "m", "replacement_history": history}}
    path = session(home, ONE, meta(ONE), said("start"), checkpoint)
    line = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as file:
        for _ in range(64):
            file.write(line)
    assert path.stat().st_size > 64_000_000
    before = bytes_read()
    [one] = Catalogue(home).sessions()
    assert bytes_read() - before <= HEAD_BYTES  # S27.1
    assert (one.id, one.cwd, one.first_text) == (ONE, "/srv/demo", "start")


@counts_reads
def test_session_in_which_nobody_spoke_yet_is_not_searched_to_its_end(home):
    path = session(home, ONE, meta(ONE), *[said("w" * 100_000, "assistant") for _ in range(50)])
    before = bytes_read()
    one = summary_of(ONE, path, own=True)
    assert bytes_read() - before <= HEAD_BYTES + 20_000  # the file is read in blocks
    assert (one.id, one.first_text, one.problem) == (ONE, "", None)


def test_first_line_longer_than_the_head_is_handled(home):
    path = session(home, ONE, meta(ONE, base_instructions={"text": "b" * (2 * HEAD_BYTES)}), said("start"))
    one = summary_of(ONE, path, own=True)
    assert (one.id, one.cwd, one.problem) == (ONE, "/srv/demo", None)


def test_small_compressed_file_that_expands_without_end_is_not_held(home):
    """A hundred MiB in one line of a few kB (S22.6)."""
    path = session(home, ONE)
    packed = path.with_name(path.name + ".zst")
    packed.write_bytes(zstd.compress(b'{"type":"session_meta","x":"' + b"x" * (100 << 20)))
    path.unlink()
    tracemalloc.start()
    try:
        [one] = Catalogue(home).sessions()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert one.problem is not None and "line 1, at byte 0, is longer than" in one.problem
    assert peak < 80 << 20
