"""Opening: how sessions of a chat are opened: with which settings, tools and folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from refold.core.config import Config
    from refold.session.home import Home
    from refold.session.permits import Approve
    from refold.session.session import Session
    from refold.tools import Tool


class First(NamedTuple):
    """Which session a chat begins with: a new one, or the one that is named, written last, or picked."""

    reference: str | None = None
    last: bool = False
    pick: bool = False
    in_place: bool = False


class Opening(NamedTuple):
    """What every session of a chat is opened with. Each way blocks, and raises ConfigError or RolloutError."""

    home: Home
    config: Config
    tools: Sequence[Tool]
    asks: bool  # whether the person is asked before a command runs
    cwd: str | None = None
    model: str | None = None
    notice: str | None = None  # one line that the person should see first

    def start(self, approve: Approve) -> Session:
        from refold.session.session import Session

        return Session.start(
            model=self.model,
            tools=self.tools,
            cwd=self.cwd,
            config=self.config,
            home=self.home.path,
            approve=approve if self.asks else None,
        )

    def resume(self, reference: str | Path, approve: Approve, *, in_place: bool = False) -> Session:
        from refold.session.session import Session

        return Session.resume(
            reference,
            model=self.model,
            tools=self.tools,
            cwd=self.cwd,
            config=self.config,
            home=self.home.path,
            in_place=in_place,
            approve=approve if self.asks else None,
        )

    def fork(self, reference: str | Path, approve: Approve) -> Session:
        from refold.session.session import Session

        return Session.fork(
            reference,
            model=self.model,
            tools=self.tools,
            cwd=self.cwd,
            config=self.config,
            home=self.home.path,
            approve=approve if self.asks else None,
        )


Prepare: TypeAlias = Callable[[], Opening]  # reads settings; blocks; raises ConfigError
