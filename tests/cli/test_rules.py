"""rules, pin, unpin: real processes; what is kept for good is listed, told in later contexts, and can be let go."""

from __future__ import annotations

import json

from refold.testing import ResponsesServer

RULE = "Never touch the files under billing/."
ANSWER = "The staging host is stage-7."


def texts(request) -> list[str]:
    return [part["text"] for item in request.input for part in item.get("content", [])]


def begun(machine, server) -> tuple[str, str, str]:
    """A session of one turn: its id, and where the message and the answer stand."""
    machine.connect(server)
    session_id = machine.refold("run", "--json", f"Hi. {RULE} 请始终保持向后兼容。 What is the staging host?").thread_id
    said = [one for one in machine.records() if one["type"] == "response_item" and one["payload"]["type"] == "message"]
    question = next(one for one in said if "billing" in json.dumps(one))
    answer = next(one for one in said if one["payload"]["role"] == "assistant")
    return session_id, f"{session_id}:{question['ordinal']}", f"{session_id}:{answer['ordinal']}"


def test_a_pin_is_told_in_the_next_context_and_listed(machine):
    with ResponsesServer([ANSWER, "SUMMARY", "ok"]) as server:
        session_id, question, answer = begun(machine, server)
        ended = machine.refold("pin", session_id, answer.rpartition(":")[2], "--text", "stage-7")
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.startswith(f"pinned {answer}: stage-7\n") and " of 2,720 tokens for pins" in ended.out
        listed = machine.refold("rules", session_id)
        assert (listed.status, listed.err) == (0, "")
        assert f"{answer} " in listed.out and "  stage-7\n" in listed.out
        assert f"{question}#1" in listed.out and RULE in listed.out and f"{question}#2" in listed.out
        machine.refold("compact", session_id)
        machine.refold("resume", session_id, "go on")
    sent = texts(server.requests[2])
    assert sent.count("stage-7") == 1
    assert sent[sent.index("stage-7") - 1] == f'<external_pinned address="{answer}">'


def test_as_json(machine):
    with ResponsesServer([ANSWER]) as server:
        session_id, question, answer = begun(machine, server)
        [pinned] = machine.refold("pin", session_id, answer, "--json").events
        assert (pinned["type"], pinned["address"], pinned["text"]) == ("refold.pin.completed", answer, ANSWER)
        assert 0 < pinned["tokens"] == pinned["pinned"] < pinned["budget"] == 2_720
        [listed] = machine.refold("rules", session_id, "--json").events
        assert [(one["address"], one["text"], one["told"], one["fits"]) for one in listed["pins"]] == [
            (answer, ANSWER, True, True)
        ]
        assert [(one["address"], one["text"]) for one in listed["rules"]] == [
            (f"{question}#1", RULE),
            (f"{question}#2", "请始终保持向后兼容。"),
        ]
        assert (listed["budget"], listed["dropped"]) == (2_720, 0)
        [gone] = machine.refold("unpin", session_id, answer, "--json").events
        assert (gone["type"], gone["texts"]) == ("refold.unpin.completed", [ANSWER])
        [dropped] = machine.refold("rules", session_id, "--drop", f"{question}#2", "--json").events
        assert (dropped["type"], dropped["texts"]) == ("refold.rules.dropped", ["请始终保持向后兼容。"])
        [listed] = machine.refold("rules", session_id, "--json").events
        assert [one["address"] for one in listed["rules"]] == [f"{question}#1"]
        assert (listed["pins"], listed["dropped"]) == ([], 1)


def test_what_cannot_be_done_says_why_and_changes_nothing(machine):
    with ResponsesServer([ANSWER]) as server:
        session_id, _, answer = begun(machine, server)
        before = machine.fingerprint(machine.rollout)
        for words, why in (
            (("pin", session_id, "999"), f"no record with a text at {session_id}:999"),
            (("pin", session_id, answer, "--text", "stage-8"), f"{answer} does not say 'stage-8'"),
            (("pin", session_id, answer, "-c", "compaction.pin_percent=0.01"), "compaction.pin_percent: "),
            (("unpin", session_id, answer), f"nothing like that is pinned at {answer} (pinned: none)"),
            (("rules", session_id, "--drop", answer), f"no rule is kept first at {answer}"),
        ):
            ended = machine.refold(*words)
            assert ended.status != 0 and why in ended.only_complaint
        assert machine.fingerprint(machine.rollout) == before


def test_a_file_outside_the_home_is_only_read(machine, foreign):
    before = machine.fingerprint(foreign)
    assert machine.refold("rules", foreign).status == 0
    refused = machine.refold("pin", foreign, "5")
    assert refused.status == 2 and "--in-place allows that" in refused.complaint
    assert machine.fingerprint(foreign) == before


def test_a_terminal_is_not_obeyed(machine):
    with ResponsesServer(["Look: \x1b[31mred\x1b[0m"]) as server:
        session_id, _, answer = begun(machine, server)
        machine.refold("pin", session_id, answer)
        assert "\x1b" not in machine.refold("rules", session_id).out
