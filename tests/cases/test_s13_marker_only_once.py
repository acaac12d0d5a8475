"""S13: an output that the tool has cut is recorded, stored and sent as it is, with one marker and true totals."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import function_call_output, message
from refold.core.profile import Profile
from refold.core.prompt import prompt_from
from refold.core.thread import Thread
from refold.core.truncate import Budget, cut_middle, exec_output, format_cut, recording_budget
from refold.rollout import read_lines
from refold.session import Memory, Session
from refold.testing import ScriptedModel, call_reply
from refold.tools.collector import KEPT_BYTES, Collector
from refold.tools.commands import exec_command

CASE = Path(__file__).parent.parent / "data" / "cases" / "S13-marker-only-once"
LOG = (CASE / "log.txt").read_bytes().decode()
POLICY = Budget("tokens", 2_500)
PROFILE = Profile(slug="m", truncation=POLICY)
HEADER = "Warning: truncated output (original token count: 12462)\nTotal output lines: 999\n\n"
CALL = {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "c"}


def collected(*chunks: bytes) -> Collector:
    collector = Collector()
    for chunk in chunks:
        collector.feed(chunk)
    return collector


def from_a_command(*chunks: bytes) -> str:
    captured = collected(*chunks).captured()
    return exec_output(captured, POLICY, chunk_id="0a1b2c", wall_seconds=1.5, exit_code=0)


FORMATTED = (format_cut(LOG, POLICY), from_a_command(LOG.encode()))


def sent_after_loading(path: Path | None) -> list[Any]:
    assert path is not None
    items = prompt_from(Thread.replay(read_lines(path)).history, PROFILE, base_instructions=None).input
    return [item["output"] for item in items if "output" in item]


@pytest.mark.parametrize("text", FORMATTED)
def test_step_1_has_one_marker_and_a_header_of_the_original(text: str) -> None:
    _, header, body = text.partition(HEADER)
    assert header
    assert hashlib.sha256(body.encode()).hexdigest() == (
        "bd20702d4110142dacbe92912290a882b56647fc32f6b48bcfd73a91df64e352"
    )
    head, tail = body.split("…9962 tokens truncated…")
    assert LOG.startswith(head)
    assert LOG.endswith(tail)
    assert (LOG.count("\n"), len(LOG.encode())) == (999, 49_847)


@pytest.mark.parametrize("text", FORMATTED)
def test_step_2_changes_nothing(text: str) -> None:
    allowed = recording_budget(POLICY)
    assert allowed.bytes == 12_000
    assert cut_middle(text, allowed) == text
    assert text.count("tokens truncated") == 1


@pytest.mark.parametrize("text", FORMATTED)
def test_history_rollout_and_prompt_hold_the_text_of_step_1(text: str, tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add([message("user", ["Run the tests."]), CALL, function_call_output("c", text)])
        assert memory.thread.history[-1].item["output"] == text
        assert [item["output"] for item in memory.prompt().input if "output" in item] == [text]
    assert sent_after_loading(memory.path) == [text]
    with Memory.open(tmp_path, model=PROFILE) as again:
        assert again.id == memory.id
        assert [item["output"] for item in again.prompt().input if "output" in item] == [text]


@pytest.mark.skipif(not Path("/bin/cat").exists(), reason="needs a shell")
def test_the_command_itself_run_by_a_session_gives_one_marker(tmp_path: Path) -> None:
    call = call_reply("exec_command", {"cmd": f"cat '{CASE / 'log.txt'}'"})
    model = ScriptedModel([call, "Done."], profile=PROFILE)

    async def play() -> Path | None:
        async with Session.start(model=model, tools=[exec_command], cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("Run the tests.")
            return session.path

    path = asyncio.run(play())
    (sent,) = [item["output"] for item in model.requests[-1]["input"] if "output" in item]
    assert sent.endswith(FORMATTED[0])
    assert sent.count("tokens truncated") == 1
    assert sent_after_loading(path) == [sent]


@pytest.mark.parametrize("times", [22, 400])
def test_what_the_collector_lost_is_in_the_totals_and_stated(times: int) -> None:
    raw = LOG.encode()
    lost = times * len(raw) - KEPT_BYTES
    output = from_a_command(*[raw] * times)
    total = -(-times * len(raw) // 4)
    assert f"\nOriginal token count: {total}\n" in output
    assert f"original token count: {total})\n... {lost} bytes omitted ...\n\n" in output
    assert "Total output lines" not in output  # of the two forms of the header, the real program's for this case
    assert len(re.findall("tokens truncated", output)) == 1
    assert cut_middle(output, recording_budget(POLICY)) == output


def test_a_loss_is_stated_even_where_the_kept_bytes_fit() -> None:
    raw = LOG.encode() * 22
    captured = collected(raw).captured()
    lost = len(raw) - KEPT_BYTES
    policy = Budget("tokens", 1_000_000)
    output = exec_output(captured, policy, chunk_id="0", wall_seconds=0, exit_code=0, max_output_tokens=1_000_000)
    assert output.count(f"\n... {lost} bytes omitted ...\n") == 1
    assert "truncated" not in output
