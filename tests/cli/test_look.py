"""show, context and sessions on every file that we have, in words and as JSON, and on files that are none."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from refold.rollout import read_lines
from refold.testing import ResponsesServer

DATA = Path(__file__).parents[1] / "data"
ROLLOUTS = sorted((DATA / "oracle" / "rollouts").glob("*.jsonl"))
READABLE = sorted(
    path
    for case in ("S14", "S18", "S19", "S20", "S21", "S22", "S23", "S24", "S25", "S26", "S28")
    for path in (DATA / "cases").glob(f"{case}-*/**/*.jsonl*")
    if "07e6" not in path.name  # cut in its only block
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
MIDTURN = DATA / "oracle" / "rollouts" / "e_midturn.jsonl"


def every_file() -> list[Any]:
    return [pytest.param(path, id=f"{path.parent.name[:3]}-{path.name[-24:]}") for path in ROLLOUTS + READABLE]


# --- every file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", every_file())
def test_every_file_can_be_shown(here, path):
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    text = here("show", path)
    assert text.status == 0 and text.out
    assert not CONTROL.search(text.out + text.err)
    rows = here("show", path, "--json")
    assert rows.status == 0
    for row in rows.events:
        assert row.keys() == {"address", "kind", "text", "title"}
        assert f"{row['address']} {row['kind']}" in text.out
    assert rows.events[0]["kind"] == "session"
    warned = [line for line in read_lines(path) if line.warning]
    assert len([line for line in rows.err.splitlines() if path.name in line]) == len(warned)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


@pytest.mark.parametrize("path", every_file())
def test_every_file_has_a_context(here, path):
    text = here("context", path)
    assert (text.status, text.err) == (0, "")
    assert not CONTROL.search(text.out)
    document = json.loads(here("context", path, "--json").out)
    assert len(text.out.splitlines()) >= len(document["rows"]) + 3
    for row in document["rows"]:
        assert row.keys() == {"address", "kind", "origin", "tokens", "preview"}
        assert f"{row['address']}  {row['kind']}" in re.sub(" {2,}", "  ", text.out) or not row["address"]
    assert document["estimated"] >= sum(row["tokens"] for row in document["rows"] if row["origin"] != "base")
    assert "tokens" in text.out.splitlines()[-2]


@pytest.mark.parametrize("path", every_file())
def test_every_record_can_be_printed_whole(here, path):
    line = [line for line in read_lines(path) if not line.warning][-1]
    pretty = here("show", path, "--record", line.ordinal)
    assert pretty.status == 0
    assert not CONTROL.search(pretty.out)
    compact = here("show", path, "--record", line.ordinal, "--json")
    assert len(compact.out.splitlines()) == 1
    assert json.loads(pretty.out) == json.loads(compact.out)
    if path.suffix == ".jsonl":
        assert compact.out.strip().encode() in path.read_bytes()


# --- one record ------------------------------------------------------------------------------------------------------


def test_record_is_found_by_its_ordinal_or_by_its_line_number(here):
    with_ordinals = MIDTURN.read_bytes().splitlines()
    assert here("show", MIDTURN, "--record", 3, "--json").out.encode() == with_ordinals[3] + b"\n"
    plain = DATA / "cases" / "S26-fork-identity" / "parent.jsonl"
    assert here("show", plain, "--record", 3, "--json").out.encode() == plain.read_bytes().splitlines()[2] + b"\n"


def test_record_that_is_not_there_is_named(here):
    ended = here("show", MIDTURN, "--record", 9_999)
    assert (ended.status, ended.out) == (2, "")
    assert ended.only_complaint == "refold: e_midturn.jsonl has no record 9999"


def test_damaged_record_is_printed_as_it_stands(here):
    ended = here("show", DATA / "cases" / "S18-partial-line" / "tail_cut.jsonl", "--record", 8)
    assert ended.status == 0
    assert ended.out.startswith('{"timestamp')
    junk = here("show", DATA / "cases" / "S20-invalid-utf8-bytes" / "rollout.jsonl", "--record", 8)
    assert junk.status == 0 and junk.out
    assert not CONTROL.search(junk.out)


def test_control_characters_of_a_record_are_spelled_out(here, tmp_path):
    path = tmp_path / "evil.jsonl"
    shutil.copy(MIDTURN, path)
    text = "\x1b[2J\x9b\u202e"
    line = {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [{"text": text}]}}
    with path.open("ab") as file:
        file.write(json.dumps({**line, "ordinal": 900}).encode() + b"\n")  # escaped, as any JSON writer does
        file.write(
            json.dumps({**line, "ordinal": 901}, ensure_ascii=False).encode().replace(b"\\u001b", b"\x1b") + b"\n"
        )
    for ordinal in (900, 901):
        for options in ([], ["--json"]):
            ended = here("show", path, "--record", ordinal, *options)
            assert not CONTROL.search(ended.out)
            assert json.loads(ended.out)["payload"]["content"][0]["text"] == text
    for command in (["show", path, "--full"], ["context", path], ["sessions"]):
        ended = here(*command)
        assert not CONTROL.search(ended.out + ended.err)


def test_long_texts_are_shortened_unless_asked_for(here, tmp_path):
    path = tmp_path / "long.jsonl"
    shutil.copy(MIDTURN, path)
    content = [{"type": "input_text", "text": "BEGIN " + "x" * 5_000 + " END"}]
    item = {"type": "message", "role": "user", "content": content}
    with path.open("ab") as file:
        file.write(json.dumps({"ordinal": 900, "type": "response_item", "payload": item}).encode() + b"\n")
    short, full = here("show", path).out, here("show", path, "--full").out
    assert "[3,010 characters not shown; --full or --record shows them]" in short
    assert "x" * 5_000 in full and "x" * 5_000 not in short
    assert "BEGIN x" in short and "x END" in short


# --- context ---------------------------------------------------------------------------------------------------------


def test_context_is_for_the_sessions_own_model_or_the_one_that_is_asked_for(here):
    assert json.loads(here("context", MIDTURN, "--json").out)["model"] == "mock-tokens"
    asked = json.loads(here("context", MIDTURN, "--json", "-m", "gpt-5.5", "-c", "model_context_window=1000").out)
    assert (asked["model"], asked["context_window"]) == ("gpt-5.5", 1000)


def test_live_context_adds_what_the_surroundings_would_change(here, tmp_path):
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    ended = here("context", MIDTURN, "--live", "--cd", tmp_path)
    assert ended.status == 0
    added = [line for line in ended.out.splitlines() if line.startswith("+ ")]
    assert any("AGENTS.md instructions" in line for line in added)
    live = json.loads(here("context", MIDTURN, "--live", "--cd", tmp_path, "--json").out)["live"]
    assert len(live) == len(added)
    assert "live" not in json.loads(here("context", MIDTURN, "--json").out)


def test_unanswered_calls_are_named(here):
    path = DATA / "oracle" / "rollouts" / "n_kill_mid_tool.jsonl"
    document = json.loads(here("context", path, "--json").out)
    text = here("context", path).out
    assert document["unanswered"]
    assert (
        f"{len(document['unanswered'])} unanswered calls get the output `aborted`: {document['unanswered'][0]}" in text
    )


# --- sessions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for case in ("S22-compressed-rollouts", "S25-local-time-in-file-names"):
        shutil.copytree(DATA / "cases" / case, tmp_path / "home", dirs_exist_ok=True)
    return tmp_path / "home"


def test_sessions_are_listed_newest_first(here, home):
    ended = here("sessions")
    assert (ended.status, ended.err) == (0, "")
    listed = [line.split()[0][-4:] for line in ended.out.splitlines() if not line.startswith(" ")]
    assert listed.index("0401") < listed.index("0019") < listed.index("03fe")
    created = [one["created"] for one in here("sessions", "--json").events]
    assert len(listed) == 5 and created == sorted(created, reverse=True)
    problem = [line for line in ended.out.splitlines() if line.startswith(" ")]
    assert len(problem) == 1 and "07e6.jsonl.zst: the compressed file ends in its middle" in problem[0]


def test_sessions_of_the_real_programs_home_are_marked(here, home, tmp_path, monkeypatch):
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    shutil.copytree(DATA / "cases" / "S19-bom-and-crlf", tmp_path / "codex")
    lines = here("sessions").out.splitlines()
    assert len([line for line in lines if "(real program's)" in line]) == 2
    assert sum(not one["own"] for one in here("sessions", "--json").events) == 2
    assert here("show", "019c2000-0000-7000-8000-000000000013").status == 0


def test_home_without_sessions_says_how_to_begin(here):
    ended = here("sessions")
    assert (ended.status, ended.out) == (0, "")
    assert "refold run" in ended.err and len(ended.err.splitlines()) == 1


def test_session_is_shown_by_the_beginning_of_its_id(here, home):
    assert here("show", "019c2000-0000-7000-8000-000000000401").status == 0
    assert here("show", "019c2000-0000-7000-8000-0000000004").status == 0
    ended = here("show", "019c")
    assert ended.status == 2 and "fits 5 sessions" in ended.only_complaint


# --- what is no rollout ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["show", "context"])
@pytest.mark.parametrize(
    ("name", "data", "status", "said"),
    [
        ("empty.jsonl", b"", 2, "is empty: there is no session in it"),
        ("text.txt", b"just\na text\n", 2, "is not a rollout: no session_meta line in it"),
        ("data.jsonl", b'{"a": 1}\n{"b": 2}\n', 2, "is not a rollout: no session_meta line in it"),
        ("junk.jsonl", b"\x00\xff\xfe" * 999, 2, "is not a rollout: no session_meta line in it"),
        ("cut.jsonl.zst", b"\x28\xb5\x2f\xfd\x04", 2, "the compressed file ends in its middle, after line 0"),
        ("broken.jsonl.zst", b"\x28\xb5\x2f\xfd" + b"nonsense" * 9, 2, "broken zstd data after line 0"),
    ],
)
def test_file_that_is_no_rollout_is_one_line(here, tmp_path, command, name, data, status, said):
    path = tmp_path / name
    path.write_bytes(data)
    ended = here(command, path)
    assert (ended.status, ended.out) == (status, "")
    assert said in ended.only_complaint and name in ended.only_complaint


@pytest.mark.parametrize("command", ["show", "context"])
@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("/", "/ is a folder, not a rollout file"),
        ("none/none.jsonl", "no such file: none/none.jsonl"),
        ("ffffffff", "no session 'ffffffff'"),
        ("", "the ID is empty"),
    ],
)
def test_reference_that_means_nothing_is_one_line(here, command, reference, said):
    ended = here(command, reference)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.only_complaint


def test_pipe_and_device_are_refused(here, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", "/dev/null"):
        ended = here("show", path)
        assert ended.status == 1 and "is not a regular file" in ended.only_complaint


def test_what_a_broken_off_file_holds_is_shown_before_the_complaint(here, tmp_path):
    path = tmp_path / "cut.jsonl.zst"
    packed = (DATA / "cases" / "S22-compressed-rollouts").rglob("*03fe.jsonl.zst")
    path.write_bytes(next(packed).read_bytes() + b"\x28\xb5\x2f\xfd\x04")  # and a second frame that breaks off
    ended = here("show", path)
    assert ended.status == 2
    assert "session" in ended.out and "user" in ended.out
    assert "the compressed file ends in its middle, after line" in ended.complaint


# --- pipes and terminals ---------------------------------------------------------------------------------------------


def on_a_terminal(command: list[str], environ: dict[str, str], cwd: Path) -> str:
    """What a command prints where a person looks."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=cwd) as process:
        os.close(theirs)
        printed = b""
        try:
            while piece := os.read(ours, 65_536):
                printed += piece
        except OSError:  # Linux tells the end of a terminal so
            pass
        process.wait()
    os.close(ours)
    return printed.decode()


