"""`refold sent`: every request of a session, whole, or beside another one."""

from __future__ import annotations

import json

import pytest

from refold.testing import ResponsesServer, text_reply, usage


@pytest.fixture
def talk(machine):
    """The id of a session of two turns, and the bodies that its server heard."""
    with ResponsesServer([text_reply("one", usage=usage(10, 1)), text_reply("two", usage=usage(20, 1))]) as server:
        machine.connect(server)
        identity = machine.refold("run", "begin", "--json").thread_id
        assert machine.refold("resume", identity, "go on").status == 0
        return identity, [request.body for request in server.requests]


def test_the_list_says_what_each_shares_with_the_one_before(machine, talk):
    identity, bodies = talk
    listed = machine.refold("sent", identity)
    assert (listed.status, listed.err) == (0, "")
    first, second = listed.out.splitlines()
    assert f"{len(bodies[0]):,} bytes, begins with 0 bytes" in first
    assert f"{len(bodies[1]):,} bytes" in second
    assert first.endswith("same") and second.endswith("same")
    told = machine.refold("sent", identity, "--json").events
    assert [one["number"] for one in told] == [1, 2]
    assert all(one["same"] for one in told)
    assert told[1]["common_prefix"] > bodies[0].index(b'"tools"') - 10, "the whole input of the first"


def test_a_request_is_printed_byte_for_byte(machine, talk):
    identity, bodies = talk
    for number, body in enumerate(bodies, 1):
        printed = machine.refold("sent", identity, "--sampling", number)
        assert (printed.status, printed.out.encode()) == (0, body)


def test_two_requests_are_compared(machine, talk):
    identity, _ = talk
    compared = machine.refold("sent", identity, "--sampling", 1, "--diff", 2)
    assert compared.status == 0
    head, *diff = compared.out.splitlines()
    assert "in common" in head
    added = [line for line in diff if line.startswith("+")]
    assert any('"go on"' in line for line in added) and any('"one"' in line for line in added)
    assert not any('"begin"' in line for line in added)


def test_what_is_not_there_is_named(machine, talk):
    identity, _ = talk
    missing = machine.refold("sent", identity, "--sampling", 7)
    assert missing.status != 0
    assert "has no request 7" in missing.complaint
    assert machine.refold("sent", identity, "--diff", 1).status == 2


def test_a_changed_log_is_found_out(machine, talk):
    copy = machine.folder / "changed.jsonl"
    copy.write_bytes(machine.rollout.read_bytes().replace(b"begin", b"BEGIN"))
    listed = machine.refold("sent", copy)
    assert listed.status == 1
    assert listed.out.count("differs from what went out") == 2
    printed = machine.refold("sent", copy, "--sampling", 1)
    assert printed.status == 1 and "not what went out" in printed.complaint
    assert "BEGIN" in json.dumps(json.loads(printed.out)["input"])


def test_a_session_without_requests_says_so(machine, foreign):
    listed = machine.refold("sent", foreign)
    assert (listed.status, listed.out) == (0, "")
    assert "no request is recorded" in listed.err
