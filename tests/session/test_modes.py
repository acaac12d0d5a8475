"""Modes, personalities and plugins in a session: told once, by difference, after compactions, resumes and undos."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, parse_config
from refold.core.fragments import stored_kinds
from refold.core.items import message_texts
from refold.core.profile import Profile, Provider
from refold.core.skill import KIND_SKILL, KIND_SKILLS
from refold.core.thread import same_state
from refold.core.world.mode import KIND_MODE
from refold.core.world.personality import KIND_PERSONALITY
from refold.core.world.plugins import KIND_PLUGINS
from refold.errors import ConfigError
from refold.model.scripted import ScriptedModel
from refold.session.events import Notice
from refold.session.memory import read_thread
from refold.session.modes import use_mode, use_personality
from refold.session.plugins import servers_with_plugins
from refold.session.session import Session
from refold.testing import text_reply, usage

PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
RECORDED = Path(__file__).parent.parent / "data" / "oracle" / "rollouts"
PATIENCE = 30  # seconds that no session here needs


@pytest.fixture(autouse=True)
def _homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def given(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    model = ScriptedModel(
        lambda _: text_reply("well", usage=usage(5_000, 10)), profile=Profile(slug="a"), provider=PROVIDER
    )
    return {"model": model, "home": folder / "home", "config": parse_config(settings, "test")}


def start(folder: Path, **settings: Any) -> Session:
    return Session.start(cwd=folder, **given(folder, settings))


def again(folder: Path, reference: Any, **settings: Any) -> Session:
    return Session.resume(reference, cwd=folder, in_place=True, **given(folder, settings))


def told(session: Session, kind: str) -> list[str]:
    items = [e.item for e in session.memory.thread.history if e.origin == "injected"]
    pairs = [pair for item in items for pair in zip(stored_kinds(item), message_texts(item), strict=True)]
    return [text for one, text in pairs if one == kind]


def settings_of(session: Session) -> dict[str, Any]:
    return session.memory.thread.settings or {}


# --- modes ---------------------------------------------------------------------------------------------------------


def test_a_mode_is_told_once_and_stands_in_the_log_as_the_real_program_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, collaboration_mode="plan") as session:
            await session.send("one")
            await session.send("two")
            [text] = told(session, KIND_MODE)
            stated = settings_of(session)["collaboration_mode"]
            assert stated["mode"] == "plan" and stated["settings"]["model"] == "a"
            assert text == f"<collaboration_mode>{stated['settings']['developer_instructions']}</collaboration_mode>"
            await session.compact()
            assert told(session, KIND_MODE) == [text]
        assert session.path is not None
        assert same_state(read_thread(session.path), session.memory.thread)

    run(work())


def test_a_mode_that_is_changed_counts_from_the_next_turn_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, collaboration_modes={"review": {"instructions": "Only review."}}) as session:
            await session.send("one")
            assert told(session, KIND_MODE) == [] and "collaboration_mode" not in settings_of(session)
            for mode in ("plan", "review", "default"):
                use_mode(session.memory, mode)
                await session.send("next")
                await session.send("next")
            heads = [text.splitlines()[0] for text in told(session, KIND_MODE)]
            assert heads == [f"<collaboration_mode># Mode: {mode}" for mode in ("plan", "review", "default")]
            await session.compact()
            await session.send("after")
            assert told(session, KIND_MODE) == []
            with pytest.raises(ConfigError, match="no mode 'pln'; there are default, plan, review"):
                use_mode(session.memory, "pln")

    run(work())


def test_a_resumed_session_goes_on_in_its_mode_and_another_can_be_set(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, collaboration_mode="plan", personality="Be brief.") as session:
            await session.send("one")
        async with again(tmp_path, session.id) as same:
            await same.send("two")
            assert len(told(same, KIND_MODE)) == len(told(same, KIND_PERSONALITY)) == 1
            await same.compact()
            assert len(told(same, KIND_MODE)) == len(told(same, KIND_PERSONALITY)) == 1
        async with again(tmp_path, session.id, collaboration_mode="default", personality="none") as other:
            await other.send("three")
            assert "No other mode holds" in told(other, KIND_MODE)[-1]
            assert "no longer" in told(other, KIND_PERSONALITY)[-1]
            assert settings_of(other)["personality"] == "none"
        async with again(tmp_path, session.id) as last:
            await last.send("four")
            assert len(told(last, KIND_MODE)) == len(told(last, KIND_PERSONALITY)) == 2

    run(work())


def test_an_undo_tells_the_mode_that_holds(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, collaboration_mode="plan") as session:
            await session.send("one")
            use_mode(session.memory, "default")
            await session.send("two")
            await session.undo(1)
            await session.send("three")
            assert [text.splitlines()[0][-4:] for text in told(session, KIND_MODE)] == ["plan", "ault"]
            await session.undo(2)
            await session.send("four")
            assert told(session, KIND_MODE) == []

    run(work())


@pytest.mark.parametrize("mode", ["default", "plan"])
def test_the_real_programs_words_for_a_mode_hold_while_it_is_the_same(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "rollout-2026-01-01T00-00-00-019b0000-0000-7000-8000-000000000001.jsonl"
    text = (RECORDED / "a_one_turn.jsonl").read_text()
    text = text.replace('"collaboration_mode":{"mode":"default"', f'"collaboration_mode":{{"mode":"{mode}"')
    path.write_text(text)

    async def work() -> None:
        async with again(tmp_path, path) as session:
            await session.send("one")
            assert told(session, KIND_MODE) == []
            assert settings_of(session)["collaboration_mode"]["mode"] == mode
            await session.compact()
            assert len(told(session, KIND_MODE)) == (mode == "plan")

    run(work())


def test_a_switch_of_the_settings_keeps_modes_to_the_person(tmp_path: Path) -> None:
    async def work() -> None:
        off = {"collaboration_mode": "plan", "include_collaboration_mode_instructions": False}
        async with start(tmp_path, **off) as session:
            await session.send("one")
            assert told(session, KIND_MODE) == []
            assert settings_of(session)["collaboration_mode"]["mode"] == "plan"

    run(work())


def test_what_is_told_of_a_mode_is_not_something_that_the_user_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, collaboration_mode="plan", personality="friendly") as session:
            await session.send("one")
            assert [e.item["content"][0]["text"] for e in session.memory.thread.history if e.origin == "typed"] == [
                "one"
            ]

    run(work())


# --- personalities -------------------------------------------------------------------------------------------------


def test_a_change_of_personality_is_told_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, personality="friendly") as session:
            await session.send("one")
            before = len(session.memory.thread.history)
            use_personality(session.memory, "pragmatic")
            await session.send("two")
            told_now = [e for e in session.memory.thread.history[before:] if e.origin == "injected"]
            assert len(told_now) == 1 and stored_kinds(told_now[0].item) == [KIND_PERSONALITY]
            assert settings_of(session)["personality"] == "pragmatic"

    run(work())


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"collaboration_mode": "plna"}, "there is no mode 'plna'; there are default, plan"),
        ({"collaboration_modes": {"review": {}}}, "collaboration_modes.review: needs instructions"),
        ({"collaboration_modes": {"a b": {"instructions": "x"}}}, "must be named with"),
        ({"collaboration_modes": {"review": {"instruction": "x"}}}, "did you mean instructions"),
        ({"plugins": {"kit": {"path": "kit"}}}, "plugins.kit.path: must be an absolute folder"),
        ({"plugins": {"kit": {"enabled": "yes"}}}, "plugins.kit: "),
        ({"plugins": []}, "must be tables like"),
    ],
)
def test_wrong_settings_name_their_key(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        parse_config(settings, "here")


# --- plugins -------------------------------------------------------------------------------------------------------


def plugin(folder: Path, **servers: Any) -> Path:
    (folder / ".codex-plugin").mkdir(parents=True)
    manifest = {"name": folder.name, "description": "For tests.", "mcpServers": servers}
    (folder / ".codex-plugin" / "plugin.json").write_text(json.dumps(manifest))
    (folder / "skills" / "cut").mkdir(parents=True)
    (folder / "skills" / "cut" / "SKILL.md").write_text("---\nname: cut\ndescription: Cuts.\n---\nCUT HERE\n")
    return folder


def test_a_plugin_is_told_with_its_skills_and_gone_when_it_is(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "home" / "plugins" / "kit")

    async def work() -> None:
        async with start(tmp_path) as session:
            await session.send("use $kit:cut")
            [line] = told(session, KIND_PLUGINS)
            assert "\n- kit: For tests. (1 skills)\n" in line
            [skills] = told(session, KIND_SKILLS)
            assert f"\n- kit:cut: Cuts. (file: {folder}/skills/cut/SKILL.md)\n" in skills
            [body] = told(session, KIND_SKILL)
            assert "\nCUT HERE\n" in body
            await session.compact()
            assert (len(told(session, KIND_PLUGINS)), len(told(session, KIND_SKILLS))) == (1, 1)
            shutil.rmtree(folder)
            await session.send("gone?")
            assert "no longer in use" in told(session, KIND_PLUGINS)[-1]
            assert "no longer available" in told(session, KIND_SKILLS)[-1]
            assert session.memory.thread.world is not None
            assert session.memory.thread.world["plugins_instructions"] is False
            await session.send("still")
            assert len(told(session, KIND_PLUGINS)) == 2
        assert session.path is not None
        assert same_state(read_thread(session.path), session.memory.thread)

    run(work())


def test_a_projects_plugin_is_nothing_until_the_settings_name_it(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "plugins" / "kit", files={"command": "x"})

    async def work() -> None:
        async with start(tmp_path) as session:
            await session.send("one")
            assert told(session, KIND_PLUGINS) == []
        async with again(tmp_path, session.id, plugins={"kit": {"path": str(folder)}}, mcp_servers={}) as named:
            await named.send("two")
            assert "(1 skills; MCP servers files)" in told(named, KIND_PLUGINS)[0]

    run(work())


def test_what_is_wrong_with_plugins_is_said_once(tmp_path: Path) -> None:
    plugin(tmp_path / "home" / "plugins" / "kit", files={"command": "x"})

    async def work() -> None:
        async with start(tmp_path) as session:
            said = [event.text async for event in session.send("one") if isinstance(event, Notice)]
            assert [text for text in said if "its MCP servers (files) are not started" in text]
            assert not [event async for event in session.send("two") if isinstance(event, Notice)]

    run(work())


def test_only_plugins_that_the_settings_name_give_servers_and_the_settings_own_come_first(tmp_path: Path) -> None:
    home = tmp_path / "home"
    plugin(home / "plugins" / "kit", files={"command": "theirs"}, more={"command": "more"})
    plugin(home / "plugins" / "other", evil={"command": "evil"})
    assert servers_with_plugins(Config(), str(home)) == {}
    config = parse_config({"plugins": {"kit": {}}, "mcp_servers": {"files": {"command": "mine"}}}, "here")
    found = servers_with_plugins(config, str(home))
    assert {name: server.command for name, server in found.items()} == {"files": "mine", "more": "more"}
    assert found["more"].cwd == str(home / "plugins" / "kit")


def test_a_skill_of_a_plugin_is_left_out_by_its_whole_name(tmp_path: Path) -> None:
    plugin(tmp_path / "home" / "plugins" / "kit")

    async def work() -> None:
        rule = {"name": "kit:cut", "enabled": False}
        async with start(tmp_path, skills={"config": [rule]}) as session:
            await session.send("use $kit:cut")
            assert told(session, KIND_SKILLS) == told(session, KIND_SKILL) == []

    run(work())
