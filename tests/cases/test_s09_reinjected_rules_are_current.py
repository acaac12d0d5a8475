"""S09: permissions after a compaction are the current ones, complete, once, in the words of a session's start."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, parse_config
from refold.core.fragments import stored_kinds
from refold.core.items import Item, message_texts
from refold.core.profile import Profile, Provider
from refold.model.scripted import ScriptedModel
from refold.session.approved import Approval, remember
from refold.session.session import Session
from refold.testing import text_reply
from refold.tools.commands import exec_command

CASE = Path(__file__).parent.parent / "data" / "cases" / "S09-reinjected-rules-are-current"
SETTINGS: dict[str, dict[str, Any]] = json.loads((CASE / "settings.json").read_text(encoding="utf-8"))
PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
PATIENCE = 30  # seconds that no session here needs


class Place:
    """Where the case plays: its folders are made below a temporary one."""

    def __init__(self, folder: Path) -> None:
        self.root = folder.resolve()
        self.work, self.home = self.root / "work", self.root / "home"
        for name in ("work", "home", "srv/demo", "srv/cache"):
            (self.root / name).mkdir(parents=True)
        self.thread: str | None = None

    def below(self, root: str) -> str:
        return f"{self.root}{root}"

    def config(self, *steps: str) -> Config:
        """The settings after these steps of the case."""
        now = {key: value for step in steps for key, value in SETTINGS[step].items()}
        walls = {
            "writable_roots": [self.below(root) for root in now["writable_roots"]],
            "network_access": now["network_access"],
            "exclude_slash_tmp": True,
            "exclude_tmpdir_env_var": True,
        }
        plain = {key: now[key] for key in ("approval_policy", "approvals_reviewer", "sandbox_mode")}
        return parse_config({**plain, "sandbox_workspace_write": walls}, "settings.json")

    def open(self, config: Config, thread: str | None) -> Session:
        model = ScriptedModel(lambda _: text_reply("well"), profile=Profile(slug="m"), provider=PROVIDER)
        common: dict[str, Any] = {"model": model, "tools": [exec_command], "home": self.home, "approve": _yes}
        if thread is None:
            return Session.start(cwd=self.work, config=config, instructions="BASE", **common)
        return Session.resume(thread, config=config, **common)

    def approve(self) -> None:
        for words in SETTINGS["at_compaction"]["approved_command_prefixes"]:
            remember(self.home, Approval(words=tuple(words), program="/bin/true", workspace=str(self.work)))


async def _yes(question: Any) -> bool:
    return True


def permissions(session: Session) -> list[str]:
    """Each permission message, or part of one, that the next prompt holds."""
    items: list[Item] = [e.item for e in session.memory.thread.history]
    parts = [pair for item in items for pair in zip(stored_kinds(item), message_texts(item), strict=False)]
    return [text for kind, text in parts if kind.startswith("permissions.")]


async def _played(place: Place) -> dict[str, list[str]]:
    """The permission messages in the prompt after each step."""
    seen: dict[str, list[str]] = {}
    start, third, last = ["at_start"], ["at_start", "turn_3_change"], ["at_start", "turn_3_change", "at_compaction"]
    async with place.open(place.config(*start), None) as session:
        thread = session.id
        await session.send("one")
        await session.send("two")
        seen["at start"] = permissions(session)
    async with place.open(place.config(*third), thread) as session:
        await session.send("three")
        seen["turn 3"] = permissions(session)
    place.approve()
    async with place.open(place.config(*last), thread) as session:
        assert (await session.compact()).installed
        seen["compacted"] = permissions(session)
        seen["whole prompt"] = [json.dumps(session.memory.prompt().input)]
        await session.send("five")
        seen["next turn"] = permissions(session)
    async with place.open(place.config(*last), thread) as session:
        seen["resumed"] = permissions(session)
        await session.send("six")
        seen["turn after it"] = permissions(session)
    async with place.open(place.config(*last), None) as session:
        await session.send("one")
        seen["another session"] = permissions(session)
    return seen


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def seen(place: Place) -> dict[str, list[str]]:
    return asyncio.run(asyncio.wait_for(_played(place), PATIENCE))


def test_there_is_one_message_and_it_says_every_setting(place: Place, seen: dict[str, list[str]]) -> None:
    [text] = seen["compacted"]
    now = SETTINGS["at_compaction"]
    assert f"\nApproval: {now['approval_policy']}. " in text
    assert f"\nReviewer: {now['approvals_reviewer']}. " in text
    assert f"\nSandbox: {now['sandbox_mode']}. " in text
    assert "\nNetwork: on. " in text
    for root in now["writable_roots"]:
        assert f"\n- {place.below(root)}\n" in text
    for words in now["approved_command_prefixes"]:
        assert f"\n- {json.dumps(words, separators=(',', ':'))}" in text


def test_nothing_of_the_older_settings_remains(seen: dict[str, list[str]]) -> None:
    assert "read-only" in seen["at start"][0]
    assert len(seen["turn 3"]) == 2
    assert "read-only" not in seen["whole prompt"][0]
    assert "Network: off" not in seen["whole prompt"][0]


def test_the_text_is_that_of_a_session_that_starts_with_these_settings(seen: dict[str, list[str]]) -> None:
    assert seen["another session"] == seen["compacted"]


def test_the_next_turn_and_a_resume_add_nothing(seen: dict[str, list[str]]) -> None:
    assert seen["next turn"] == seen["resumed"] == seen["turn after it"] == seen["compacted"]


def test_what_is_approved_later_is_told_alone(place: Place) -> None:
    async def play() -> list[str]:
        async with place.open(place.config("at_start"), None) as session:
            await session.send("one")
            place.approve()
            await session.send("two")
            await session.send("three")
            return permissions(session)

    whole, saved = asyncio.run(asyncio.wait_for(play(), PATIENCE))
    assert "git" not in whole
    assert saved == 'Approved command prefix saved:\n- ["git","status"]\n- ["pytest"]\n'
