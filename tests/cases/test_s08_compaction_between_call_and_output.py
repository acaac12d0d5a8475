"""S08: a compaction waits for every call that was begun, and leaves no half of a pair behind (checks 1 to 5)."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refold.core.items import is_call, is_output
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, ItemRecorded
from refold.core.thread import Thread
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout import read_lines
from refold.session import Session
from refold.session.events import ToolEnded
from refold.session.memory import read_thread
from refold.testing import text_reply, usage
from refold.tools.functions import tool

CASE = Path(__file__).parent.parent / "data" / "cases" / "S08-compaction-between-call-and-output"
EVENTS: list[dict[str, Any]] = [json.loads(line) for line in (CASE / "events.jsonl").read_text("utf-8").splitlines()]
ITEMS = [event["item"] for event in EVENTS if "item" in event]
SAID = ITEMS[0]["content"][0]["text"]
CALLS = tuple(item for item in ITEMS if is_call(item))
OUTPUTS = {json.loads(call["arguments"])["cmd"]: out["output"] for call, out in zip(CALLS, ITEMS[3:], strict=True)}
TOLD = next(event for event in EVENTS if "usage" in event)
PROFILE = Profile(slug="m", context_window=TOLD["model_context_window"])
PROVIDER = Provider(name="p", base_url="http://127.0.0.1:1", env_key=None)


def model() -> ScriptedModel:
    over = usage(TOLD["usage"]["input_tokens"], TOLD["usage"]["output_tokens"])
    assert over.total_tokens == TOLD["usage"]["total_tokens"] >= (PROFILE.compact_limit or 0)
    replies = [Reply(items=CALLS, usage=over), text_reply("SUMMARY"), text_reply("Both are green.")]
    return ScriptedModel(replies, profile=PROFILE, provider=PROVIDER)


class Bench:
    """A session whose second command ends when it is let go. Mutable: it remembers what ended."""

    def __init__(self, folder: Path, answering: ScriptedModel) -> None:
        self.let_go = asyncio.Event()
        self.ended: list[str] = []

        @tool
        async def exec_command(cmd: str) -> str:
            """Runs a check."""
            if cmd.startswith("pytest"):
                await self.let_go.wait()
            self.ended.append(cmd)
            return OUTPUTS[cmd]

        place = {"cwd": folder, "home": folder / "home"}
        self.session = Session.start(model=answering, tools=[exec_command], **place)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


def played(folder: Path, answering: ScriptedModel) -> tuple[Session, list[Thread]]:
    """A whole turn; the requests that were out when only the first output was there are one."""

    async def go() -> tuple[Session, list[Thread]]:
        bench = Bench(folder, answering)
        async with bench.session as session:
            turn = session.send(SAID)
            await until(lambda: len(bench.ended) == 1)
            await asyncio.sleep(0.05)
            assert len(answering.requests) == 1, "nothing is asked before the second output is there"
            bench.let_go.set()
            assert (await turn).text == "Both are green."
            return session, [session.memory.thread, read_thread(session.path)]  # type: ignore[arg-type]

    return asyncio.run(go())


def test_the_compaction_waits_for_the_second_output(tmp_path: Path) -> None:
    answering = model()
    played(tmp_path, answering)
    kinds = [request["client_metadata"]["x-codex-turn-metadata"] for request in answering.requests]
    assert ['"request_kind":"compaction"' in kind for kind in kinds] == [False, True, False]


def test_what_is_summed_up_holds_both_calls_and_both_outputs_each_behind_its_call(tmp_path: Path) -> None:
    answering = model()
    played(tmp_path, answering)
    asked = answering.requests[1]["input"]
    calls = [item["call_id"] for item in asked if is_call(item)]
    assert calls == ["call_p1", "call_p2"]
    for call_id, output in zip(calls, OUTPUTS.values(), strict=True):
        places = [index for index, item in enumerate(asked) if item.get("call_id") == call_id]
        assert [is_call(asked[index]) for index in places] == [True, False]
        assert asked[places[1]]["output"] == output


def test_the_next_request_holds_neither_and_no_orphan_comes_later(tmp_path: Path) -> None:
    answering = model()
    _, threads = played(tmp_path, answering)
    after = answering.requests[2]["input"]
    assert not any(is_call(item) or is_output(item) for item in after)
    for thread in threads:
        assert not any(is_call(e.item) or is_output(e.item) for e in thread.history)


def test_an_interrupt_between_the_outputs_keeps_the_real_one(tmp_path: Path) -> None:
    async def go() -> Session:
        bench = Bench(tmp_path, model())
        async with bench.session as session:
            events = session.send(SAID)
            async for event in events:
                if isinstance(event, ToolEnded):
                    session.interrupt()
                    break
            assert (await events).outcome == "interrupted"
            return session

    session = asyncio.run(go())
    seen = {item["call_id"]: item["output"] for item in session.memory.prompt().input if is_output(item)}
    assert seen["call_p1"] == "All checks passed!"
    assert re.fullmatch(r"Wall time: \d\.\d{4} seconds\naborted by user", seen["call_p2"])
    expected = ["call_p1", "call_p2", "call_p1", "call_p2"]
    assert in_order(session.memory.thread) == in_order(read_thread(session.path)) == expected  # type: ignore[arg-type]


def test_the_order_is_the_same_in_memory_in_the_log_and_after_a_resume(tmp_path: Path) -> None:
    answering = model()
    session, _ = played(tmp_path, answering)
    expected = ["call_p1", "call_p2", "call_p1", "call_p2"]
    in_request = [item["call_id"] for item in answering.requests[1]["input"] if "call_id" in item]
    assert session.path is not None
    logged = [line.record.item for line in read_lines(session.path) if isinstance(line.record, ItemRecorded)]
    in_log = [item["call_id"] for item in logged if "call_id" in item]
    assert in_request == in_log == expected
    before = itertools.takewhile(lambda line: not isinstance(line.record, Compacted), read_lines(session.path))
    assert in_order(Thread.replay(before)) == expected


def in_order(thread: Thread) -> list[str]:
    return [e.item["call_id"] for e in thread.history if "call_id" in e.item]
