"""resume, fork and compact: real processes against the scripted provider; other people's files stay as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage

CASES = Path(__file__).parents[1] / "data" / "cases"
EXEC = "exec_command"
NO_PROVIDER = 'model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:9/v1"\n'


# --- resume ----------------------------------------------------------------------------------------------------------


def test_own_session_goes_on_in_its_file(machine):
    with ResponsesServer(["one", "two", "three", "four"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
        before = machine.rollout.read_bytes()
        for reference in (session_id, session_id[:13], str(machine.rollout)):
            ended = machine.refold("resume", reference, f"after {reference}")
            assert ended.status == 0
    assert machine.rollout.read_bytes().startswith(before)
    assert len(machine.said(server.requests[3], "user")) == 4
    assert machine.said(server.requests[3], "assistant") == ["one", "two", "three"]
    ordinals = [record["ordinal"] for record in machine.records()]
    assert ordinals == list(range(len(ordinals)))
    assert sum(record["type"] == "session_meta" for record in machine.records()) == 1
    context = [item for item in server.requests[3].input if item["role"] == "developer"]
    assert len(context) == len([item for item in server.requests[0].input if item["role"] == "developer"])


def test_last_means_the_session_that_was_written_last(machine):
    with ResponsesServer(["a", "b", "c", "d"]) as server:
        machine.connect(server)
        machine.refold("run", "older")
        machine.refold("run", "newer")
        assert machine.refold("resume", "--last", "and now").out == "c\n"
        assert machine.refold("resume", "--last", said="from a pipe\n").out == "d\n"
    assert machine.said(server.requests[3], "user") == ["newer", "and now", "from a pipe\n"]


def test_foreign_file_is_continued_by_a_child_and_left_as_it_is(machine, foreign):
    before = machine.fingerprint(foreign)
    with ResponsesServer(["again"]) as server:
        machine.connect(server)
        ended = machine.refold("resume", "--json", foreign, "and more")
    assert (ended.status, ended.err) == (0, "")
    assert machine.fingerprint(foreign) == before
    assert [path.name for path in foreign.parent.iterdir()] == ["saved.jsonl"]
    meta = machine.records()[0]["payload"]
    assert meta["id"] == ended.thread_id != "#1"
    assert meta["forked_from_id"] == "#1"
    assert machine.said(server.requests[0], "user") == ["say hello", "and more"]
    assert machine.said(server.requests[0], "assistant") == ["hello there"]


def test_session_of_the_real_programs_home_is_continued_by_a_child(machine, foreign):
    day = machine.folder / "codex" / "sessions" / "2026" / "01" / "01"
    day.mkdir(parents=True)
    theirs = Path(shutil.copy2(foreign, day / "rollout-2026-01-01T00-00-00-0190cccc-0000-7000-8000-000000000001.jsonl"))
    before = machine.fingerprint(theirs)
    with ResponsesServer(["again", "and again"]) as server:
        machine.connect(server)
        ended = machine.refold("resume", "0190cccc", "and more", CODEX_HOME=str(machine.folder / "codex"))
        again = machine.refold("resume", "--last", "more", CODEX_HOME=str(machine.folder / "codex"))
    assert (ended.status, again.status) == (0, 0)
    assert machine.fingerprint(theirs) == before
    assert len(machine.rollouts()) == 1, "the child is the home's own, and goes on in its file"


def test_in_place_appends_to_the_foreign_file(machine, foreign):
    before = foreign.read_bytes()
    with ResponsesServer(["again"]) as server:
        machine.connect(server)
        ended = machine.refold("resume", "--in-place", "--json", foreign, "and more")
    assert ended.status == 0
    assert ended.thread_id == "#1"
    assert machine.rollouts() == []
    assert foreign.read_bytes().startswith(before)
    ordinals = [record["ordinal"] for record in machine.records(foreign)]
    assert ordinals == list(range(len(ordinals)))


def test_work_goes_on_where_the_last_turn_was(machine):
    """S24: started in one folder, the last turn in another, resumed from a third."""
    alpha, beta = machine.folder / "alpha", machine.folder / "beta"
    alpha.mkdir()
    path = machine.folder / "session.jsonl"
    text = (CASES / "S24-resume-directory" / "rollout.jsonl").read_text(encoding="utf-8")
    path.write_text(text.replace("/srv/alpha", str(alpha)).replace("/srv/beta", str(beta)), encoding="utf-8")
    with ResponsesServer([call_reply(EXEC, {"cmd": "pwd"}), "there", "here"]) as server:
        machine.connect(server)
        gone = machine.refold("resume", path, "hi")
        assert (gone.status, machine.rollouts()) == (2, [])
        assert str(beta) in gone.only_complaint and "--cd" in gone.only_complaint  # S24.3
        beta.mkdir()
        assert machine.refold("resume", path, "hi", "--allow-exec").status == 0
        assert str(beta) in json.dumps(server.requests[1].input[-1])  # S24.1
        child = machine.rollout
        assert machine.refold("resume", child, "hi", "--cd", machine.work).status == 0
    contexts = [record["payload"] for record in machine.records(child) if record["type"] == "turn_context"]
    assert contexts[-1]["cwd"] == str(machine.work)  # S24.2
    assert f"<cwd>{machine.work}</cwd>" in json.dumps(server.requests[2].input[-2])


def test_second_process_is_refused_while_the_first_one_writes(machine):
    with ResponsesServer(["one", text_reply("two", delay=30)]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "hi").thread_id
        with machine.start("resume", session_id, "long work") as first:
            while len(server.requests) < 2:
                assert first.poll() is None
            before = machine.rollout.read_bytes()
            ended = machine.refold("resume", session_id, "me too")
            assert (ended.status, ended.out) == (1, "")
            assert f"is being written by process {first.pid}" in ended.only_complaint
            assert machine.rollout.read_bytes() == before
            assert machine.refold("show", session_id).status == 0
            assert machine.refold("fork", session_id).status == 0
            first.kill()
    assert (
        machine.refold("resume", session_id, "now", "-c", "model_providers.x.base_url=http://127.0.0.1:9").status == 1
    )


# --- fork ------------------------------------------------------------------------------------------------------------


def test_fork_begins_with_the_others_history_and_leaves_its_file(machine):
    with ResponsesServer(["one", "two"]) as server:
        machine.connect(server)
        parent_id = machine.refold("run", "--json", "first").thread_id
        parent = machine.rollout
        before = machine.fingerprint(parent)
        ended = machine.refold("fork", "--json", parent_id, "another way")
    assert (ended.status, machine.fingerprint(parent)) == (0, before)  # S26.5
    [child] = [path for path in machine.rollouts() if path != parent]
    meta = machine.records(child)[0]["payload"]
    assert meta["id"] == ended.thread_id != parent_id
    assert child.name.endswith(f"-{meta['id']}.jsonl")
    assert meta["forked_from_id"] == parent_id
    assert machine.said(server.requests[1], "user") == ["first", "another way"]


def test_fork_without_a_message_makes_the_session_and_says_its_id(machine, foreign):
    machine.configure(NO_PROVIDER)
    ended = machine.refold("fork", foreign)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.strip() == machine.records()[0]["payload"]["id"]
    told = machine.refold("fork", foreign, "--json")
    assert [event["type"] for event in told.events] == ["thread.started"]
    found = machine.refold("sessions", "--json").events
    assert {one["id"] for one in found} == {ended.out.strip(), told.thread_id}
    assert {(one["forked_from"], one["first_text"]) for one in found} == {("#1", "say hello")}


def test_fork_of_a_fork_names_the_fork_as_its_parent(machine):
    child = machine.folder / "child.jsonl"
    shutil.copy(CASES / "S26-fork-identity" / "child.jsonl", child)
    machine.configure(NO_PROVIDER)
    before = machine.fingerprint(child)
    assert machine.refold("fork", child, "--cd", ".").status == 0
    meta = machine.records()[0]["payload"]
    assert meta["forked_from_id"][-4:] == "0402" and meta["id"][-4:] not in ("0402", "001a")  # S26.3
    assert machine.fingerprint(child) == before


def test_fork_of_a_damaged_file_holds_whole_records_only(machine):
    torn = machine.folder / "torn.jsonl"
    shutil.copy(CASES / "S18-partial-line" / "tail_cut.jsonl", torn)
    machine.configure(NO_PROVIDER)
    before = machine.fingerprint(torn)
    assert machine.refold("fork", torn, "--cd", ".").status == 0
    assert machine.records()  # S18.5
    assert machine.fingerprint(torn) == before


# --- compact ---------------------------------------------------------------------------------------------------------


def test_compaction_puts_a_summary_in_the_histories_place(machine):
    with ResponsesServer(["one", text_reply("SUMMARY", usage=usage(300, 20)), "two"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
        before = machine.rollout.read_bytes()
        ended = machine.refold("compact", session_id)
        assert (ended.status, ended.out) == (0, "")
        assert "⇣ compacted: " in ended.err
        assert machine.refold("resume", session_id, "second").status == 0
    assert machine.rollout.read_bytes().startswith(before)
    assert sum(record["type"] == "compacted" for record in machine.records()) == 1
    said = machine.said(server.requests[2], "user")
    assert (said[0], said[-1]) == ("first", "second") and said[1].endswith("\nSUMMARY")
    assert machine.said(server.requests[2], "assistant") == []


def test_compaction_for_programs_tells_before_and_after(machine, foreign):
    before = machine.fingerprint(foreign)
    with ResponsesServer(["SUMMARY"]) as server:
        machine.connect(server)
        ended = machine.refold("compact", "--json", foreign)
    assert (ended.status, ended.err) == (0, "")
    assert [event["type"] for event in ended.events] == [
        "thread.started",
        "item.completed",  # the notice that this is a child, and the file stays as it is
        "refold.compaction.started",
        "refold.compaction.completed",
    ]
    assert "stays as it is" in ended.events[1]["item"]["message"]
    assert ended.events[2]["reason"] == "user_requested" and ended.events[3]["installed"]
    assert machine.fingerprint(foreign) == before
    assert machine.records()[0]["payload"]["forked_from_id"] == "#1"


def test_compaction_in_place_is_one_checkpoint_in_the_very_file(machine, foreign):
    before = foreign.read_bytes()
    with ResponsesServer(["SUMMARY"]) as server:
        machine.connect(server)
        assert machine.refold("compact", "--in-place", foreign).status == 0
    assert foreign.read_bytes().startswith(before)
    assert machine.rollouts() == []


def test_failed_compaction_leaves_the_history_as_it_was(machine):
    def script(request: LoggedRequest) -> Reply | str:
        last = json.dumps(request.input[-1])
        return Reply(status=400, body={"error": {"message": "no room"}}) if "CONTEXT CHECKPOINT" in last else "fine"

    with ResponsesServer(script) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
        ended = machine.refold("compact", session_id)
        assert ended.status == 1
        assert "no room" in ended.complaint
        told = machine.refold("compact", "--json", session_id)
        assert told.status == 1 and told.events[-1]["type"] == "error"
        assert machine.refold("resume", session_id, "second").status == 0
    assert not any(record["type"] == "compacted" for record in machine.records())
    assert machine.said(server.requests[-1], "user") == ["first", "second"]
    assert machine.said(server.requests[-1], "assistant") == ["fine"]


def test_fork_without_a_message_needs_no_key(machine, foreign):
    machine.configure(
        'model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:1/v1"\nenv_key = "NO_KEY"\n'
    )
    ended = machine.refold("fork", foreign, "--cd", ".")
    assert (ended.status, ended.err) == (0, "")
    assert machine.records()[0]["payload"]["id"] == ended.out.strip()
