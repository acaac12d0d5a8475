"""Apps and plugins' servers in a session: told while their server is there, started where the settings say so."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.fragments import stored_kinds
from refold.core.items import message_texts
from refold.core.profile import Profile, Provider
from refold.core.skill import KIND_SKILL
from refold.core.world.apps import KIND_APPS
from refold.model.scripted import ScriptedModel
from refold.session.session import Session
from refold.testing import text_reply

PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
PATIENCE = 60  # seconds that no session here needs
SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("s")


@server.tool()
def send(text: str) -> str:
    return text


server.run("stdio")
"""


@pytest.fixture(autouse=True)
def _homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def given(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    model = ScriptedModel(lambda _: text_reply("well"), profile=Profile(slug="a"), provider=PROVIDER)
    return {"model": model, "cwd": folder, "home": folder / "home", "config": parse_config(settings, "test")}


def told(session: Session, kind: str) -> list[str]:
    items = [e.item for e in session.memory.thread.history if e.origin == "injected"]
    pairs = [pair for item in items for pair in zip(stored_kinds(item), message_texts(item), strict=True)]
    return [text for one, text in pairs if one == kind]


def server(folder: Path, **more: Any) -> dict[str, Any]:
    (folder / "server.py").write_text(SERVER)
    return {"command": sys.executable, "args": [str(folder / "server.py")], **more}


def test_an_app_is_told_while_its_server_is_there_and_a_mention_goes_through(tmp_path: Path) -> None:
    mail = server(tmp_path, app=True, description="Sends mail.")

    async def work() -> None:
        plain = server(tmp_path)
        async with Session.start(**given(tmp_path, {"mcp_servers": {"mail": mail, "plain": plain}})) as session:
            await session.send("use [$mail](app://mail)")
            [text] = told(session, KIND_APPS)
            assert text.endswith("\n- mail: Sends mail.\n</apps_instructions>")
            assert told(session, KIND_SKILL) == []
            assert [message_texts(e.item) for e in session.memory.thread.history if e.origin == "typed"] == [
                ["use [$mail](app://mail)"]
            ]
            await session.compact()
            assert told(session, KIND_APPS) == [text]
        async with Session.resume(session.id, **given(tmp_path, {})) as without:
            await without.send("and now")
            assert "no longer available" in told(without, KIND_APPS)[-1]
            await without.send("still")
            assert len(told(without, KIND_APPS)) == 2

    run(work())


@pytest.mark.parametrize(
    "settings",
    [
        {"include_apps_instructions": False, "mcp_servers": {"mail": {"app": True}}},
        {"mcp_servers": {"mail": {"app": True, "command": "no-such-program-anywhere", "args": []}}},
    ],
)
def test_an_app_that_is_not_there_or_not_to_be_told_is_not_told(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings["mcp_servers"]["mail"] = {**server(tmp_path), **settings["mcp_servers"]["mail"]}

    async def work() -> None:
        async with Session.start(**given(tmp_path, settings)) as session:
            await session.send("one")
            assert told(session, KIND_APPS) == []

    run(work())


@pytest.mark.parametrize("named", [True, False])
def test_a_plugins_server_is_started_where_the_settings_name_the_plugin(tmp_path: Path, named: bool) -> None:
    folder = tmp_path / "home" / "plugins" / "kit"
    (folder / ".codex-plugin").mkdir(parents=True)
    (folder / ".codex-plugin" / "plugin.json").write_text("{}")
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": server(tmp_path)}}))

    async def work() -> None:
        async with Session.start(**given(tmp_path, {"plugins": {"kit": {}}} if named else {})) as session:
            await session.send("one")
            assert ("mcp__files__send" in session._scope.toolbox) is named

    run(work())


def test_a_session_says_and_sets_its_mode_and_personality(tmp_path: Path) -> None:
    async def work() -> None:
        async with Session.start(**given(tmp_path, {"collaboration_mode": "plan"})) as session:
            assert (session.collaboration_mode, session.personality) == ("plan", "none")
            session.collaboration_mode, session.personality = "default", "Be brief."
            assert (session.collaboration_mode, session.personality) == ("default", "Be brief.")

    run(work())
