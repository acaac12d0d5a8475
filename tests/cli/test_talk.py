"""run, resume, fork and compact: real processes against the scripted provider, for people and for programs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import Item
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage

DATA = Path(__file__).parents[1] / "data"
EVENTS = json.loads((DATA / "oracle" / "exec_events.json").read_bytes())
PARENT = DATA / "oracle" / "rollouts" / "a_one_turn.jsonl"
MODEL = "mock-tokens"
EXEC = "exec_command"


def run_of(scenario: str, number: int) -> list[Reply]:
    """The recorded replies of one process."""
    document = json.loads((DATA / "oracle" / "scenarios" / f"{scenario}.json").read_bytes())
    return [Reply.from_json(exchange["response"]) for exchange in document["runs"][number]["exchanges"]]


def texts(items: list[Item], role: str) -> list[str]:
    """What was said by one side, without injected context."""
    found = [part["text"] for item in items if item.get("role") == role for part in item["content"]]
    return [text for text in found if not text.startswith(("<", "#"))]


def fingerprint(path: Path) -> tuple[str, int]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns


def thread_id(events: list[dict[str, Any]]) -> str:
    assert events[0].keys() == {"type", "thread_id"}
    return events[0]["thread_id"]


@pytest.fixture
def foreign(machine) -> Path:
    """A session of the real program, outside every home, whose folder is there."""
    path = machine.folder / "theirs" / "saved.jsonl"
    path.parent.mkdir()
    path.write_text(PARENT.read_text(encoding="utf-8").replace('"/w"', json.dumps(str(machine.work))), encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


# --- for people ------------------------------------------------------------------------------------------------------


def test_answer_is_all_that_standard_output_holds(machine):
    with ResponsesServer(["hello there"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "say hello")
    assert (ended.status, ended.out) == (0, "hello there\n")
    records = machine.records()
    session_id = records[0]["payload"]["id"]
    assert session_id in ended.err and machine.rollout.name.endswith(f"-{session_id}.jsonl")
    assert [record["ordinal"] for record in records] == list(range(len(records)))
    assert records[-1]["payload"]["type"] == "task_complete"
    assert "tokens" in ended.err
    assert texts(server.requests[0].input, "user") == ["say hello"]


def test_command_and_its_result_are_told_beside_the_answer(machine):
    with ResponsesServer([call_reply(EXEC, {"cmd": "echo one; exit 3"}), "done"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "go", "--allow-exec")
    assert (ended.status, ended.out) == (0, "done\n")
    for told in ("▸ echo one; exit 3", "    one", "exit 3"):
        assert told in ended.err


def test_message_is_read_from_standard_input(machine):
    with ResponsesServer(["ok"]) as server:
        machine.connect(server)
        assert machine.refold("run", "-", said="Grüße\nund mehr\n").status == 0
    assert texts(server.requests[0].input, "user") == ["Grüße\nund mehr\n"]


def test_options_choose_model_setting_and_folder(machine, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "AGENTS.md").write_text("Be brief.")
    with ResponsesServer(["ok"]) as server:
        machine.connect(server)
        options = ["-m", "gpt-5.5", "-c", "model_reasoning_effort=high", "--cd", "../elsewhere"]
        assert machine.refold("run", "hi", *options).status == 0
    body = server.requests[0].json
    assert body["model"] == "gpt-5.5"
    assert body["reasoning"]["effort"] == "high"
    assert f"# AGENTS.md instructions for {tmp_path}" in json.dumps(body["input"])
    assert Path(machine.records()[0]["payload"]["cwd"]).resolve() == tmp_path / "elsewhere"


def test_key_and_address_of_the_environment_are_enough(machine):
    with ResponsesServer(["ok"]) as server:
        ended = machine.refold("run", "hi", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=server.url)
    assert ended.status == 0
    assert server.requests[0].header("authorization") == "Bearer sk-test"


def test_unknown_model_is_one_notice(machine):
    with ResponsesServer(["ok", "ok"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "hi", "-m", "nobody-knows-it")
        told = machine.refold("run", "hi", "-m", "nobody-knows-it", "--json")
    assert ended.status == told.status == 0
    [notice] = [line for line in ended.err.splitlines() if "nobody-knows-it" in line and line.startswith("•")]
    assert "is not a model I know" in notice
    [error] = [event["item"] for event in told.events if event.get("item", {}).get("type") == "error"]
    assert error["message"] in notice
    assert told.err == ""


def test_nothing_that_a_model_says_controls_the_terminal(machine):
    evil = "\x1b]0;title\x07\x1b[2J\x9b1m\rok"
    script = [call_reply(EXEC, {"cmd": "printf '\\033[31mred\\r\\n' # \x1b[2J"}), text_reply(evil)]
    with ResponsesServer([*script, Reply(status=400, body={"error": {"message": f"no {evil}"}})]) as server:
        machine.connect(server)
        ended = machine.refold("run", "hi", "--allow-exec")
        failed = machine.refold("run", "hi")
    assert ended.out == "]0;title[2J1mok\n"
    for text in (ended.err, failed.err, failed.out):
        assert not {"\x1b", "\x07", "\x9b", "\r"} & set(text)


# --- commands need leave ---------------------------------------------------------------------------------------------


def test_model_gets_no_command_tool_without_leave(machine):
    with ResponsesServer(["ok"] * 5) as server:
        machine.connect(server)
        ended = machine.refold("run", "hi")
        machine.refold("run", "hi", "--allow-exec")
        machine.refold("run", "hi", "-c", 'sandbox_mode="danger-full-access"')
        machine.refold("run", "hi", "-c", 'approval_policy="never"')
        machine.refold("run", "hi", "--json")
    offered = [[tool["name"] for tool in request.json.get("tools", [])] for request in server.requests]
    assert offered == [[], [EXEC], [EXEC], [EXEC], []]
    assert [line for line in ended.err.splitlines() if line.startswith("• ") and "--allow-exec" in line]


# --- for programs ----------------------------------------------------------------------------------------------------


def the_same(events: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> bool:
    """Whether events are the recorded ones: same objects in the same order, save who of two commands ends first."""

    def ends(one: dict[str, Any]) -> bool:
        return one["type"] == "item.completed" and one["item"]["type"] == "command_execution"

    assert [one for one in events if not ends(one)] == [one for one in recorded if not ends(one)]
    assert sorted((one["item"]["id"], one["item"]) for one in events if ends(one)) == sorted(
        (one["item"]["id"], one["item"]) for one in recorded if ends(one)
    )
    for one in events:
        if ends(one):
            start = next(i for i, other in enumerate(events) if other.get("item", {}).get("id") == one["item"]["id"])
            assert events[start]["type"] == "item.started" and start < events.index(one)
    return True


def named(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with the recordings' placeholder for the thread, without refold's own."""
    own = [event for event in events if not event["type"].startswith("refold.")]
    return [{**event, "thread_id": "#1"} if "thread_id" in event else event for event in own]


