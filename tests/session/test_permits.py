"""What may run, who is asked, and what an approval covers; hostile commands first."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.core.config import Config
from refold.core.permissions import Ask, CommandAsked, EnvironmentPolicy, Refuse, Rules, Run, WorkspaceWrite, decide
from refold.core.profile import Provider
from refold.core.serve_settings import ServeSettings
from refold.model.scripted import ScriptedModel
from refold.session.approved import Approval, Damaged, Place, covers, offered, plain_parts, read_approvals, remember
from refold.session.events import Notice
from refold.session.permits import Approve, Question, Verdict
from refold.session.session import Session
from refold.testing import Reply, call_reply, text_reply
from refold.tools import Tool, exec_command, tool
from refold.tools.sandbox import sandbox_works

walled = pytest.mark.skipif(not sandbox_works(), reason="no sandbox here")

# --- deciding --------------------------------------------------------------------------------------------------------

LS = CommandAsked(command="ls", cwd="/w")
OUT = CommandAsked(command="ls", cwd="/w", outside=True)
MODES = ("read-only", "workspace-write", "danger-full-access")
MISSING = "bubblewrap (bwrap) is not installed"


def decided(asked: CommandAsked, policy: str, mode: str, **so: Any) -> Run | Ask | Refuse:
    known = {"harmless": so.pop("harmless", False), "approved": so.pop("approved", False)}
    return decide(asked, Rules(policy=policy, mode=mode, **{"host": True, **so}), **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["never", "on-request", "on-failure"])
def test_what_keeps_inside_the_sandbox_runs_at_once(policy):
    assert decided(LS, policy, "workspace-write") == decided(LS, policy, "read-only") == Run(outside=False)
    assert decided(LS, policy, "danger-full-access") == decided(OUT, policy, "danger-full-access") == Run(outside=True)


@pytest.mark.parametrize("policy", ["on-request", "on-failure", "untrusted"])
def test_leaving_the_sandbox_is_asked_even_to_read(policy):
    for harmless in (False, True):
        answer = decided(OUT, policy, "workspace-write", harmless=harmless)
        assert isinstance(answer, Ask) and answer.outside and "outside the sandbox" in answer.why
    assert decided(OUT, policy, "workspace-write", approved=True) == Run(outside=True)


@pytest.mark.parametrize("mode", MODES)
def test_untrusted_asks_for_what_does_more_than_read(mode):
    outside = mode == "danger-full-access"
    answer = decided(LS, "untrusted", mode)
    assert isinstance(answer, Ask) and answer.outside == outside
    assert ("with your rights" in answer.why) == outside
    assert decided(LS, "untrusted", mode, harmless=True) == Run(outside)
    assert decided(LS, "untrusted", mode, approved=True) == Run(outside)


@pytest.mark.parametrize("mode", MODES[:2])
def test_never_leaves_no_sandbox(mode):
    for so in ({}, {"harmless": True}, {"approved": True}):
        answer = decided(OUT, "never", mode, **so)
        assert isinstance(answer, Refuse) and "nobody is asked" in answer.text
        answer = decided(LS, "never", mode, fault=MISSING, **so)
        assert isinstance(answer, Refuse)
        assert MISSING in answer.text and "install bubblewrap" in answer.text and "danger-full-access" in answer.text


@pytest.mark.parametrize("policy", ["on-request", "untrusted"])
def test_without_walls_everything_is_asked_and_said_to_be_without(policy):
    answer = decided(LS, policy, "workspace-write", fault=MISSING)
    assert isinstance(answer, Ask) and answer.outside
    assert "without a sandbox" in answer.why and MISSING in answer.why
    assert decided(LS, policy, "read-only", fault=MISSING, approved=True) == Run(outside=True)
    assert decided(LS, policy, "read-only", fault=MISSING, harmless=True) == Run(outside=True)


@pytest.mark.parametrize("policy", ["on-request", "untrusted"])
def test_where_nobody_can_be_asked_a_question_is_a_refusal(policy):
    answer = decided(OUT, policy, "workspace-write", host=False)
    assert isinstance(answer, Refuse) and "nobody can be asked here" in answer.text


# --- what an approval covers -----------------------------------------------------------------------------------------


class Machine:
    """Programs in a folder of the system, a workspace, and what is allowed in it."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.work, self.home = folder / "bin", folder / "work", folder / "home"
        for made in (self.bin, self.work):
            made.mkdir()
        for name in ("git", "npm", "touch", "psql", "ls", "head"):
            self.program(self.bin / name)
        self.place = Place(str(self.work), f"{self.bin}", (str(self.work), str(folder / "shared")))

    @staticmethod
    def program(path: Path) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def asked(self, command: str, **more: Any) -> CommandAsked:
        return CommandAsked(**{"command": command, "cwd": str(self.work), **more})

    def allowed(self, *commands: str, outside: bool = False) -> list[Approval]:
        found = [self.offer(command, outside=outside) for command in commands]
        assert all(found), "nothing was offered"
        return [approval for approval in found if approval]

    def offer(self, command: str, *, outside: bool = False, place: Place | None = None, **more: Any) -> Approval | None:
        asked = self.asked(command, **more)
        return offered(asked, plain_parts(asked), place or self.place, outside=outside)

    def covered(
        self,
        approvals: Sequence[Approval],
        command: str,
        *,
        outside: bool = False,
        place: Place | None = None,
        **more: Any,
    ) -> bool:
        asked = self.asked(command, **more)
        parts = plain_parts(asked)
        return parts is not None and covers(approvals, asked, parts, place or self.place, outside=outside)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "command",
    ["git push", "git push --force origin main", "git push && git push", "ls -l; git push", "git push | head -n 3"],
)
def test_an_approval_covers_what_begins_with_its_words(machine, command):
    assert machine.covered(machine.allowed("git push origin"), command)


