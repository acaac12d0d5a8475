"""undo and compact --dry-run: real processes; both branches stay in the file, other people's files as they are."""

from __future__ import annotations

import json

from refold.testing import ResponsesServer, text_reply, usage

PRICE = "model_price = { input = 10.0, output = 100.0 }"


def asked(machine, request) -> list[str]:
    return machine.said(request, "user") + machine.said(request, "assistant")


# --- undo ------------------------------------------------------------------------------------------------------------


def test_undo_brings_the_history_back_and_says_what_came_of_it(machine):
    with ResponsesServer(["one", "SUMMARY", "two", "three"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
        machine.refold("compact", session_id)
        before = machine.rollout.read_bytes()
        ended = machine.refold("undo", session_id)
        assert (ended.status, ended.err) == (0, "")
        compacted = next(record["ordinal"] for record in machine.records() if record["type"] == "compacted")
        assert f"the compaction at {session_id}:{compacted} is undone: " in ended.out
        assert "of 272,000 tokens" in ended.out and "refold undo again" in ended.out
        assert machine.rollout.read_bytes().startswith(before)
        machine.refold("resume", session_id, "second")
        assert asked(machine, server.requests[2]) == ["first", "second", "one"]
        assert "is undone" in machine.refold("undo", session_id).out
        machine.refold("resume", session_id, "third")
    assert "SUMMARY" in json.dumps(server.requests[3].input)
    ordinals = [record["ordinal"] for record in machine.records()]
    assert ordinals == list(range(len(ordinals)))
    for address in (f"{session_id}:{compacted}", f"{session_id}:{ordinals[-1]}"):
        assert machine.refold("show", address).status == 0


def test_undo_of_turns_as_json(machine):
    with ResponsesServer(["one", "two", "three"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
        machine.refold("resume", session_id, "second")
        ended = machine.refold("undo", session_id, "--turns", "1", "--json")
        [told] = ended.events
        assert (told["type"], told["thread_id"], told["what"], told["turns"]) == (
            "refold.undo.completed",
            session_id,
            "turns",
            1,
        )
        assert told["tokens_after"] < told["tokens_before"]
        line = next(record for record in machine.records() if record["type"] == "compacted")
        assert told["address"] == f"{session_id}:{line['ordinal']}"
        assert (line["payload"]["refold"]["method"], line["payload"]["refold"]["turns"]) == ("rollback", 1)
        machine.refold("resume", session_id, "another way")
    assert asked(machine, server.requests[2]) == ["first", "another way", "one"]


def test_undo_needs_no_provider_and_says_when_there_is_nothing(machine):
    with ResponsesServer(["one"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
    before = machine.fingerprint(machine.rollout)
    ended = machine.refold("undo", session_id)
    assert (ended.status, ended.out) == (1, "")
    assert "there is nothing to undo: this session was not compacted yet" in ended.only_complaint
    ended = machine.refold("undo", session_id, "--turns", "2")
    assert "2 turns cannot be undone: only 1 of them" in ended.only_complaint
    assert machine.refold("undo", session_id, "--turns", "0").status == 2
    assert machine.refold("undo", "nosuch").status == 2
    assert machine.fingerprint(machine.rollout) == before


def test_undo_leaves_a_foreign_file_alone_unless_it_is_told_to(machine, foreign):
    before = foreign.read_bytes()
    ended = machine.refold("undo", foreign, "--turns", "1")
    assert (ended.status, foreign.read_bytes()) == (2, before)
    assert "saved.jsonl is not in refold's home" in ended.complaint and "--in-place" in ended.complaint
    assert machine.refold("undo", foreign, "--turns", "1", "--in-place").status == 0
    assert foreign.read_bytes().startswith(before)
    assert json.loads(foreign.read_bytes().splitlines()[len(before.splitlines())])["type"] == "compacted"


def test_undo_is_refused_while_the_session_works(machine):
    with ResponsesServer(["one", text_reply("two", delay=30)]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "hi").thread_id
        with machine.start("resume", session_id, "long work") as first:
            while len(server.requests) < 2:
                assert first.poll() is None
            ended = machine.refold("undo", session_id, "--turns", "1")
            first.kill()
    assert ended.status == 1
    assert f"is being written by process {first.pid}" in ended.only_complaint


# --- compact --dry-run -----------------------------------------------------------------------------------------------


def test_dry_run_shows_the_context_and_changes_nothing_but_the_account(machine):
    replies = ["one", text_reply("the SUMMARY\nin lines", usage=usage(300, 20)), "two"]
    with ResponsesServer(replies) as server:
        machine.connect(server, PRICE)
        session_id = machine.refold("run", "--json", "first").thread_id
        ended = machine.refold("compact", session_id, "--dry-run", "--focus", "names")
        assert ended.status == 0
        assert "keep in particular: names" in json.dumps(server.requests[1].input)
        assert f"{session_id}  mock-tokens  preview: nothing is changed" in ended.out
        assert "    the SUMMARY\n    in lines\n" in ended.out
        gone = ended.out.partition("no longer in it: 1 items, ")[2].splitlines()[1]
        assert gone.startswith(f"{session_id}:") and gone.endswith("one")
        assert "refold show ADDRESS" in ended.out
        assert "asking for it used 300 tokens in (0 cached), 20 out, cost 0.005" in ended.out
        assert "not compacted: this is a preview" in ended.err
        kinds = [record["payload"].get("kind") for record in machine.records()]
        assert "compaction_attempted" in kinds
        assert not [record for record in machine.records() if record["type"] == "compacted"]
        machine.refold("resume", session_id, "second")
    assert asked(machine, server.requests[2]) == ["first", "second", "one"]


def test_dry_run_as_json(machine):
    with ResponsesServer(["one", "SUMMARY"]) as server:
        machine.connect(server)
        session_id = machine.refold("run", "--json", "first").thread_id
        events = machine.refold("compact", session_id, "--dry-run", "--json").events
    assert [event["type"] for event in events] == [
        "thread.started",
        "refold.compaction.started",
        "refold.compaction.completed",
        "refold.compaction.preview",
    ]
    shown = events[-1]
    assert events[2]["installed"] is False
    assert (shown["method"], shown["tokens_before"]) == ("local", events[2]["tokens_before"])
    assert len(shown["items"]) == len(shown["addresses"])
    assert [one["text"] for one in shown["gone"]] == ["one"]
    assert shown["usage"]["output_tokens"] == 10 and shown["cost"] is None


def test_dry_run_without_a_model_on_a_foreign_file_leaves_no_trace(machine, foreign):
    before = machine.fingerprint(foreign)
    machine.configure('model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:9/v1"\n')
    ended = machine.refold("compact", foreign, "--dry-run", "--outline")
    assert ended.status == 0
    assert "say hello" in ended.out and "preview: nothing is changed" in ended.out
    assert machine.fingerprint(foreign) == before
    assert machine.rollouts() == []
