"""doctor ID|PATH: one rollout for people and for programs, and its repair by a real process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.testing import ResponsesServer, text_reply

CASES = Path(__file__).parents[1] / "data" / "cases"
ID = "019c2000-0000-7000-8000-000000000012"
NAME = f"rollout-2026-02-03T04-00-00-{ID}.jsonl"
HOLD = "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.flock(file, 2); print(flush=True); input()"


def placed(home: Path, source: str = "S18-partial-line/glued.jsonl") -> Path:
    """A damaged session in a home."""
    folder = home / "sessions" / "2026" / "02" / "03"
    folder.mkdir(parents=True)
    return Path(shutil.copy(CASES / source, folder / NAME))


def told(ended: Any) -> dict[str, Any]:
    assert ended.err == ""
    [found] = ended.events
    return found


# --- what is said ----------------------------------------------------------------------------------------------------


def test_damage_is_told_with_place_effect_and_what_mends_it(here, tmp_path):
    path = CASES / "S20-invalid-utf8-bytes" / "rollout.jsonl"
    ended = here("doctor", path)
    assert (ended.status, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert lines[0] == "rollout.jsonl"
    assert any(line.startswith("  resumes      yes, with 4 items") for line in lines)
    raw = path.read_bytes().splitlines(keepends=True)
    place = f"damage  line 8, byte {len(b''.join(raw[:7])):,}: a line that is not JSON: 64 bytes: "
    [at] = [number for number, line in enumerate(lines) if line.startswith(place)]
    assert lines[at + 1] == "        effect: it is skipped"
    assert lines[at + 2] == "        mends it: refold doctor --fix puts a remark in its place"
    assert lines[-1].startswith(f"2 damaged, 1 noted; refold doctor --fix {path} writes a repaired copy")


def test_the_session_that_was_written_last_is_examined(here, tmp_path):
    path = placed(tmp_path / "home")
    assert here("doctor", "--last").out.splitlines()[0] == path.name


def test_a_file_in_order_is_said_to_be_so(here):
    path = Path(__file__).parents[1] / "data" / "oracle" / "rollouts" / "d_preturn.jsonl"
    ended = here("doctor", path)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "In order."
    assert "the real program's, with ordinals 0." in ended.out and "checkpoints  1, the newest at line" in ended.out


def test_notes_alone_are_no_failure(here):
    ended = here("doctor", CASES / "S21-records-from-a-newer-version" / "rollout.jsonl", "--json")
    found = told(ended)
    assert (ended.status, found["damaged"], found["resumes"]) == (0, False, True)
    assert {"unknown_item", "unknown_event"} <= {one["kind"] for one in found["findings"]}
    assert {one["severity"] for one in found["findings"]} == {"note"}


def test_program_gets_one_object(here):
    path = CASES / "S18-partial-line" / "glued.jsonl"
    found = told(here("doctor", path, "--json"))
    assert (found["thread_id"], found["generation"], found["lines"], found["unread"]) == (ID, "legacy", 9, 1)
    [glued] = found["findings"]
    begins = path.read_bytes().index(b'{"timestamp":"2026-02-03T04:00:07')
    assert (glued["kind"], glued["severity"], glued["count"]) == ("glued_lines", "damage", 1)
    assert glued["places"] == [{"line": 8, "byte": begins}]
    assert glued["effect"] and "--fix" in glued["mend"]
    assert found["active"]["items"] == 3 and "repair" not in found


def test_what_is_no_rollout_at_all_is_told_too(here, tmp_path):
    path = tmp_path / "picture.jsonl"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x1b[31m")
    ended = here("doctor", path, "--fix")
    assert (ended.status, ended.err) == (1, "")
    assert "resumes      no: " in ended.out and "\x1b" not in ended.out
    assert "nothing is written: no item in it can be read" in ended.out
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["picture.jsonl"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("none.jsonl",), "no such file: none.jsonl"),
        (("--fix",), "which session? --fix and --dry-run take an ID, a PATH, or --last"),
        (("--dry-run",), "which session?"),
        (("x", "--provider", "openai"), "give a session, --last or --provider: one of them"),
        (("x", "--last"), "give a session, --last or --provider: one of them"),
        (("--last",), "there is no session under "),
    ],
)
def test_wrong_calls_are_told_in_one_line(here, words, complaint):
    ended = here("doctor", *words)
    assert ended.status == 2 and complaint in ended.only_complaint


# --- repair ----------------------------------------------------------------------------------------------------------


def test_what_a_repair_would_do_is_said_and_nothing_is_written(machine):
    path = placed(machine.home)
    before = machine.fingerprint(path)
    ended = machine.refold("doctor", ID, "--fix", "--dry-run")
    assert (ended.status, ended.err) == (1, "")
    assert "repair  of 9 lines 9 are written:" in ended.out
    assert f"  to    {path}" in ended.out and f"  kept  {path}.damaged: the old file, byte for byte" in ended.out
    assert (machine.fingerprint(path), machine.rollouts()) == (before, [path])
    assert machine.refold("doctor", ID, "--dry-run").out == ended.out


def test_a_repaired_session_is_in_order_and_goes_on(machine):
    path = placed(machine.home)
    before = path.read_bytes()
    ended = machine.refold("doctor", ID, "--fix")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == f"done: refold resume {path}"
    assert machine.rollouts() == [path, path.with_name(f"{NAME}.damaged")]
    assert path.with_name(f"{NAME}.damaged").read_bytes() == before
    again = machine.refold("doctor", ID)
    assert (again.status, again.out.splitlines()[-1]) == (0, "In order.")
    with ResponsesServer(lambda _: text_reply("fine")) as server:
        machine.connect(server)
        resumed = machine.refold("resume", ID, "go on", "--cd", machine.work)
        assert resumed.status == 0, resumed.err
        said = [part["text"] for item in server.requests[-1].input for part in item.get("content", [])]
    assert "data.csv has 120 rows." in said
    assert machine.rollouts() == [path, path.with_name(f"{NAME}.damaged")]


def test_a_file_of_another_home_stays_as_it_is(machine):
    path = placed(machine.folder / "theirs")
    before = machine.fingerprint(path)
    found = told(machine.refold("doctor", path, "--fix", "--json"))
    copy = machine.home / "sessions" / "2026" / "02" / "03" / NAME
    assert found["repair"] == {
        **{"source": str(path), "target": str(copy), "kept": str(path), "done": {"glued_lines": 1}},
        **{"renumbered": 0, "lines_before": 9, "lines_after": 9, "written": True, "why": None},
    }
    assert machine.fingerprint(path) == before and machine.rollouts() == [copy]
    assert machine.refold("context", ID, "--json").status == 0
    again = machine.refold("doctor", path, "--fix")
    assert again.status == 1 and "is there already, and is not touched" in again.complaint


def test_a_session_that_is_being_written_is_refused_by_name_of_its_writer(machine):
    path = placed(machine.home)
    before = machine.fingerprint(path)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        ended = machine.refold("doctor", ID, "--fix")
    finally:
        holder.communicate(b"\n", timeout=20)
    assert ended.status == 1 and f"is being written by process {holder.pid}" in ended.complaint
    assert (machine.fingerprint(path), machine.rollouts()) == (before, [path])
    assert machine.refold("doctor", ID, "--fix").status == 0


def test_damage_that_no_repair_mends_is_still_told(machine):
    path = placed(machine.home, "S28-two-writers/interleaved.jsonl")
    found = told(machine.refold("doctor", path, "--fix", "--json"))
    assert (found["repair"]["done"], found["repair"]["written"]) == ({}, False)
    assert [one["kind"] for one in found["findings"] if one["severity"] == "damage"] == ["turns_overlap"]
    assert json.loads(path.read_bytes().splitlines()[0])["type"] == "session_meta"
    assert machine.rollouts() == [path]
