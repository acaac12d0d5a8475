"""Many sessions at once in one process: every log is whole, and nothing is left open (bench/crowd.py measures more)."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from refold.core.profile import Profile
from refold.core.records import ItemRecorded, RequestSent, TurnEnded, TurnStarted, UsageCounted
from refold.core.thread import same_state
from refold.model import ResponsesModel
from refold.rollout import read_lines
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage
from refold.tools import ToolContext
from refold.tools.functions import tool

SESSIONS, TURNS = 50, 3
PATIENCE = 60  # seconds that nothing here needs
OPEN_FILES = Path("/proc/self/fd" if os.uname().sysname == "Linux" else "/dev/fd")


def answer(request: LoggedRequest) -> Reply:
    """A call to what a person said, and to the call's output the thread that it came from."""
    if request.input[-1]["type"] == "function_call_output":
        return text_reply(request.json["client_metadata"]["thread_id"], usage=usage(120, 10))
    return call_reply("count", {}, usage=usage(100, 10))


def descriptors() -> int:
    gc.collect()
    return len(os.listdir(OPEN_FILES))  # noqa: PTH208 (Path would leave one open)


@pytest.mark.parametrize("way", ["http", "websocket"])
@pytest.mark.parametrize("shared", [False, True], ids=["models of their own", "one model"])
def test_fifty_sessions_at_once_lose_no_record_and_leave_nothing_open(shared: bool, way: str, tmp_path: Path) -> None:
    ran: Counter[str] = Counter()

    @tool
    async def count(context: ToolContext) -> str:
        """Counts its calls."""
        ran[context.call_id] += 1
        await asyncio.sleep(0)
        return "counted"

    async def talk(session: Session) -> None:
        for number in range(TURNS):
            result = await session.send(f"turn {number}")
            assert (result.outcome, result.text) == ("completed", session.id), "not another's answer"

    async def go(server: ResponsesServer) -> list[Session]:
        provider = server.provider(supports_websockets=way == "websocket")
        one = ResponsesModel(Profile(slug="m"), provider)
        sessions: list[Session] = []
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            for _ in range(SESSIONS):
                model = one if shared else ResponsesModel(Profile(slug="m"), provider)
                session = Session.start(model=model, tools=[count], cwd=tmp_path, home=tmp_path / "home")
                sessions.append(await stack.enter_async_context(session))
            await asyncio.gather(*map(talk, sessions))
        return sessions

    def visit() -> list[Session]:
        with ResponsesServer(answer, log=False) as server:
            return asyncio.run(go(server))

    before = descriptors()
    sessions = visit()
    assert descriptors() <= before
    assert len(ran) == sum(ran.values()) == SESSIONS * TURNS, "each call ran once"
    assert len({session.path for session in sessions}) == SESSIONS
    for session in sessions:
        assert session.path is not None
        records = [line.record for line in read_lines(session.path)]
        counted = Counter(type(record) for record in records)
        assert counted[ItemRecorded] == 2 + 4 * TURNS, "rules and environment; said, call, output, answer"
        assert counted[RequestSent] == counted[UsageCounted] == 2 * TURNS
        assert counted[TurnStarted] == counted[TurnEnded] == TURNS
        assert all(record.outcome == "completed" for record in records if isinstance(record, TurnEnded))
        assert same_state(read_thread(session.path), session.memory.thread)