def test_events_of_one_turn_are_the_recorded_ones(machine):
    with ResponsesServer(run_of("a_one_turn", 0)) as server:
        machine.connect(server)
        ended = machine.refold("run", "--json", "say hello")
    assert (ended.status, ended.err) == (0, "")
    assert thread_id(ended.events) == machine.records()[0]["payload"]["id"]
    assert named(ended.events) == EVENTS["a_one_turn/run0"]
    assert [list(event) for event in ended.events] == [list(event) for event in EVENTS["a_one_turn/run0"]]


def test_events_of_tool_calls_are_the_recorded_ones(machine):
    replies = run_of("b_tool_loop", 0)
    assert "yield_time_ms" in str(replies.pop(4).items)  # a command that goes on in the background: not yet
    recorded = [event for event in EVENTS["b_tool_loop/run0"] if event.get("item", {}).get("id") != "item_5"]
    recorded[-2] = {**recorded[-2], "item": {**recorded[-2]["item"], "id": "item_5"}}
    used = recorded[-1]["usage"]
    recorded[-1] = {
        **recorded[-1],
        "usage": {**used, "input_tokens": used["input_tokens"] - 240, "output_tokens": used["output_tokens"] - 10},
    }
    with ResponsesServer(replies) as server:
        machine.connect(server)
        ended = machine.refold("run", "--json", "--allow-exec", "use the tools")
    assert (ended.status, ended.err) == (0, "")
    assert the_same(named(ended.events), recorded)
    own = [event for event in ended.events if event["type"].startswith("refold.")]
    assert [event["type"] for event in own] == ["refold.tool.started", "refold.tool.completed"] * 2
    assert [event["tool"] for event in own] == ["no_such_tool", "no_such_tool", EXEC, EXEC]
    assert [event.get("status") for event in own] == [None, "failed"] * 2


def test_events_of_a_compaction_in_mid_turn_are_the_recorded_ones(machine):
    with ResponsesServer([*run_of("e_midturn", 0), *run_of("e_midturn", 1)]) as server:
        machine.connect(server, "model_auto_compact_token_limit = 1000")
        first = machine.refold("run", "--json", "user message 1")
        ended = machine.refold("resume", "--json", "--allow-exec", thread_id(first.events), "user message 2")
    assert (ended.status, ended.err) == (0, "")
    assert the_same(named(ended.events), EVENTS["e_midturn/run1"])
    assert thread_id(ended.events) == thread_id(first.events)
    started, completed = (event for event in ended.events if event["type"].startswith("refold."))
    assert started["type"] == "refold.compaction.started" and started["phase"] == "mid_turn"
    assert completed["type"] == "refold.compaction.completed" and completed["installed"]
    assert completed["tokens_before"] > completed["tokens_after"]


