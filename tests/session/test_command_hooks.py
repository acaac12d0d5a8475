"""Configured hooks: real commands around turns and calls; what they are told, what they may say, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.thread import same_state
from refold.errors import RefoldError
from refold.session import Session
from refold.session.events import Event, Notice
from refold.session.hook_process import MOST_OUTPUT, run_hook
from refold.session.memory import read_thread
from refold.testing import ScriptedModel, call_reply, text_reply
from refold.tools.commands import exec_command
from refold.tools.functions import tool

PATIENCE = 20  # seconds that nothing here needs
DENY = {"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "not here"}}


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


def says(value: Any) -> str:
    """A command that prints this as JSON."""
    return f"printf '%s' {shlex.quote(json.dumps(value))}"


def python(code: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


class Played:
    """A session that was played with `[hooks]`: events, outputs, and what the tool was run with."""

    def __init__(self, folder: Path, hooks: dict[str, Any], script: list[Any] | None = None, says: str = "go") -> None:
        self.said: list[str] = []
        self.events: list[Event] = []
        self.error: RefoldError | None = None
        self.model = ScriptedModel(script or [call_reply("echo", {"text": "hi"}, "c1"), text_reply("done")])
        self.config = parse_config({"hooks": hooks}, "test")
        asyncio.run(asyncio.wait_for(self._play(folder, says), PATIENCE))

    async def _play(self, folder: Path, says: str) -> None:
        @tool
        def echo(text: str) -> str:
            """Say it again."""
            self.said.append(text)
            return f"you said {text}"

        async with Session.start(
            model=self.model, tools=[echo, exec_command], cwd=folder, home=folder / "home", config=self.config
        ) as session:
            self.id, self.path = session.id, session.path
            try:
                async for event in session.send(says):
                    self.events.append(event)
            except RefoldError as error:
                self.error = error
            self.items: list[Any] = []
            if self.path is not None and self.path.exists():
                thread = read_thread(self.path)
                assert same_state(thread, session.memory.thread)
                self.items = [entry.item for entry in thread.history]

    @property
    def output(self) -> Any:
        """What the model read for its one call."""
        [found] = [item for item in self.items if item["type"] == "function_call_output"]
        assert found == {**self.model.requests[1]["input"][-1], **found}
        return found["output"]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


def told(folder: Path, name: str = "told") -> list[dict[str, Any]]:
    """What a hook `cat >> NAME` was told, one JSON object a line."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


# --- what a command is told ---------------------------------------------------------------------------------------


def test_commands_are_told_what_happens_in_order(tmp_path: Path) -> None:
    note = [{"command": "cat >> told"}]
    played = Played(
        tmp_path, {"UserPromptSubmit": note, "PreToolUse": note, "PostToolUse": note, "Stop": note}, says="Grüße"
    )
    assert played.notices == []
    prompt, pre, post, stop = told(tmp_path)
    shared = {"session_id": played.id, "transcript_path": str(played.path), "cwd": str(tmp_path)}
    turn = pre["turn_id"]
    assert prompt == {**shared, "hook_event_name": "UserPromptSubmit", "turn_id": None, "prompt": "Grüße"}
    call = {"tool_name": "echo", "tool_input": {"text": "hi"}, "tool_use_id": "c1"}
    assert pre == {**shared, "hook_event_name": "PreToolUse", "turn_id": turn, **call}
    response = {"output": "you said hi", "success": True}
    assert post == {**shared, "hook_event_name": "PostToolUse", "turn_id": turn, **call, "tool_response": response}
    ending = {"outcome": "completed", "last_assistant_message": "done"}
    assert stop == {**shared, "hook_event_name": "Stop", "turn_id": turn, **ending}
    assert isinstance(turn, str) and turn


def test_a_command_has_the_sessions_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_GUARD_TOKEN", "it's mine")
    Played(tmp_path, {"PreToolUse": [{"command": 'printf "%s" "$MY_GUARD_TOKEN" > env; pwd > where'}]})
    assert (tmp_path / "env").read_text() == "it's mine"
    assert Path((tmp_path / "where").read_text().strip()).resolve() == tmp_path.resolve()


def test_a_matcher_is_a_regular_expression_for_the_whole_name(tmp_path: Path) -> None:
    matchers = ["echo", "ech", "e.*|other", "exec_command", "*", "", None]
    hooks = [
        {"command": f"echo {number} >> hit", **({} if matcher is None else {"matcher": matcher})}
        for number, matcher in enumerate(matchers)
    ]
    Played(tmp_path, {"PreToolUse": hooks})
    hit = [matchers[int(number)] for number in (tmp_path / "hit").read_text().split()]
    assert hit == ["echo", "e.*|other", "*", "", None], "each that matches, in order"


