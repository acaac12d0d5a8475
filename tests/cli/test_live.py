"""Sight of a turn: the status line of a terminal, what a turn cost, and nothing of it in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from refold.core.usage import Usage
from refold.testing import Reply, ResponsesServer, call_reply, text_reply, usage

EXEC = "exec_command"
PATIENCE = 30  # seconds that nothing here needs
ERASE = "\r\x1b[K"
COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Watched:
    """A command at a terminal of its own. Mutable: everything that was written to the terminal."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.terminal = terminal
        self.written = ""
        self._bytes = b""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def reads(self, until: Callable[[], bool]) -> None:
        """Read on until it is so, or until the command has ended."""
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end, f"it never came: {self.written!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    more = os.read(self.terminal, 65_536)
                except OSError:  # everything was written and the other side is closed
                    more = b""
                if not more:
                    return
                self._bytes += more
                self.written = self._bytes.decode("utf-8", "replace")

    def sees(self, text: str) -> None:
        self.reads(lambda: text in self.written)
        assert text in self.written, f"it ended without {text!r}: {self.written!r}"

    def waits(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.reads(lambda: time.monotonic() >= end)

    def ends(self) -> int:
        self.reads(lambda: False)
        return self.process.wait(PATIENCE)

    @property
    def drawn(self) -> list[str]:
        """Every status line that was drawn, in order, without colours."""
        pieces = self.written.split(ERASE)[1:]
        found = [COLOURS.sub("", piece.partition("\r\n")[0]) for piece in pieces]
        return [
            line for line in found if (line.startswith(("sampling", "▸", "⟳", "⇣")) and " · " in line) or "⟳" in line
        ]

    @property
    def screen(self) -> list[str]:
        """What stands on the terminal in the end, line by line."""
        lines, row, column = [""], 0, 0
        for piece in re.findall(r"\x1b\[K|\x1b\[[\d;]*m|\r|\n|[^\x1b\r\n]+", self.written):
            if piece == "\n":
                row, lines = row + 1, [*lines, ""]
            elif piece == "\r":
                column = 0
            elif piece == "\x1b[K":
                lines[row] = lines[row][:column]
            elif not piece.startswith("\x1b"):
                lines[row] = lines[row][:column] + piece + lines[row][column + len(piece) :]
                column += len(piece)
        return [line.rstrip() for line in lines]


@contextmanager
def at_a_terminal(machine: Any, *words: Any, columns: int = 100, **environ: str) -> Iterator[Watched]:
    ours, theirs = os.openpty()
    watched: Watched | None = None
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            machine.command(*words),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=machine.work,
            env=machine.environ | environ,
            start_new_session=True,
        )
        os.close(theirs)
        watched = Watched(process, ours)
        yield watched
    finally:
        if watched is not None:
            watched.process.kill()
            watched.process.wait()
        os.close(ours)


def seconds_in(lines: list[str], before: str) -> list[int]:
    """The seconds that status lines tell after these words."""
    return [int(found[1]) for line in lines if (found := re.match(re.escape(before) + r"(\d+) s", line))]


def grows(numbers: list[int]) -> bool:
    return numbers == sorted(numbers) and len(set(numbers)) > 1


# --- on a terminal ---------------------------------------------------------------------------------------------------


