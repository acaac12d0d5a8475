"""Hooks around a turn, and an interrupt that is meant twice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from refold.core.records import TurnEnded
from refold.session import Session
from refold.session.events import Notice, ToolStarted
from refold.session.hooks import Hook
from refold.testing import Reply, ScriptedModel, call_reply
from refold.tools.commands import exec_command


class Noting(Hook):
    """Mutable: it notes what it is told."""

    def __init__(self, name: str, told: list[Any]) -> None:
        self.name, self.told = name, told

    async def before_turn(self, text: str) -> None:
        self.told.append((self.name, text))

    async def after_turn(self, ended: TurnEnded) -> None:
        self.told.append((self.name, ended.outcome))


class Refusing(Hook):
    async def before_turn(self, text: str) -> None:
        if "secret" in text:
            raise PermissionError("not this")


class Clumsy(Hook):
    async def after_turn(self, ended: TurnEnded) -> None:
        raise ValueError("oh")


def session_of(folder: Path, *script: Any) -> Session:
    return Session.start(model=ScriptedModel([*script]), tools=[exec_command], cwd=folder, home=folder / "home")


def test_hooks_are_called_around_a_turn_in_their_order(tmp_path: Path) -> None:
    told: list[Any] = []

    async def play() -> None:
        async with session_of(tmp_path, "one", Reply(status=400, body={"error": {"message": "no"}})) as session:
            session.hooks += [Noting("a", told), Noting("b", told)]
            await session.send("hi")
            with pytest.raises(Exception, match="no"):
                await session.send("again")

    asyncio.run(play())
    assert told == [
        ("a", "hi"),
        ("b", "hi"),
        ("a", "completed"),
        ("b", "completed"),
        ("a", "again"),
        ("b", "again"),
        ("a", "failed"),
        ("b", "failed"),
    ]


def test_a_hook_may_keep_a_turn_from_beginning(tmp_path: Path) -> None:
    async def play() -> None:
        async with session_of(tmp_path, "fine") as session:
            session.hooks.append(Refusing())
            with pytest.raises(PermissionError, match="not this"):
                await session.send("a secret")
            assert session.path is not None and not session.path.exists(), "nothing is recorded"
            assert (await session.send("a greeting")).text == "fine"

    asyncio.run(play())


def test_a_hook_that_fails_afterwards_is_told_and_no_more(tmp_path: Path) -> None:
    async def play() -> list[str]:
        async with session_of(tmp_path, "one") as session:
            session.hooks.append(Clumsy())
            return [event.text async for event in session.send("hi") if isinstance(event, Notice)]

    assert asyncio.run(play()) == ["a hook failed after the turn: ValueError: oh"]


def test_an_interrupt_is_patient_once_and_not_twice(tmp_path: Path) -> None:
    """The command ignores SIGTERM: it is given time, unless the user says it again."""
    stubborn = call_reply("exec_command", {"cmd": "trap '' TERM; echo up; sleep 30 & wait; sleep 30"})

    async def play(times: int) -> float:
        async with session_of(tmp_path, stubborn, "end") as session:
            turn = session.send("go")
            async for event in turn:
                if isinstance(event, ToolStarted):
                    await asyncio.sleep(0.3)
                    began = time.monotonic()
                    for _ in range(times):
                        session.interrupt()
                        await asyncio.sleep(0.05)
                    break
            assert (await turn).outcome == "interrupted"
            return time.monotonic() - began

    once, twice = asyncio.run(play(1)), asyncio.run(play(2))
    assert twice < once / 2
