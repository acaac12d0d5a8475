"""Rules in force: what a session tells its model: whole, by difference, to another model, after the real program."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, parse_config
from refold.core.fragments import (
    KIND_DEVELOPER,
    KIND_MODEL_SWITCH,
    KIND_PERMISSIONS,
    KIND_PREFIX_SAVED,
    KIND_SERVERS,
    stored_kinds,
)
from refold.core.items import message_texts
from refold.core.limits import Features, TokenBudget
from refold.core.profile import Profile, Provider
from refold.core.records import SettingsApplied, WorldObserved
from refold.model.scripted import ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.approved import Approval, remember
from refold.session.rules import patch_for
from refold.session.session import Session
from refold.testing import text_reply, usage
from refold.tools.commands import exec_command

PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
RECORDED = Path(__file__).parent.parent / "data" / "oracle" / "rollouts"
PATIENCE = 30  # seconds that no session here needs


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def model(slug: str = "a", **facts: Any) -> ScriptedModel:
    profile = Profile(slug=slug, base_instructions=f"BE {slug}", **facts)
    return ScriptedModel(lambda _: text_reply("well", usage=usage(5_000, 10)), profile=profile, provider=PROVIDER)


def start(folder: Path, config: Config | None = None, **more: Any) -> Session:
    given = {"model": model(), "tools": [exec_command], "config": config or Config(), **more}
    return Session.start(cwd=folder, home=folder / "home", **given)


def again(folder: Path, reference: Any, config: Config | None = None, **more: Any) -> Session:
    given = {"model": model(), "tools": [exec_command], "config": config or Config(), **more}
    return Session.resume(reference, home=folder / "home", **given)


def told(session: Session) -> list[tuple[str, str]]:
    items = [e.item for e in session.memory.thread.history if e.origin == "injected"]
    return [pair for item in items for pair in zip(stored_kinds(item), message_texts(item), strict=True)]


def kinds(session: Session) -> list[str]:
    return [kind for kind, _ in told(session)]


# --- another model -------------------------------------------------------------------------------------------------


def test_another_model_is_told_its_instructions_in_a_message_of_their_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path) as session:
            await session.send("one")
            assert KIND_MODEL_SWITCH not in kinds(session)
        async with again(tmp_path, session.id, model=model("b")) as other:
            before = len(other.memory.thread.history)
            await other.send("two")
            [item, *_] = [e.item for e in other.memory.thread.history[before:]]
            assert (item["role"], stored_kinds(item)) == ("developer", [KIND_MODEL_SWITCH])
            [text] = message_texts(item)
            assert text.startswith("<model_switch>\n") and text.endswith("\n\nBE b\n</model_switch>")
            await other.send("three")
            assert kinds(other).count(KIND_MODEL_SWITCH) == 1

    run(work())


def test_after_a_compaction_it_comes_first_and_stays_with_every_later_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path) as session:
            await session.send("one")
        async with again(tmp_path, session.id, model=model("b")) as other:
            await other.send("two")
            for _ in range(2):
                await other.compact()
                assert kinds(other)[:2] == [KIND_MODEL_SWITCH, KIND_PERMISSIONS]
                assert kinds(other).count(KIND_MODEL_SWITCH) == 1
                await other.send("go on")
                assert kinds(other).count(KIND_MODEL_SWITCH) == 1

    run(work())


def test_a_compaction_because_of_the_switch_tells_it_first(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, model=model("a", comp_hash="1")) as session:
            await session.send("one")
        async with again(tmp_path, session.id, model=model("b", comp_hash="2")) as other:
            await other.send("two")
            assert other.memory.thread.compactions == 1
            assert kinds(other)[0] == KIND_MODEL_SWITCH
            assert kinds(other).count(KIND_MODEL_SWITCH) == 1

    run(work())


def test_going_back_to_the_first_model_is_a_switch_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path) as session:
            await session.send("one")
        async with again(tmp_path, session.id, model=model("b")) as other:
            await other.send("two")
        async with again(tmp_path, session.id) as first:
            await first.send("three")
        switches = [text for kind, text in told(first) if kind == KIND_MODEL_SWITCH]
        assert [f"BE {slug}" in text for slug, text in zip("ba", switches, strict=True)] == [True, True]

    run(work())


def test_a_model_without_instructions_of_its_own_goes_by_the_sessions(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, instructions="OURS {braces}") as session:
            await session.send("one")
        plain = ScriptedModel(lambda _: text_reply("well"), profile=Profile(slug="b"), provider=PROVIDER)
        async with again(tmp_path, session.id, model=plain) as other:
            await other.send("two")
            [text] = [text for kind, text in told(other) if kind == KIND_MODEL_SWITCH]
            assert "\n\nOURS {braces}\n" in text

    run(work())


# --- by the settings -----------------------------------------------------------------------------------------------


def test_developer_instructions_stand_before_the_permissions_and_change_with_the_next_compaction(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with start(tmp_path, Config(developer_instructions="FIRST")) as session:
            await session.send("one")
            assert told(session)[0] == (KIND_DEVELOPER, "FIRST")
        async with again(tmp_path, session.id, Config(developer_instructions="SECOND")) as other:
            await other.send("two")
            assert "SECOND" not in [text for _, text in told(other)]
            await other.compact()
            assert told(other)[0] == (KIND_DEVELOPER, "SECOND")
            assert "FIRST" not in [text for _, text in told(other)]

    run(work())


def test_what_is_switched_off_is_not_told_and_is_told_when_it_is_on_again(tmp_path: Path) -> None:
    off = parse_config({"include_permissions_instructions": False, "include_environment_context": False}, "here")

    async def work() -> None:
        async with start(tmp_path, off) as session:
            await session.send("one")
            assert told(session) == []
        async with again(tmp_path, session.id) as on:
            await on.send("two")
            assert len(told(on)) == 2
        async with again(tmp_path, session.id, off) as once_more:
            await once_more.send("three")
            assert len(told(once_more)) == 2
            assert once_more.memory.thread.world is not None
            assert "permissions" not in once_more.memory.thread.world
            await once_more.compact()
            assert told(once_more) == []

    run(work())


def test_the_real_programs_other_switches_are_no_misspellings() -> None:
    parse_config({"include_apps_instructions": False, "include_collaboration_mode_instructions": False}, "here")


def test_where_nobody_can_be_asked_the_model_knows(tmp_path: Path) -> None:
    async def yes(question: Any) -> bool:
        return True

    async def work() -> None:
        config = Config(approval_policy="untrusted")
        for approve, reviewer in ((None, "none"), (yes, "user")):
            async with start(tmp_path, config, approve=approve) as session:
                await session.send("one")
                [text] = [text for kind, text in told(session) if kind == KIND_PERMISSIONS]
                assert f"\nReviewer: {reviewer}. " in text
            assert session.path is not None
            lines = [line.record for line in read_lines(session.path)]
            [applied] = [record.settings for record in lines if isinstance(record, SettingsApplied)]
            assert applied["approvals_reviewer"] == "user"

    run(work())


def test_a_token_budgets_window_and_a_switch_are_sections_of_their_own(tmp_path: Path) -> None:
    budget = Config(features=Features(token_budget=TokenBudget(enabled=True, guidance_message="GUIDE")))

    async def work() -> None:
        async with start(tmp_path, budget) as session:
            await session.send("one")
        async with again(tmp_path, session.id, budget, model=model("b")) as other:
            await other.send("two")
            assert kinds(other).count("context_window.context_window") == 3  # its tags are parts, too
            assert kinds(other)[-1] == KIND_MODEL_SWITCH
            assert other.memory.thread.world is not None
            assert sorted(other.memory.thread.world["refold"]) == ["switched", "window"]

    run(work())


# --- servers -------------------------------------------------------------------------------------------------------


def server(folder: Path, instructions: str) -> Config:
    script = folder / "server.py"
    script.write_text(
        f"from mcp.server.mcpserver import MCPServer\nMCPServer('s', instructions={instructions!r}).run('stdio')\n"
    )
    return parse_config({"mcp_servers": {"notes": {"command": sys.executable, "args": [str(script)]}}}, "here")


def test_what_a_tool_server_says_is_told_once_and_anew_when_it_changed(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, server(tmp_path, "Save often.")) as session:
            await session.send("one")
            await session.send("two")
            [text] = [text for kind, text in told(session) if kind == KIND_SERVERS]
            assert "\n## notes\n  Save often.\n" in text
            await session.compact()
            assert kinds(session).count(KIND_SERVERS) == 1
        async with again(tmp_path, session.id, server(tmp_path, "x" * 20_000)) as other:
            await other.send("three")
            assert len(told(other)[-1][1]) < 9_000
        async with again(tmp_path, session.id) as without:
            await without.send("four")
            assert told(without)[-1][1].startswith("<mcp_instructions>\nNo MCP server")

    run(work())


# --- after the real program ----------------------------------------------------------------------------------------


def foreign(folder: Path) -> Path:
    """A session that the real program recorded with full access and nobody asked."""
    path = folder / "rollout-2026-01-01T00-00-00-019b0000-0000-7000-8000-000000000001.jsonl"
    shutil.copy(RECORDED / "a_one_turn.jsonl", path)
    return path


def test_the_real_programs_words_hold_while_the_rules_are_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        path = foreign(tmp_path)
        for _ in range(2):
            async with again(tmp_path, path, in_place=True, cwd=tmp_path) as session:
                await session.send("go on")
            assert KIND_PERMISSIONS not in kinds(session)[2:]
        async with again(tmp_path, path, Config(sandbox_mode="read-only"), in_place=True, cwd=tmp_path) as stricter:
            await stricter.send("go on")
            assert kinds(stricter).count(KIND_PERMISSIONS) == 2
        async with again(tmp_path, path, in_place=True, cwd=tmp_path) as free:
            await free.send("go on")
            assert kinds(free).count(KIND_PERMISSIONS) == 3

    run(work())


def test_beside_its_words_only_what_was_approved_since_is_told(tmp_path: Path) -> None:
    async def yes(question: Any) -> bool:
        return True

    async def work() -> None:
        path = foreign(tmp_path)
        text = path.read_text().replace('"approval_policy":"never"', '"approval_policy":"untrusted"')
        path.write_text(text)
        async with again(tmp_path, path, in_place=True, cwd=tmp_path, approve=yes) as session:
            await session.send("one")
            before = len(told(session))
            remember(tmp_path / "home", Approval(words=("make",), program="/bin/true", workspace=str(tmp_path)))
            await session.send("two")
            assert told(session)[before:] == [(KIND_PREFIX_SAVED, 'Approved command prefix saved:\n- ["make"]\n')]
            await session.send("three")
            assert len(told(session)) == before + 1

    run(work())


def test_what_is_forgotten_of_ours_is_so_by_itself() -> None:
    assert patch_for({"realtime": 1, "refold": {"a": 1, "b": 2}}, {"refold": {"b": 2}}) == {"refold": {"a": None}}
    assert patch_for({"realtime": 1, "refold": {"a": 1}}, {}) == {"refold": {"a": None}}
    assert patch_for({"realtime": 1, "permissions": {}}, {}) == {"permissions": None}


def test_its_own_sections_stay_in_the_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        path = foreign(tmp_path)
        before = [line.record for line in read_lines(path) if isinstance(line.record, WorldObserved)][-1].state
        (tmp_path / "AGENTS.md").write_text("New rules.")
        async with again(tmp_path, path, in_place=True, cwd=tmp_path) as session:
            await session.send("go on")
            assert session.memory.thread.world is not None
            assert {key: session.memory.thread.world[key] for key in ("realtime", "model_catalog", "skills")} == {
                key: before[key] for key in ("realtime", "model_catalog", "skills")
            }

    run(work())


@pytest.mark.parametrize("policy", ["on-request", "untrusted"])
def test_walls_are_told_as_they_are(tmp_path: Path, policy: Any) -> None:
    (tmp_path / "more").mkdir()
    walls = {"writable_roots": [str(tmp_path / "more"), str(tmp_path / "missing")], "exclude_slash_tmp": True}
    config = parse_config(
        {"sandbox_mode": "workspace-write", "approval_policy": policy, "sandbox_workspace_write": walls}, "here"
    )

    async def work() -> None:
        async with start(tmp_path, config) as session:
            await session.send("one")
            text = told(session)[0][1]
            assert f"\n- {tmp_path}\n- {tmp_path}/more\n" in text
            assert "missing" not in text
            assert "\nNetwork: off. " in text
            assert "`.git`, `.refold` and `.codex` cannot be changed" in text
            (tmp_path / "missing").mkdir()
            await session.send("two")
            assert f"\n- {tmp_path}/missing\n" in told(session)[-1][1]

    run(work())