def test_events_of_a_failing_provider_have_the_recorded_types(machine):
    with ResponsesServer(lambda _: Reply(status=500, body={"error": {"message": "boom"}})) as server:
        machine.connect(server)
        settings = ["-c", "model_providers.x.stream_max_retries=2"]
        ended = machine.refold("run", "--json", "hi", *settings)
    assert (ended.status, ended.err) == (1, "")
    recorded = EVENTS["f_500_all/run3"]
    assert [(event["type"], list(event)) for event in ended.events] == [
        (event["type"], list(event)) for event in recorded
    ]
    for number, event in enumerate(ended.events[2:4], 1):
        assert event["message"].startswith(f"Reconnecting... {number}/2 (")
    assert ended.events[-1]["error"]["message"] == ended.events[-2]["message"]
    assert machine.records()[-1]["payload"]["error"]["message"] == ended.events[-2]["message"]


def test_every_line_for_programs_is_json_even_of_an_error(machine):
    ended = machine.refold("run", "--json", "hi", "-c", "model_context_window=big")
    assert ended.status == 2
    [error] = ended.events
    assert error == {"type": "error", "message": ended.only_complaint.removeprefix("refold: ")}


# --- resume ----------------------------------------------------------------------------------------------------------


def test_own_session_goes_on_in_its_file(machine):
    with ResponsesServer(["one", "two", "three", "four"]) as server:
        machine.connect(server)
        session_id = thread_id(machine.refold("run", "--json", "first").events)
        before = machine.rollout.read_bytes()
        for reference in (session_id, session_id[:13], str(machine.rollout)):
            ended = machine.refold("resume", reference, f"after {reference}")
            assert ended.status == 0
    assert machine.rollout.read_bytes().startswith(before)
    assert len(texts(server.requests[3].input, "user")) == 4
    assert texts(server.requests[3].input, "assistant") == ["one", "two", "three"]
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
        assert machine.refold("resume", "--last", "and now").status == 0
        assert machine.refold("resume", "--last", "-", said="from a pipe").status == 0
    assert texts(server.requests[3].input, "user") == ["newer", "and now", "from a pipe"]


def test_message_may_come_from_a_pipe_alone(machine):
    with ResponsesServer(["a", "b"]) as server:
        machine.connect(server)
        machine.refold("run", "first")
        assert machine.refold("resume", "--last", said="piped\n").out == "b\n"
    assert texts(server.requests[1].input, "user") == ["first", "piped\n"]


def test_foreign_file_is_continued_by_a_child_and_left_as_it_is(machine, foreign):
    before = fingerprint(foreign)
    with ResponsesServer(["again"]) as server:
        machine.connect(server)
        ended = machine.refold("resume", "--json", foreign, "and more")
    assert (ended.status, ended.err) == (0, "")
    assert fingerprint(foreign) == before
    assert [path.name for path in foreign.parent.iterdir()] == ["saved.jsonl"]
    meta = machine.records()[0]["payload"]
    assert meta["id"] == thread_id(ended.events) != "#1"
    assert meta["forked_from_id"] == "#1"
    assert texts(server.requests[0].input, "user") == ["say hello", "and more"]
    assert texts(server.requests[0].input, "assistant") == ["hello there"]


def test_session_of_the_real_programs_home_is_continued_by_a_child(machine, foreign):
    day = machine.folder / "codex" / "sessions" / "2026" / "01" / "01"
    day.mkdir(parents=True)
    theirs = Path(shutil.copy2(foreign, day / "rollout-2026-01-01T00-00-00-0190cccc-0000-7000-8000-000000000001.jsonl"))
    before = fingerprint(theirs)
    with ResponsesServer(["again", "and again"]) as server:
        machine.connect(server)
        ended = machine.refold("resume", "0190cccc", "and more", CODEX_HOME=str(machine.folder / "codex"))
        again = machine.refold("resume", "--last", "more", CODEX_HOME=str(machine.folder / "codex"))
    assert (ended.status, again.status) == (0, 0)
    assert fingerprint(theirs) == before
    assert len(machine.rollouts()) == 1, "the child is the home's own, and goes on in its file"


def test_in_place_appends_to_the_foreign_file(machine, foreign):
    before = foreign.read_bytes()
    with ResponsesServer(["again"]) as server:
        machine.connect(server)
        ended = machine.refold("resume", "--in-place", "--json", foreign, "and more")
    assert ended.status == 0
    assert thread_id(ended.events) == "#1"
    assert machine.rollouts() == []
    assert foreign.read_bytes().startswith(before)
    ordinals = [record["ordinal"] for record in machine.records(foreign)]
    assert ordinals == list(range(len(ordinals)))