def test_a_sampling_is_counted_and_leaves_no_trace(machine):
    with ResponsesServer([text_reply("the answer", delay=2.3)]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go") as watched:
            assert watched.ends() == 0
    assert grows(seconds_in(watched.drawn, "sampling 1 · ")), watched.written
    lines = [line for line in watched.screen if line]
    assert lines[0].startswith("session ")
    assert lines[1] == "the answer"
    assert re.match(r"completed in \d+\.\d s · ", lines[2])
    assert len(lines) == 4, "the gauge is the last"


def test_a_running_command_shows_its_time_its_newest_line_and_how_full_the_context_is(machine):
    command = "echo first; sleep 1.5; printf 'sec\\033[31mond\\r\\n'; sleep 1.6"
    with ResponsesServer([call_reply(EXEC, {"cmd": command}), "done"]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", "--allow-exec", columns=160) as watched:
            assert watched.ends() == 0
    shown = [line for line in watched.drawn if line.startswith("▸ echo first;")]
    assert any(re.search(r" · \d s · first ", line) for line in shown), watched.written
    assert any(re.search(r" · \d s · sec\[31mond ", line) for line in shown), "controls are cleaned"
    assert all(re.search(r"░┃ \d+%$", line) for line in shown)
    assert not any(line.startswith("▸") and " · " in line for line in watched.screen)
    assert f"▸ {command}" in "\n".join(watched.screen)
    assert "\x1b[31mond" not in watched.written


def test_a_wait_counts_down(machine):
    refused = Reply(status=503, body={"error": {"message": "busy"}}, headers={"retry-after": "3"})
    with ResponsesServer([refused, "done"]) as server:
        machine.connect(server)
        settings = ["-c", "model_providers.x.request_max_retries=2"]
        with at_a_terminal(machine, "run", "go", *settings) as watched:
            assert watched.ends() == 0
    numbers = seconds_in(watched.drawn, "⟳ trying again in ")
    assert len(set(numbers)) > 1 and numbers == sorted(numbers, reverse=True), watched.drawn
    assert any("(1 of 2): " in line and "demand" in line for line in watched.drawn)
    assert len([line for line in watched.screen if line.startswith("⟳")]) == 1, "the line of the log stays"


def test_a_compaction_is_counted(machine):
    with ResponsesServer(["first", text_reply("SUMMARY", delay=2.3)]) as server:
        machine.connect(server)
        machine.refold("run", "hi")
        with at_a_terminal(machine, "compact", machine.rollout) as watched:
            assert watched.ends() == 0
    assert grows(seconds_in(watched.drawn, "⇣ compacting · ")), watched.written
    assert [line[:13] for line in watched.screen if line.startswith("⇣")] == ["⇣ compacting:", "⇣ compacted: "]


def test_a_narrower_terminal_gets_a_shorter_line(machine):
    command = "echo " + "字" * 60 + "; sleep 3"
    with ResponsesServer([call_reply(EXEC, {"cmd": command}), "done"]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", "--allow-exec", columns=120) as watched:
            watched.sees(" · 1 s")
            watched.waits(0.3)
            before = len(watched.drawn)
            watched.resize(40)
            assert watched.ends() == 0
    wide, narrow = watched.drawn[:before], watched.drawn[before + 1 :]
    assert wide and narrow
    assert all(columns_of(line) < 120 for line in wide)
    assert all(columns_of(line) < 40 for line in narrow), narrow
    assert any("字…" in line and " s" in line for line in narrow), "cut between characters, the time stays"


def columns_of(line: str) -> int:
    return sum(2 if char == "字" else 1 for char in line)


def test_an_answer_that_is_being_written_is_left_alone(machine):
    answer = "a long answer that comes in pieces"
    with ResponsesServer([text_reply(answer, delay=1.2, pace=0.35)]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go") as watched:
            assert watched.ends() == 0
    assert watched.drawn, "before the answer"
    assert answer + "\r\n" in watched.written, "in one piece"
    assert answer in watched.screen


def test_nothing_is_drawn_over_a_question(machine):
    script = [call_reply(EXEC, {"cmd": "touch made"}, delay=0.6), text_reply("fine", delay=0.6)]
    with ResponsesServer(script) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", "--ask", "untrusted") as watched:
            watched.sees("sampling 1")
            watched.sees("Allow it? ")
            asked = watched.written
            watched.waits(0.8)
            assert watched.written == asked
            os.write(watched.terminal, b"y\n")
            assert watched.ends() == 0
    assert "sampling 2" in watched.written
    assert "fine" in watched.screen


def test_an_interrupt_erases_the_line(machine):
    with ResponsesServer([text_reply("never", delay=PATIENCE)]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go") as watched:
            watched.sees("sampling 1 · ")
            watched.process.send_signal(signal.SIGINT)
            assert watched.ends() == 1
    assert not any("sampling" in line for line in watched.screen)
    assert any(line.startswith("interrupted in ") for line in watched.screen)


def test_without_colours_it_is_still_there(machine):
    with ResponsesServer([text_reply("done", delay=0.8)]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", NO_COLOR="1") as watched:
            assert watched.ends() == 0
    assert watched.drawn
    assert COLOURS.search(watched.written) is None


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_lines_only(machine, term):
    with ResponsesServer([text_reply("done", delay=0.8)]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", TERM=term, NO_COLOR="1") as watched:
            assert watched.ends() == 0
    assert "\x1b" not in watched.written
    assert "sampling" not in watched.written


# --- in a pipe -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_pipe_gets_no_escape_and_no_status(machine, options):
    script = [call_reply(EXEC, {"cmd": "echo one; sleep 1.3"}, delay=0.5), text_reply("done", pace=0.1)]
    with ResponsesServer(script) as server:
        machine.connect(server)
        ended = machine.refold("run", "go", "--allow-exec", *options)
    assert ended.status == 0
    assert not {"\x1b", "\r"} & set(ended.out + ended.err)
    assert "sampling" not in ended.out + ended.err
    if not options:
        assert ended.out == "done\n"


def test_a_pipe_for_the_answer_keeps_the_status_of_a_terminal_out_of_it(machine):
    ours, theirs = os.openpty()
    with ResponsesServer([text_reply("the answer", delay=0.8, pace=0.2)]) as server:
        machine.connect(server)
        process = machine.start("run", "go", stderr=theirs)
        os.close(theirs)
        watched = Watched(process, ours)
        try:
            out, _ = process.communicate(timeout=PATIENCE)
            watched.reads(lambda: False)
        finally:
            process.kill()
            os.close(ours)
    assert out == "the answer\n"
    assert watched.drawn
    assert not any("sampling" in line for line in watched.screen)


# --- what it cost ----------------------------------------------------------------------------------------------------


def test_the_end_of_a_turn_tells_what_it_used_and_what_the_session_did(machine):
    script = [
        call_reply(EXEC, {"cmd": "true"}, usage=usage(1000, 50)),
        text_reply("one", usage=usage(2000, 10, cached=900)),
        text_reply("two", usage=usage(3000, 40, cached=2500)),
    ]
    with ResponsesServer(script) as server:
        machine.connect(server)
        first = machine.refold("run", "go", "--allow-exec")
        second = machine.refold("resume", "--last", "on")
    assert " s · 3,000 tokens in (900 cached), 60 out · session 3,060 tokens\n" in first.err
    assert " s · 3,000 tokens in (2,500 cached), 40 out · session 6,100 tokens\n" in second.err
    assert "cost" not in first.err + second.err, "no price is set"


def test_money_is_told_when_the_price_is_known(machine):
    script = [text_reply("one", usage=usage(100_000, 1_000, cached=40_000)), text_reply("two", usage=usage(500_000, 0))]
    with ResponsesServer(script) as server:
        machine.connect(server, "model_price = {input = 2.5, cached_input = 0.25, output = 10.0}")
        first = machine.refold("run", "go")
        second = machine.refold("resume", "--last", "on")
    # 60,000 × 2.5 + 40,000 × 0.25 + 1,000 × 10, for a million tokens; then 500,000 × 2.5
    assert " · cost 0.1700, session 0.1700\n" in first.err
    assert " · cost 1.25, session 1.42\n" in second.err


def test_a_compaction_counts_to_the_turn_that_made_it(machine):
    many = Usage(input_tokens=5_000, output_tokens=10, total_tokens=5_010)
    script = [text_reply("one", usage=many), text_reply("SUMMARY", usage=usage(700, 7)), text_reply("two")]
    with ResponsesServer(script) as server:
        machine.connect(server, "model_auto_compact_token_limit = 4000")
        machine.refold("run", "go")
        second = machine.refold("resume", "--last", "on")
    assert "⇣ compacted" in second.err
    assert " s · 800 tokens in (0 cached), 17 out · session 5,827 tokens\n" in second.err


# --- for programs ----------------------------------------------------------------------------------------------------


def test_progress_is_an_event_of_the_command_that_it_is_about(machine):
    script = [call_reply(EXEC, {"cmd": "echo one; sleep 1.4; echo two; sleep 1.4"}, "c1"), "done"]
    with ResponsesServer(script) as server:
        machine.connect(server)
        ended = machine.refold("run", "go", "--allow-exec", "--json")
    started = next(event["item"] for event in ended.events if event["type"] == "item.started")
    told = [event for event in ended.events if event["type"] == "refold.tool.progress"]
    assert [event["text"] for event in told] == ["one", "two"]
    for event in told:
        assert {**event, "text": ""} == {
            "type": "refold.tool.progress",
            "call_id": "c1",
            "tool": EXEC,
            "item_id": started["id"],
            "text": "",
        }
    assert ended.err == ""


def test_a_session_id_that_is_no_number_is_told_like_any_other_call(machine):
    with ResponsesServer([call_reply("write_stdin", {"session_id": [1]}), "done"]) as server:
        machine.connect(server)
        done = machine.refold("run", "--json", "--allow-exec", "go")
    assert done.status == 0 and any(event["type"] == "refold.tool.completed" for event in done.events)


def test_a_command_that_goes_on_is_one_item_until_its_end(machine):
    def look(request: Any) -> Reply:
        number = int(re.search(r"session ID (\d+)", json.dumps(request.json))[1])  # type: ignore[index]
        return call_reply("write_stdin", {"session_id": number, "chars": "", "yield_time_ms": 5000}, "c2")

    script = [call_reply(EXEC, {"cmd": "echo one; sleep 1; echo two", "yield_time_ms": 300}, "c1"), look, "done"]
    with ResponsesServer(script) as server:
        machine.connect(server)
        ended = machine.refold("run", "go", "--allow-exec", "--json")
        shown = [event["item"] for event in ended.events if event.get("item", {}).get("type") == "command_execution"]
    assert [(item["id"], item["status"], item["exit_code"]) for item in shown] == [
        ("item_0", "in_progress", None),
        ("item_0", "completed", 0),
    ]
    assert shown[1]["aggregated_output"] == "one\ntwo\n"
