"""Commands that outlive their call: session ids, typing, looking again, interrupt, and their end with the session."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from refold.errors import ToolFailed
from refold.tools import ToolContext, ToolResult
from refold.tools.commands import exec_command, write_stdin
from refold.tools.processes import MOST_RUNNING, Processes

HEADER = re.compile(
    r"Chunk ID: [0-9a-f]{6}\nWall time: (\d+\.\d{4}) seconds\n"
    r"Process (exited with code|running with session ID) (\d+)\nOriginal token count: (\d+)\nOutput:\n"
)
NEVER = 60  # seconds that no test waits


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """A test run in the background ignores Ctrl-C, and so would every command that it starts."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login shell reads a profile: not the developer's."""
    monkeypatch.setenv("HOME", str(tmp_path))


class Desk:
    """A session's commands, and the two tools over them."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.processes = Processes()
        self.told: list[str] = []
        self._calls = 0

    def context(self) -> ToolContext:
        self._calls += 1
        return ToolContext(
            call_id=f"call_{self._calls}",
            cwd=str(self.cwd),
            new_id=f"{self._calls:06x}",
            processes=self.processes,
            progress=self.told.append,
        )

    async def start(self, cmd: str, **arguments: Any) -> ToolResult:
        return await exec_command.run({"cmd": cmd, "yield_time_ms": 250, **arguments}, self.context())

    async def go_on(self, number: int, chars: str = "", **arguments: Any) -> ToolResult:
        return await write_stdin.run({"session_id": number, "chars": chars, **arguments}, self.context())


@asynccontextmanager
async def desk(cwd: Path) -> AsyncGenerator[Desk]:
    found = Desk(cwd)
    try:
        yield found
    finally:
        await found.processes.close()


def during(cwd: Path, work: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        async with desk(cwd) as found:
            await work(found)

    asyncio.run(main())


def header(result: ToolResult) -> re.Match[str]:
    assert isinstance(result.output, str)
    match = HEADER.match(result.output)
    assert match, result.output
    return match


def body(result: ToolResult) -> str:
    return str(result.output)[header(result).end() :]


def number_of(result: ToolResult) -> int:
    match = header(result)
    assert match[2].startswith("running"), result.output
    assert result.details["session_id"] == int(match[3])
    return int(match[3])


def code_of(result: ToolResult) -> int:
    match = header(result)
    assert match[2].startswith("exited"), result.output
    assert result.details["exit_code"] == int(match[3])
    return int(match[3])


def test_command_that_outlives_its_yield_time_is_gone_on_with(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        first = await at.start("echo early; until [ -e go ]; do sleep 0.02; done; echo late; exit 3")
        number = number_of(first)
        assert (body(first), first.success, first.details["exit_code"]) == ("early\n", True, None)
        still = await at.go_on(number, yield_time_ms=250)
        assert (number_of(still), body(still)) == (number, "")
        (tmp_path / "go").touch()
        last = await at.go_on(number)
        assert (code_of(last), body(last), last.success) == (3, "late\n", False)
        with pytest.raises(ToolFailed, match=rf"no command has the session ID {number} \(none is running\)"):
            await at.go_on(number)

    during(tmp_path, work)


def test_wait_ends_when_the_command_does(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        result = await at.start("sleep 0.3; echo done", yield_time_ms=50_000)
        assert (code_of(result), body(result)) == (0, "done\n")
        assert float(header(result)[1]) < 5

    during(tmp_path, work)


def test_command_that_ended_while_nobody_looked_is_told_and_is_no_zombie(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        first = await at.start("echo $$; sleep 0.4; echo done; exit 7")
        pid, number = int(body(first)), number_of(first)
        for _ in range(200):
            await asyncio.sleep(0.02)
            if not Path(f"/proc/{pid}").exists():
                break
        assert not Path(f"/proc/{pid}").exists()
        last = await at.go_on(number)
        assert (code_of(last), body(last)) == (7, "done\n")

    during(tmp_path, work)


def test_what_is_typed_reaches_a_command_with_a_terminal(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        first = await at.start("read -p 'name? ' name; echo hello $name; tty; stty size", tty=True)
        assert body(first) == "name? "
        last = await at.go_on(number_of(first), "you\n", yield_time_ms=5_000)
        assert code_of(last) == 0
        assert re.fullmatch(r"you\r\nhello you\r\n/dev/pts/\d+\r\n24 80\r\n", body(last))

    during(tmp_path, work)


def test_end_of_input_and_interrupt_are_keys_in_a_terminal(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        first = await at.start("cat; echo ended", tty=True)
        last = await at.go_on(number_of(first), "\x04", yield_time_ms=5_000)
        assert (code_of(last), body(last).replace("^D\b\b", "")) == (0, "ended\r\n")
        first = await at.start(f"trap 'echo caught; exit 5' INT; echo ready; sleep {NEVER} & wait", tty=True)
        last = await at.go_on(number_of(first), "\x03", yield_time_ms=5_000)
        assert (code_of(last), "caught" in body(last)) == (5, True)

    during(tmp_path, work)


def test_interrupt_reaches_a_command_without_a_terminal_and_nothing_else_does(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        number = number_of(await at.start("trap 'echo caught; exit 5' INT; while :; do sleep 0.05; done"))
        with pytest.raises(ToolFailed, match=f"session ID {number} has no terminal .* tty true"):
            await at.go_on(number, "yes\n")
        last = await at.go_on(number, "\x03", yield_time_ms=5_000)
        assert (code_of(last), body(last)) == (5, "caught\n")

    during(tmp_path, work)


def test_more_is_typed_than_a_terminal_takes_at_once(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        first = await at.start("stty raw -echo; echo ready; sleep 0.3; head -c 300000 | wc -c", tty=True)
        last = await at.go_on(number_of(first), "x" * 300_000, yield_time_ms=10_000)
        assert "300000" in body(last)

    during(tmp_path, work)


def test_typing_into_a_command_that_does_not_read_ends(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        number = number_of(await at.start(f"stty raw -echo; echo ready; sleep {NEVER}", tty=True))
        with pytest.raises(ToolFailed, match=f"session ID {number} does not take its input"):
            await at.go_on(number, "x" * 3_000_000, yield_time_ms=300)

    during(tmp_path, work)


def test_wrong_session_id_names_those_that_run(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        number = number_of(await at.start(f"sleep {NEVER}"))
        with pytest.raises(ToolFailed, match=rf"no command has the session ID 7 \(those that run: {number}\)"):
            await at.go_on(7)

    during(tmp_path, work)


@pytest.mark.parametrize("arguments", [{}, {"session_id": "x"}, {"session_id": -1}, {"session_id": 1, "chars": 5}])
def test_wrong_arguments_are_told_with_the_right_ones(tmp_path: Path, arguments: dict[str, Any]) -> None:
    async def work(at: Desk) -> None:
        with pytest.raises(ToolFailed, match=r"Expected: write_stdin\(session_id: number, chars\?: string"):
            await write_stdin.run(arguments, at.context())

    during(tmp_path, work)


def test_time_limit_holds_for_a_command_that_runs_on(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        number = number_of(await at.start(f"echo out; sleep {NEVER}", timeout_ms=600))
        last = await at.go_on(number)
        assert (code_of(last), body(last)) == (124, "command timed out after 600 milliseconds\n")
        assert last.details["timed_out"]

    during(tmp_path, work)


def test_one_command_too_many_is_refused_and_stopped(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        starts = (at.start(f"sleep {NEVER}", shell="/bin/sh") for _ in range(MOST_RUNNING))
        numbers = {number_of(result) for result in await asyncio.gather(*starts)}
        assert len(numbers) == MOST_RUNNING
        with pytest.raises(ToolFailed, match=f"{MOST_RUNNING} commands are running already; this one was stopped"):
            await at.start(f"echo $$ > last; sleep {NEVER}", shell="/bin/sh")
        assert not Path(f"/proc/{(tmp_path / 'last').read_text().strip()}").exists()

    during(tmp_path, work)


def test_interrupted_wait_ends_the_command_it_waited_for_and_no_other(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        waited, other = [await at.start(f"echo $$; sleep {NEVER}") for _ in range(2)]
        task = asyncio.create_task(at.go_on(number_of(waited), yield_time_ms=50_000))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not Path(f"/proc/{int(body(waited))}").exists()
        assert Path(f"/proc/{int(body(other))}").exists()
        with pytest.raises(ToolFailed, match="no command has the session ID"):
            await at.go_on(number_of(waited))

    during(tmp_path, work)


def test_long_command_tells_its_newest_line(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        await at.start("echo one; sleep 1.3; echo two; sleep 1.2; echo; sleep 0.3", yield_time_ms=5_000)
        assert at.told == ["one", "two"]

    during(tmp_path, work)


def test_short_command_tells_nothing(tmp_path: Path) -> None:
    async def work(at: Desk) -> None:
        await at.start("echo one")
        assert at.told == []

    during(tmp_path, work)


# --- login files -------------------------------------------------------------------------------------------------


async def outputs(cwd: Path, *commands: str) -> list[str]:
    async with desk(cwd) as at:
        return [body(await at.start(cmd, yield_time_ms=20_000)) for cmd in commands]


def test_login_files_that_set_variables_are_read_once(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("echo read >> reads\nexport FROM=profile\n")
    assert asyncio.run(outputs(tmp_path, "echo $FROM", "echo $FROM")) == ["profile\n", "profile\n"]
    assert (tmp_path / "reads").read_text() == "read\n"


@pytest.mark.parametrize(
    ("line", "cmd", "seen"),
    [
        ("greet() { echo hi; }", "greet", "hi\n"),
        ("shopt -s extglob", "[[ aa == +(a) ]] && shopt -q extglob && echo on", "on\n"),
        ("umask 077", "umask", "0077\n"),
        ("set -o noclobber", "echo $-", "hBCc\n"),
        ("echo said", "echo done", "done\n"),
        ("alias ll='ls -l'", "echo done", "done\n"),
    ],
)
def test_what_else_login_files_set_is_carried_over(tmp_path: Path, line: str, cmd: str, seen: str) -> None:
    (tmp_path / ".bash_profile").write_text(f"echo read >> reads\n{line}\n")
    found = asyncio.run(outputs(tmp_path, cmd, cmd))
    assert [sorted(text) for text in found] == [sorted(seen)] * 2
    assert (tmp_path / "reads").read_text().split() == ["read"]


@pytest.mark.parametrize(
    "line", ["trap 'echo bye' EXIT", "ulimit -c 0; ulimit -n 99", "f() { : " + "x" * 120_000 + "; }"]
)
def test_login_files_that_do_what_cannot_be_carried_over_are_read_for_each_command(tmp_path: Path, line: str) -> None:
    (tmp_path / ".bash_profile").write_text(f"echo read >> reads\n{line}\n")
    asyncio.run(outputs(tmp_path, "true", "true"))
    assert (tmp_path / "reads").read_text().split() == ["read"] * 3


def test_login_file_that_fails_leaves_commands_working(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("exit 9\n")
    assert asyncio.run(outputs(tmp_path, "echo ok")) == ["ok\n"]


def test_secret_that_a_login_file_sets_is_not_seen(tmp_path: Path) -> None:
    for more in ("", "greet() { echo hi; }\n", "trap : EXIT\n"):
        (tmp_path / ".bash_profile").write_text(f"export MY_API_KEY=sesame HARMLESS=yes\n{more}")
        assert asyncio.run(outputs(tmp_path, "echo ${MY_API_KEY:-hidden} $HARMLESS")) == ["hidden yes\n"]
