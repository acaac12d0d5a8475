"""Endpoint: a provider that compacts at `/responses/compact`, beside what case S07 asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.items import message_text, user_message
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted
from refold.core.usage import Usage
from refold.core.wire import Request
from refold.errors import CompactionFailed, RefoldError
from refold.model import HasCompactEndpoint, ModelEvent, ResponsesModel
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import Notice
from refold.session.session import Session
from refold.testing import ResponsesServer, text_reply, usage
from refold.views.sent import sent

COMPACTION = {"type": "compaction", "encrypted_content": "Zm9v" * 40}
FULL = text_reply("one", usage=usage(95_000, 10))
PROFILE = Profile(slug="m", context_window=100_000)


class OwnModel:
    """A Model of somebody's own, which knows `sample` only."""

    def __init__(self, *replies: Any) -> None:
        self.inner = scripted(*replies)
        self.profile, self.provider = self.inner.profile, self.inner.provider

    def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        return self.inner.sample(request)

    def join(self) -> None:
        pass

    async def close(self) -> None:
        pass


def scripted(*replies: Any, profile: Profile = PROFILE, **more: Any) -> ScriptedModel:
    provider = Provider(
        id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, **{"compaction": "endpoint", **more}
    )
    return ScriptedModel(list(replies), profile=profile, provider=provider)


def played(answering: Any, folder: Path, *texts: str, **settings: Any) -> tuple[Session, list[Any]]:
    async def go() -> tuple[Session, list[Any]]:
        events: list[Any] = []
        config = parse_config(settings, "test")
        options: dict[str, Any] = {"home": folder / "home", "clock": Clock(), "instructions": "BASE", "config": config}
        async with asyncio.timeout(20), Session.start(model=answering, cwd=folder, **options) as session:
            for text in texts:
                try:
                    async for event in session.send(text):
                        events.append(event)
                except RefoldError as error:
                    events.append(error)
            return session, events

    return asyncio.run(go())


def checkpoints(session: Session) -> list[Compacted]:
    assert session.path is not None
    return [line.record for line in read_lines(session.path) if isinstance(line.record, Compacted)]


def test_a_model_without_the_ability_is_asked_for_a_summary_and_that_is_said(tmp_path: Path) -> None:
    answering = OwnModel(FULL, text_reply("SUMMARY"), text_reply("two"))
    assert not isinstance(answering, HasCompactEndpoint) and isinstance(answering.inner, HasCompactEndpoint)
    session, events = played(answering, tmp_path, "first", "second")
    assert [one.facts["method"] for one in checkpoints(session)] == ["local"]
    assert [one for one in events if isinstance(one, Notice) and "OwnModel cannot ask there" in one.text]

    session, events = played(OwnModel(FULL), tmp_path, "first", "second", compaction={"fallback": False})
    assert isinstance(events[-1], CompactionFailed) and "give it a method `compact`" in str(events[-1])
    assert checkpoints(session) == []


@pytest.mark.parametrize(
    "reply",
    [
        Reply(items=()),
        Reply(items=(user_message("first"),)),
        Reply(body=["no object"]),
        Reply(body={"output": [1]}),
        Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}}),
        Reply(fail={"code": "invalid_prompt", "message": "not like this"}),
    ],
    ids=["nothing", "only what was said", "a list", "no items", "too long", "error in a document"],
)
def test_what_cannot_take_the_place_is_no_compaction(reply: Reply, tmp_path: Path) -> None:
    session, events = played(scripted(FULL, reply, text_reply("SUMMARY"), text_reply("two")), tmp_path, "first", "2nd")
    assert [one.facts["method"] for one in checkpoints(session)] == ["local"]
    assert [one for one in events if isinstance(one, Notice) and "asked for a summary instead" in one.text]


def test_trigger_that_is_not_implemented_is_not_sent_again(tmp_path: Path) -> None:
    missing = Reply(status=501, body={"error": {"message": "not implemented"}})
    answering = scripted(FULL, missing, text_reply("SUMMARY"), text_reply("two"), compaction="remote")
    session, _ = played(answering, tmp_path, "first", "second")
    assert [one.facts["method"] for one in checkpoints(session)] == ["local"]
    assert len(answering.requests) == 4


def test_outputs_that_do_not_fit_are_left_out_and_the_request_can_be_made_again(tmp_path: Path) -> None:
    call = {"type": "function_call", "name": "nope", "arguments": "{}", "call_id": "c"}
    output = {"type": "function_call_output", "call_id": "c", "output": "x" * 400_000}
    small = Profile(slug="m", context_window=2_500)
    answering = scripted(Reply(items=(COMPACTION,)), text_reply("on"), profile=small)

    async def go() -> Session:
        async with Session.start(model=answering, cwd=tmp_path, home=tmp_path / "home", instructions="BASE") as session:
            session.memory.add([{"type": "message", "role": "user", "content": "go"}, call, output])
            used = Usage(input_tokens=96_000, output_tokens=10, total_tokens=96_010)
            session.memory.record(session.memory.usage(used))
            await session.compact()
            return session

    session = asyncio.run(go())
    assert answering.requests[0]["input"][-1]["output"].startswith("Output exceeded")
    assert session.path is not None
    assert [one.is_same for one in sent(read_lines(session.path))] == [True]


def test_what_was_typed_comes_back_as_the_log_has_it_and_tools_do_not(tmp_path: Path) -> None:
    looks_injected = "<environment_context>what is this tag?</environment_context>"
    said = {**user_message(looks_injected), "id": "other_1", "status": "completed"}
    tools = (
        {"type": "function_call", "name": "x", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "y"},
        {"type": "reasoning", "summary": [], "encrypted_content": "eA=="},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "old rules"}]},
        user_message("<environment_context>old</environment_context>"),
        {"type": "something_new", "text": "?"},
    )
    answering = scripted(FULL, Reply(items=(said, *tools, COMPACTION)), text_reply("two"))
    session, _ = played(answering, tmp_path, looks_injected, "second")
    history = session.memory.thread.history
    (typed,) = [e for e in history if message_text(e.item) == looks_injected]
    assert typed.origin == "typed" and "status" not in typed.item
    assert typed.address == f"{session.id}:{typed.address.rpartition(':')[2]}" and typed.item["id"].startswith("msg_")
    kinds = [str(e.item.get("role") or e.item["type"]) for e in history]
    assert kinds == ["developer", "user", "user", "compaction", "user", "assistant"]
    assert "old rules" not in json.dumps([e.item for e in history])
    assert next(e for e in history if e.item["type"] == "compaction").item["id"].startswith("cmp_")


def test_a_key_that_stands_in_the_answer_by_chance_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of local servers are words such as `test`."""
    monkeypatch.setenv("TEST_KEY", "test")
    compacted = Reply(body={"output": [user_message("Fix the failing test"), COMPACTION]})

    async def go() -> str:
        with ResponsesServer([text_reply("one"), compacted]) as server:
            provider = server.provider(compaction="endpoint", env_key="TEST_KEY")
            async with Session.start(
                model=ResponsesModel(PROFILE, provider), cwd=tmp_path, home=tmp_path / "home"
            ) as session:
                await session.send("Fix the failing test")
                await session.compact()
                return str([e.item for e in session.memory.thread.history])

    history = asyncio.run(go())
    assert "Fix the failing test" in history and "***" not in history
    assert COMPACTION["encrypted_content"] in history
