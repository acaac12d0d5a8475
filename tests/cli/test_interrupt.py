"""Interrupts and questions: Ctrl-C while something runs, and a person at a terminal who is asked."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply

EXEC = "exec_command"
PATIENCE = 30  # seconds that nothing here needs


def wait_for(sees: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not sees():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def running(words: str) -> list[int]:
    """The processes whose command line has these words."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words in entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to see processes")


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_interrupt_while_a_command_runs_settles_the_turn_and_leaves_no_process(machine, number, options):
    command = f"sleep 6{os.getpid()}.5"
    with ResponsesServer([call_reply(EXEC, {"cmd": command}), "and on"]) as server:
        machine.connect(server)
        with machine.start("run", "go", "--allow-exec", *options) as process:
            wait_for(lambda: len(running(command)) > 0)
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert "Traceback" not in err
        assert running(command) == []
        records = machine.records()
        assert records[-1]["payload"]["type"] == "turn_aborted"
        assert records[-1]["payload"]["reason"] == "interrupted"
        items = [record["payload"] for record in records if record["type"] == "response_item"]
        assert items[-2]["type"] == "function_call_output" and "aborted by user" in items[-2]["output"]
        assert items[-1]["content"][0]["text"].startswith("<turn_aborted>")
        if options:
            last = [json.loads(line)["type"] for line in out.splitlines()][-2:]
            assert last == ["refold.turn.interrupted", "turn.failed"] and err == ""
        else:
            assert out == "" and "interrupted" in err
        assert machine.refold("resume", "--last", "go on").out == "and on\n"
    sent = server.requests[1].input
    assert {item["type"] for item in sent} == {"message", "function_call", "function_call_output"}


def test_interrupt_while_the_model_answers_keeps_what_was_said(machine):
    with ResponsesServer([text_reply("never heard", stall=PATIENCE)]) as server:
        machine.connect(server)
        with machine.start("run", "go") as process:
            wait_for(lambda: server.requests)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
    records = machine.records()
    assert records[-1]["payload"]["type"] == "turn_aborted"
    assert any('"go"' in json.dumps(record) for record in records)


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_interrupt_that_is_passed_on_twice_is_one(machine, pause):
    with ResponsesServer([text_reply("never heard", stall=PATIENCE)]) as server:
        machine.connect(server)
        with machine.start("run", "go") as process:
            wait_for(lambda: server.requests)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "Exception" in err, "Traceback" in err) == (1, False, False)
    assert machine.records()[-1]["payload"]["type"] == "turn_aborted"


def test_interrupted_compaction_leaves_the_history_as_it_was(machine):
    def script(request: LoggedRequest) -> Reply | str:
        return text_reply("SUMMARY", delay=PATIENCE) if len(server.requests) == 2 else "fine"

    with ResponsesServer(script) as server:
        machine.connect(server)
        assert machine.refold("run", "first").status == 0
        with machine.start("compact", machine.rollout) as process:
            wait_for(lambda: len(server.requests) == 2)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert "refold: the compaction was interrupted; the history is as it was" in err.splitlines()
        assert machine.records()[-1]["payload"]["type"] == "turn_aborted"
        assert machine.refold("resume", "--last", "second").status == 0
    assert not any(record["type"] == "compacted" for record in machine.records())
    assert "fine" in json.dumps(server.requests[-1].input)


@needs_proc
def test_reader_that_leaves_ends_the_turn(machine):
    command = f"sleep 7{os.getpid()}.5"
    with ResponsesServer([Reply(items=(*text_reply("x").items, *call_reply(EXEC, {"cmd": command}).items))]) as server:
        machine.connect(server)
        with machine.start("run", "go", "--allow-exec", "--json") as process:
            assert process.stdout is not None and process.stderr is not None
            wait_for(lambda: running(command))
            process.stdout.close()
            process.send_signal(signal.SIGINT)  # what it says now, nobody reads
            assert process.stderr.read() == ""
    assert process.returncode == 1
    assert running(command) == []
    assert machine.records()[-1]["payload"]["type"] == "turn_aborted"


# --- a person at a terminal ------------------------------------------------------------------------------------------


class Person:
    """Someone at a terminal. Mutable: what was printed so far."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.terminal = terminal
        self.seen = ""

    def sees(self, text: str) -> None:
        """Wait until it is printed, after what was seen before."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.terminal, 65_536).decode()
                except OSError:
                    raise AssertionError(f"it ended without {text!r}: {self.seen!r}") from None
        self.seen = self.seen.partition(text)[2]

    def types(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def leaves_alone(self) -> int:
        """The status, when the program has ended by itself."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end: {self.seen!r}"
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.terminal, 65_536).decode()
                except OSError:
                    continue
        return self.process.returncode


@contextmanager
def at_a_terminal(machine: Any, *words: Any) -> Iterator[Person]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        machine.command(*words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=machine.work,
        env=machine.environ | {"NO_COLOR": "1"},
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # the terminal is the session's own: Ctrl-C
    )
    os.close(theirs)
    try:
        yield Person(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(("answer", "made"), [("y\n", True), ("YES\n", True), ("n\n", False), ("no\n", False)])
def test_person_is_asked_before_a_command_runs(machine, answer, made):
    with ResponsesServer([call_reply(EXEC, {"cmd": "touch made && echo done"}), "finished"]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", "-a", "untrusted") as person:
            person.sees("The model wants to run:")
            person.sees("touch made && echo done")
            person.sees("Allow it? ")
            assert not (machine.work / "made").exists()
            person.types(answer)
            person.sees("finished")
            assert person.leaves_alone() == 0
    assert (machine.work / "made").exists() == made
    output = server.requests[1].input[-1]["output"]
    assert (
        ("exited with code 0" in output) if made else (output.startswith("The user did not allow this command to run."))
    )


def test_question_can_be_left_by_ctrl_c(machine):
    with ResponsesServer([call_reply(EXEC, {"cmd": "touch made"})]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", "-a", "untrusted") as person:
            person.sees("Allow it? ")
            person.types("\x03")
            assert person.leaves_alone() == 1
    assert not (machine.work / "made").exists()
    assert machine.records()[-1]["payload"]["type"] == "turn_aborted"


def test_conversation_goes_on_until_the_person_leaves(machine):
    with ResponsesServer(["one", "two", text_reply("never", delay=PATIENCE), "four"]) as server:
        machine.connect(server)
        machine.refold("run", "first")
        with at_a_terminal(machine, "resume", "--last") as person:
            person.sees("› ")
            person.types("second\n")
            person.sees("two")
            person.sees("› ")
            person.types("third\n")
            wait_for(lambda: len(server.requests) == 3)
            person.types("\x03")  # ends the turn, not the conversation
            person.sees("interrupted")
            person.sees("› ")
            person.types("\n")
            person.types("fourth\n")
            person.sees("four\r\n")
            person.types("\x04")
            assert person.leaves_alone() == 0
    said = [part["text"] for item in server.requests[3].input if item["role"] == "user" for part in item["content"]]
    assert [text for text in said if not text.startswith("<")] == ["first", "second", "third", "fourth"]


def test_ctrl_c_at_the_prompt_leaves(machine):
    with ResponsesServer(["one"]) as server:
        machine.connect(server)
        machine.refold("run", "first")
        before = machine.rollout.read_bytes()
        with at_a_terminal(machine, "resume", "--last") as person:
            person.sees("› ")
            person.types("\x03")
            assert person.leaves_alone() == 130
            assert "Traceback" not in person.seen
    assert machine.rollout.read_bytes() == before