@pytest.mark.parametrize(
    "command",
    [
        *["git pull", "git", "git -c a=b push", "git --exec-path=/evil push", "gitx push", "git pushx", "git 'push '"],
        *["git push; touch x", "git push && touch x", "git push || touch x", "touch x; git push", "git push | touch x"],
        *["git push $(touch x)", "git push `touch x`", 'git push "$(touch x)"', "git push > x", "git push < x"],
        *["git push &", "git push & touch x", "git push\ntouch x", "git push # x", "(git push)", "{ git push; }"],
        *["GIT_SSH=/evil git push", "PATH=/evil git push", "A= git push", "env git push", "export PATH=/e; git push"],
        *["alias git=x; git push", "hash -p /evil git; git push", "cd /evil && git push", "git() { x; }; git push"],
        *["! git push", "time git push", "exec git push", "command git push", "sudo git push", "xargs git push"],
        *[
            "./git push",
            "/evil/git push",
            "bin/git push",
            "git push \\\n; touch x",
            "git push *",
            "g\\it push",
            "$0 push",
        ],
        *["ls | git push", "git push |& head", "git push; ;", "if git push; then touch x; fi", "git push\rtouch x"],
    ],
)
def test_nothing_widens_an_approval(machine, command):
    assert not machine.covered(machine.allowed("git push"), command, outside=False)
    assert not machine.covered(machine.allowed("git push", outside=True), command, outside=True)


def test_an_approval_inside_is_none_outside(machine):
    inside, outside = machine.allowed("git push"), machine.allowed("git push", outside=True)
    assert not machine.covered(inside, "git push", outside=True)
    assert machine.covered(outside, "git push", outside=True) and machine.covered(outside, "git push")


def test_outside_even_reading_needs_an_approval(machine):
    leaving = machine.place._replace(leaving=True)
    (machine.work / ".git").mkdir()
    allowed = machine.allowed("git push", outside=True)
    assert machine.covered(allowed, "git push && echo done", outside=True, place=leaving)
    assert not machine.covered(allowed, "git push && ls", outside=True, place=leaving)
    assert not machine.covered(allowed, "git push; git status", outside=True, place=leaving)
    assert not machine.covered(allowed, "git push | head", outside=True, place=leaving)


def test_outside_no_repository_is_obeyed_that_a_command_may_have_made(machine):
    leaving, nested = machine.place._replace(leaving=True), machine.work / "nested"
    allowed = machine.allowed("git push", outside=True)
    assert not machine.covered(allowed, "git push", outside=True, place=leaving)  # a `.git` could be made here
    (machine.work / ".git").mkdir()
    (nested / ".git").mkdir(parents=True)
    assert machine.covered(allowed, "git push", outside=True, place=leaving)
    assert not machine.covered(allowed, "git push", outside=True, place=leaving, cwd=str(nested))
    assert machine.offer("git push", outside=True, place=leaving, cwd=str(nested)) is None
    assert machine.covered(allowed, "git push", cwd=str(nested))  # inside, it may do what a command may


