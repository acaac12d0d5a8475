"""S31: response.incomplete is an end, not a broken line (checks 1 to 5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.records import CompactionAttempted, UsageCounted
from refold.core.thread import same_state
from refold.errors import ResponseIncomplete
from refold.model import ResponsesModel
from refold.rollout import read_lines
from refold.session import Session
from refold.session.events import CompactionEnded, Event, ToolStarted, Waiting
from refold.session.memory import read_thread
from refold.tools.functions import tool

CASE = Path(__file__).parent.parent / "data" / "cases" / "S31-incomplete-response"
FILES = {
    "max_tokens_text.sse": "max_output_tokens",
    "max_tokens_call.sse": "max_output_tokens",
    "filter.sse": "content_filter",
}
USED = 1_512  # tokens, in each of the files
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ANSWER = b"""\
data: {"type":"response.output_item.done","item":{"type":"message","role":"assistant","content":[\
{"type":"output_text","text":"fine"}]}}

data: {"type":"response.completed","response":{"id":"resp_2","usage":{"input_tokens":5,"output_tokens":2,\
"total_tokens":7}}}

"""
each_file = pytest.mark.parametrize(("file", "reason"), FILES.items())
executed: list[str] = []


@tool
def exec_command(cmd: str) -> str:
    """What the cut call would have run."""
    executed.append(cmd)
    return "ran"


@asynccontextmanager
async def talking(folder: Path, answers: Sequence[bytes]) -> AsyncIterator[tuple[Session, list[bytes]]]:
    """A session with a provider that answers with these streams, and what it was asked."""
    asked: list[bytes] = []
    executed.clear()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        asked.append(await reader.readexactly(length))
        writer.write(HEAD + answers[len(asked) - 1])  # nobody asks again: there would be no answer
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        model = ResponsesModel(Profile(slug="m"), Provider(id="x", name="x", base_url=url, env_key=None))
        options = {"model": model, "tools": [exec_command], "cwd": folder, "home": folder / "home"}
        async with asyncio.timeout(10), Session.start(**options) as session:
            yield session, asked


async def hear(session: Session, text: str) -> list[Event]:
    """The events of a turn that must end as incomplete."""
    events: list[Event] = []
    with pytest.raises(ResponseIncomplete):
        async for event in session.send(text):
            events.append(event)
    return events


@each_file
def test_it_is_asked_once_and_ends_with_its_reason(file: str, reason: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with talking(tmp_path, [(CASE / file).read_bytes(), ANSWER]) as (session, asked):
            with pytest.raises(ResponseIncomplete, match=reason) as raised:
                await session.send("go")
            assert raised.value.reason == reason
            assert len(asked) == 1
            assert (await session.send("and now?")).text == "fine"

    asyncio.run(go())


@each_file
def test_its_usage_is_recorded_once(file: str, reason: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with talking(tmp_path, [(CASE / file).read_bytes()]) as (session, _):
            events = await hear(session, "go")
            assert not [event for event in events if isinstance(event, Waiting)]
            assert session.path is not None
            records = [line.record for line in read_lines(session.path)]
            counted = [record.last.total_tokens for record in records if isinstance(record, UsageCounted)]
            assert counted == [USED]
            assert read_thread(session.path).total_usage.total_tokens == USED

    asyncio.run(go())


def test_what_was_finished_is_in_history_and_rollout(tmp_path: Path) -> None:
    async def go() -> None:
        async with talking(tmp_path, [(CASE / "max_tokens_text.sse").read_bytes(), ANSWER]) as (session, asked):
            await hear(session, "go")
            assert session.path is not None
            for thread in (session.memory.thread, read_thread(session.path)):
                assert message_text(thread.history[-1].item) == "Part one of the answer"
            await session.send("and now?")
            assert asked[1].count(b"Part one of the answer") == 1

    asyncio.run(go())


def test_a_call_that_was_never_finished_is_nowhere_and_is_not_run(tmp_path: Path) -> None:
    async def go() -> None:
        async with talking(tmp_path, [(CASE / "max_tokens_call.sse").read_bytes(), ANSWER]) as (session, asked):
            events = await hear(session, "go")
            assert not [event for event in events if isinstance(event, ToolStarted)]
            assert executed == []
            assert session.path is not None
            assert b"call_half" not in session.path.read_bytes()
            assert not [entry for entry in session.memory.thread.history if "call_id" in entry.item]
            await session.send("and now?")
            assert b"call_half" not in asked[1]

    asyncio.run(go())


@each_file
def test_as_a_summary_it_is_a_failed_compaction_and_nothing_is_installed(
    file: str, reason: str, tmp_path: Path
) -> None:
    async def go() -> None:
        async with talking(tmp_path, [ANSWER, (CASE / file).read_bytes(), ANSWER]) as (session, asked):
            await session.send("first")
            before = list(session.memory.thread.history)
            listener = session.memory.feed.listen()
            with pytest.raises(ResponseIncomplete, match=reason):
                await session.compact()
            assert len(asked) == 2
            told = [listener.get_nowait() for _ in range(listener.qsize())]
            [ended] = [event for event in told if isinstance(event, CompactionEnded)]
            assert not ended.installed
            assert reason in str(ended.error)
            [attempt] = [event for event in told if isinstance(event, CompactionAttempted)]
            assert attempt.usage is not None
            assert attempt.usage.total_tokens == USED
            assert session.memory.thread.history == before
            assert session.memory.thread.window.number == 0
            assert session.memory.thread.total_usage.total_tokens == 7 + USED
            assert session.path is not None
            assert same_state(read_thread(session.path), session.memory.thread)
            assert (await session.send("second")).text == "fine"

    asyncio.run(go())