@pytest.mark.parametrize("arguments", ["{not json", "[1]", '{"a":' * 2000])
def test_arguments_that_are_no_object_are_told_as_they_are(tmp_path: Path, arguments: str) -> None:
    Played(tmp_path, {"PreToolUse": [{"command": "cat >> told"}]}, [call_reply("echo", arguments, "c"), "done"])
    [pre] = told(tmp_path)
    assert pre["tool_input"] == {"arguments": arguments}


def test_a_command_sees_the_arguments_that_the_tool_would_read(tmp_path: Path) -> None:
    """A key that stands twice: both take the last one, or a guard would look at another command than the one run."""
    twice = '{"text": "harmless", "text": "other"}'
    played = Played(tmp_path, {"PreToolUse": [{"command": "cat >> told"}]}, [call_reply("echo", twice, "c"), "done"])
    assert told(tmp_path)[0]["tool_input"] == {"text": played.said[0]} == {"text": "other"}


def test_a_result_of_a_command_is_told_with_its_exit_code(tmp_path: Path) -> None:
    script = [call_reply("exec_command", {"cmd": "echo seen; exit 3"}, "c"), "done"]
    Played(tmp_path, {"PostToolUse": [{"command": "cat >> told"}]}, script)
    response = told(tmp_path)[0]["tool_response"]
    assert (response["success"], response["exit_code"]) == (False, 3)
    assert "seen" in response["output"]


# --- what a command may say before a call -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo 'no network today' >&2; exit 2", "no network today"),
        (says({"decision": "block", "reason": "blocked"}), "blocked"),
        (says(DENY), "not here"),
        (says({"decision": "block"}), "it gave no reason"),
        ("exit 2", "it gave no reason"),
    ],
)
def test_a_command_may_refuse_a_call_and_the_model_reads_why(tmp_path: Path, command: str, reason: str) -> None:
    played = Played(tmp_path, {"PreToolUse": [{"command": command}]})
    assert played.said == []
    assert played.output == f"a PreToolUse hook refused echo: {reason}"
    assert played.items[-1]["content"][0]["text"] == "done", "the turn goes on"