def test_a_whole_command_is_only_itself(machine):
    allowed = machine.allowed("touch a b")
    assert machine.covered(allowed, "touch a b") and machine.covered(allowed, "touch 'a' \"b\"")
    for other in ("touch a", "touch a b c", "touch b a", "touch 'a b'"):
        assert not machine.covered(allowed, other)


def test_what_is_not_in_the_words_is_not_covered(machine):
    allowed = machine.allowed("psql -f x")
    assert not machine.covered(allowed, "echo drop | psql -f x")
    assert not machine.covered(allowed, "psql -f x", interactive=True)
    assert not machine.covered(allowed, "psql -f x", shell="zsh")
    assert not machine.covered(allowed, "psql -f x", shell=str(machine.work / "bash"))


def test_another_workspace_has_approvals_of_its_own(machine, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    allowed = machine.allowed("git push")
    assert not machine.covered(allowed, "git push", cwd=str(other))
    assert not machine.covered(allowed, "git push", cwd=str(other), place=machine.place._replace(workspace=str(other)))
    (machine.work / "sub").mkdir()
    (machine.work / "out").symlink_to(other)
    assert machine.covered(allowed, "git push", cwd=str(machine.work / "sub"))
    assert not machine.covered(allowed, "git push", cwd=str(machine.work / "out"))


def test_the_program_is_the_file_that_was_allowed(machine, tmp_path):
    real = machine.program(tmp_path / "opt/git-2")
    (machine.bin / "git").unlink()
    (machine.bin / "git").symlink_to(real)
    allowed = machine.allowed("git push")
    assert allowed[0].program == str(real) and machine.covered(allowed, "git push")
    (machine.bin / "git").unlink()
    (machine.bin / "git").symlink_to(machine.program(tmp_path / "opt/git-3"))
    assert not machine.covered(allowed, "git push")
    earlier = machine.program(tmp_path / "first/git").parent
    (machine.bin / "git").unlink()
    (machine.bin / "git").symlink_to(real)
    assert not machine.covered(
        allowed, "git push", place=machine.place._replace(search_path=f"{earlier}:{machine.bin}")
    )


@pytest.mark.parametrize(
    "search_path", ["{work}:{bin}", ".:{bin}", ":{bin}", "rel:{bin}", "{work}/none:{bin}", "", "/none"]
)
def test_a_search_path_that_commands_can_fill_covers_nothing(machine, search_path):
    place = machine.place._replace(search_path=search_path.format(work=machine.work, bin=machine.bin))
    assert not machine.covered(machine.allowed("git push"), "git push", place=place)
    assert machine.offer("git push", place=place) is None


def test_a_program_that_commands_can_change_is_neither_offered_nor_covered(machine, tmp_path):
    machine.program(machine.work / "deploy.sh")
    machine.program(tmp_path / "shared/deploy.sh")
    (machine.bin / "deploy").symlink_to(machine.work / "deploy.sh")
    for command in ("./deploy.sh now", f"{machine.work}/deploy.sh", "../shared/deploy.sh", "deploy now"):
        assert machine.offer(command) is None
    as_if = Approval(words=("deploy", "now"), program=str(machine.work / "deploy.sh"), workspace=str(machine.work))
    assert not machine.covered([as_if], "deploy now")
    (machine.work / "tool").symlink_to(machine.bin / "touch")  # the link can be changed, if not the program
    assert machine.offer("./tool x") is None


def test_a_program_by_its_path_is_another_word(machine):
    allowed = machine.allowed(f"{machine.bin}/git push")
    assert machine.covered(allowed, f"{machine.bin}/git push x")
    assert not machine.covered(allowed, "git push x")


def test_a_reader_that_commands_can_change_is_no_reader(machine):
    machine.program(machine.work / "node_modules/ls")
    place = machine.place._replace(search_path=f"{machine.work}/node_modules:{machine.bin}")
    assert not machine.covered((), "ls", place=place) and machine.covered((), "ls")


@pytest.mark.parametrize(
    "command", ["ls", "bash x", "git push; npm publish x", "git push $A", "ls | git push", "nowhere x", "npm run"]
)
def test_what_cannot_be_remembered_is_not_offered(machine, command):
    assert machine.offer(command) is None
    assert machine.offer("git push", interactive=True) is None


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_approvals_are_kept_for_their_owner_alone(machine):
    first, second = machine.allowed("git push", "npm publish x")
    assert read_approvals(machine.home) == ()
    remember(machine.home, first)
    remember(machine.home, second, first)
    assert read_approvals(machine.home) == (first, second)
    [file] = machine.home.iterdir()
    assert file.name == "approved.json" and stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"approved": [{"words": "git"}]}', '{"approved": [{}]}', "\xff"])
