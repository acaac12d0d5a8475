"""Rename: a name is a record; a resume knows it, a fork is another session."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.profile import Profile, Provider
from refold.core.records import Named
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import ConfigError
from refold.model.scripted import ScriptedModel
from refold.rollout.holdings import names_in
from refold.rollout.reader import read_lines
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import text_reply

PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000))
PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
PATIENCE = 30  # seconds that no session here needs


def model(*texts: str) -> ScriptedModel:
    return ScriptedModel([text_reply(one) for one in texts], profile=PROFILE, provider=PROVIDER)


def played(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


async def named(folder: Path, *names: str, compacted: bool = False) -> Session:
    async with Session.start(model=model("ok", "SUMMARY"), cwd=folder, home=folder / "home") as session:
        await session.send("hi")
        for name in names:
            session.rename(name)
        if compacted:
            await session.compact()
    return session


@pytest.mark.parametrize("compacted", [False, True])
def test_a_name_is_known_after_a_resume_from_the_newest_checkpoint_too(tmp_path: Path, compacted: bool) -> None:
    session = played(named(tmp_path, "first", "the  billing\nbug", compacted=compacted))
    assert session.path is not None
    assert session.memory.thread.name == "the billing bug"
    resumed = read_thread(session.path)
    assert resumed.name == "the billing bug"
    assert same_state(resumed, session.memory.thread)
    assert same_state(Thread.replay(read_lines(session.path)), session.memory.thread)


def test_a_name_is_one_line_of_ours_and_one_in_the_list_that_the_real_program_reads(tmp_path: Path) -> None:
    session = played(named(tmp_path, "billing", "billing"))
    assert session.path is not None
    lines = [json.loads(raw) for raw in session.path.read_bytes().splitlines()]
    ours = [line["payload"] for line in lines if line["type"] == "refold" and line["payload"]["kind"] == "named"]
    assert ours == [{"kind": "named", "name": "billing"}], "the same name again is no new fact"
    [told] = [json.loads(raw) for raw in (tmp_path / "home" / "session_index.jsonl").read_bytes().splitlines()]
    assert told.keys() == {"id", "thread_name", "updated_at"}
    assert names_in(tmp_path / "home") == {session.id: "billing"}


def test_no_name_takes_it_away_and_a_long_one_is_refused(tmp_path: Path) -> None:
    session = played(named(tmp_path, "billing", "  "))
    assert session.path is not None
    assert read_thread(session.path).name == ""
    with pytest.raises(ConfigError, match="name: has 201 characters; 200 are the most"):
        played(named(tmp_path, "x" * 201))


def test_a_name_before_anything_was_said_begins_the_file(tmp_path: Path) -> None:
    async def go() -> Session:
        async with Session.start(model=model(), cwd=tmp_path, home=tmp_path / "home") as session:
            assert session.rename("early") == "early"
        return session

    session = played(go())
    assert session.path is not None
    assert [type(line.record) for line in read_lines(session.path)][1:] == [Named]


def test_a_fork_has_no_name_yet(tmp_path: Path) -> None:
    session = played(named(tmp_path, "billing", compacted=True))
    assert session.path is not None
    child = Session.fork(session.path, model=model(), home=tmp_path / "home")
    child.memory.close()
    assert child.memory.thread.name == ""


def test_a_name_that_the_real_program_wrote_counts_where_it_is_this_sessions(tmp_path: Path) -> None:
    def line(kind: str, **payload: Any) -> str:
        return json.dumps({"timestamp": "", "type": kind, "payload": payload}) + "\n"

    def told(thread_id: str, name: str) -> str:
        return line("event_msg", type="thread_name_updated", thread_id=thread_id, thread_name=name)

    path = tmp_path / "rollout.jsonl"
    path.write_text(line("session_meta", id="t", timestamp="") + told("t", "mine") + told("other", "an ancestor's"))
    assert read_thread(path).name == "mine"


def test_blocking_sessions_can_be_renamed(tmp_path: Path) -> None:
    with Session.start_sync(model=model("ok"), cwd=tmp_path, home=tmp_path / "home") as session:
        session.send("hi")
        assert session.rename("billing") == "billing"
