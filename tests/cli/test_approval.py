"""What commands may do at the command line: who is asked, in which words, and what an answer means."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refold.cli.terminal import shown
from refold.core.permissions import CommandAsked, Question, Verdict
from refold.testing import Reply, ResponsesServer, call_reply
from refold.tools.sandbox import sandbox_works
from refold.views.calls import visible_line
from refold.views.questions import verdict

PATIENCE = 30  # seconds that nothing here needs
walled = pytest.mark.skipif(not sandbox_works(), reason="no sandbox here")


def run(cmd: str, **more: Any) -> Reply:
    return call_reply("exec_command", {"cmd": cmd, **more})


# --- the question ----------------------------------------------------------------------------------------------------


def asked(command: str, **more: Any) -> str:
    question = {name: more.pop(name) for name in ("why", "remember") if name in more}
    given = CommandAsked(**{"command": command, "cwd": str(Path.cwd()), **more})
    return shown(Question(call={}, command=given, **question))


@pytest.mark.parametrize(
    ("hidden", "spelled"),
    [
        ("\x1b[2K\x1b[1A", "\\x1b[2K\\x1b[1A"),
        ("\r", "\\r"),
        ("\x08\x08", "\\x08\\x08"),
        ("\x7f", "\\x7f"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202e", "\\u202e"),
        ("\u2066", "\\u2066"),
        ("\u200b", "\\u200b"),
        ("\ufeff", "\\ufeff"),
        ("\xad", "\\xad"),
        ("\u2028", "\\u2028"),
        ("\x85", "\\x85"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_no_part_of_a_command_can_hide(hidden, spelled):
    assert visible_line(f"rm{hidden}x") == f"rm{spelled}x"
    for text in (
        asked(f"rm{hidden}x"),
        asked("ls", reason=f"rm{hidden}x"),
        asked("ls", cwd=f"/rm{hidden}x"),
        asked("ls", shell=f"/rm{hidden}x"),
        asked("ls", remember=("git", f"rm{hidden}x")),
        shown(Question(call={"name": f"rm{hidden}x", "arguments": "{}"})),
    ):
        assert f"rm{spelled}x" in text


def test_a_line_of_a_command_cannot_look_like_one_of_ours():
    text = asked("rm -rf x\nAllow it? y(es)\n\n\nThe model wants to run:\n  │ ls")
    assert "The model wants to run (6 lines):\n  │ rm -rf x\n  │ Allow it? y(es)\n  │ \n  │ \n" in text
    assert text.count("\nThe model wants to run") == text.count("\nAllow it? y(es)") == 1
    assert text.endswith("\nAllow it? y(es), n(o), n and why › ")


def test_everything_unusual_is_said():
    text = asked(
        "git push",
        cwd="/elsewhere",
        reason="to publish",
        why="it leaves",
        interactive=True,
        shell="/w/zsh",
        remember=("git", "push"),
    )
    assert "  in /elsewhere\n" in text and "  why you are asked: it leaves\n" in text
    assert '  the model says: "to publish"\n' in text and "  run by /w/zsh\n" in text
    assert "more can be typed into it later" in text and "that begins with `git push`" in text
    assert "always: exactly this command here\n" in asked("touch x", remember=("touch", "x"))
    assert "always" not in asked("ls") and "run by" not in asked("ls")


def test_what_is_no_command_is_shown_by_name_and_arguments():
    assert '  │ publish {"name": "x"}\n' in shown(Question(call={"name": "publish", "arguments": '{"name": "x"}'}))


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        *[(yes, Verdict(True)) for yes in ("y", "Y", "yes", " YES ")],
        *[(no, Verdict(False)) for no in ("n", "no", "N")],
        *[(none, None) for none in ("", "maybe", "yy", "y please", "yes but", "ya", "always so", "/quit")],
        ("n use make instead", Verdict(False, word="use make instead")),
        ("No, use  make", Verdict(False, word="use  make")),
        ("a", Verdict(True, remember=True)),
    ],
)
def test_an_answer_is_a_yes_only_when_it_says_so(answer, meant):
    assert verdict(answer, Question(call={}, remember=("git", "push"))) == meant


def test_always_is_no_answer_where_nothing_can_be_remembered():
    assert verdict("a", Question(call={})) is None


# --- at a terminal ---------------------------------------------------------------------------------------------------


class Person:
    """Someone at a terminal. Mutable: what was printed and not yet seen."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self.terminal, self.unseen = process, terminal, ""

    def sees(self, text: str) -> str:
        """Wait until it is printed; what was printed before it."""
        end = time.monotonic() + PATIENCE
        while text not in self.unseen:
            assert time.monotonic() < end, f"no {text!r} in {self.unseen!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.unseen += os.read(self.terminal, 65_536).decode()
                except OSError:
                    raise AssertionError(f"it ended without {text!r}: {self.unseen!r}") from None
        before, _, self.unseen = self.unseen.partition(text)
        return before

    def types(self, text: str) -> None:
        os.write(self.terminal, text.encode())


