"""Repair: a mended copy that folds as the damaged file did, under a name of its own, with the old file kept."""

from __future__ import annotations

import fcntl
import hashlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.core.records import LineDamaged
from refold.core.thread import Thread, same_state
from refold.errors import RolloutError, RolloutLocked
from refold.rollout import Catalogue, read_lines
from refold.rollout.examination import Repair, examine, plan_repair, repair
from refold.session.memory import read_thread

sys.path.insert(0, str(Path(__file__).parent))
from damaged_files import (
    CASES,
    ROLLOUTS,
    SOURCES,
    call,
    checkpoint,
    event,
    item,
    jsonl,
    line,
    meta,
    mutated,
    output,
    packed,
    said,
    written,
)

USER = said("hello")["payload"]
NAME = "rollout-2026-01-01T00-00-00-T.jsonl"


def repaired(path: Path, home: Path | None = None) -> Repair:
    told = examine(path)
    return repair(told, plan_repair(told, new_id="NEW", home=home))


def mended(folder: Path, *values: Any, name: str = NAME) -> list[Any]:
    """The lines of the repaired file."""
    done = repaired(written(folder, jsonl(*values), name))
    return [json.loads(raw) if raw else None for raw in done.target.read_bytes().split(b"\n")[:-1]]


def fold(path: Path) -> Thread:
    return Thread.replay(read_lines(path))


def remark(told: Any) -> str:
    assert told["type"] == "refold" and told["payload"]["kind"] == "line_damaged"
    return told["payload"]["why"]


# --- what becomes of the lines ---------------------------------------------------------------------------------------


def test_lines_in_order_stay_as_they_are_byte_for_byte(tmp_path: Path) -> None:
    kept = [b'{"timestamp": "2026-01-01T00:00:00.000Z",  "type":"brand_new", "payload": {"a" : 1.50}}\n', said("é")]
    done = repaired(written(tmp_path, jsonl(meta(), *kept, b"junk\n"), NAME))
    assert done.target.read_bytes().startswith(jsonl(meta(), *kept))


def test_a_torn_line_is_left_out_and_a_remark_keeps_the_addresses_behind_it(tmp_path: Path) -> None:
    path = written(tmp_path, jsonl(meta(), jsonl(said("x"))[:-30], b"\n", said("y"), call(), output()), NAME)
    before = [e.address for e in fold(path).history]
    done = repaired(path)
    lines = [json.loads(raw) for raw in done.target.read_bytes().splitlines()]
    assert remark(lines[1]).startswith("torn_line: ") and lines[1]["timestamp"] == lines[0]["timestamp"]
    assert [e.address for e in fold(done.target).history] == before == ["T:3", "T:4", "T:5"]


def test_a_remark_gets_the_ordinal_that_was_lost_and_none_where_the_line_was_written_again(tmp_path: Path) -> None:
    lost = mended(tmp_path / "a", meta(0), b"junk\n", said("x", 2), jsonl(said("y", 3))[:-9])
    assert [one["ordinal"] for one in lost] == [0, 1, 2, 3]
    assert remark(lost[1]) and remark(lost[3])
    again = mended(tmp_path / "b", meta(0), jsonl(said("x", 1))[:-9] + b"\n", said("x", 1))
    assert [one["ordinal"] for one in again] == [0, 1] and again[1]["payload"] == USER | said("x")["payload"]


def test_glued_lines_are_parted_and_count_again(tmp_path: Path) -> None:
    lines = mended(tmp_path, meta(), jsonl(said("x"))[:-1] + jsonl(said("y")), said("z"))
    assert lines == [meta(), said("x"), said("y"), said("z")]


def test_the_record_behind_half_a_record_appears_once(tmp_path: Path) -> None:
    path = Path(shutil.copy(CASES / "S18-partial-line" / "glued.jsonl", tmp_path))
    done = repaired(path)
    history = [e.item for e in fold(done.target).history]
    assert len(history) == 4 and history[:3] == [e.item for e in fold(done.kept).history]
    assert history[3]["content"][0]["text"] == "data.csv has 120 rows."


def test_what_is_not_strict_is_written_as_the_reader_reads_it(tmp_path: Path) -> None:
    raw = jsonl(said("x-x"))
    odd = [raw.replace(b"x-x", b"a\xffb"), raw.replace(b"x-x", b"a\\ud83db"), raw.replace(b"x-x", b"a\tb\x01")]
    numbers = jsonl(line("brand_new", {"n": 0})).replace(b'"n": 0', b'"n": 1e999, "m": NaN, "k": ' + b"9" * 30)
    path = written(tmp_path, jsonl(meta(), *odd, numbers), NAME)
    done = repaired(path)
    assert [one.record for one in read_lines(done.target)] == [one.record for one in read_lines(done.kept)]
    assert not [one for one in read_lines(done.target) if one.warning]
    json.loads(done.target.read_bytes().splitlines()[1].decode("utf-8", "strict"))


