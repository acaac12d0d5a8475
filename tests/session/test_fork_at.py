"""Fork at: a child begins with what its parent held after a record or a turn; the parent's file is only read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, ItemRecorded
from refold.core.truncate import Budget
from refold.errors import ConfigError, RolloutNotFound
from refold.model.scripted import ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import call_reply, text_reply
from refold.tools.functions import tool

PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000))
PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
PATIENCE = 30  # seconds that no session here needs


def model(*replies: Any) -> ScriptedModel:
    texts = [text_reply(one) if isinstance(one, str) else one for one in replies]
    return ScriptedModel(texts, profile=PROFILE, provider=PROVIDER)


@tool
def look() -> str:
    """Look."""
    return "what the tool saw"


async def three_turns(folder: Path, *, compacted: bool) -> Path:
    """Turns that say one, two, three; a compaction by hand, which is no turn of anybody, after the second."""
    replies = ["a1", call_reply("look", {}), "a2", *(["SUMMARY"] if compacted else []), "a3"]
    async with Session.start(model=model(*replies), cwd=folder, home=folder / "home", tools=[look]) as session:
        await session.send("one")
        await session.send("two")
        if compacted:
            await session.compact()
        await session.send("three")
    assert session.path is not None
    return session.path


@pytest.fixture(params=[False, True], ids=["plain", "compacted"])
def parent(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return asyncio.run(asyncio.wait_for(three_turns(tmp_path, compacted=request.param), PATIENCE))


def forked(reference: object, folder: Path, **more: Any) -> Session:
    child = Session.fork(str(reference), model=model("next"), cwd=folder, home=folder / "home", **more)
    child.memory.close()
    return child


def said(session: Session) -> list[str]:
    """What people and the model said, as the child's own file tells it."""
    assert session.path is not None
    history = read_thread(session.path).history
    return [message_text(e.item) for e in history if e.origin in ("typed", "model") and e.item["type"] == "message"]


@pytest.mark.parametrize(
    ("turn", "has"),
    [
        (1, ["one", "a1"]),
        (2, ["one", "a1", "two", "a2"]),
        (-2, ["one", "a1", "two", "a2"]),
        (-3, ["one", "a1"]),
    ],
)
def test_a_turn_is_counted_from_the_front_or_from_the_end(
    parent: Path, tmp_path: Path, turn: int, has: list[str]
) -> None:
    before = parent.read_bytes()
    child = forked(parent, tmp_path, turn=turn)
    assert said(child) == has
    assert parent.read_bytes() == before
    assert child.path is not None
    lines = [line.record for line in read_lines(child.path)]
    assert isinstance(lines[1], Compacted) and lines[1].history is not None, "it begins with its own full checkpoint"
    assert read_thread(child.path).meta.forked_from == read_thread(parent).id


def test_the_newest_turn_is_the_whole_session(parent: Path, tmp_path: Path) -> None:
    for turn in (3, -1):
        assert said(forked(parent, tmp_path, turn=turn)) == said(forked(parent, tmp_path))


def test_an_address_is_the_history_after_that_record_and_items_keep_theirs(parent: Path, tmp_path: Path) -> None:
    thread_id = read_thread(parent).id
    said_in = ((line.ordinal, line.record) for line in read_lines(parent))
    answer = next(at for at, one in said_in if isinstance(one, ItemRecorded) and message_text(one.item) == "a1")
    child = forked(f"{thread_id}:{answer}", tmp_path)
    assert said(child) == ["one", "a1"]
    assert child.memory.thread.history[-1].address == f"{thread_id}:{answer}"
    every = [line.ordinal for line in read_lines(parent)]
    for ordinal in every[1:]:
        forked(f"{parent}:{ordinal}", tmp_path)  # whatever the record is, there is a history after it


def test_a_fork_between_a_call_and_its_output_asks_a_legal_request(parent: Path, tmp_path: Path) -> None:
    call = next(
        line
        for line in read_lines(parent)
        if isinstance(line.record, ItemRecorded) and line.record.item["type"] == "function_call"
    )
    answering = model("next")

    async def go() -> None:
        child = Session.fork(f"{parent}:{call.ordinal}", model=answering, cwd=tmp_path, home=tmp_path / "home")
        async with child:
            await child.send("go on")

    asyncio.run(asyncio.wait_for(go(), PATIENCE))
    asked = answering.requests[0]["input"]
    calls = [one["call_id"] for one in asked if one["type"] == "function_call"]
    outputs = {one["call_id"]: one["output"] for one in asked if one["type"] == "function_call_output"}
    assert outputs == {calls[0]: "aborted"}
    assert "what the tool saw" not in json.dumps(asked)


def test_a_turn_of_a_file_without_turn_lines_is_a_message(tmp_path: Path) -> None:
    def line(kind: str, payload: dict[str, Any]) -> str:
        return json.dumps({"timestamp": "", "type": kind, "payload": payload}) + "\n"

    def item(role: str, text: str) -> str:
        kind = "input_text" if role == "user" else "output_text"
        return line("response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}]})

    path = tmp_path / "old.jsonl"
    says = [item("user", "one"), item("assistant", "a1"), item("user", "two"), item("assistant", "a2")]
    path.write_text(line("session_meta", {"id": "t", "timestamp": "", "cwd": str(tmp_path)}) + "".join(says))
    assert said(forked(path, tmp_path, turn=1)) == ["one", "a1"]
    assert said(forked(f"{path}:4", tmp_path)) == ["one", "a1", "two"]


@pytest.mark.parametrize(
    ("turn", "error", "says"),
    [
        (0, ConfigError, "turn: there is no turn 0: 1 is the first one, -1 the newest"),
        (4, RolloutNotFound, "there is no turn 4: .* has 3 turns in which somebody spoke"),
        (-4, RolloutNotFound, "there is no turn -4"),
    ],
)
def test_a_turn_that_is_not_there_is_an_error_and_no_session(
    parent: Path, tmp_path: Path, turn: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        forked(parent, tmp_path, turn=turn)
    assert len(list((tmp_path / "home").rglob("*.jsonl"))) == 1


def test_a_record_that_is_not_there_or_two_places_at_once_are_errors(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(RolloutNotFound, match="has no record 9999"):
        forked(f"{parent}:9999", tmp_path)
    with pytest.raises(ConfigError, match="give an address or a turn, not both"):
        forked(f"{parent}:3", tmp_path, turn=1)


def test_a_name_that_ends_like_an_address_is_a_name(parent: Path, tmp_path: Path) -> None:
    with Session.resume_sync(str(parent), model=model("-"), home=tmp_path / "home") as session:
        session.rename("bug:3")
    assert said(forked("bug:3", tmp_path)) == said(forked(parent, tmp_path))
    with pytest.raises(RolloutNotFound, match="no session 'nobody'"):
        forked("nobody:3", tmp_path)
    with pytest.raises(RolloutNotFound, match="no session"):
        forked(f"nobody:{'9' * 5_000}", tmp_path)