def test_colours_are_for_terminals_that_want_them(machine):
    command = machine.command("context", MIDTURN)
    assert "\x1b[" in on_a_terminal(command, machine.environ, machine.work)
    for unwanted in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_a_terminal(command, machine.environ | unwanted, machine.work)
    assert "\x1b[" in on_a_terminal(command, machine.environ | {"NO_COLOR": ""}, machine.work)
    piped = machine.refold("context", MIDTURN)
    assert "\x1b" not in piped.out + piped.err


@pytest.mark.parametrize(
    "words", [["show", MIDTURN, "--full"], ["context", MIDTURN], ["--help"], ["show", MIDTURN, "--json"]]
)
def test_closed_pipe_is_quiet(machine, words):
    reading, writing = os.pipe()
    os.close(reading)
    with machine.start(*words, stdout=writing) as process:
        os.close(writing)
        assert process.stderr is not None
        complaints = process.stderr.read()
    assert "Error" not in complaints and "Traceback" not in complaints and "Exception" not in complaints


def test_reader_that_leaves_early_is_not_complained_about(machine, tmp_path):
    path = tmp_path / "long.jsonl"
    lines = MIDTURN.read_bytes()
    path.write_bytes(lines * 400)  # more than a pipe holds
    with machine.start("show", path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


def test_the_gauge_shows_the_window_that_the_session_ran_with(machine):
    with ResponsesServer(["hi"]) as server:
        machine.connect(server, "model_context_window = 12000")
        assert machine.refold("run", "hello").status == 0
    machine.configure(f'model = "mock-tokens"\nmodel_catalog_json = "{machine.folder}/models.json"')
    shown = machine.refold("context", machine.rollout)
    assert "of 12,000 tokens" in shown.out
    assert "of 272,000 tokens" in machine.refold("context", machine.rollout, "-m", "mock-tokens").out
    assert "of 50,000 tokens" in machine.refold("context", machine.rollout, "-c", "model_context_window=50000").out
