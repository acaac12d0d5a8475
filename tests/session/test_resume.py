"""Resume and fork: what goes on, what is left untouched, and where the work goes on."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, RolloutSettings
from refold.core.profile import Profile, Provider
from refold.core.thread import same_state
from refold.errors import ConfigError, RolloutNotFound
from refold.model.scripted import ScriptedModel
from refold.rollout.blobs import folder_of
from refold.session.events import Notice
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import text_reply

ROLLOUTS = Path(__file__).parent.parent / "data" / "oracle" / "rollouts"
PROVIDER = Provider(id="scripted", name="scripted", base_url="http://127.0.0.1:1", env_key=None)


def model(*replies: object) -> ScriptedModel:
    return ScriptedModel(list(replies), profile=Profile(slug="m"), provider=PROVIDER)  # type: ignore[arg-type]


def fingerprint(path: Path) -> tuple[str, int]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns


async def one_turn(tmp_path: Path, text: str = "first") -> Session:
    async with Session.start(model=model(text_reply("one")), cwd=tmp_path, home=tmp_path / "home") as session:
        await session.send(text)
    return session


def test_a_resumed_session_knows_what_the_live_one_knew_and_goes_on_in_its_file(tmp_path: Path) -> None:
    async def go() -> None:
        session = await one_turn(tmp_path)
        answering = model(text_reply("two"))
        async with Session.resume(session.id[:18], model=answering, home=tmp_path / "home") as resumed:
            assert same_state(resumed.memory.thread, session.memory.thread)
            assert resumed.path == session.path
            await resumed.send("second")
        roles = [item.get("role") for item in answering.requests[0]["input"]]
        assert roles == ["developer", "developer", "user", "user", "assistant", "user"]  # nothing injected again

    asyncio.run(go())


def test_a_fork_leaves_its_parent_untouched_and_has_its_history(tmp_path: Path) -> None:
    async def go() -> None:
        session = await one_turn(tmp_path)
        assert session.path is not None
        before = fingerprint(session.path)
        answering = model(text_reply("two"))
        async with Session.fork(session.id, model=answering, home=tmp_path / "home") as child:
            await child.send("other way")
        assert fingerprint(session.path) == before
        assert child.id != session.id
        assert child.path is not None
        assert child.id in child.path.name
        thread = read_thread(child.path)
        assert thread.meta is not None
        assert thread.meta.forked_from == session.id
        assert [e.address.split(":")[0] for e in thread.history[:4]] == [session.id] * 4
        assert thread.compactions == 0
        roles = [item.get("role") for item in answering.requests[0]["input"]]
        assert roles == ["developer", "developer", "user", "user", "assistant", "user"]

    asyncio.run(go())


@pytest.mark.parametrize("name", ["d_preturn", "e_midturn", "b_tool_loop", "r_images"])
def test_a_foreign_rollout_goes_on_in_a_child_and_stays_as_it_is(name: str, tmp_path: Path) -> None:
    foreign = tmp_path / f"{name}.jsonl"
    shutil.copyfile(ROLLOUTS / f"{name}.jsonl", foreign)
    before = fingerprint(foreign)
    history = [entry.item for entry in read_thread(foreign).history]

    async def go() -> None:
        answering = model(text_reply("yes"))
        async with Session.resume(foreign, model=answering, cwd=tmp_path, home=tmp_path / "home") as child:
            await child.send("go on")
            assert child.path is not None
            assert child.path.is_relative_to(tmp_path / "home")
        sent = answering.requests[0]["input"]
        ids = [item.get("id") for item in sent]
        assert ids[1 : len(history) + 1] == [item.get("id") for item in history]

    asyncio.run(go())
    assert fingerprint(foreign) == before


def test_a_foreign_rollout_is_appended_to_when_asked(tmp_path: Path) -> None:
    foreign = tmp_path / "d.jsonl"
    shutil.copyfile(ROLLOUTS / "d_preturn.jsonl", foreign)
    before = foreign.read_bytes()

    async def go() -> None:
        answering = model(text_reply("yes"))
        async with Session.resume(foreign, model=answering, cwd=tmp_path, home=tmp_path / "home", in_place=True) as own:
            await own.send("go on")
            assert own.id == "#1"  # ids are opaque

    asyncio.run(go())
    after = foreign.read_bytes()
    assert after.startswith(before)
    ordinals = [line.split(b'"ordinal":')[1].split(b",")[0] for line in after[len(before) :].splitlines()]
    assert [int(ordinal) for ordinal in ordinals] == list(range(68, 68 + len(ordinals)))


def test_a_session_of_the_real_programs_home_is_found_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = tmp_path / "codex" / "sessions" / "2026" / "01" / "01"
    day.mkdir(parents=True)
    foreign = day / "rollout-2026-01-01T00-00-00-019c2000-0000-7000-8000-000000000001.jsonl"
    shutil.copyfile(ROLLOUTS / "e_midturn.jsonl", foreign)
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    before = fingerprint(foreign)

    async def go() -> None:
        answering = model(text_reply("yes"))
        async with Session.resume("019c2000", model=answering, cwd=tmp_path, home=tmp_path / "home") as child:
            await child.send("go on")

    asyncio.run(go())
    assert fingerprint(foreign) == before


def test_a_resumed_session_works_where_its_last_turn_did(tmp_path: Path) -> None:
    (tmp_path / "alpha").mkdir()
    (tmp_path / "beta").mkdir()

    async def go() -> None:
        home = tmp_path / "home"
        async with Session.start(model=model(text_reply("1")), cwd=tmp_path / "alpha", home=home) as session:
            await session.send("first")
        answering = model(text_reply("2"))
        async with Session.resume(session.id, model=answering, cwd=tmp_path / "beta", home=home) as moved:
            await moved.send("second")
        assert f"<cwd>{tmp_path}/beta</cwd>" in str(answering.requests[0]["input"][-2])
        answering = model(text_reply("3"))
        async with Session.resume(session.id, model=answering, home=home) as again:
            await again.send("third")
            assert (again.memory.thread.settings or {})["cwd"] == str(tmp_path / "beta")
        (tmp_path / "beta").rmdir()
        with pytest.raises(ConfigError, match="beta is not a folder that exists"):
            Session.resume(session.id, model=model(), home=home)

    asyncio.run(go())


def test_an_unknown_session_is_said(tmp_path: Path) -> None:
    with pytest.raises(RolloutNotFound, match="no session 'nope'"):
        Session.resume("nope", model=model(), home=tmp_path)


def test_a_change_of_agents_md_is_told_once_at_the_next_turn(tmp_path: Path) -> None:
    async def go() -> None:
        rules = tmp_path / "AGENTS.md"
        rules.write_text("Always say please.\n")
        answering = model(*[text_reply(str(n)) for n in range(4)])
        async with Session.start(model=answering, cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("1")
            rules.write_text("Never say please.\n")
            await session.send("2")
            rules.unlink()
            await session.send("3")
            await session.send("4")
            assert same_state(read_thread(session.path), session.memory.thread)  # type: ignore[arg-type]
        told = [str(item) for item in answering.requests[3]["input"] if "# AGENTS.md" in str(item)]
        assert len(told) == 3
        assert "Always say please" in told[0]
        assert "replace all previously provided" in told[1]
        assert "no longer apply" in told[2]

    asyncio.run(go())


def test_a_steer_that_waits_goes_along_into_a_fork(tmp_path: Path) -> None:
    async def go() -> None:
        async with Session.start(model=model(text_reply("one")), cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("first")
            session.steer("and this")
        answering = model(text_reply("two"))
        async with Session.fork(session.id, model=answering, home=tmp_path / "home") as child:
            await child.send("next")
            assert same_state(read_thread(child.path), child.memory.thread)  # type: ignore[arg-type]
        said = [item["content"][0]["text"] for item in answering.requests[0]["input"] if item.get("role") == "user"]
        assert said[-2:] == ["and this", "next"]

    asyncio.run(go())


def test_a_fork_counts_its_tail_once(tmp_path: Path) -> None:
    async def go() -> None:
        session = await one_turn(tmp_path)
        parent = read_thread(session.path)  # type: ignore[arg-type]
        async with Session.fork(session.id, model=model(), home=tmp_path / "home") as child:
            assert child.memory.tokens == child.memory.thread.guessed_tokens(), "it has had no response yet"
            assert [e.item for e in child.memory.thread.history] == [e.item for e in parent.history]

    asyncio.run(go())


def damage_a_line(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"timestamp":"t","ordinal":99,"type":"resp\n')


def lose_a_picture(path: Path) -> None:
    [blob] = folder_of(path).iterdir()
    blob.unlink()


@pytest.mark.parametrize("lose", [damage_a_line, lose_a_picture])
@pytest.mark.parametrize("begin", [Session.resume, Session.fork])
def test_what_could_not_be_read_whole_is_said_once(tmp_path: Path, lose: Any, begin: Any) -> None:
    home, config = tmp_path / "home", Config(rollout=RolloutSettings(blobs=True))
    with Memory.open(home, model=Profile(slug="m"), config=config) as memory:
        memory.add([{"role": "user", "content": "x" * 20_000}, {"role": "user", "content": "kept"}])
    assert memory.path is not None
    lose(memory.path)

    async def go() -> list[list[str]]:
        said: list[list[str]] = []
        answering = model(text_reply("one"), text_reply("two"))
        async with begin(memory.id, model=answering, cwd=tmp_path, home=home) as session:
            for text in ("first", "second"):
                said.append([event.text async for event in session.send(text) if isinstance(event, Notice)])
        return said

    assert asyncio.run(go()) == [[f"1 line of {memory.id} could not be read whole; see: refold doctor {memory.id}"], []]
