"""rename, archive, unarchive, delete, prune, fork by turn and address, redaction: real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import pytest

from refold.testing import ResponsesServer, text_reply

DAY = 86_400  # seconds
PATIENCE = 30  # seconds that nothing here needs


@pytest.fixture
def session_id(machine) -> str:
    """A session in which "first" was said, and then "second"."""
    with ResponsesServer(["one", "two"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
        machine.refold("resume", session_id, "second")
    return session_id


def archived(machine) -> list:
    return sorted((machine.home / "archived_sessions").glob("*"))


def child_of(machine, session_id: str):
    """A session that goes on from the other one's file, as the real program forks."""
    path = machine.rollout
    meta = {"id": "child", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/", "history_mode": "paginated"}
    base = {"thread_id": session_id, "end_ordinal_exclusive": 3, "end_byte_offset": 0}
    payload = {**meta, "history_base": base, "forked_from_id": session_id}
    child = path.with_name("rollout-2026-01-01T00-00-00-child.jsonl")
    child.write_text(json.dumps({"timestamp": "", "ordinal": 3, "type": "session_meta", "payload": payload}) + "\n")
    return child


# --- names and folders -----------------------------------------------------------------------------------------------


def test_rename_says_the_name_and_takes_it_away(machine, session_id):
    ended = machine.refold("rename", session_id, "the  billing bug")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == f"{session_id} is called the billing bug\n"
    assert machine.records()[-1]["payload"] == {"kind": "named", "name": "the billing bug"}
    [told] = machine.refold("rename", session_id, "", "--json").events
    assert told == {"type": "refold.rename.completed", "thread_id": session_id, "name": ""}


def test_archive_and_back(machine, session_id):
    path = machine.rollout
    ended = machine.refold("archive", session_id)
    assert (ended.status, ended.err) == (0, "")
    [away] = archived(machine)
    assert str(away) in ended.out and not path.exists()
    assert "was archived already" in machine.refold("archive", session_id).out
    assert "first" in machine.refold("show", session_id).out
    [told] = machine.refold("unarchive", session_id, "--json").events
    assert told == {"type": "refold.unarchived", "thread_id": session_id, "paths": [str(path)]}
    assert path.exists() and not archived(machine)


def test_one_that_cannot_be_archived_does_not_stop_the_others(machine, session_id):
    ended = machine.refold("archive", "nobody", session_id)
    assert ended.status == 1
    assert "no session 'nobody'" in ended.complaint
    assert len(archived(machine)) == 1


def test_a_session_of_the_real_program_is_left_alone_and_the_error_says_what_to_do(machine, session_id):
    codex = machine.folder / "codex"
    place = codex / "sessions" / machine.rollout.name
    place.parent.mkdir(parents=True)
    shutil.move(machine.rollout, place)
    before = machine.fingerprint(place)
    for words in (("archive", session_id), ("delete", session_id, "--yes"), ("rename", session_id, "x")):
        ended = machine.refold(*words, CODEX_HOME=str(codex))
        assert ended.status in (1, 2)
        assert "is not in refold's home" in ended.only_complaint
    ended = machine.refold("prune", "--older-than", "0d", "--yes", CODEX_HOME=str(codex))
    assert (ended.status, ended.out) == (0, "no session to delete was last written more than 0d ago\n")
    assert machine.fingerprint(place) == before


def test_a_session_that_is_being_written_is_neither_moved_nor_deleted(machine):
    with ResponsesServer([text_reply("never", delay=PATIENCE)]) as server:
        machine.connect(server)
        running = machine.start("run", "--json", "first")
        try:
            assert running.stdout is not None
            session_id = json.loads(running.stdout.readline())["thread_id"]
            wait_for(lambda: server.requests)
            for words in (("archive", session_id), ("delete", session_id, "--yes")):
                ended = machine.refold(*words)
                assert ended.status == 1
                assert f"is being written by process {running.pid}" in ended.err
            ended = machine.refold("prune", "--older-than", "0d", "--yes")
            assert f"{session_id} stays: " in ended.err
            assert machine.rollout.exists()
        finally:
            running.send_signal(signal.SIGKILL)
            running.communicate(timeout=PATIENCE)


def wait_for(ready) -> None:
    until = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


# --- deleting --------------------------------------------------------------------------------------------------------


def test_delete_shows_what_goes_and_needs_a_yes_where_nobody_can_be_asked(machine, session_id):
    machine.refold("rename", session_id, "the billing bug")
    ended = machine.refold("delete", session_id)
    assert ended.status == 2
    assert "--yes deletes without asking" in ended.complaint
    assert session_id in ended.out and "the billing bug" in ended.out and "kB" in ended.out
    assert machine.rollout.exists()
    ended = machine.refold("delete", session_id, "--yes")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.endswith("are free now\n")
    assert machine.rollouts() == []


def test_delete_asks_at_a_terminal(machine, session_id):
    for answer, status, left in (("n", 130, 1), ("y", 0, 0)):
        master, slave = os.openpty()
        try:
            running = machine.start("delete", session_id, stdin=slave, stderr=slave)
            os.write(master, f"{answer}\n".encode())
            out, _ = running.communicate(timeout=60)
        finally:
            os.close(master)
            os.close(slave)
        assert (running.returncode, len(machine.rollouts())) == (status, left)
        assert "first" in out


def test_delete_keeps_a_parent_whose_file_is_needed_unless_told(machine, session_id):
    child = child_of(machine, session_id)
    ended = machine.refold("delete", session_id, "--yes")
    assert ended.status == 1
    assert "the session child goes on from its file" in ended.only_complaint and "--with-children" in ended.err
    assert child.exists() and len(machine.rollouts()) == 2
    told = machine.refold("delete", session_id, "--yes", "--with-children", "--json").events
    assert [one["thread_id"] for one in told] == [session_id, "child"]
    assert machine.rollouts() == []


def test_what_is_deleted_is_neither_in_the_index_nor_in_the_list_of_names(machine):
    with ResponsesServer(["one"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "a word nobody knows: xyzzyplugh").thread_id
    assert machine.refold("sessions", "--search", "xyzzyplugh", "--json").events
    assert b"xyzzyplugh" in b"".join(path.read_bytes() for path in machine.home.rglob("*") if path.is_file())
    machine.refold("rename", session_id, "called xyzzyplugh")
    assert machine.refold("delete", session_id, "--yes").status == 0
    assert b"xyzzyplugh" not in b"".join(path.read_bytes() for path in machine.home.rglob("*") if path.is_file())


def test_delete_says_which_forks_stay(machine, session_id):
    fork = machine.refold("fork", session_id).out.strip()
    ended = machine.refold("delete", session_id, "--yes")
    assert f"its fork {fork} stays: it holds all that it took over" in ended.out
    assert "second" in machine.refold("context", fork).out


def test_prune_shows_sizes_first_and_deletes_only_what_is_old(machine, session_id):
    old = machine.rollout
    young = machine.refold("fork", session_id).out.strip()
    then = time.time() - 40 * DAY
    os.utime(old, (then, then))
    ended = machine.refold("prune", "--older-than", "30d", "--dry-run")
    assert ended.status == 0 and "1 session, " in ended.out and "free" not in ended.out
    assert old.exists()
    assert machine.refold("prune", "--older-than", "30d").status == 2, "nobody was asked"
    assert machine.refold("prune", "--older-than", "30d", "--archived", "--yes").out.startswith("no session")
    ended = machine.refold("prune", "--older-than", "30d", "--yes")
    assert (ended.status, ended.err) == (0, "")
    assert [path.name for path in machine.rollouts()] == [machine.rollout.name] and young in machine.rollout.name


@pytest.mark.parametrize("age", ["30", "month", "-3d", "3y", ""])
def test_an_age_that_is_none_is_an_error(machine, age):
    ended = machine.refold("prune", "--older-than", age)
    assert ended.status == 2
    assert "a number and a unit, such as 30d, 12h or 8w" in ended.complaint


# --- fork ------------------------------------------------------------------------------------------------------------


def test_fork_by_turn_and_by_address(machine, session_id):
    parent = machine.rollout
    before = machine.fingerprint(parent)
    answer = next(one for one in machine.records() if one["payload"].get("role") == "assistant")
    with ResponsesServer(["three", "four"]) as server:
        machine.connect(server)
        assert machine.refold("fork", session_id, "--turn", "1", "another way").status == 0
        assert machine.refold("fork", f"{session_id}:{answer['ordinal']}", "a third way").status == 0
    for request, text in zip(server.requests, ("another way", "a third way"), strict=True):
        assert machine.said(request, "user") + machine.said(request, "assistant") == ["first", text, "one"]
    assert machine.fingerprint(parent) == before
    ended = machine.refold("fork", session_id, "--turn", "7")
    assert ended.status == 2 and "there is no turn 7" in ended.only_complaint


# --- redaction -------------------------------------------------------------------------------------------------------


def test_redaction_of_the_settings_keeps_a_secret_out_of_the_file(machine):
    secret = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    with ResponsesServer([f"it is {secret}"]) as server:
        machine.connect(server, '[redaction]\ndetectors = ["secrets"]\nenvironment = true\n')
        ended = machine.refold("run", f"remember {secret} and hunter-2-hunter", DB_PASSWORD="hunter-2-hunter")
        assert ended.status == 0
    data = machine.rollout.read_bytes()
    assert secret.encode() not in data and b"hunter-2-hunter" not in data
    assert b"remember [redacted:api-key] and [redacted:DB_PASSWORD]" in data
    assert machine.refold("sent", machine.records()[0]["payload"]["id"]).status == 0
    ended = machine.refold("run", "hi", "-c", 'redaction.patterns=["("]')
    assert ended.status == 2
    assert "redaction.patterns, number 1: '(' is no regular expression" in ended.only_complaint