def test_a_damaged_file_approves_nothing_and_is_left_alone(machine, text):
    machine.home.mkdir()
    (machine.home / "approved.json").write_text(text, encoding="latin-1")
    with pytest.raises(Damaged, match=r"approved\.json approves nothing"):
        read_approvals(machine.home)
    with pytest.raises(Damaged):
        remember(machine.home, *machine.allowed("git push"))
    assert (machine.home / "approved.json").read_text(encoding="latin-1") == text


# --- in a session ----------------------------------------------------------------------------------------------------


class Talk:
    """A session in a workspace, and what came of its calls."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.work, self.home = folder / "work", folder / "home"
        self.work.mkdir(exist_ok=True)
        self.home.mkdir(exist_ok=True)
        table = WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir_env_var=True)
        self.config = Config(**{"sandbox_workspace_write": table, **config})
        self.notices: list[str] = []

    def outputs(
        self, *calls: Reply, approve: Approve | None = None, tools: Sequence[Tool] = (exec_command,)
    ) -> list[str]:
        """What the model reads of its calls in the last request."""
        model = ScriptedModel([*calls, text_reply("done")])

        async def go() -> None:
            session = Session.start(
                model=model, tools=tools, cwd=self.work, home=self.home, config=self.config, approve=approve
            )
            async with session:
                async for event in session.send("go"):
                    if isinstance(event, Notice):
                        self.notices.append(event.text)

        asyncio.run(go())
        return [item["output"] for item in model.requests[-1]["input"] if item["type"] == "function_call_output"]


def run(cmd: str, **more: Any) -> Reply:
    return call_reply("exec_command", {"cmd": cmd, **more})


def escalated(cmd: str, why: str = "it has to") -> Reply:
    return run(cmd, sandbox_permissions="require_escalated", justification=why)


class Person:
    """Answers questions in order, and keeps them."""

    def __init__(self, *answers: bool | Verdict) -> None:
        self.answers = list(answers)
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> bool | Verdict:
        self.asked.append(question)
        return self.answers.pop(0)


def test_a_refused_command_is_an_output_that_the_model_can_act_on(tmp_path):
    person = Person(Verdict(False, word="use make instead"), False)
    talk = Talk(tmp_path, approval_policy="untrusted", sandbox_mode="danger-full-access")
    first, second = talk.outputs(run("touch made"), run("touch made too"), approve=person)
    assert first == (
        "The user did not allow this command to run. Do not reach the same effect by another route. "
        "The user says: use make instead"
    )
    assert second == "The user did not allow this command to run. Do not reach the same effect by another route."
    assert not (talk.work / "made").exists()
    assert [question.command.command for question in person.asked if question.command] == [
        "touch made",
        "touch made too",
    ]


def test_without_settings_a_host_that_can_be_asked_is_asked_for_what_does_more_than_read(tmp_path):
    person = Person(True)
    listed, made = Talk(tmp_path).outputs(run("ls -a"), run("touch made; pwd"), approve=person)
    assert "exited with code 0" in listed and "exited with code 0" in made
    assert [question.call["name"] for question in person.asked] == ["exec_command"]


def test_without_settings_and_host_commands_run(tmp_path):
    [output] = Talk(tmp_path).outputs(run("touch ../made"))
    assert "exited with code 0" in output and (tmp_path / "made").exists()


def test_a_question_that_fails_is_a_no(tmp_path):
    async def approve(question: Question) -> bool:
        raise RuntimeError("the window was closed")

    talk = Talk(tmp_path)
    [output] = talk.outputs(run("touch made"), approve=approve)
    assert output.startswith("The user did not allow") and not (talk.work / "made").exists()
    assert any("the window was closed" in notice for notice in talk.notices)


def test_a_question_that_was_cancelled_or_says_anything_else_is_a_no(tmp_path):
    async def cancelled(question: Question) -> bool:
        raise asyncio.CancelledError

    async def says_no(question: Question) -> bool:
        return "no"  # type: ignore[return-value]

    talk = Talk(tmp_path)
    for approve in (cancelled, says_no):
        [output] = talk.outputs(run("touch made"), approve=approve)
        assert output.startswith("The user did not allow") and not (talk.work / "made").exists()
    assert any("CancelledError" in notice for notice in talk.notices)


@walled
@pytest.mark.parametrize("shell", ["{work}/bash", "bash", "sh", "{work}/sh"])
def test_a_shell_that_a_command_put_there_is_never_run_outside(tmp_path, monkeypatch, shell):
    """Not for its login files, nor to find out where it looks for programs, nor because a builtin does no harm."""
    person = Person(False)
    talk = Talk(tmp_path, sandbox_mode="workspace-write", approval_policy="on-request")
    monkeypatch.setenv("PATH", f"{talk.work}:{os.environ['PATH']}")  # as in an environment that is activated
    for name in ("bash", "sh"):
        (talk.work / name).write_text(f'#!/bin/sh\ntouch {tmp_path}/escaped 2>/dev/null\nexec /bin/{name} "$@"\n')
        (talk.work / name).chmod(0o755)
    found = shell.format(work=talk.work)
    outside = {"shell": found, "sandbox_permissions": "require_escalated"}
    inside, _ = talk.outputs(run("echo hi", shell=found), run("echo hi", **outside), approve=person)
    assert "exited with code 0" in inside
    assert not (tmp_path / "escaped").exists()
    assert bool(person.asked) == ("/" in shell)  # the system's own shell, and a builtin that only prints


@walled
def test_on_request_keeps_inside_and_asks_to_leave(tmp_path):
    person = Person(True, False)
    talk = Talk(tmp_path, sandbox_mode="workspace-write", approval_policy="on-request")
    inside, beyond, allowed, refused = talk.outputs(
        run("touch made"),
        run("touch ../made"),
        escalated("touch ../allowed", "the parent needs it"),
        escalated("touch ../refused"),
        approve=person,
    )
    assert "exited with code 0" in inside and "Read-only file system" in beyond
    assert "exited with code 0" in allowed and refused.startswith("The user did not allow")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["allowed", "home", "work"]
    question = person.asked[0].command
    assert question is not None and (question.outside, question.reason) == (True, "the parent needs it")
    assert "outside the sandbox" in person.asked[0].why


@walled
def test_never_runs_inside_and_refuses_to_leave(tmp_path):
    talk = Talk(tmp_path, sandbox_mode="read-only", approval_policy="never")
    beyond, refused = talk.outputs(run("touch made"), escalated("touch made"), approve=Person())
    assert "Read-only file system" in beyond and refused.startswith("This command was not run: it asks to run outside")
    assert not (talk.work / "made").exists()


@walled
def test_where_nobody_is_there_a_question_is_refused(tmp_path):
    talk = Talk(tmp_path, sandbox_mode="workspace-write", approval_policy="untrusted")
    listed, refused = talk.outputs(run("ls"), run("touch made"))
    assert "exited with code 0" in listed and "nobody can be asked here" in refused
    assert not (talk.work / "made").exists()


def test_where_bubblewrap_is_missing_never_refuses_and_others_ask(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    never = Talk(tmp_path, sandbox_mode="workspace-write", approval_policy="never")
    [refused] = never.outputs(run("touch made"))
    assert "bubblewrap (bwrap) is not installed" in refused and not (never.work / "made").exists()
    person = Person(True)
    [made] = Talk(tmp_path, sandbox_mode="workspace-write", approval_policy="on-request").outputs(
        run("echo > made"), approve=person
    )
    assert "exited with code 0" in made and (never.work / "made").exists()
    assert "without a sandbox" in person.asked[0].why


def test_what_is_allowed_for_good_is_not_asked_again(tmp_path):
    person = Person(Verdict(True, remember=True), False)
    talk = Talk(tmp_path)
    calls = (run("touch made"), run("touch made"), run("touch made && touch more"))
    first, second, third = talk.outputs(*calls, approve=person)
    assert "exited with code 0" in first and "exited with code 0" in second and third.startswith("The user did not")
    assert person.asked[0].remember == ("touch", "made") and person.asked[1].remember == ()
    [kept] = json.loads((talk.home / "approved.json").read_text())["approved"]
    assert kept["words"] == ["touch", "made"] and Path(kept["program"]).name.startswith(
        ("touch", "coreutils", "busybox")
    )
    [later] = Talk(tmp_path).outputs(run("touch made"), approve=Person())
    assert "exited with code 0" in later


def test_calls_that_wait_for_the_same_answer_are_asked_once(tmp_path):
    asked: list[Question] = []

    async def approve(question: Question) -> Verdict:
        asked.append(question)
        await asyncio.sleep(0.3)  # meanwhile the others wait for their turn to ask
        return Verdict(True, remember=True)

    items = tuple(
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "touch made"}', "call_id": str(n)}
        for n in range(3)
    )
    outputs = Talk(tmp_path).outputs(Reply(items=items), approve=approve)
    assert len(asked) == 1 and all("exited with code 0" in output for output in outputs)


def test_nothing_is_remembered_that_was_not_offered(tmp_path):
    talk = Talk(tmp_path)
    talk.outputs(run("touch $PWD/made"), approve=Person(Verdict(True, remember=True)))
    assert not (talk.home / "approved.json").exists()


def test_damaged_approvals_are_said_and_approve_nothing(tmp_path):
    talk = Talk(tmp_path)
    (talk.home / "approved.json").write_text("{")
    person = Person(Verdict(True, remember=True))
    talk.outputs(run("touch made"), approve=person)
    assert len(person.asked) == 1 and person.asked[0].remember == ()
    assert any("approved.json approves nothing" in notice for notice in talk.notices)
    assert (talk.home / "approved.json").read_text() == "{"


@walled
def test_commands_cannot_approve_themselves(tmp_path):
    config = {"sandbox_mode": "workspace-write", "sandbox_workspace_write": WorkspaceWrite()}
    talk = Talk(tmp_path, **config)
    talk.outputs(run(f"echo '{{}}' > {talk.home}/approved.json; mv {talk.home} {tmp_path}/h"))
    assert list(talk.home.glob("approved.json")) == []


def test_keys_are_not_in_a_commands_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "key-of-mine")
    monkeypatch.setenv("HARMLESS", "shown")
    monkeypatch.setenv("MY_PROVIDER_PASS", "key-of-mine")
    provider = {"id": "p", "base_url": "http://127.0.0.1", "env_key": "MY_PROVIDER_PASS"}
    monkeypatch.setenv("MY_UPSTREAM_PASS", "key-of-mine")
    serve = ServeSettings(key_env="MY_UPSTREAM_PASS")
    talk = Talk(tmp_path, model_providers={"p": msgspec.convert(provider, Provider)}, serve=serve)
    [shown] = talk.outputs(run("env"))
    assert "HARMLESS=shown" in shown and "key-of-mine" not in shown
    set_here = EnvironmentPolicy(inherit="core", set={"MINE": "set"})
    [core] = Talk(tmp_path, shell_environment_policy=set_here).outputs(run("env"))
    assert "MINE=set" in core and "HARMLESS" not in core and f"HOME={os.environ['HOME']}" in core


@walled
def test_a_session_shows_nothing_of_itself_to_its_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-mine")
    talk = Talk(tmp_path, sandbox_mode="read-only")
    (talk.home / "config.toml").write_text("# key-of-mine")
    [shown] = talk.outputs(run(f"env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'; cat {talk.home}/config.toml"))
    assert "key-of-mine" not in shown and "denied" in shown


# --- tools that are no commands --------------------------------------------------------------------------------------


def test_other_tools_ask_where_the_policy_says_so(tmp_path):
    @tool(needs_approval=True)
    def publish(name: str) -> str:
        """Publishes."""
        return f"published {name}"

    def told(approve: Approve | None, **config: Any) -> str:
        [output] = Talk(tmp_path, **config).outputs(
            call_reply("publish", {"name": "x"}), approve=approve, tools=[publish]
        )
        return output

    person = Person(False, True)
    assert told(person) == "The user did not allow this command to run."
    assert told(person, approval_policy="on-request") == "published x"
    assert told(Person(), approval_policy="never") == told(None) == "published x"
    assert "nobody can be asked here" in told(None, approval_policy="untrusted")


def test_arguments_that_are_none_are_told_and_nobody_is_asked(tmp_path):
    bad = {"type": "function_call", "name": "exec_command", "arguments": "{", "call_id": "1"}
    wrong = {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": 5}', "call_id": "2"}
    first, second = Talk(tmp_path).outputs(Reply(items=(bad,)), Reply(items=(wrong,)), approve=Person())
    assert first.startswith("failed to parse function arguments") and "cmd" in second


def test_policy_about_leaving_a_sandbox_means_that_there_is_one(tmp_path: Path) -> None:
    for policy, mode in (("on-request", "workspace-write"), ("never", "danger-full-access")):
        session = Session.start(
            model=ScriptedModel([]),
            tools=[exec_command],
            cwd=tmp_path,
            home=tmp_path / "home",
            config=Config(approval_policy=policy),
        )
        assert session.surroundings.sandbox_mode == mode