def test_a_command_may_change_the_arguments_and_the_next_one_sees_them(tmp_path: Path) -> None:
    first = says({"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"text": "changed"}}})
    played = Played(tmp_path, {"PreToolUse": [{"command": first}, {"command": "cat >> told"}]})
    assert played.said == ["changed"]
    assert told(tmp_path)[0]["tool_input"] == {"text": "changed"}
    [call] = [item for item in played.items if item["type"] == "function_call"]
    assert json.loads(call["arguments"]) == {"text": "hi"}, "the log keeps what the model wrote"


def test_after_a_refusal_no_other_command_is_run(tmp_path: Path) -> None:
    Played(tmp_path, {"PreToolUse": [{"command": "exit 2"}, {"command": "touch made"}]})
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "out",
    [
        "looks fine to me",
        "[1, 2]",
        '"block"',
        "",
        '{"decision": "approve"}',
        '{"continue": false, "more": 1}',
        '{"hookSpecificOutput": {"permissionDecision": "allow"}}',
        '{"hookSpecificOutput": 5}',
    ],
)
def test_anything_else_on_standard_output_says_nothing(tmp_path: Path, out: str) -> None:
    played = Played(tmp_path, {"PreToolUse": [{"command": f"printf %s {shlex.quote(out)}; echo talk >&2"}]})
    assert (played.output, played.notices) == ("you said hi", [])


@pytest.mark.parametrize(
    ("specific", "why"),
    [
        ({"permissionDecision": "ask"}, "its permissionDecision 'ask' is not one that refold knows"),
        ({"updatedInput": "text"}, "its updatedInput is no object"),
    ],
)
def test_a_guard_that_is_not_understood_does_not_let_through(tmp_path: Path, specific: Any, why: str) -> None:
    played = Played(tmp_path, {"PreToolUse": [{"command": says({"hookSpecificOutput": specific})}]})
    assert played.said == []
    assert "could not" in played.output
    assert len(played.notices) == 1 and why in played.notices[0]


# --- what a command may say after a call, before and after a turn ------------------------------------------------


@pytest.mark.parametrize(
    "command", ["echo 'run the tests' >&2; exit 2", says({"decision": "block", "reason": "run the tests"})]
)
def test_a_command_may_add_to_a_result(tmp_path: Path, command: str) -> None:
    played = Played(tmp_path, {"PostToolUse": [{"command": command}, {"command": "echo again >&2; exit 2"}]})
    assert played.said == ["hi"]
    remarks = [f"a PostToolUse hook says: {text}" for text in ("run the tests", "again")]
    assert played.output == "\n\n".join(["you said hi", *remarks])


@pytest.mark.parametrize(
    "command", ["echo 'has a key in it' >&2; exit 2", says({"decision": "block", "reason": "key"})]
)
def test_a_message_may_be_refused_before_anything_is_recorded(tmp_path: Path, command: str) -> None:
    played = Played(tmp_path, {"UserPromptSubmit": [{"command": command}]})
    assert "a UserPromptSubmit hook refused the message: " in str(played.error)
    assert "key" in str(played.error)
    assert played.items == [] and played.model.requests == []
    assert played.path is not None and not played.path.exists()


def test_what_is_said_against_an_ended_turn_is_a_notice(tmp_path: Path) -> None:
    played = Played(tmp_path, {"Stop": [{"command": "echo 'tests fail' >&2; exit 2"}]})
    assert played.notices == ["a Stop hook says: tests fail"]
    assert played.error is None


# --- what may go wrong with a command -----------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop"])
def test_another_exit_code_is_a_notice_and_the_turn_goes_on(tmp_path: Path, event: str) -> None:
    played = Played(tmp_path, {event: [{"command": "echo 'no such rule' >&2; exit 3"}]})
    assert (played.said, played.output, played.error) == (["hi"], "you said hi", None)
    [notice] = played.notices
    assert notice.startswith(f"{event} hook `echo 'no such rule' >&2; exit 3` failed with exit code 3: no such rule")


UNABLE = [
    ("sleep 30", 0.3, "did not end within 0.3 s"),
    ("no-such-guard-anywhere", 60, "could not be started: "),
    ("./told", 60, "could not be started: "),
    ("kill -9 $$", 60, "was ended by signal 9"),
]


@pytest.mark.parametrize(("command", "seconds", "why"), UNABLE)
def test_a_guard_that_cannot_look_does_not_let_through(tmp_path: Path, command: str, seconds: float, why: str) -> None:
    (tmp_path / "told").write_text("not executable")
    played = Played(tmp_path, {"PreToolUse": [{"command": command, "timeout": seconds}]})
    assert played.said == []
    assert played.output == "echo was not run: a PreToolUse hook that has to look at it first could not"
    [notice] = played.notices
    assert notice.startswith(f"PreToolUse hook `{command}` {why}")


@pytest.mark.parametrize("event", ["PostToolUse", "UserPromptSubmit", "Stop"])
@pytest.mark.parametrize(("command", "seconds", "why"), UNABLE)
def test_elsewhere_it_is_a_notice(tmp_path: Path, event: str, command: str, seconds: float, why: str) -> None:
    played = Played(tmp_path, {event: [{"command": command, "timeout": seconds}]})
    assert (played.output, played.error) == ("you said hi", None)
    assert len(played.notices) == 1 and why.strip(": ") in played.notices[0]


def test_a_folder_that_is_gone_keeps_a_guard_from_starting(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()

    async def play() -> list[str]:
        config = parse_config({"hooks": {"PreToolUse": [{"command": "true"}]}}, "test")

        @tool
        def leave() -> str:
            """Leave."""
            return "left"

        model = ScriptedModel([call_reply("leave", {}), "done"])
        async with Session.start(
            model=model, tools=[leave], cwd=folder, home=tmp_path / "home", config=config
        ) as session:
            folder.rmdir()
            notices = [event.text async for event in session.send("go") if isinstance(event, Notice)]
        assert "was not run" in model.requests[1]["input"][-1]["output"]
        return notices

    [notice] = asyncio.run(asyncio.wait_for(play(), PATIENCE))
    assert "could not be started in" in notice


@needs_proc
@pytest.mark.parametrize(
    "command",
    [
        "sleep {0} & sleep {0}; wait",
        "trap '' TERM; sleep {0} & sleep {0}; wait",
        "sh -c \"trap '' TERM; sleep {0}; sleep {0}\" & exec sleep {0}",
    ],
)
def test_at_its_time_out_the_whole_group_is_ended(tmp_path: Path, command: str) -> None:
    seconds = f"4{os.getpid()}.{len(command)}"
    began = time.monotonic()
    Played(tmp_path, {"PreToolUse": [{"command": command.format(seconds), "timeout": 0.3}]})
    left = running(f"sleep {seconds}")
    for number in left:
        os.kill(number, 9)
    assert left == []
    assert time.monotonic() - began < 10


@needs_proc
@pytest.mark.parametrize("event", ["UserPromptSubmit", "PreToolUse", "PostToolUse"])
def test_an_interrupt_ends_the_command_and_settles_the_call(tmp_path: Path, event: str) -> None:
    seconds = f"5{os.getpid()}.{len(event)}"

    async def play() -> list[Any]:
        # Asleep before it says that it is up: a shell that is just starting a program hears nothing until that ends.
        command = f"trap 'echo > tidied; exit' TERM; sleep {seconds} & touch up; wait; true"
        config = parse_config({"hooks": {event: [{"command": command}]}}, "test")
        model = ScriptedModel([call_reply("exec_command", {"cmd": "true"}), "done"])
        async with Session.start(
            model=model, tools=[exec_command], cwd=tmp_path, home=tmp_path / "home", config=config
        ) as session:
            turn = session.send("go")
            while not (tmp_path / "up").exists():
                await asyncio.sleep(0.01)
            session.interrupt()
            assert (await turn).outcome == "interrupted"
            return [entry.item for entry in session.memory.thread.history]

    items = asyncio.run(asyncio.wait_for(play(), PATIENCE))
    assert running(f"sleep {seconds}") == []
    assert (tmp_path / "tidied").exists(), "it was asked first"
    outputs = [item["output"] for item in items if item["type"] == "function_call_output"]
    assert len(outputs) == len([item for item in items if item["type"] == "function_call"])
    assert all("aborted by user" in output for output in outputs)


def test_a_command_that_reads_nothing_or_talks_for_ever_hurts_nobody(tmp_path: Path) -> None:
    """A megabyte to read that it does not want, ten to say that nobody wants."""
    script = [call_reply("echo", {"text": "x" * 1_000_000}), "done"]
    talk = python("import sys; sys.stdout.write('y' * 10_000_000); sys.stderr.write('z' * 10_000_000); sys.exit(2)")
    played = Played(tmp_path, {"PreToolUse": [{"command": "exec <&-; sleep 0.05"}, {"command": talk}]}, script)
    assert played.said == []
    assert played.output.startswith("a PreToolUse hook refused echo: zzz")
    assert len(played.output) < 10_000


def test_of_what_a_command_says_only_the_beginning_is_kept(tmp_path: Path) -> None:
    talk = python("import sys; sys.stdout.write('a' + 'y' * 1_000_000); sys.stderr.write('é' * 20)")
    ended = asyncio.run(run_hook(talk, b"{}", str(tmp_path), 20))
    assert (ended.exit_code, ended.out, ended.err) == (0, "a" + "y" * (MOST_OUTPUT - 1), "é" * 20)
    assert ended.cut


def test_a_decision_that_is_too_long_to_read_keeps_the_call_from_running(tmp_path: Path) -> None:
    long = python('import sys; sys.stdout.write(\'{"pad": "\' + \'y\' * 100_000 + \'", "decision": "block"}\')')
    played = Played(tmp_path, {"PreToolUse": [{"command": long}]})
    assert played.said == [] and "was not run: a PreToolUse hook that has to look" in played.output
    chatty = python("print('y' * 100_000)")
    assert Played(tmp_path, {"PreToolUse": [{"command": chatty}]}).said == ["hi"]


def test_a_process_that_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    seconds = f"6{os.getpid()}.5"
    began = time.monotonic()
    try:
        played = Played(tmp_path, {"PreToolUse": [{"command": f"sleep {seconds} & echo late >&2; exit 2"}]})
        assert played.output == "a PreToolUse hook refused echo: late"
        assert time.monotonic() - began < 10
    finally:
        for number in running(f"sleep {seconds}"):
            os.kill(number, 9)


def test_content_parts_keep_their_media_beside_a_remark(tmp_path: Path) -> None:
    from refold.tools import ToolResult

    class Picture:
        name, parallel, needs_approval = "picture", True, False
        spec: dict[str, Any] = {"type": "function", "name": "picture", "parameters": {"type": "object"}}

        async def run(self, arguments: dict[str, Any], context: Any) -> ToolResult:
            image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
            return ToolResult(output=[{"type": "input_text", "text": "a picture"}, image])

    async def play() -> Any:
        hooks = {"PostToolUse": [{"command": "cat >> told; echo nice >&2; exit 2"}]}
        model = ScriptedModel([call_reply("picture", {}), "done"])
        async with Session.start(
            model=model,
            tools=[Picture()],
            cwd=tmp_path,
            home=tmp_path / "home",
            config=parse_config({"hooks": hooks}, "test"),
        ) as session:
            await session.send("go")
        return model.requests[1]["input"][-1]["output"]

    parts = asyncio.run(play())
    assert [part["type"] for part in parts] == ["input_text", "input_image", "input_text"]
    assert parts[-1]["text"] == "a PostToolUse hook says: nice"
    assert told(tmp_path)[0]["tool_response"]["output"] == "a picture\n[input_image]"