def test_mark_line_ends_and_blank_lines_go(tmp_path: Path) -> None:
    lines = [meta(0), said("x", 1)]
    data = b"\xef\xbb\xbf" + jsonl(lines[0], b"\n", lines[1]).replace(b"\n", b"\r\n")
    done = repaired(written(tmp_path, data[:-2], NAME))
    assert done.target.read_bytes() == jsonl(*lines)


def test_a_blank_line_stays_where_line_numbers_are_addresses(tmp_path: Path) -> None:
    done = repaired(written(tmp_path, jsonl(meta(), b"\r\n", said("x"), b"junk\n"), NAME))
    assert done.target.read_bytes().startswith(jsonl(meta(), b"\n", said("x")))
    assert [e.address for e in fold(done.target).history] == ["T:3"]


def test_ordinals_change_only_where_they_have_to(tmp_path: Path) -> None:
    lines = mended(
        tmp_path,
        *(meta(0), said("a", 1), said("b", 5), said("c", 5), said("d"), said("e", "9"), said("f", 9), said("g", 2)),
    )
    assert [one["ordinal"] for one in lines] == [0, 1, 5, 6, 7, 8, 9, 10]
    assert [one["payload"]["content"][0]["text"] for one in lines[1:]] == list("abcdefg")


def test_a_file_without_ordinals_gets_none(tmp_path: Path) -> None:
    assert all("ordinal" not in one for one in mended(tmp_path, meta(), said("x"), b"junk\n", said("y")))


def test_a_checkpoint_that_the_real_program_would_skip_is_mended(tmp_path: Path) -> None:
    told = checkpoint(USER, "no item", replacement_history_metadata=[{}])
    lines = mended(tmp_path, meta(), told)
    assert lines[1]["payload"] == {"message": "", "replacement_history": [USER], "window_number": 1}


def test_what_a_request_leaves_out_anyway_stays(tmp_path: Path) -> None:
    values = [meta(), call("c1"), output("c2"), item("quantum_call"), event("task_started", turn_id="1")]
    path = written(tmp_path, jsonl(*values), NAME)
    told = examine(path)
    assert not plan_repair(told, new_id="NEW").done
    assert len(fold(repaired(written(tmp_path, jsonl(*values, b"junk\n"), NAME)).target).history) == 2


def test_a_session_that_lost_its_identity_has_the_one_in_the_name(tmp_path: Path) -> None:
    name = "rollout-2026-02-03T04-05-06-019c2000-0000-7000-8000-000000000012.jsonl"
    settings = line("turn_context", {"cwd": "/w", "model": "m"}, 1)
    path = written(tmp_path, jsonl(b"\0\0\0\n", settings, said("x", 2)), name)
    done = repaired(path)
    thread = read_thread(done.target)
    assert (thread.id, thread.meta and thread.meta.cwd) == ("019c2000-0000-7000-8000-000000000012", "/w")
    assert [one.ordinal for one in read_lines(done.target)] == [0, 1, 2]
    assert not examine(done.target).is_damaged
    unnamed = repaired(written(tmp_path, jsonl(said("x")), "saved.jsonl"))
    assert read_thread(unnamed.target).id == "NEW"


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_session_that_lost_its_identity_still_has_its_long_texts_beside_it(tmp_path: Path, has_folder: bool) -> None:
    name = "rollout-2026-02-03T04-05-06-019c2000-0000-7000-8000-000000000012.jsonl"
    text, mark = "long " * 4_000, hashlib.sha256(b"long " * 4_000).hexdigest()
    said_at_length = said("x", 1)
    said_at_length["payload"]["content"][0]["text"] = {"$blob": mark, "bytes": len(text)}
    path = written(
        tmp_path / "theirs", jsonl(b"\0\0\n", said_at_length).replace(b", ", b",").replace(b": ", b":"), name
    )
    if has_folder:
        path.with_suffix(".blobs").mkdir()
        (path.with_suffix(".blobs") / mark).write_text(text)
    done = repaired(path, tmp_path / "home")
    [entry] = read_thread(done.target).history
    shown = entry.item["content"][0]["text"]
    assert shown == text if has_folder else f"missing here: blob {mark[:12]}" in shown


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04\x14\0\0", b"null\n[]\n", jsonl({"a": 1})])
def test_a_file_without_an_item_is_left_alone(tmp_path: Path, data: bytes) -> None:
    told = examine(written(tmp_path, data, NAME))
    assert not plan_repair(told, new_id="NEW").done


