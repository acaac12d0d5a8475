"""Commands that mean no good: each ends in a documented result (docs/tools.md), in constant memory, with nothing left
behind when the session ends."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from refold.tools import ToolContext, ToolResult
from refold.tools.commands import exec_command, write_stdin
from refold.tools.processes import Processes, kill_marked
from refold.views.shown import clean

NEVER = 60  # seconds that no test waits
MEMORY = 16_000_000  # bytes that no command may cost, whatever it says


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


Call = Callable[..., Coroutine[Any, Any, ToolResult]]


def in_session(cwd: Path, work: Callable[[Call, Call], Coroutine[Any, Any, Any]]) -> Any:
    """Let `work` call exec_command and write_stdin; then the session ends, and nothing that it started is left."""
    processes = Processes()

    def calling(tool: Any) -> Call:
        async def call(**arguments: Any) -> ToolResult:
            return await tool.run(arguments, ToolContext(call_id="c", cwd=str(cwd), processes=processes))

        return call

    async def main() -> Any:
        before = open_descriptors()
        try:
            return await work(calling(exec_command), calling(write_stdin))
        finally:
            began = time.monotonic()
            await processes.close()
            assert time.monotonic() - began < 5
            while (left := started_by(processes.mark)) and time.monotonic() - began < 5:
                await asyncio.sleep(0.01)  # what was killed may still be dying
            assert left == []
            assert open_descriptors() == before

    return asyncio.run(main())


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def started_by(mark: str) -> list[str]:
    """The processes that carry the session's mark, dead ones that nobody reaped included."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark and mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    mine = f" {os.getpid()} "
    zombies = [
        stat.parent.name
        for stat in Path("/proc").glob("[0-9]*/stat")
        if mine in (text := text_of(stat)).partition(")")[2][:30] and ") Z" in text
    ]
    return found + zombies


def is_alive(pid: str) -> bool:
    """Whether a process still runs; one that is dead and waits for the system's first process does not."""
    return ") Z" not in (text_of(Path("/proc", pid, "stat")) or ") Z")


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def single(cwd: Path, cmd: str, **arguments: Any) -> ToolResult:
    async def work(call: Call, _: Call) -> ToolResult:
        return await call(cmd=cmd, **arguments)

    return in_session(cwd, work)


def body(result: ToolResult) -> str:
    return str(result.output).partition("Output:\n")[2]


@pytest.mark.parametrize("where", ["", " >&2"], ids=["stdout", "stderr"])
def test_ten_gigabytes_are_read_to_their_end_in_constant_memory(tmp_path: Path, where: str) -> None:
    size = 10_000_000_000 if not where else 1_000_000_000
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = single(tmp_path, f"head -c {size} /dev/zero{where}; exit 3", yield_time_ms=200_000)
    assert result.details["exit_code"] == 3
    assert f"... {size - 1_048_576} bytes omitted ..." in body(result)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) * 1024 < 4 * MEMORY  # of the whole process


