"""Questions before a command runs: shown whole, answered only by who has seen them."""

from __future__ import annotations

import threading

import pytest

from refold.core.permissions import CommandAsked
from refold.session.permits import Question, Verdict
from refold.testing import Reply, ResponsesServer, call_reply, text_reply
from refold.views.questions import asked_lines, choices, verdict

EXEC = "exec_command"
PATIENCE = 20
ESC = "\x1b"
ASKED = "Allow it?"
UNTRUSTED = ("--ask", "untrusted", "--sandbox", "danger-full-access")


@pytest.mark.parametrize(("answer", "made"), [("y", True), ("YES", True), ("n", False), ("no, use make", False)])
def test_person_is_asked_before_a_command_runs(place, answer, made):
    with ResponsesServer([call_reply(EXEC, {"cmd": "touch made &&\necho d\u001bone"}), "finished"]) as server:
        place.connect(server)
        chat = place.chat(*UNTRUSTED)
        chat.is_ready()
        chat.says("go")
        chat.sees(ASKED)
        assert "  │ touch made &&\n  │ echo d\\x1bone" in chat.text
        assert "your answer is needed" in chat.toolbar
        assert not (place.work / "made").exists()
        chat.says(answer)
        chat.sees("finished")
        chat.is_ready()
    assert (place.work / "made").exists() == made
    output = server.requests[1].input[-1]["output"]
    assert ("exited with code 0" in output) == made
    assert ("did not allow" in output) != made


def test_always_allows_what_begins_alike_without_asking_again(place):
    calls = [call_reply(EXEC, {"cmd": f"git init -q {name}"}) for name in "ab"]
    with ResponsesServer([*calls, "finished"]) as server:
        place.connect(server)
        chat = place.chat(*UNTRUSTED)
        chat.is_ready()
        chat.says("go")
        chat.sees("a(lways)")
        assert "always: every command here that begins with `git init" in chat.text
        chat.says("a")
        chat.sees("finished")
        chat.is_ready()
        assert chat.text.count("The model wants to run:") == 1
    assert (place.work / "a").exists() and (place.work / "b").exists()


def test_what_is_no_answer_is_asked_again(place):
    with ResponsesServer([call_reply(EXEC, {"cmd": "touch made"}), "finished"]) as server:
        place.connect(server)
        chat = place.chat(*UNTRUSTED)
        chat.says("go")
        chat.sees(ASKED)
        for nonsense in ("", "maybe", "yesterday", "never"):
            chat.says(nonsense)
        chat.look(0.3)
        assert len(server.requests) == 1 and not (place.work / "made").exists()
        assert ASKED in "\n".join(chat.rows)
        chat.says("n")
        chat.sees("finished")


def test_type_ahead_does_not_answer_a_question(place):
    """What is typed while the model still thinks goes on being the draft, and its Enter a steer."""
    asks = threading.Event()

    def call(_):
        assert asks.wait(PATIENCE)
        return call_reply(EXEC, {"cmd": "touch made"})

    with ResponsesServer([call, "finished"]) as server:
        place.connect(server)
        chat = place.chat(*UNTRUSTED)
        chat.says("go")
        chat.until(lambda: server.requests, "request")
        asks.set()
        for _ in range(12):  # faster than anybody reads; the question comes in the midst of it
            chat.types("y")
            chat.look(0.1)
        chat.sees(ASKED)
        assert not (place.work / "made").exists() and len(server.requests) == 1
        chat.says("n")
        chat.sees("finished")
        chat.is_ready()
        assert chat.inputs == "› " + "y" * 12
    assert not (place.work / "made").exists()


def test_enter_before_a_question_is_shown_steers(place):
    asks = threading.Event()

    def call(_):
        assert asks.wait(PATIENCE)
        return call_reply(EXEC, {"cmd": "touch made"})

    with ResponsesServer([call, "finished"]) as server:
        place.connect(server)
        chat = place.chat(*UNTRUSTED)
        chat.says("go")
        chat.until(lambda: server.requests, "request")
        asks.set()
        chat.says("y")
        chat.sees(ASKED)
        chat.sees("⋯ queued: y")
        assert not (place.work / "made").exists()
        chat.says("n")
        chat.sees("finished")
    assert not (place.work / "made").exists()


def test_question_can_be_left_by_an_interrupt(place):
    with ResponsesServer([call_reply(EXEC, {"cmd": "touch made"}), "on"]) as server:
        place.connect(server)
        chat = place.chat(*UNTRUSTED)
        chat.says("go")
        chat.sees(ASKED)
        chat.types(ESC)
        chat.sees("interrupted after")
        chat.is_ready()
        assert ASKED not in "\n".join(chat.rows)
        chat.says("next")
        chat.sees("on")
    assert not (place.work / "made").exists()


def test_calls_that_run_side_by_side_are_asked_about_one_after_the_other(place):
    items = [item for name in ("a", "b") for item in call_reply(EXEC, {"cmd": f"touch {name}"}, call_id=name).items]
    with ResponsesServer([Reply(items=tuple(items)), text_reply("finished")]) as server:
        place.connect(server)
        chat = place.chat(*UNTRUSTED)
        chat.says("go")
        chat.sees(ASKED)
        assert chat.text.count("The model wants to run:") == 1
        chat.says("y")
        chat.until(lambda: chat.text.count("The model wants to run:") == 2, "the other question")
        chat.until(lambda: ASKED in "\n".join(chat.rows), ASKED)
        chat.says("n")
        chat.sees("finished")
    assert (place.work / "a").exists() != (place.work / "b").exists()


# --- what an answer means --------------------------------------------------------------------------------------------

CALL = {"type": "function_call", "name": EXEC, "arguments": '{"cmd": "ls -l"}', "call_id": "c"}
PLAIN = Question(call=CALL)
FULL = Question(
    call=CALL,
    command=CommandAsked(
        command="git push\u202e\nAllow it? y",
        cwd="/w",
        outside=True,
        reason="to\x1b share",
        interactive=True,
        shell="fish",
    ),
    why="it writes outside the workspace",
    remember=("git", "push"),
)


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        ("y", Verdict(True)),
        (" Yes ", Verdict(True)),
        ("a", Verdict(True, remember=True)),
        ("always", Verdict(True, remember=True)),
        ("n", Verdict(False)),
        ("No", Verdict(False)),
        ("n use make", Verdict(False, word="use make")),
        ("no: use make", Verdict(False, word="use make")),
        ("", None),
        ("never", None),
        ("yes please", None),
        ("all", None),
    ],
)
def test_answer_means(answer, means):
    assert verdict(answer, FULL) == means


def test_always_is_no_answer_where_nothing_can_be_remembered():
    assert verdict("a", PLAIN) is None
    assert "a(lways)" in choices(FULL) and "a(lways)" not in choices(PLAIN)


def test_question_shows_everything_with_control_characters_spelled_out():
    text = "\n".join(line for line, _ in asked_lines(FULL))
    assert text.split("\n")[1:] == [
        "  │ git push\\u202e",
        "  │ Allow it? y",
        "  in /w",
        "  run by fish",
        "  more can be typed into it later without asking",
        '  the model says: "to\\x1b share"',
        "  why you are asked: it writes outside the workspace",
        "  always: every command here that begins with `git push`",
    ]
    assert asked_lines(PLAIN)[1] == ("  │ ls -l", "cyan")