# --- names -----------------------------------------------------------------------------------------------------------


def test_the_repaired_file_has_the_name_and_the_old_one_is_kept_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "2026" / "01" / "01"
    folder.mkdir(parents=True)
    data = jsonl(meta(), said("x"), b"junk\n")
    path = written(folder, data, NAME)
    done = repaired(path)
    assert (done.target, done.kept.name) == (path, f"{NAME}.damaged")
    assert done.kept.read_bytes() == data
    assert [one.id for one in Catalogue(tmp_path).sessions()] == ["T"]
    assert sorted(one.name for one in folder.iterdir()) == [NAME, f"{NAME}.damaged"]
    path.write_bytes(data)
    assert repaired(path).kept.name == f"{NAME}.damaged2"


@pytest.mark.parametrize("name", [f"{NAME}.zst", NAME])
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_compressed_file_is_repaired_into_a_plain_one(tmp_path: Path, name: str, is_packed: bool) -> None:
    data = jsonl(meta(), said("x"), b"junk\n")
    path = written(tmp_path, packed(data) if is_packed else data, name)
    before = path.read_bytes()
    done = repaired(path)
    assert done.target == tmp_path / NAME and done.kept.read_bytes() == before
    assert done.kept == path if name.endswith(".zst") else done.kept.name == f"{NAME}.damaged"
    assert same_state(fold(done.target), fold(done.kept))


def test_a_compressed_file_that_was_cut_keeps_the_lines_before_the_cut(tmp_path: Path) -> None:
    noise = [said(random.Random(n).randbytes(60).hex()) for n in range(3_000)]
    path = written(tmp_path, packed(jsonl(meta(), *noise))[:-1_000], f"{NAME}.zst")
    with pytest.raises(RolloutError):
        read_thread(path)
    done = repaired(path)
    assert 1_000 < len(read_thread(done.target).history) < 3_000


def test_a_file_of_another_home_is_repaired_into_ours(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "sessions" / "2026" / "01" / "01"
    theirs.mkdir(parents=True)
    path = written(theirs, jsonl(meta(), said("x"), b"junk\n"), NAME)
    before = path.read_bytes(), path.stat().st_mtime_ns
    done = repaired(path, tmp_path / "ours")
    assert done.target == tmp_path / "ours" / "sessions" / "2026" / "01" / "01" / NAME
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before and done.kept == path
    found, own = Catalogue(tmp_path / "ours", [tmp_path / "theirs"]).find("T")
    assert (found, own) == (done.target, True)
    with pytest.raises(RolloutError, match="is there already"):
        repaired(path, tmp_path / "ours")


def test_a_session_that_the_home_holds_already_is_not_there_a_second_time(tmp_path: Path) -> None:
    home, theirs = tmp_path / "home", tmp_path / "theirs"
    (home / "sessions").mkdir(parents=True)
    written(home / "sessions", jsonl(meta(), said("ours")), NAME)
    path = written(theirs, jsonl(meta(), said("hello")) + b"{half\n", "copy.jsonl")
    with pytest.raises(RolloutError, match=r"holds the session T already .*import --as-new"):
        repaired(path, home)
    intact = written(theirs, jsonl(meta(), said("hello")), "intact.jsonl")
    assert not repaired(intact, home).done
    assert [one.name for one in home.rglob("*.jsonl*")] == [NAME]


@pytest.mark.parametrize("thread_id", ["../../../out", "a/b", "a\nb"])
def test_an_id_that_is_a_path_leads_nowhere(tmp_path: Path, thread_id: str) -> None:
    path = written(tmp_path / "theirs", jsonl(meta(id=thread_id), said("hello")) + b"{half\n", "copy.jsonl")
    with pytest.raises(RolloutError, match="cannot name a file"):
        repaired(path, tmp_path / "home")
    assert [one.name for one in tmp_path.rglob("*")] == ["theirs", "copy.jsonl"]


def test_a_file_that_goes_on_from_one_in_another_home_is_not_taken_away_from_it(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(ROLLOUTS / "i_resume_fork_parent.jsonl", theirs / "parent.jsonl")
    child = Path(shutil.copy(ROLLOUTS / "i_resume_fork_child.jsonl", theirs / "child.jsonl"))
    with child.open("ab") as file:
        file.write(b"junk\n")
    with pytest.raises(RolloutError, match=r"would not resume, so nothing was changed: .* goes on from line 67"):
        repaired(child, tmp_path / "ours")
    assert not list((tmp_path / "ours").rglob("*.jsonl*"))
    assert len(read_thread(repaired(child).target).history) == len(read_thread(child).history)


def test_what_no_repair_mends_does_not_keep_the_rest_from_it(tmp_path: Path) -> None:
    lines = mended(tmp_path, meta(0, history_mode="from-the-future"), b"junk\n", said("x", 2))
    assert remark(lines[1]) and lines[2] == said("x", 2)


# --- when it is refused -----------------------------------------------------------------------------------------------


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, jsonl(meta(), b"junk\n", said("x")), NAME)
    plan = plan_repair(examine(path), new_id="NEW")
    assert (plan.done, plan.lines_before, plan.lines_after) == ({"not_json": 1}, 3, 3)
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_a_file_that_is_being_written_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    path = written(tmp_path, jsonl(meta(), b"junk\n", said("x")), NAME)
    before = path.read_bytes()
    program = "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.flock(file, 2); print(flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(RolloutLocked, match=f"is being written by process {holder.pid}") as refused:
            repaired(path)
        assert refused.value.owner == holder.pid
    finally:
        holder.communicate(b"\n", timeout=20)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == [NAME]
    repaired(path)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was let go


def test_a_folder_that_takes_no_file_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, jsonl(meta(), b"junk\n", said("x")), NAME)
    (tmp_path / "ours").write_text("a file where a folder should be")
    with pytest.raises(RolloutError, match="cannot be written"):
        repaired(path, tmp_path / "ours")
    assert path.read_bytes() == jsonl(meta(), b"junk\n", said("x"))


