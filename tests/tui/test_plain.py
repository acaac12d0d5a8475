"""The chat where no cursor can be moved: a dumb terminal and a pipe; plain lines, the same commands."""

from __future__ import annotations

import subprocess
import sys

from refold.testing import ResponsesServer, call_reply, text_reply

EXEC = "exec_command"
PATIENCE = 20
CTRL_C, CTRL_D = "\x03", "\x04"


def said(request) -> list[str]:
    found = [part["text"] for item in request.input if item.get("role") == "user" for part in item["content"]]
    return [text for text in found if not text.startswith(("<", "#"))]


def at_a_dumb_terminal(place, *words: str):
    chat = place.chat(*words, TERM="dumb", rows=60)
    chat.sees("[idle")
    return chat


def idle(chat, times: int) -> None:
    chat.until(lambda: chat.text.count("[idle") == times, f"idle {times} times")


def test_dumb_terminal_gets_plain_lines_and_not_one_escape(place):
    with ResponsesServer([call_reply(EXEC, {"cmd": "printf '\\033[1mx'"}), "**done**"]) as server:
        place.connect(server)
        chat = at_a_dumb_terminal(place, "--allow-exec")
        chat.types("go\n")
        chat.sees("**done**")
        idle(chat, 2)
        chat.types("/help\n")
        chat.sees("/compact")
        chat.types("/nosuch\n")
        chat.sees("there is no /nosuch")
        chat.types(CTRL_D)
        assert chat.ends() == 0
    assert b"\x1b" not in chat.sent


def test_steer_interrupt_and_leave_at_a_dumb_terminal(place):
    with ResponsesServer(
        [call_reply(EXEC, {"cmd": "sleep 1"}), "steered", text_reply("never", stall=PATIENCE)]
    ) as server:
        place.connect(server)
        chat = at_a_dumb_terminal(place, "--allow-exec")
        chat.types("go\n")
        chat.sees("▸ sleep 1")
        chat.types("only billing\n")
        chat.sees("steered")
        idle(chat, 2)
        chat.types("more \\\nof it\n")
        chat.until(lambda: len(server.requests) == 3, "request")
        chat.types(CTRL_C)
        chat.sees("interrupted after")
        idle(chat, 3)
        chat.types(CTRL_C)
        assert chat.ends() == 0
    assert said(server.requests[1]) == ["go", "only billing"]
    assert said(server.requests[2])[-1] == "more \nof it"


def test_question_at_a_dumb_terminal_is_not_answered_by_what_was_typed_before(place):
    with ResponsesServer(
        [text_reply("wait", stall=0.5), call_reply(EXEC, {"cmd": "touch made"}, delay=1), "end"]
    ) as server:
        place.connect(server)
        chat = at_a_dumb_terminal(place, "--ask", "untrusted", "--sandbox", "danger-full-access")
        chat.types("one\n")
        idle(chat, 2)
        chat.types("go\n")
        chat.until(lambda: len(server.requests) == 2, "request")
        chat.types("y\n")
        chat.sees("Allow it?")
        chat.look(0.2)
        assert not (place.work / "made").exists()
        chat.types("what\n")
        chat.until(lambda: chat.text.count("Allow it?") == 2, "asked again")
        chat.types("y\n")
        chat.sees("end")
    assert (place.work / "made").exists()
    assert said(server.requests[2])[-1] == "y"


def test_session_is_picked_by_number_at_a_dumb_terminal(place):
    with ResponsesServer(["as you say"]) as server:
        place.connect(server)
        for word in ("apples", "pears"):
            place.session(word)
        chat = place.chat("--pick", TERM="dumb", rows=60)
        chat.sees("2 of 2 sessions")
        chat.types("appl\n")
        chat.sees("1 of 2 sessions")
        chat.types("1\n")
        chat.sees("› apples")
        chat.sees("[idle")
        chat.types("more\n")
        chat.sees("as you say")
    assert said(server.requests[0]) == ["apples", "more"]


def test_lines_of_a_pipe_are_turns_one_after_the_other(place):
    with ResponsesServer([text_reply("one", stall=0.3), "two"]) as server:
        place.connect(server)
        done = subprocess.run(
            [sys.executable, "-m", "refold", "chat"],
            input="first\nsecond\n/status\nunfinished \\",
            capture_output=True,
            text=True,
            cwd=place.work,
            env=place.environ,
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    told = [done.stdout.index(text) for text in ("› first", "one", "› second", "two", "  session ")]
    assert told == sorted(told)
    assert said(server.requests[1]) == ["first", "second"]


def test_a_pipe_cannot_pick_a_session_and_is_told_so(place):
    """Nobody would ever read the answer: its lines are messages."""
    with ResponsesServer(["one"]) as server:
        place.connect(server)
        done = [
            subprocess.run(
                [sys.executable, "-m", "refold", "chat", *words],
                input=lines,
                capture_output=True,
                text=True,
                cwd=place.work,
                env=place.environ,
                timeout=PATIENCE,
            )
            for words, lines in (([], "first\n"), ([], "/sessions\n/status\n"), (["--pick"], "1\n"))
        ]
    assert [one.returncode for one in done] == [0, 0, 1]
    assert "nobody can pick" in done[1].stdout, done[1].stdout
    assert "  session " in done[1].stdout
    assert "nobody can pick" in done[2].stderr


def test_wrong_settings_are_one_line_and_end_the_chat(place):
    place.home.mkdir()
    (place.home / "config.toml").write_text("model = \n")
    done = subprocess.run(
        [sys.executable, "-m", "refold", "chat"], input="hi\n", capture_output=True, text=True, env=place.environ
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("refold: ")


def test_options_that_cannot_be_together_are_a_usage_error(place):
    for words in (["--json"], ["--last", "--pick"], ["some-id", "--last"]):
        done = subprocess.run(
            [sys.executable, "-m", "refold", "chat", *words], capture_output=True, text=True, env=place.environ
        )
        assert done.returncode == 2 and "Usage: refold chat" in done.stderr
