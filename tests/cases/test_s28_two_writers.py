"""S28: one session has one writer; what two wrote at once is read whole and told of."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import refold
from refold import Memory, Session
from refold.core.pairing import for_prompt
from refold.core.records import ItemRecorded
from refold.errors import RolloutLocked
from refold.model.scripted import ScriptedModel
from refold.rollout import read_lines
from refold.rollout.examination import examine
from refold.session.memory import read_thread
from refold.testing import text_reply

CASE = Path(__file__).parent.parent / "data" / "cases" / "S28-two-writers" / "interleaved.jsonl"
SOURCE = str(Path(refold.__file__).parents[1])
WRITER = """
import sys
from refold import Memory
with Memory.open(sys.argv[1], model="gpt-5.5") as memory:
    memory.add({"role": "user", "content": "from the first window"})
    print(memory.path, flush=True)
    sys.stdin.readline()
"""
UNLOCKED = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
from refold.core.items import message
from refold.core.lines import encode
from refold.core.records import ItemRecorded
sys.stdin.readline()
for number in range(200):
    record = ItemRecorded(message("user", [f"{sys.argv[2]} {number} " + "x" * 3_000]))
    os.write(fd, encode(record, thread_id="T", turn_id=None, timestamp="", ordinal=None)[0])
"""


def started(program: str, *words: object) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)], text=True, env={"PYTHONPATH": SOURCE}, **pipes
    )


def first_writer(home: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a session open, and the session's file."""
    process = started(WRITER, home)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    process, path = first_writer(tmp_path)
    try:
        before = path.read_bytes()
        with pytest.raises(RolloutLocked, match=f"is being written by process {process.pid}") as refused:
            Memory.open(path, model="gpt-5.5")
        assert refused.value.owner == process.pid
        assert path.read_bytes() == before
        assert len(read_thread(path).history) == 1, "reading goes on"
        assert examine(path).findings == ()
    finally:
        process.communicate("\n", timeout=30)
    with Memory.open(path, model="gpt-5.5") as memory:
        memory.add({"role": "user", "content": "and the second"})


def test_the_lock_of_a_writer_that_was_killed_blocks_nobody(tmp_path: Path) -> None:
    process, path = first_writer(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    with Memory.open(path, model="gpt-5.5") as memory:
        memory.add({"role": "user", "content": "and the second"})
    assert len(read_thread(path).history) == 2
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no lock file is left"


def test_both_windows_can_go_on_beside_each_other(tmp_path: Path) -> None:
    process, path = first_writer(tmp_path)

    async def beside() -> str:
        model = ScriptedModel([text_reply("fine")])
        async with Session.fork(path, model=model, home=tmp_path, cwd=tmp_path) as session:
            await session.send("beside it")
            return session.id

    try:
        before = path.read_bytes()
        other = asyncio.run(beside())
        assert path.read_bytes() == before and other not in path.name
    finally:
        process.communicate("\n", timeout=30)


def test_without_locks_no_line_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(b"")
    writers = [started(UNLOCKED, path, name) for name in ("A", "B")]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert len(lines) == 800, "each message has its mirror"
    items = [one.record.item for one in read_lines(path) if isinstance(one.record, ItemRecorded)]
    said = [item["content"][0]["text"].split()[:2] for item in items]
    for name in ("A", "B"):
        assert [int(number) for writer, number in said if writer == name] == list(range(200))


def test_what_two_wrote_is_read_in_the_order_of_the_file_and_paired() -> None:
    history = read_thread(CASE).history
    assert len(history) == 9
    kinds = [e.item.get("call_id") or e.item.get("role") for e in history]
    assert kinds == ["user", "user", "user", "call_a", "call_b", "call_b", "call_a", "assistant", "assistant"]
    sent = [e.item for e in for_prompt(history, ("text",))]
    assert {item["call_id"]: item["output"] for item in sent if "output" in item} == {
        "call_a": "a ok",
        "call_b": "b ok",
    }


def test_turns_that_lie_across_each_other_are_told() -> None:
    [overlap] = [one for one in examine(CASE).findings if one.is_damage]
    assert (overlap.kind, overlap.detail) == ("turns_overlap", "A-2 goes on after B-2 began")
    assert overlap.places[0].line == 15 and "two programs wrote this file" in overlap.about.effect