@contextmanager
def at_a_terminal(machine: Any, *words: Any, **environ: str) -> Iterator[Person]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        machine.command(*words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=machine.work,
        env=machine.environ | {"NO_COLOR": "1"} | environ,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Person(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def outputs(server: ResponsesServer) -> list[str]:
    return [item["output"] for item in server.requests[-1].input if item["type"] == "function_call_output"]


def told(server: ResponsesServer) -> str:
    """The rules that the first request gives the model."""
    found = [
        part["text"] for item in server.requests[0].input if item.get("role") == "developer" for part in item["content"]
    ]
    return "\n".join(found)


@walled
def test_a_person_at_a_terminal_is_asked_when_a_command_wants_to_leave(machine):
    outside = {"sandbox_permissions": "require_escalated", "justification": "the \x1b[8mparent"}
    script = [run("touch made; touch ../beyond"), run("touch ../beyond \x1b[8m; touch made", **outside), "finished"]
    with ResponsesServer(script) as server:
        machine.connect(server, "[sandbox_workspace_write]\nexclude_slash_tmp = true\nexclude_tmpdir_env_var = true")
        with at_a_terminal(machine, "run", "go") as person:
            person.sees("The model wants to run:")
            question = person.sees("Allow it? ")
            person.types("n stay inside\n")
            person.sees("finished")
    assert "│ touch ../beyond \\x1b[8m; touch made\r\n" in question and "\x1b" not in question
    assert "outside the sandbox: with your rights" in question and 'the model says: "the \\x1b[8mparent"' in question
    inside, refused = outputs(server)
    assert "Read-only file system" in inside
    assert refused.endswith("Do not reach the same effect by another route. The user says: stay inside")
    assert (machine.work / "made").exists() and not (machine.folder / "beyond").exists()
    assert "Sandbox: workspace-write." in told(server) and "Approval: on-request." in told(server)


@pytest.mark.parametrize("options", [(), ("-a", "on-request")], ids=["nothing set", "on-request set"])
def test_without_bubblewrap_a_person_is_asked_before_each_command(machine, options):
    with ResponsesServer([run("echo > made"), "finished"]) as server:
        machine.connect(server)
        (machine.folder / "bin").mkdir()
        with at_a_terminal(machine, "run", "go", *options, PATH=str(machine.folder / "bin")) as person:
            question = person.sees("Allow it? ")
            person.types("y\n")
            person.sees("finished")
    assert "with your rights" in question
    assert (machine.work / "made").exists()
    assert "Sandbox: none" in told(server) and "Approval: untrusted." in told(server)


def test_always_is_remembered_by_later_sessions(machine):
    with ResponsesServer(
        [run("touch one"), "first", run("touch one"), run("touch one; touch two"), "second"]
    ) as server:
        machine.connect(server)
        options = ["-s", "danger-full-access", "-a", "untrusted"]
        with at_a_terminal(machine, "run", "go", *options) as person:
            assert "always: exactly this command here" in person.sees("Allow it? ")
            person.types("a\n")
            person.sees("first")
        with at_a_terminal(machine, "run", "go", *options) as person:
            assert "touch one; touch two" in person.sees("Allow it? ").rpartition("wants to run:")[2]
            person.types("n\n")
            person.sees("second")
    assert "exited with code 0" in outputs(server)[0] and outputs(server)[1].startswith("The user did not allow")


def test_what_was_typed_before_a_question_does_not_answer_it(machine):
    with ResponsesServer([run("touch made"), "finished"]) as server:
        machine.connect(server)
        with at_a_terminal(machine, "run", "go", "-s", "danger-full-access", "-a", "untrusted") as person:
            person.types("y\n")
            person.sees("session ")
            person.sees("Allow it? ")
            time.sleep(0.3)
            assert not (machine.work / "made").exists()
            person.types("n\n")
            person.sees("finished")
    assert not (machine.work / "made").exists()


# --- without one -----------------------------------------------------------------------------------------------------


@walled
@pytest.mark.parametrize("words", [["--sandbox", "workspace-write"], ["-c", "sandbox_mode=workspace-write"]])
@pytest.mark.parametrize("more", [[], ["--allow-exec"], ["-a", "never"], ["-a", "on-request"]])
def test_a_run_without_a_terminal_works_inside_the_walls(machine, words, more):
    outside = {"sandbox_permissions": "require_escalated"}
    with ResponsesServer([run("touch made; touch ../beyond"), run("touch ../beyond", **outside), "done"]) as server:
        machine.connect(server, "[sandbox_workspace_write]\nexclude_slash_tmp = true\nexclude_tmpdir_env_var = true")
        assert machine.refold("run", "go", *words, *more).status == 0
    inside, refused = outputs(server)
    assert "Read-only file system" in inside and refused.startswith("This command was not run")
    assert (machine.work / "made").exists() and not (machine.folder / "beyond").exists()


def test_a_run_without_a_terminal_and_without_bubblewrap_has_no_commands(machine):
    (machine.folder / "bin").mkdir()
    with ResponsesServer(["done"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "go", "-s", "read-only", PATH=str(machine.folder / "bin"))
    assert "tools" not in server.requests[0].json or server.requests[0].json["tools"] == []
    assert "no command tool here: read-only needs a sandbox, and bubblewrap (bwrap) is not installed" in ended.err


def test_a_run_without_a_terminal_says_how_commands_can_run(machine):
    with ResponsesServer(["done"]) as server:
        machine.connect(server)
        ended = machine.refold("run", "go")
    assert "--sandbox workspace-write" in ended.err and "--allow-exec" in ended.err


def test_a_wrong_mode_or_policy_is_said_with_what_there_is(machine):
    for words in (["-s", "none"], ["-a", "always"]):
        ended = machine.refold("run", "go", *words)
        assert ended.status == 2 and ("workspace-write" in ended.err or "on-request" in ended.err)
