"""Examination: everything that the reader tolerates is named, with its line and byte; nothing else is called damage."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.core.records import Line, LineDamaged, LineKept
from refold.core.thread import Thread
from refold.errors import RolloutNotFound
from refold.rollout import read_lines
from refold.rollout.examination import KINDS, Examination, examine
from refold.rollout.examination.findings import MOST_OF_A_KIND, MOST_PLACES, Findings, Place
from refold.rollout.examination.spelling import parts_of

sys.path.insert(0, str(Path(__file__).parent))
from damaged_files import (
    AT,
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


def examined(folder: Path, *values: Any, name: str = "rollout.jsonl") -> Examination:
    return examine(written(folder, jsonl(*values), name))


def kinds(told: Examination) -> list[str]:
    return [one.kind for one in told.findings]


DOCS = Path(__file__).parents[2] / "docs"
USER = said("hello")["payload"]
PICTURE = "data:image/png;base64," + "iVBO" * 600_000
LARGE = "data:image/png;base64," + "iVBO" * 1_500_000


def shown(url: str) -> dict[str, Any]:
    return item("message", role="user", content=[{"type": "input_image", "image_url": url}])


def cut_packed(data: bytes) -> bytes:
    noise = b"".join(jsonl(said(random.Random(n).randbytes(40).hex())) for n in range(4_000))
    return packed(data + noise)[:-2_000]


# kind → the lines (or the bytes of the file, or its name and bytes) in which it is found
FOUND: dict[str, Any] = {
    # the file
    "compressed": ("a.jsonl.zst", packed(jsonl(meta(), said("x")))),
    "packed_name": ("a.jsonl", packed(jsonl(meta(), said("x")))),
    "plain_name": ("a.jsonl.zst", jsonl(meta(), said("x"))),
    "packed_cut": ("a.jsonl.zst", cut_packed(jsonl(meta()))),
    "byte_order_mark": [b"\xef\xbb\xbf", meta()],
    "crlf": [meta(), jsonl(said("x")).replace(b"\n", b"\r\n")],
    "spaces_around": [meta(), b" " + jsonl(said("x"))],
    "blank_line": [meta(), b" \t\r\n", said("x")],
    "no_line_end": [meta(), jsonl(said("x"))[:-1]],
    "empty_file": [],
    # its text
    "torn_line": [meta(), jsonl(said("x"))[:-20]],
    "glued_lines": [meta(), jsonl(said("x"))[:-1] + jsonl(said("y"))],
    "not_json": [meta(), b"junk\n", said("x")],
    "not_an_object": [meta(), b"[1, 2]\n", said("x")],
    "invalid_utf8": [meta(), jsonl(said("x-x")).replace(b"x-x", b"x\xff\xfex")],
    "half_surrogate": [meta(), jsonl(said("x-x")).replace(b"x-x", b"x\\ud83dx")],
    "loose_json": [meta(), jsonl(said("x-x")).replace(b"x-x", b"x\tx")],
    # its order
    "ordinal_missing": [meta(0), said("x"), said("y", 2)],
    "ordinal_odd": [meta(0), said("x", "1"), said("y", 2)],
    "ordinal_gap": [meta(0), said("x", 1), said("y", 5)],
    "ordinal_repeated": [meta(0), said("x", 1), said("y", 1)],
    "ordinal_backwards": [meta(0), said("x", 1), said("y", 2), said("z", 1)],
    # its records
    "bare_record": [{"id": "T", "timestamp": AT, "instructions": None}, USER],
    "timestamp_missing": [meta(), {key: value for key, value in said("x").items() if key != "timestamp"}],
    "unknown_record": [meta(), line("brand_new", {"a": 1})],
    "unknown_item": [meta(), item("quantum_call")],
    "item_left_out": [meta(), item("configuration_update", reasoning_effort="high")],
    "unknown_event": [meta(), event("brand_new_event")],
    "unknown_shape": [meta(), event("token_count", info={"last_token_usage": {"input_tokens": "many"}})],
    "odd_value": [meta(), event("thread_rolled_back", num_turns="two")],
    "old_spelling": [line("session_meta", {"id": "T", "timestamp": AT, "cwd": "/w", "instructions": "Do."})],
    "ghost_snapshot": [meta(), item("ghost_snapshot", ghost_commit={})],
    # who it is
    "meta_missing": [said("x")],
    "meta_late": [said("x"), meta()],
    "meta_repeated": [meta(), said("x"), meta()],
    "meta_of_another": [meta(), meta(id="P")],
    "mode_unknown": [meta(history_mode="from-the-future"), said("x")],
    "base_missing": [meta(0, history_base={"thread_id": "P", "end_ordinal_exclusive": 4}), said("x", 4)],
    # its checkpoints
    "checkpoint_message_only": [meta(), said("x"), line("compacted", {"message": "It was so."})],
    "checkpoint_metadata": [meta(), checkpoint(USER, replacement_history_metadata=[{}, {}])],
    "checkpoint_items": [meta(), checkpoint(USER, "no item", None)],
    "checkpoint_addresses": [meta(), checkpoint(USER, refold={"addresses": ["T:1", "T:2"]})],
    "checkpoints_copied": [meta(), checkpoint(said("x" * 1_200_000)["payload"]), checkpoint(USER)],
    "media_repeated": [meta(), shown(PICTURE), checkpoint(shown(PICTURE)["payload"])],
    "media_large": [meta(), shown(LARGE)],
    # its world
    "world_unreadable": [meta(), line("world_state", {"full": True})],
    "world_patch": [meta(), line("world_state", {"full": False, "state": {"a": 1}})],
    # its turns
    "turn_open": [meta(), event("task_started", turn_id="1"), said("x")],
    "turn_never_ended": [meta(), event("task_started", turn_id="1"), event("task_started", turn_id="2")],
    "turns_overlap": [
        *(meta(), event("task_started", turn_id="1"), event("task_started", turn_id="2")),
        event("task_complete", turn_id="1"),
    ],
    "rollback_beyond": [meta(), said("x"), event("thread_rolled_back", num_turns=3)],
    "turn_failed": [meta(), event("task_complete", turn_id="1", error={"message": "image is broken"})],
    "compaction_failed": [
        meta(),
        line("refold", {"kind": "compaction_attempted", "method": "local", "outcome": "400 refused"}),
    ],
    "media_left_out": [
        meta(),
        line(
            "refold",
            {
                **{"kind": "request_sent", "request": "compaction", "spelling": "s", "tools": "t", "sha256": "h"},
                **{"size": 1, "items": 1, "without_media": True},
            },
        ),
    ],
    # what a resume finds
    "call_unanswered": [meta(), call()],
    "output_orphaned": [meta(), output()],
    "call_odd": [meta(), call(), output(), call(), output()],
    "steer_waiting": [meta(), line("refold", {"kind": "steer_queued", "item_id": "msg_1", "text": "wait"})],
}
# found in the tests that are named; they need more than the bytes of one file
ELSEWHERE = {
    "packed_copy": "test_a_compressed_copy_beside_the_file_is_named",
    "blob_missing": "test_a_text_that_is_missing_beside_the_file_is_damage",
    "line_too_long": "a line of 1 GiB: tests/cases/test_s27_huge_files.py holds the reader to it",
    "unreadable": "a disk that fails",
    "not_resumed": "test_files_that_go_on_from_each_other_are_not_resumed",
}


def file_of(folder: Path, told: Any) -> Path:
    if isinstance(told, tuple):
        return written(folder, told[1], told[0])
    return written(folder, jsonl(*told))


# --- every tolerance is named ----------------------------------------------------------------------------------------


def test_every_kind_of_finding_has_an_example() -> None:
    assert set(FOUND) | set(ELSEWHERE) == set(KINDS)
    assert not set(FOUND) & set(ELSEWHERE)


def test_every_kind_of_finding_is_documented() -> None:
    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| `")]
    told = {row[0].strip("| `"): (row[1], row[2], row[3]) for row in rows}
    words = {True: "damage", False: "note"}
    assert told == {name: (words[one.is_damage], one.what, one.effect) for name, one in KINDS.items()}


@pytest.mark.parametrize("kind", FOUND)
def test_what_the_reader_tolerates_is_named(tmp_path: Path, kind: str) -> None:
    told = examine(file_of(tmp_path, FOUND[kind]))
    assert kind in kinds(told)
    if not KINDS[kind].is_damage:
        assert not told.is_damaged, kinds(told)


@pytest.mark.parametrize("kind", FOUND)
def test_whatever_the_reader_warns_of_or_does_not_know_is_named(tmp_path: Path, kind: str) -> None:
    path = file_of(tmp_path, FOUND[kind])
    told = examine(path)
    if told.is_damaged and told.active.why is not None:
        return
    odd = [one for one in read_lines(path) if one.warning or isinstance(one.record, LineDamaged | LineKept)]
    known = {"token_usage_record", "retained_context"}
    odd = [one for one in odd if not (isinstance(one.record, LineKept) and one.record.type in known)]
    assert len(odd) <= sum(one.count for one in told.findings)


def test_what_is_not_looked_into_is_what_both_programs_write_every_day(tmp_path: Path) -> None:
    for path in sorted(ROLLOUTS.glob("*.jsonl")):
        told = examine(path)
        fork_alone = path.stem in ("i_resume_fork_child", "t_revert_after")
        assert not told.is_damaged or fork_alone, (path.name, kinds(told))
        usual = {"call_unanswered", "turn_open", "turn_failed", "base_missing", "turn_never_ended"}
        assert set(kinds(told)) <= usual, path.name
        assert told.generation == "paginated" and told.is_numbered


def test_a_session_of_ours_is_in_order(tmp_path: Path) -> None:
    from refold import Memory

    with Memory.open(tmp_path / "home", model="gpt-5.5") as memory:
        memory.add([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}])
        memory.undo(1)
        path = memory.path
    assert path is not None
    told = examine(path)
    assert (told.generation, kinds(told), len(told.checkpoints)) == ("refold", [], 1)


# --- places ----------------------------------------------------------------------------------------------------------


def test_a_finding_says_line_byte_and_how_often(tmp_path: Path) -> None:
    head = jsonl(meta())
    told = examined(tmp_path, meta(), b"junk\n", said("x"), b"junk\n", b"other\n")
    [twice, once] = told.findings
    assert (twice.kind, twice.count, [one.line for one in twice.places]) == ("not_json", 2, [2, 4])
    assert twice.places[0].offset == len(head)
    assert (once.count, once.places[0].line) == (1, 5)
    assert (told.lines, told.unread) == (5, 3)


def test_bytes_that_are_not_text_are_placed_in_the_file(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + jsonl(meta()).replace(b"/w", b"/\xff")
    told = examine(written(tmp_path, data))
    [found] = [one for one in told.findings if one.kind == "invalid_utf8"]
    assert found.detail == f"from byte {data.index(bytes([0xFF]))} on"
    assert kinds(told)[0] == "byte_order_mark"


def test_a_call_in_the_active_history_is_found_at_its_line(tmp_path: Path) -> None:
    told = examined(tmp_path, meta(), said("x"), call("c1"), call("c2"), output("c2"))
    [found] = told.findings
    assert (found.kind, found.places[0].line, found.detail) == ("call_unanswered", 3, "c1 look")
    assert found.places[0].offset == len(jsonl(meta(), said("x")))


def test_a_call_that_was_compacted_away_is_no_finding(tmp_path: Path) -> None:
    told = examined(tmp_path, meta(), call("c1"), checkpoint(USER))
    assert kinds(told) == [] and told.active.items == 1


def test_findings_stay_few_however_much_is_damaged(tmp_path: Path) -> None:
    findings = Findings()
    for number in range(5_000):
        findings.add("not_json", Place(number + 1, number), f"why {number}")
        findings.add("crlf", Place(number + 1, number))
    listed = findings.listed()
    assert len(listed) == MOST_OF_A_KIND + 2
    assert sum(one.count for one in listed) == 10_000
    assert max(len(one.places) for one in listed) == MOST_PLACES


# --- what it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "generation", "numbered"),
    [
        ([{"id": "T", "timestamp": AT, "instructions": None}, USER], "bare", False),
        ([line("session_meta", {"id": "T", "timestamp": AT, "instructions": None})], "2025", False),
        ([meta()], "legacy", False),
        ([meta(0)], "legacy", True),
        ([meta(0, history_mode="paginated")], "paginated", True),
        ([meta(0, history_mode="paginated", originator="refold")], "refold", True),
        ([b"junk\n"], "unknown", False),
    ],
)
def test_the_generation_is_told(tmp_path: Path, values: list[Any], generation: str, numbered: bool) -> None:
    told = examined(tmp_path, *values)
    assert (told.generation, told.is_numbered) == (generation, numbered)


def test_what_is_counted_is_what_stands_there(tmp_path: Path) -> None:
    told = examined(
        tmp_path,
        *(meta(cli_version="0.9"), event("task_started", turn_id="1"), said("hello"), said("x", role="assistant")),
        *(call(), output(), event("task_complete", turn_id="1"), checkpoint(USER, USER), said("more")),
    )
    assert told.records == {"session_meta": 1, "event_msg": 2, "response_item": 5, "compacted": 1}
    assert told.items["message:user"] == 2 and told.items["function_call"] == 1
    assert told.turns == {"started": 1, "completed": 1, "failed": 0, "interrupted": 0}
    assert [(one.line, one.items, one.window) for one in told.checkpoints] == [(8, 2, 1)]
    assert (told.typed, told.active.items, told.version, told.thread_id) == (2, 3, "0.9", "T")


def test_the_history_is_what_a_resume_finds() -> None:
    for path in sorted(ROLLOUTS.glob("*.jsonl")):
        told = examine(path)
        if "history_base" not in path.read_text():
            thread = Thread.replay(read_lines(path))
            assert (told.active.items, told.active.thread_id) == (len(thread.history), thread.id)


def test_a_file_that_is_not_there_is_the_only_error(tmp_path: Path) -> None:
    with pytest.raises(RolloutNotFound):
        examine(tmp_path / "none.jsonl")


# --- what needs more than one file -----------------------------------------------------------------------------------


def test_a_compressed_copy_beside_the_file_is_named(tmp_path: Path) -> None:
    data = jsonl(meta(), said("x"))
    written(tmp_path, packed(data), "a.jsonl.zst")
    told = examine(written(tmp_path, data, "a.jsonl"))
    assert kinds(told) == ["packed_copy"] and not told.is_damaged


def test_a_text_that_is_missing_beside_the_file_is_damage(tmp_path: Path) -> None:
    blob = {"$blob": "0" * 64, "bytes": 20_000}
    told = examined(
        tmp_path,
        *(
            meta(0, history_mode="refold-blobs", originator="refold"),
            item("function_call_output", 1, call_id="c", output=blob),
        ),
    )
    assert "blob_missing" in kinds(told)
    assert "blob_missing" not in kinds(
        examined(tmp_path, meta(0), item("function_call_output", 1, call_id="c", output=blob))
    )


def test_files_that_go_on_from_each_other_are_not_resumed(tmp_path: Path) -> None:
    for one, other in (("T1", "T2"), ("T2", "T1")):
        base = {"thread_id": other, "end_ordinal_exclusive": 9}
        written(tmp_path, jsonl(meta(0, id=one, history_base=base), said("x", 1)), f"rollout-{one}.jsonl")
    told = examine(tmp_path / "rollout-T1.jsonl")
    assert kinds(told) == ["not_resumed"] and "circle" in str(told.active.why)


# --- broken lines ----------------------------------------------------------------------------------------------------


HALF = b'{"timestamp":"2026-01-01T00:00:00.000Z","type":"response_item","payl'


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (compact(said("a")) + compact(said("b")), [said("a"), said("b")]),
        (HALF + compact(said("a")), [said("a")]),
        (b"\0" * 40 + compact(said("a")), [said("a")]),
        (compact(said("a")) + HALF, [said("a")]),
        (compact(said("a")) + compact(said("a")), [said("a")]),
        (compact(said("a")) + HALF + compact(said("b")) + compact(said("c")), [said("a"), said("b"), said("c")]),
        (compact(USER) + compact(USER["content"][0]), [USER, USER["content"][0]]),
        (HALF, []),
        (HALF + compact(USER), []),
        (compact(said(compact(said("inside")).decode()))[:-4], []),
        (b'{"timestamp":"' * 5_000, []),
        (b"[" * 50_000, []),
    ],
    ids=range(12),
)
def test_whole_records_in_a_broken_line_are_told_apart(body: bytes, found: list[Any]) -> None:
    assert [json.loads(part) for part in parts_of(body)] == found


# --- any bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(120))
def test_any_bytes_are_examined_without_an_exception(tmp_path: Path, seed: int) -> None:
    draw = random.Random(f"examine {seed}")
    data = mutated(draw.choice(SOURCES).read_bytes(), draw)
    path = written(tmp_path, packed(data)[: draw.choice([None, -7])] if seed % 10 == 0 else data)
    told = examine(path)
    if told.active.why is None:
        read: list[Line] = list(read_lines(path))
        assert told.unread == sum(isinstance(one.record, LineDamaged) for one in read)
        assert not told.unread or told.is_damaged
        warned = [one for one in read if one.warning]
        assert not warned or told.is_damaged
    for found in told.findings:
        assert found.count >= 1 and found.about.what


def test_examining_changes_nothing(tmp_path: Path) -> None:
    path = Path(shutil.copy(CASES / "S18-partial-line" / "glued.jsonl", tmp_path))
    before = path.read_bytes(), path.stat().st_mtime_ns
    examine(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [one.name for one in tmp_path.iterdir()] == ["glued.jsonl"]
