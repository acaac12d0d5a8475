"""The chat at a terminal: what is painted, streamed, steered, interrupted, and how it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from refold.core.items import message
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage

EXEC = "exec_command"
PATIENCE = 20
ESC, UP, CTRL_C, CTRL_D, ALT_ENTER = "\x1b", "\x1b[A", "\x03", "\x04", "\x1b\r"


def said(request: LoggedRequest) -> list[str]:
    """What the person said in a request."""
    found = [part["text"] for item in request.input if item.get("role") == "user" for part in item["content"]]
    return [text for text in found if not text.startswith(("<", "#"))]


def running(words: str) -> list[str]:
    """The processes whose command line ends in these words."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip())
    return [line for line in found if line.endswith(words)]


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to see processes")


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# --- a conversation --------------------------------------------------------------------------------------------------


def test_prompt_is_painted_and_an_answer_comes(place):
    with ResponsesServer(["hello there"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        assert any(row.startswith("›") for row in chat.rows)
        assert "mock-tokens" in chat.toolbar and "272k" in chat.toolbar
        chat.says("hi")
        chat.sees("hello there")
        chat.is_ready()
        assert "› hi" in chat.text
        assert "110 tokens used" in chat.toolbar
        chat.types(CTRL_D)
        assert chat.ends() == 0
    assert said(server.requests[0]) == ["hi"]


def test_plain_refold_at_a_terminal_opens_the_chat(place):
    with ResponsesServer([]) as server:
        place.connect(server)
        chat = place.refold()
        chat.is_ready()
        chat.says("/quit")
        assert chat.ends() == 0


def test_text_typed_before_the_session_is_open_is_sent_when_it_is(place):
    with ResponsesServer(["early bird"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("first thing")
        chat.sees("early bird")
    assert said(server.requests[0]) == ["first thing"]


def test_answer_streams_above_the_input_line_while_something_else_is_typed(place):
    answer = "A first line.\nThe second one is long enough to come in pieces.\nthe end"
    with ResponsesServer([text_reply(answer, stall=2)]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.says("go")
        chat.sees("the end")
        assert "working" in chat.toolbar
        chat.types("a dra")
        chat.until(lambda: chat.inputs == "› a dra", "the draft")
        chat.is_ready()
        assert chat.inputs == "› a dra"
        assert chat.text.count("A first line.") == 1 and chat.text.count("the end") == 1


def test_reasoning_is_one_line(place):
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "**Looking**\nat the files"}]}
    with ResponsesServer([Reply(items=(thought, message("assistant", ["seen"])), usage=usage(1, 1))]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("go")
        chat.sees("∴ Looking at the files")
        chat.sees("seen")


def test_command_and_its_result_are_shown(place):
    with ResponsesServer([call_reply(EXEC, {"cmd": "seq 9; exit 3"}), "so be it"]) as server:
        place.connect(server)
        chat = place.chat("--allow-exec")
        chat.says("go")
        chat.sees("so be it")
        assert "▸ seq 9; exit 3" in chat.text
        assert "    9\n" in chat.text and "    5\n" not in chat.text
        assert re.search(r"exit 3, \d+\.\d s, 5 lines before", chat.text)


def test_running_command_shows_its_newest_lines(place):
    slow = "for i in 1 2 3; do echo step-$i; sleep 0.6; done"
    with ResponsesServer([call_reply(EXEC, {"cmd": slow}), "done with it"]) as server:
        place.connect(server)
        chat = place.chat("--allow-exec")
        chat.says("go")
        chat.sees("    step-2")
        assert "step-3" not in "\n".join(chat.rows) and not chat.toolbar.startswith("idle")
        chat.sees("done with it")
        chat.is_ready()
        assert chat.text.count("    step-2") == 1


def test_steer_is_queued_until_it_is_delivered(place):
    with ResponsesServer([call_reply(EXEC, {"cmd": "sleep 1.5"}), "steered"]) as server:
        place.connect(server)
        chat = place.chat("--allow-exec")
        chat.says("go")
        chat.sees("▸ sleep 1.5")
        chat.says("only billing")
        chat.sees("⋯ queued: only billing")
        assert "› only billing" not in chat.text
        chat.sees("steered")
        chat.is_ready()
        assert "⋯" not in chat.text and "› only billing" in chat.text
    assert said(server.requests[1]) == ["go", "only billing"]


def test_wait_for_another_attempt_counts_down(place):
    with ResponsesServer([text_reply("x", cut_after="items"), "at last"]) as server:
        place.connect(server, retries=1)
        chat = place.chat()
        chat.says("go")
        chat.sees("⟳ trying again in")
        chat.sees("at last")


def test_failing_turn_leaves_the_chat_open_with_the_text_to_send_again(place):
    refusal = Reply(status=400, body={"error": {"message": "not today"}})
    with ResponsesServer([refusal, "better"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.says("try this")
        chat.sees("not today")
        chat.is_ready()
        assert "Traceback" not in chat.text
        chat.types(UP)
        chat.until(lambda: chat.inputs == "› try this", "the text")
        chat.types("\r")
        chat.sees("better")


def test_compaction_is_noticed(place):
    with ResponsesServer([text_reply("long", usage=usage(9_500, 10)), "SUMMARY", "after"]) as server:
        place.connect(server, "model_context_window = 10000")
        chat = place.chat()
        chat.says("one")
        chat.sees("long")
        chat.is_ready()
        chat.says("two")
        chat.sees("⇣ compacting: ")
        chat.sees("⇣ compacted: ")
        chat.sees("after")


# --- interrupt and leave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [ESC, CTRL_C], ids=["esc", "ctrl-c"])
def test_once_interrupts_and_keeps_the_draft_and_twice_leaves(place, key):
    with ResponsesServer([text_reply("never", stall=PATIENCE), text_reply("nor this", stall=PATIENCE)]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.says("go")
        chat.until(lambda: server.requests, "request")
        chat.types("half a tho")
        chat.until(lambda: chat.inputs == "› half a tho", "draft")
        chat.types(key)
        chat.sees("interrupted after")
        chat.is_ready()
        assert chat.inputs == "› half a tho"
        chat.says("ught")
        chat.until(lambda: len(server.requests) == 2, "request")
        chat.types(key)
        chat.sees("again leaves")
        chat.types(key)
        assert chat.ends() == 0
    assert records(place.rollouts()[0])[-1]["payload"]["reason"] == "interrupted"


@needs_proc
def test_interrupt_leaves_no_command_running(place):
    command = f"sleep 6{os.getpid()}.25"
    with ResponsesServer([call_reply(EXEC, {"cmd": command}), "and on"]) as server:
        place.connect(server)
        chat = place.chat("--allow-exec")
        chat.says("go")
        chat.sees(f"▸ {command}")
        chat.until(lambda: running(command), "the command")
        chat.types(ESC)
        chat.is_ready()
        assert not running(command)
        chat.says("and")
        chat.sees("and on")


def test_ctrl_c_clears_a_draft_and_at_an_empty_prompt_leaves_when_given_twice(place):
    with ResponsesServer([]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.types("never mind")
        chat.until(lambda: "never mind" in chat.inputs, "draft")
        chat.types(CTRL_C)
        chat.until(lambda: chat.inputs == "›", "empty")
        chat.types(CTRL_C)
        chat.sees_toolbar("again leaves")
        assert chat.process.isalive()
        chat.types(CTRL_C)
        assert chat.ends() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_settles_the_turn_and_gives_the_terminal_back(place, number):
    with ResponsesServer([text_reply("never", stall=PATIENCE)]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("go")
        chat.until(lambda: server.requests, "request")
        chat.process.kill(number)
        assert chat.ends() == 1
    assert "Traceback" not in chat.text
    assert records(place.rollouts()[0])[-1]["payload"]["reason"] == "interrupted"


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_terminal_is_as_it_was_when_the_chat_has_ended(place, term):
    """A shell that runs the chat sees the same settings before and after, and an echo."""
    with ResponsesServer(["fine"]) as server:
        place.connect(server)
        shell = place.shell(f"stty -a > before; {sys.executable} -m refold chat; stty -a > after; echo ended-$?", term)
        shell.sees("idle")
        shell.says("hi") if term != "dumb" else shell.types("hi\n")
        shell.sees("fine")
        shell.until(lambda: shell.text.count("idle") > (term == "dumb"), "idle")
        shell.look(0.2)
        shell.types(CTRL_D)
        shell.sees("ended-0")
    assert (place.work / "before").read_text() == (place.work / "after").read_text()
    hidden = [shell.sent.rfind(b"\x1b[?25" + end) for end in (b"l", b"h")]
    assert hidden[0] <= hidden[1], "the cursor is shown"
    assert shell.sent.count(b"\x1b[?2004h") == 0 or shell.sent.rfind(b"\x1b[?2004l") > shell.sent.rfind(b"\x1b[?2004h")


# --- the input line --------------------------------------------------------------------------------------------------


def test_pasted_lines_arrive_whole(place):
    pasted = "def f():\r\treturn 1\r\r# three\\\rfour"
    with ResponsesServer(["got it"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.types(f"\x1b[200~{pasted}\x1b[201~")
        chat.until(lambda: "four" in chat.inputs, "paste")
        assert not server.requests
        chat.types("\r")
        chat.sees("got it")
    assert said(server.requests[0]) == [pasted.replace("\r", "\n")]


def test_alt_enter_and_a_backslash_make_new_lines(place):
    with ResponsesServer(["got it"]) as server:
        place.connect(server)
        chat = place.chat()
        chat.is_ready()
        chat.types(f"one{ALT_ENTER}two\\\rthree")
        chat.until(lambda: chat.inputs.split() == ["›", "one", "two", "three"], "three lines")
        chat.types("\r")
        chat.sees("got it")
    assert said(server.requests[0]) == ["one\ntwo\nthree"]


def test_what_was_said_is_remembered_for_the_next_chat_in_a_private_file(place):
    with ResponsesServer(["a", "b"]) as server:
        place.connect(server)
        for number in (1, 2):
            chat = place.chat()
            chat.is_ready()
            if number == 2:
                chat.types(UP)
                chat.until(lambda chat=chat: "said in chat 1" in chat.inputs, "what was said")
            chat.says("said in chat 1" if number == 1 else " and 2")
            chat.until(lambda number=number: len(server.requests) == number, "request")
            chat.is_ready()
            chat.types(CTRL_D)
            assert chat.ends() == 0
    assert said(server.requests[1]) == ["said in chat 1 and 2"]
    assert stat.S_IMODE((place.home / "chat_history").stat().st_mode) == 0o600


def test_resized_window_keeps_one_prompt_and_one_toolbar(place):
    with ResponsesServer([text_reply("words " * 40, stall=1.5), "more"]) as server:
        place.connect(server)
        chat = place.chat(rows=24, columns=100)
        chat.is_ready()
        chat.says("go")
        chat.sees("words")
        for rows, columns in ((24, 60), (12, 120), (30, 40)):
            chat.resizes(rows, columns)
            chat.look(0.3)
        chat.is_ready()
        chat.says("again")
        chat.sees("more")
        chat.is_ready()
        chat.look(0.2)
        assert sum(row.startswith("idle") for row in chat.rows) == 1
        assert chat.inputs == "›"


def test_tiny_terminal_is_enough(place):
    with ResponsesServer(["small is fine"]) as server:
        place.connect(server)
        for number in range(12):
            place.session(f"word {number}", hour=number + 1)
        chat = place.chat("--pick", rows=6, columns=30)
        chat.sees("▸ ")
        chat.types("\x1b[B" * 11 + "\r")
        chat.sees("› word 0")
        chat.is_ready()
        chat.says("go")
        chat.sees("small is fine")
        chat.is_ready()
        assert "too small" not in chat.text


# --- looks and costs -------------------------------------------------------------------------------------------------


def processor(process: int) -> int:
    """Hundredths of a second of processor time so far."""
    return sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))


def colours(data: bytes) -> list[bytes]:
    """The escape sequences that set a colour, or any other look."""
    return [one for one in re.findall(rb"\x1b\[([0-9;]*)m", data) if one.strip(b"0;")]


def test_no_color_has_no_colour(place):
    for environ in ({}, {"NO_COLOR": "1"}):
        with ResponsesServer([call_reply(EXEC, {"cmd": "echo x"}), "# done"]) as server:
            place.connect(server)
            chat = place.chat("--allow-exec", **environ)
            chat.says("go")
            chat.sees("# done")
            chat.is_ready()
            chat.types(CTRL_D)
            assert chat.ends() == 0
        assert bool(colours(chat.sent)) == (not environ)


def test_control_characters_of_an_answer_do_not_reach_the_terminal(place):
    with ResponsesServer(
        ["a\x1b]0;title\x07b\x1b[2Jc", call_reply(EXEC, {"cmd": "printf '\\033[2Jx'"}), "end"]
    ) as server:
        place.connect(server)
        chat = place.chat("--allow-exec")
        chat.says("go")
        chat.sees("a]0;titleb[2Jc")
        chat.is_ready()
        chat.says("again")
        chat.sees("end")
    assert b"\x1b]0;" not in chat.sent and b"\x1b[2J" not in chat.sent


@needs_proc
def test_idle_chat_uses_no_processor_time(place):
    with ResponsesServer([text_reply("an answer", stall=1.2)]) as server:
        place.connect(server)
        chat = place.chat()
        chat.says("go")
        chat.sees("an answer")
        chat.is_ready()
        chat.look(0.5)
        before = processor(chat.process.pid)
        sent = len(chat.sent)
        chat.look(1.5)
        assert processor(chat.process.pid) - before <= 2
        assert len(chat.sent) == sent


def test_session_of_ten_thousand_items_opens_with_its_last_turns(place):
    with ResponsesServer(["and on"]) as server:
        place.connect(server)
        place.session(*(f"said {number} " + "word " * 90 for number in range(5_000)))
        chat = place.chat("--last", rows=60)
        chat.until(lambda: "›" in chat.text, "prompt")
        chat.types("typed meanwhile")
        chat.is_ready()
        assert "› said 4999" in chat.text and "› said 4990" not in chat.text
        assert "typed meanwhile" in chat.inputs
        began = time.monotonic()
        chat.says("!")
        chat.until(lambda: server.requests, "request")
        assert time.monotonic() - began < PATIENCE
        assert len(server.requests[0].input) > 10_000