# --- whatever the damage ---------------------------------------------------------------------------------------------


def facts(thread: Thread, *, addressed: bool) -> Any:
    history = [(e.item, e.origin, e.turn_id, *([e.address] if addressed else [])) for e in thread.history]
    return (history, thread.window, thread.world, thread.settings, thread.steers, thread.turns, thread.compactions)


@pytest.mark.parametrize("seed", range(150))
def test_the_repaired_file_folds_as_the_damaged_one_did(tmp_path: Path, seed: int) -> None:
    draw = random.Random(f"repair {seed}")
    path = written(tmp_path, mutated(draw.choice(SOURCES).read_bytes(), draw), NAME)
    told = examine(path)
    plan = plan_repair(told, new_id="NEW")
    if not plan.done:
        return
    before = path.read_bytes()
    done = repair(told, plan)
    assert done.kept.read_bytes() == before
    after = examine(done.target)
    left = {one.kind for one in after.findings if one.about.fixed}
    assert not left, left
    assert not plan_repair(after, new_id="NEW").done, "a repaired file needs no repair"
    assert after.lines == done.lines_after
    if "glued_lines" in plan.done or "meta_missing" in plan.done:
        return
    one, other = fold(done.kept), fold(done.target)
    addressed = not plan.renumbered and not (told.is_numbered and told.unread)
    assert facts(one, addressed=addressed) == facts(other, addressed=addressed)
    assert not [at for at in read_lines(done.target) if isinstance(at.record, LineDamaged)]


@pytest.mark.parametrize("seed", range(40))
def test_lines_that_lost_their_ends_count_again(tmp_path: Path, seed: int) -> None:
    draw = random.Random(f"glue {seed}")
    source = draw.choice([*ROLLOUTS.glob("[abdm]_*.jsonl")])
    raw = source.read_bytes()
    ends = [at for at, byte in enumerate(raw[:-1]) if byte == 10]
    for at in sorted(draw.sample(ends, 3), reverse=True):
        raw = raw[:at] + draw.choice([b"", b"\0\0"]) + raw[at + 1 :]
    path = written(tmp_path, raw, NAME)
    done = repaired(path)
    assert done.target.read_bytes() == source.read_bytes()
    assert same_state(read_thread(done.target), read_thread(source))
    assert done.target == path


def test_a_line_that_says_its_ordinal_twice_gets_one(tmp_path: Path) -> None:
    path = tmp_path / NAME
    stamp = '{"timestamp":"2026-01-01T00:00:00.000Z",'
    meta = '"type":"session_meta","payload":{"id":"t","timestamp":"2026-01-01T00:00:00Z","cwd":"/w"}}'
    item = '"type":"response_item","payload":{"type":"message","role":"user","content":[]}}'
    lines = [f'{stamp}"ordinal":{ordinal},{item}' for ordinal in ("1", "2", "2", '1,"ordinal":2')]
    path.write_text("\n".join([f'{stamp}"ordinal":0,{meta}', *lines]) + "\n", encoding="utf-8")
    done = repaired(path, tmp_path / "home")
    told = [json.loads(line, object_pairs_hook=list) for line in done.target.read_bytes().splitlines()]
    assert [[value for key, value in line if key == "ordinal"] for line in told] == [[0], [1], [2], [3], [4]]
