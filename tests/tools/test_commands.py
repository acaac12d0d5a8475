"""exec_command with real processes: what the model reads, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from refold.core.truncate import Budget
from refold.errors import ToolFailed
from refold.tools import Tool, ToolContext, ToolResult
from refold.tools.commands import BACKGROUND_NOTE, exec_command, write_stdin

HEADER = re.compile(
    r"Chunk ID: 0a1b2c\nWall time: \d+\.\d{4} seconds\nProcess exited with code (\d+)\n"
    r"Original token count: (\d+)\nOutput:\n"
)
TEN_THOUSAND = Budget("tokens", 10_000)
NEVER = 60  # seconds that no test waits


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login shell reads a profile: not the developer's."""
    monkeypatch.setenv("HOME", str(tmp_path))


def context(cwd: Path, policy: Budget = TEN_THOUSAND) -> ToolContext:
    return ToolContext(call_id="call_1", cwd=str(cwd), policy=policy, new_id="0a1b2c")


def run(cmd: str, cwd: Path, policy: Budget = TEN_THOUSAND, **arguments: Any) -> ToolResult:
    return asyncio.run(exec_command.run({"cmd": cmd, **arguments}, context(cwd, policy)))


def body(result: ToolResult) -> str:
    assert isinstance(result.output, str)
    match = HEADER.match(result.output)
    assert match, result.output
    assert int(match[1]) == result.details["exit_code"]
    return result.output[match.end() :]


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def pids_in(path: Path, count: int) -> list[int]:
    """The process ids that a command wrote, one a line, once there are that many."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if path.exists() and len(pids := path.read_text().split()) >= count:
            return [int(pid) for pid in pids]
        time.sleep(0.01)
    raise AssertionError(f"{path} never named {count} processes")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def assert_all_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [pid for pid in pids if is_alive(pid)] == []


# --- what the model reads -----------------------------------------------------------------------------


def test_output_and_exit_code_reach_the_model(tmp_path: Path) -> None:
    result = run("echo one; echo two >&2; echo three; exit 3", tmp_path)
    assert body(result) == "one\ntwo\nthree\n"
    assert result.success is False
    assert {key: value for key, value in result.details.items() if key != "duration"} == {
        "exit_code": 3,
        "command": ["/bin/bash", "-lc", "echo one; echo two >&2; echo three; exit 3"],
        "session_id": None,
        "cwd": str(tmp_path),
        "output": "one\ntwo\nthree\n",
        "timed_out": False,
    }
    assert 0 < result.details["duration"] < NEVER


def test_success_is_exit_code_zero(tmp_path: Path) -> None:
    result = run("true", tmp_path)
    assert (result.success, result.details["exit_code"], body(result)) == (True, 0, "")


def test_death_by_signal_is_128_and_the_signal(tmp_path: Path) -> None:
    assert run("kill -KILL $$", tmp_path).details["exit_code"] == 128 + signal.SIGKILL


def test_command_meets_no_input_no_colours_and_no_pager(tmp_path: Path) -> None:
    assert body(run("cat; echo $TERM $NO_COLOR $PAGER $GIT_PAGER", tmp_path)) == "dumb 1 cat cat\n"


def test_command_sees_what_login_files_set(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("export FROM_PROFILE=yes\n")
    assert body(run("echo $FROM_PROFILE", tmp_path)) == "yes\n"


def test_another_shell_can_be_asked_for(tmp_path: Path) -> None:
    result = run("echo ${BASH_VERSION:-none}", tmp_path, shell="/bin/sh")
    assert result.details["command"][0] == "/bin/sh"
    with pytest.raises(ToolFailed, match="no-such-shell cannot be started"):
        run("true", tmp_path, shell="no-such-shell")


def test_workdir_is_relative_to_the_sessions(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    assert body(run("pwd -P", tmp_path, workdir="inner")) == f"{(tmp_path / 'inner').resolve()}\n"
    assert body(run("pwd -P", tmp_path / "inner", workdir=str(tmp_path))) == f"{tmp_path.resolve()}\n"
    assert run("true", tmp_path, workdir="").details["cwd"] == str(tmp_path)


@pytest.mark.parametrize("workdir", ["missing", "file", "nul\0", "x" * 5_000])
def test_workdir_that_is_no_directory_is_named(tmp_path: Path, workdir: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolFailed, match=f"workdir .*{workdir[:9]}.* is not a directory; the session's is {tmp_path}"):
        run("true", tmp_path, workdir=workdir)


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    assert body(run(r"printf 'a\xff\xfe\xe6\xbcz'", tmp_path)) == "a\ufffd\ufffd\ufffdz"


def test_lone_surrogates_in_a_command_do_not_raise(tmp_path: Path) -> None:
    assert body(run("printf %s '\ud83d'", tmp_path)) == "\ufffd"


def test_asked_tokens_cut_the_output(tmp_path: Path) -> None:
    result = run("seq 1 30", tmp_path, max_output_tokens=10.0)
    assert body(result) == (
        "Warning: truncated output (original token count: 21)\nTotal output lines: 30\n\n"
        "1\n2\n3\n4\n5\n6\n7\n8\n9\n10…11 tokens truncated…4\n25\n26\n27\n28\n29\n30\n"
    )
    assert result.details["output"] == "".join(f"{n}\n" for n in range(1, 31))


def test_policy_limits_the_whole_text(tmp_path: Path) -> None:
    result = run("seq 1 100000", tmp_path, policy=Budget("bytes", 1_000))
    assert len(result.output) <= 1_200
    assert "chars truncated" in body(result)


def test_fifty_megabytes_are_held_in_constant_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        result = run("yes 'a line of output' | head -c 50000000", tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert body(result).startswith(
        "Warning: truncated output (original token count: 12500000)\n... 48951424 bytes omitted ...\n\na line of output"
    )
    assert len(result.details["output"]) == 1_048_576 + len("\n... 48951424 bytes omitted ...\n")
    assert peak < 16_000_000


# --- wrong arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "missing field `cmd`"),
        ({"cmd": ["ls"]}, "`cmd`: expected `str`, got `array`"),
        ({"cmd": "ls", "workdir": 5}, "`workdir`: expected `str | null`, got `int`"),
        ({"cmd": "ls", "timeout_ms": "fast"}, "`timeout_ms`: expected `float | null`, got `str`"),
        ({"cmd": "ls", "timeout_ms": 0}, "`timeout_ms`: expected `float` > 0.0"),
        ({"cmd": "ls", "timeout_ms": float("inf")}, "`timeout_ms`: expected `float` <= 86400000.0"),
        ({"cmd": "ls", "max_output_tokens": -1}, "`max_output_tokens`: expected `float` >= 0.0"),
        ({"cmd": "ls", "max_output_tokens": True}, "`max_output_tokens`: expected `float | null`, got `bool`"),
    ],
)
def test_wrong_arguments_are_told_with_the_right_ones(tmp_path: Path, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ToolFailed) as failure:
        asyncio.run(exec_command.run(arguments, context(tmp_path)))
    assert str(failure.value) == (
        f"failed to parse function arguments: {problem}\nExpected: exec_command(cmd: string, workdir?: string, "
        "tty?: boolean, yield_time_ms?: number, timeout_ms?: number, max_output_tokens?: number, shell?: string, "
        'sandbox_permissions?: "use_default" | "require_escalated", justification?: string)'
    )


def test_null_and_unknown_arguments_are_no_arguments(tmp_path: Path) -> None:
    result = run(
        "echo ok",
        tmp_path,
        workdir=None,
        timeout_ms=None,
        max_output_tokens=None,
        yield_time_ms=100,
        tty=False,
        shell=None,
    )
    assert body(result) == "ok\n"


@pytest.mark.parametrize("cmd", ["echo a\0b", "x" * 5_000_000])
def test_command_that_the_system_refuses_is_told(tmp_path: Path, cmd: str) -> None:
    with pytest.raises(ToolFailed, match="/bin/bash cannot be started in"):
        run(cmd, tmp_path)


def test_schema_names_what_a_call_may_say() -> None:
    tool: Tool = exec_command
    assert (tool.name, tool.parallel, tool.spec["type"], tool.spec["name"]) == (
        "exec_command",
        True,
        "function",
        "exec_command",
    )
    assert tool.spec["parameters"]["required"] == ["cmd"]
    ours = {"timeout_ms", "max_output_tokens", "sandbox_permissions", "justification"}
    assert set(tool.spec["parameters"]["properties"]) == {"cmd", "workdir", "tty", "yield_time_ms", "shell", *ours}


def test_package_gives_the_tool_under_its_name() -> None:
    from refold import tools

    assert (tools.exec_command, tools.write_stdin) == (exec_command, write_stdin)


# --- time-outs ------------------------------------------------------------------------------------------


def test_time_out_says_so_and_keeps_the_output(tmp_path: Path) -> None:
    result = run(f"echo before; sleep {NEVER}; echo after", tmp_path, timeout_ms=300)
    assert body(result) == "command timed out after 300 milliseconds\nbefore\n"
    assert (result.success, result.details["exit_code"], result.details["timed_out"]) == (False, 124, True)
    assert 0.3 <= result.details["duration"] < 5


@pytest.mark.parametrize(
    "script",
    [
        f"sleep {NEVER} & echo $! >> pids; (sleep {NEVER}; :) & echo $! >> pids",
        f"trap '' TERM; (sleep {NEVER}; sleep {NEVER}) & echo $! >> pids; sleep {NEVER} & echo $! >> pids",
        # In process groups of their own, as `timeout` makes them, and without the pipe.
        f"set -m; sleep {NEVER} & echo $! >> pids; sleep {NEVER} > /dev/null 2>&1 & echo $! >> pids",
    ],
    ids=["children", "deaf to SIGTERM", "other groups"],
)
def test_time_out_ends_every_process_of_the_command(tmp_path: Path, script: str) -> None:
    result = run(f"echo $$ >> pids; {script}; wait; sleep {NEVER}", tmp_path, timeout_ms=800)
    assert result.details["timed_out"]
    pids = pids_in(tmp_path / "pids", 3)
    assert not Path(f"/proc/{pids[0]}").exists()  # reaped, not only dead
    assert_all_end(pids)


def test_command_may_tidy_up_when_its_time_is_over(tmp_path: Path) -> None:
    result = run(f"trap 'echo tidied; exit 0' TERM; echo ready; sleep {NEVER} & wait", tmp_path, timeout_ms=800)
    assert body(result).endswith("ready\ntidied\n")
    assert result.details["exit_code"] == 124


# --- background processes ---------------------------------------------------------------------------------


def test_background_process_that_holds_the_output_does_not_hang_the_call(tmp_path: Path) -> None:
    result = run(f"sleep {NEVER} & echo $! > pids; echo done; exit 4", tmp_path)
    assert body(result) == f"{BACKGROUND_NOTE}done\n"
    assert (result.details["exit_code"], result.details["timed_out"]) == (4, False)
    assert result.details["duration"] < 5
    assert_all_end(pids_in(tmp_path / "pids", 1))


def test_background_process_that_talks_on_does_not_hang_the_call(tmp_path: Path) -> None:
    result = run("(while :; do echo more; sleep 0.05; done) & echo $! > pids", tmp_path)
    assert body(result).startswith(f"{BACKGROUND_NOTE}more\n")
    assert result.details["duration"] < 10
    assert_all_end(pids_in(tmp_path / "pids", 1))


def test_output_that_comes_just_after_the_shells_exit_is_read(tmp_path: Path) -> None:
    assert body(run("(sleep 0.05; echo late) & echo first", tmp_path)) == "first\nlate\n"


def test_background_process_with_its_own_output_lives_on(tmp_path: Path) -> None:
    result = run(f"sleep {NEVER} > log 2>&1 & echo $! > pids", tmp_path)
    (pid,) = pids_in(tmp_path / "pids", 1)
    try:
        assert is_alive(pid)
        assert body(result) == ""
    finally:
        os.kill(pid, signal.SIGKILL)


# --- cancellation -------------------------------------------------------------------------------------------


async def cancelled_when_started(cmd: str, cwd: Path, processes: int, times: int = 1) -> list[int]:
    """Cancel a call once its processes run; their ids."""
    task = asyncio.create_task(exec_command.run({"cmd": cmd}, context(cwd)))
    pids = await asyncio.to_thread(pids_in, cwd / "pids", processes)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task
    return pids


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "], ids=["", "deaf to SIGTERM"])
@pytest.mark.parametrize("times", [1, 2])
def test_cancelled_call_leaves_no_process(tmp_path: Path, trap: str, times: int) -> None:
    cmd = f"{trap}echo $$ >> pids; sleep {NEVER} & echo $! >> pids; (set -m; sleep {NEVER} & echo $! >> pids); wait"
    pids = asyncio.run(cancelled_when_started(cmd, tmp_path, 3, times))
    assert not Path(f"/proc/{pids[0]}").exists()
    assert_all_end(pids)


def test_call_cancelled_before_it_started_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(exec_command.run({"cmd": "echo $$ >> pids"}, context(tmp_path)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not (tmp_path / "pids").exists()


# --- resources ----------------------------------------------------------------------------------------------


def test_calls_leave_no_descriptors_and_no_children(tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        await exec_command.run({"cmd": "true"}, context(tmp_path))
        before = open_descriptors()
        for cmd, tty in itertools.product(("echo a", f"sleep {NEVER}", f"sleep {NEVER} & :"), (False, True)):
            await exec_command.run({"cmd": cmd, "timeout_ms": 200, "tty": tty}, context(tmp_path))
        return before, open_descriptors()

    before, after = asyncio.run(main())
    assert before == after


def test_two_calls_run_at_the_same_time(tmp_path: Path) -> None:
    async def main() -> list[ToolResult]:
        commands = ("mkfifo pipe; echo hello > pipe", "until [ -p pipe ]; do sleep 0.01; done; cat pipe")
        calls = (exec_command.run({"cmd": cmd, "timeout_ms": 10_000}, context(tmp_path)) for cmd in commands)
        return await asyncio.gather(*calls)

    assert [body(result) for result in asyncio.run(main())] == ["", "hello\n"]


@pytest.mark.parametrize("missing", [("pidfd_open",), ("pidfd_open", "waitid")], ids=["no pidfd", "no waitid either"])
def test_it_works_where_the_system_does_not_tell_of_an_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    for function in missing:
        monkeypatch.delattr(os, function)
    assert run("echo ok; exit 5", tmp_path).details["exit_code"] == 5
    assert run(f"sleep {NEVER}", tmp_path, timeout_ms=200).details["timed_out"]
    assert body(run(f"sleep {NEVER} & echo done", tmp_path)) == f"{BACKGROUND_NOTE}done\n"
    assert_all_end(asyncio.run(cancelled_when_started(f"echo $$ > pids; sleep {NEVER}", tmp_path, 1)))