def test_work_goes_on_where_the_last_turn_was(machine):
    """S24: started in one folder, the last turn in another, resumed from a third."""
    alpha, beta = machine.folder / "alpha", machine.folder / "beta"
    alpha.mkdir()
    path = machine.folder / "session.jsonl"
    text = (DATA / "cases" / "S24-resume-directory" / "rollout.jsonl").read_text(encoding="utf-8")
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
        session_id = thread_id(machine.refold("run", "--json", "hi").events)
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
        parent_id = thread_id(machine.refold("run", "--json", "first").events)
        parent = machine.rollout
        before = fingerprint(parent)
        ended = machine.refold("fork", "--json", parent_id, "another way")
    assert (ended.status, fingerprint(parent)) == (0, before)  # S26.5
    [child] = [path for path in machine.rollouts() if path != parent]
    meta = machine.records(child)[0]["payload"]
    assert meta["id"] == thread_id(ended.events) != parent_id
    assert child.name.endswith(f"-{meta['id']}.jsonl")
    assert meta["forked_from_id"] == parent_id
    assert texts(server.requests[1].input, "user") == ["first", "another way"]


def test_fork_without_a_message_makes_the_session_and_says_its_id(machine, foreign):
    machine.configure('model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:9/v1"\n')
    ended = machine.refold("fork", foreign)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.strip() == machine.records()[0]["payload"]["id"]
    told = machine.refold("fork", foreign, "--json")
    assert [event["type"] for event in told.events] == ["thread.started"]
    found = machine.refold("sessions", "--json").events
    assert {one["id"] for one in found} == {ended.out.strip(), thread_id(told.events)}
    assert {(one["forked_from"], one["first_text"]) for one in found} == {("#1", "say hello")}


def test_fork_of_a_fork_names_the_fork_as_its_parent(machine):
    child = machine.folder / "child.jsonl"
    shutil.copy(DATA / "cases" / "S26-fork-identity" / "child.jsonl", child)
    machine.configure('model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:9/v1"\n')
    before = fingerprint(child)
    assert machine.refold("fork", child, "--cd", ".").status == 0
    meta = machine.records()[0]["payload"]
    assert meta["forked_from_id"][-4:] == "0402" and meta["id"][-4:] not in ("0402", "001a")  # S26.3
    assert fingerprint(child) == before


def test_fork_of_a_damaged_file_holds_whole_records_only(machine):
    torn = machine.folder / "torn.jsonl"
    shutil.copy(DATA / "cases" / "S18-partial-line" / "tail_cut.jsonl", torn)
    machine.configure('model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:9/v1"\n')
    before = fingerprint(torn)
    assert machine.refold("fork", torn, "--cd", ".").status == 0
    assert machine.records()  # S18.5
    assert fingerprint(torn) == before


# --- compact ---------------------------------------------------------------------------------------------------------


def test_compaction_puts_a_summary_in_the_histories_place(machine):
    with ResponsesServer(["one", text_reply("SUMMARY", usage=usage(300, 20)), "two"]) as server:
        machine.connect(server)
        session_id = thread_id(machine.refold("run", "--json", "first").events)
        before = machine.rollout.read_bytes()
        ended = machine.refold("compact", session_id)
        assert (ended.status, ended.out) == (0, "")
        assert "⇣ compacted: " in ended.err
        assert machine.refold("resume", session_id, "second").status == 0
    assert machine.rollout.read_bytes().startswith(before)
    assert sum(record["type"] == "compacted" for record in machine.records()) == 1
    said = texts(server.requests[2].input, "user")
    assert (said[0], said[-1]) == ("first", "second") and said[1].endswith("\nSUMMARY")
    assert texts(server.requests[2].input, "assistant") == []


def test_compaction_for_programs_tells_before_and_after(machine, foreign):
    before = fingerprint(foreign)
    with ResponsesServer(["SUMMARY"]) as server:
        machine.connect(server)
        ended = machine.refold("compact", "--json", foreign)
    assert (ended.status, ended.err) == (0, "")
    assert [event["type"] for event in ended.events] == [
        "thread.started",
        "refold.compaction.started",
        "refold.compaction.completed",
    ]
    assert ended.events[1]["reason"] == "user_requested" and ended.events[2]["installed"]
    assert fingerprint(foreign) == before
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
        session_id = thread_id(machine.refold("run", "--json", "first").events)
        ended = machine.refold("compact", session_id)
        assert ended.status == 1
        assert "no room" in ended.complaint
        told = machine.refold("compact", "--json", session_id)
        assert told.status == 1 and told.events[-1]["type"] == "error"
        assert machine.refold("resume", session_id, "second").status == 0
    assert not any(record["type"] == "compacted" for record in machine.records())
    assert texts(server.requests[-1].input, "user") == ["first", "second"]
    assert texts(server.requests[-1].input, "assistant") == ["fine"]