def test_endless_output_ends_with_the_time_limit(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        result = single(tmp_path, "yes", timeout_ms=400)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.details["timed_out"]
    assert body(result).startswith("command timed out after 400 milliseconds\n")
    assert peak < MEMORY


def test_endless_output_that_nobody_waits_for_ends_with_the_session(tmp_path: Path) -> None:
    async def work(call: Call, go_on: Call) -> None:
        number = (await call(cmd="yes", yield_time_ms=250)).details["session_id"]
        more = await go_on(session_id=number, yield_time_ms=250)
        assert more.details["session_id"] == number
        assert len(str(more.output)) < 60_000

    in_session(tmp_path, work)


DAEMONS = {
    "nohup": f"nohup sleep {NEVER} >/dev/null 2>&1 & echo $! > pid",
    "setsid": f"setsid sh -c 'echo $$ > pid; exec sleep {NEVER}' >/dev/null 2>&1 </dev/null &",
    "double fork": "(setsid sh -c 'sh ./daemon >/dev/null 2>&1 &' &) >/dev/null 2>&1",
    "deaf": "setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > pid; while :; do sleep 1; done' >/dev/null 2>&1 &",
}


@pytest.mark.parametrize("cmd", DAEMONS.values(), ids=DAEMONS)
def test_daemon_does_not_hold_the_call_and_ends_with_the_session(tmp_path: Path, cmd: str) -> None:
    (tmp_path / "daemon").write_text(f"echo $$ > pid; exec sleep {NEVER}")

    async def work(call: Call, _: Call) -> ToolResult:
        result = await call(cmd=f"{cmd}\nuntil [ -s pid ]; do sleep 0.01; done; echo done")
        assert is_alive((tmp_path / "pid").read_text().strip())
        return result

    result = in_session(tmp_path, work)
    assert (result.details["exit_code"], body(result)) == (0, "done\n")
    assert not is_alive((tmp_path / "pid").read_text().strip())


def test_process_that_was_just_becoming_another_program_is_found(tmp_path: Path) -> None:
    """Between two programs a process shows no environment: it is looked at again."""

    async def main() -> int:
        daemon = await asyncio.create_subprocess_exec("sleep", str(NEVER))
        shown = tmp_path / str(daemon.pid)
        shown.mkdir()
        (shown / "environ").write_bytes(b"")
        (shown / "stat").write_bytes(b"7 (sh) R 1 7 7")
        asyncio.get_running_loop().call_later(0.05, (shown / "environ").write_bytes, b"A=1\0M=2\0")
        killing = asyncio.create_task(kill_marked(b"M=2", tmp_path))
        code = await daemon.wait()
        (shown / "environ").unlink()
        await killing
        return code

    assert asyncio.run(main()) == -signal.SIGKILL


def test_daemon_that_holds_the_output_is_cut_off(tmp_path: Path) -> None:
    result = single(tmp_path, f"setsid sleep {NEVER} & echo done")
    assert "a background process still held the output" in body(result)
    assert result.details["duration"] < 5


@pytest.mark.parametrize("tty", [False, True])
def test_command_deaf_to_every_polite_signal_is_killed(tmp_path: Path, tty: bool) -> None:
    cmd = "trap '' TERM INT HUP QUIT; echo $$; while :; do sleep 0.05; done"
    result = single(tmp_path, cmd, timeout_ms=400, tty=tty)
    assert (result.details["exit_code"], result.details["timed_out"]) == (124, True)
    assert result.details["duration"] < 5


@pytest.mark.parametrize("tty", [False, True])
def test_command_that_stopped_itself_is_killed(tmp_path: Path, tty: bool) -> None:
    result = single(tmp_path, "kill -STOP $$", timeout_ms=400, tty=tty)
    assert (result.details["exit_code"], result.details["timed_out"]) == (124, True)


@pytest.mark.parametrize("tty", [False, True])
def test_command_that_closes_everything_it_got_ends_when_it_ends(tmp_path: Path, tty: bool) -> None:
    result = single(tmp_path, "echo said; exec <&- >&- 2>&-; sleep 0.3; exit 6", tty=tty)
    assert (result.details["exit_code"], body(result).strip()) == (6, "said")
    assert result.details["duration"] >= 0.3


def test_input_is_empty_not_missing(tmp_path: Path) -> None:
    assert body(single(tmp_path, "cat | wc -c; read line || echo ended")).split() == ["0", "ended"]


def test_binary_and_half_characters_become_text(tmp_path: Path) -> None:
    result = single(tmp_path, r"head -c 200000 /dev/urandom; printf '\xe6\x97'; printf 'a\0b'")
    assert str(result.output).encode().decode() == result.output
    assert body(result).endswith("a\0b")


def test_terminal_escapes_reach_the_model_as_they_are_and_a_person_as_nothing_that_acts(tmp_path: Path) -> None:
    result = single(tmp_path, r"printf '\033[2J\033]0;title\007\033[31mred\033[0m\rover\n'")
    assert body(result) == "\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m\rover\n"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean(body(result)))


def test_program_that_needs_a_terminal_gets_one(tmp_path: Path) -> None:
    needs = "test -t 0 && test -t 1 && test -t 2 && echo terminal > /dev/tty"
    assert single(tmp_path, needs).details["exit_code"] == 1
    assert body(single(tmp_path, needs, tty=True)) == "terminal\r\n"


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 15])
@pytest.mark.parametrize("tty", [False, True])
def test_death_by_a_signal_is_128_and_its_number(tmp_path: Path, number: int, tty: bool) -> None:
    assert single(tmp_path, f"ulimit -c 0; kill -{number} $$", tty=tty).details["exit_code"] == 128 + number


def test_command_that_outlives_its_yield_time_ends_with_the_session(tmp_path: Path) -> None:
    result = single(tmp_path, f"trap '' TERM; sleep {NEVER} & sleep {NEVER}", yield_time_ms=250)
    assert result.details["session_id"] is not None
    assert "Process running with session ID" in str(result.output)


def test_a_thousand_children_end_with_their_parent(tmp_path: Path) -> None:
    result = single(tmp_path, f"for i in $(seq 300); do sleep {NEVER} & done; wait", timeout_ms=1_500)
    assert result.details["timed_out"]
