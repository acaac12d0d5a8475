"""Slash commands and the list of sessions, at a terminal."""

from __future__ import annotations

import json

import pytest

from refold.testing import Reply, ResponsesServer, text_reply, usage
from refold.tui.commands import Command, Said, Unknown, completed, read

ESC, DOWN, CTRL_D = "\x1b", "\x1b[B", "\x04"


def said(request) -> list[str]:
    found = [part["text"] for item in request.input if item.get("role") == "user" for part in item["content"]]
    return [text for text in found if not text.startswith(("<", "#"))]


def test_help_status_and_context_tell_without_asking_the_model(place):
    with ResponsesServer(["sure"]) as server:
        place.connect(server)
        chat = place.chat(rows=60)
        chat.says("hello")
        chat.sees("sure")
        chat.is_ready()
        chat.says("/help")
        chat.sees("/compact")
        chat.sees("Alt-Enter")
        chat.says("/status")
        chat.sees("commands  sandbox ")
        assert place.rollouts()[0].stem[-36:] in chat.text
        chat.says("/context")
        chat.sees("counted by the provider")
        assert "hello" in chat.text.rpartition("/context")[2]
        assert len(server.requests) == 1


def test_unknown_command_names_near_ones_and_two_slashes_send(place):
    with ResponsesServer(["odd it is"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.says("/comapct")
        chat.sees("there is no /comapct; near: /compact")
        assert not server.requests
        chat.says("//etc/hosts is odd")
        chat.sees("odd it is")
    assert said(server.requests[0]) == ["/etc/hosts is odd"]


def test_compact_compacts_and_what_is_said_meanwhile_comes_after(place):
    with ResponsesServer(["one", text_reply("SUMMARY", delay=1), "two"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        chat.says("/compact")
        chat.sees("⇣ compacting: ")
        chat.says("second")
        chat.sees("⋯ queued: second")
        chat.sees("⇣ compacted: ")
        chat.sees("› second")
        chat.sees("two")
    assert "SUMMARY" in json.dumps(server.requests[2].input)


def test_command_that_needs_the_session_waits_for_nobody(place):
    with ResponsesServer([text_reply("slow", stall=1.5)]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("go")
        chat.until(lambda: server.requests, "request")
        chat.says("/compact")
        chat.sees("/compact has to wait")
        chat.says("/status")
        chat.sees("  session ")
        chat.is_ready()


def test_failed_compaction_leaves_the_chat_open(place):
    refusal = Reply(status=400, body={"error": {"message": "no summaries"}})
    with ResponsesServer(["one", refusal, "two"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        chat.says("/compact")
        chat.sees("no summaries")
        chat.is_ready()
        chat.says("second")
        chat.sees("two")


def test_fork_goes_on_in_a_new_file_and_new_begins_with_nothing(place):
    with ResponsesServer(["one", "two", "three"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.says("/fork")
        chat.sees("nothing to fork yet")
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        before = place.rollouts()[0].read_bytes()
        chat.says("/fork")
        chat.until(lambda: chat.text.count("/help") == 2, "another session")
        chat.is_ready()
        chat.says("second")
        chat.sees("two")
        chat.is_ready()
        assert len(place.rollouts()) == 2 and place.rollouts()[0].read_bytes() == before
        chat.says("/new")
        chat.until(lambda: chat.text.count("/help") == 3, "another session")
        chat.is_ready()
        chat.says("third")
        chat.sees("three")
    assert said(server.requests[1]) == ["first", "second"]
    assert said(server.requests[2]) == ["third"]


def test_model_is_changed_in_the_same_session(place):
    with ResponsesServer(["one", "two"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        chat.says("/model")
        chat.sees("mock-tokens answers")
        chat.says("/model other-model")
        chat.sees_toolbar("other-model")
        chat.is_ready()
        chat.says("second")
        chat.sees("two")
        chat.is_ready()
        assert len(place.rollouts()) == 1
    assert [json.loads(request.body)["model"] for request in server.requests] == ["mock-tokens", "other-model"]
    assert said(server.requests[1]) == ["first", "second"]


def test_resume_finds_a_session_by_the_beginning_of_its_id_and_says_when_there_is_none(place):
    with ResponsesServer(["one", "two"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        found = place.rollouts()[0].stem[-36:]
        chat.says("/new")
        chat.until(lambda: chat.text.count("/help") == 2, "another session")
        chat.is_ready()
        chat.says("/resume nosuch")
        chat.sees("no session 'nosuch'")
        chat.is_ready()
        chat.says(f"/resume {found}")
        chat.sees(f"session {found} · turn 2")
        chat.is_ready()
        chat.says("second")
        chat.sees("two")
    assert said(server.requests[1]) == ["first", "second"]


# --- the list of sessions --------------------------------------------------------------------------------------------


def test_session_is_picked_from_a_list_by_typing_and_by_arrows(place):
    with ResponsesServer(["as you say"]) as server:
        place.connect(server)
        for hour, word in enumerate(("apples", "pears", "plums"), 1):
            place.session(f"about {word}", hour=hour)
        chat = place.chat("--pick")
        chat.sees("3 of 3 sessions")
        rows = [row for row in chat.rows if "about " in row]
        assert ["plums" in rows[0], "pears" in rows[1], "apples" in rows[2]] == [True] * 3
        assert all("~/w" in row for row in rows) and rows[0].startswith("▸")
        chat.types("p")
        chat.types(DOWN)
        chat.types(DOWN)
        chat.until(lambda: any(row.startswith("▸") and "apples" in row for row in chat.rows), "third")
        chat.types("ear")
        chat.sees("1 of 3 sessions")
        chat.types("\r")
        chat.sees("› about pears")
        chat.is_ready()
        assert "of 3 sessions" not in "\n".join(chat.rows)
        chat.says("/sessions")
        chat.sees("2 of 2 sessions")
        chat.types(ESC)
        chat.is_ready()
        chat.says("and more pears")
        chat.sees("as you say")
    assert said(server.requests[0]) == ["about pears", "and more pears"]


def test_last_and_id_name_a_session_and_a_wrong_one_is_one_line(place):
    with ResponsesServer([]) as server:
        place.connect(server)
        named = place.session("older", hour=1)
        last = place.session("newer", hour=2)
        for word, found in (("--last", last), (named, named)):
            chat = place.chat(word)
            chat.sees(f"session {found}")
            chat.is_ready()
            chat.types(CTRL_D)
            assert chat.ends() == 0
        wrong = place.chat("nosuch")
        assert wrong.ends() == 2
        assert "refold: no session 'nosuch'" in wrong.text and "Traceback" not in wrong.text


def test_gauge_and_mark_move_with_the_context(place):
    with ResponsesServer([text_reply("much", usage=usage(200_000, 10))]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        assert "░░░░░░░░░┃" in chat.toolbar
        chat.says("go")
        chat.sees("much")
        chat.is_ready()
        assert "███████░░┃ 200k/272k (74%)" in chat.toolbar


# --- what a line means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("hello", Said("hello")),
        (" /help", Said(" /help")),
        ("//help", Said("/help")),
        ("/help", Command("help")),
        ("/model  x-1 ", Command("model", "x-1")),
        ("/resum", Unknown("resum", ("resume", "rename"))),
        ("/xyzzy", Unknown("xyzzy", ())),
        ("/", Unknown("", ())),
    ],
)
def test_line_means(text, means):
    assert read(text) == means


def test_beginning_of_a_command_is_completed():
    assert completed("/comp") == "/compact "
    assert completed("/mod") is None and completed("/model") == "/model "
    assert completed("/co") is None and completed("hello") is None
