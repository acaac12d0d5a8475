"""Ours: refold's sessions with the same script, model and work folder as the real program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interop.compare import Differs, Played
from interop.real import BASE, MODEL, copied
from interop.script import Turn
from refold.core.config import Config
from refold.core.profile import Profile, Provider
from refold.core.records import ItemRecorded
from refold.core.truncate import Budget
from refold.errors import RefoldError
from refold.model.responses import ResponsesModel
from refold.session.session import Session
from refold.testing import ResponsesServer
from refold.tools.commands import exec_command

PROFILE = Profile(slug=MODEL, truncation=Budget("tokens", 10_000), comp_hash="0001")
TURN_SECONDS = 60


class Ours:
    """refold with a private home. Mutable: the home fills with sessions."""

    def __init__(self, home: Path, work: Path) -> None:
        self.home = home
        self.work = work

    def adopt(self, rollout: Path) -> Path:
        """A copy of a rollout in this home."""
        return copied(rollout, self.home)

    def play(
        self,
        turn: Turn,
        rollout: Path | None = None,
        *,
        how: Callable[..., Session] | None = None,
        at_call: Callable[[Session], Any] | None = None,
        fails: bool = False,
    ) -> Played:
        """One turn, in a new session or in a rollout (in place).

        `how` takes the session up in another way (a child, a fork); `at_call` is done once, when a call is recorded. A
        turn that `fails` is expected to.
        """
        with ResponsesServer(turn.replies) as server:
            provider = server.provider(request_max_retries=0, stream_max_retries=0)
            path = self.say(turn, provider, rollout, how=how, at_call=at_call, fails=fails)
            return Played("refold", [request.input for request in server.requests], path)

    def say(
        self,
        turn: Turn,
        provider: Provider,
        rollout: Path | None = None,
        *,
        how: Callable[..., Session] | None = None,
        at_call: Callable[[Session], Any] | None = None,
        fails: bool = False,
    ) -> Path:
        """The same with a provider that is there already, which answers as it likes; the rollout."""
        config = Config(model_auto_compact_token_limit=turn.limit)
        common: dict[str, Any] = {
            "model": ResponsesModel(config.profile(PROFILE), provider),
            "tools": [exec_command],
            "home": self.home,
            "config": config,
        }
        if rollout is None:
            session = Session.start(cwd=self.work, instructions=BASE, **common)
        else:
            session = (how or _in_place)(rollout, **common)
        failed = asyncio.run(_converse(session, turn.said, at_call))
        if failed is not None and not fails:
            raise failed
        if session.path is None:
            raise Differs("refold wrote no file")
        return session.path


def _in_place(rollout: Path, **common: Any) -> Session:
    return Session.resume(rollout, in_place=True, **common)


async def _converse(session: Session, said: str, at_call: Callable[[Session], Any] | None) -> RefoldError | None:
    """One turn to its end; the error that it failed with."""
    async with asyncio.timeout(TURN_SECONDS), session:
        turn = session.send(said)
        try:
            async for event in turn:
                match event:
                    case ItemRecorded(item={"type": "function_call"}) if at_call is not None:
                        at_call(session)
                        at_call = None
                    case _:
                        pass
        except RefoldError as error:
            return error
    return None
