"""Former: the model that a thread went on with last, when another one goes on with it now."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from refold.core.profile import Profile, Provider
from refold.core.wire import Request
from refold.errors import CompactionFailed, ConfigError
from refold.model import EndpointAnswer, HasCompactEndpoint, Model, ModelEvent
from refold.session.home import profile_of
from refold.session.memory import Memory


class Former:
    """The last model, asked through the connection of the one that goes on: a request says which one it means."""

    def __init__(self, profile: Profile, now: Model) -> None:
        self.profile = profile
        self.provider: Provider = now.provider
        self._now = now

    def sample(self, request: Request) -> AsyncGenerator[ModelEvent]:
        return self._now.sample(request)

    async def compact(self, request: Request) -> EndpointAnswer:
        """As the model that goes on does; see `HasCompactEndpoint`."""
        if not isinstance(self._now, HasCompactEndpoint):
            raise CompactionFailed(f"{type(self._now).__name__} cannot ask at a compact endpoint")
        return await self._now.compact(request)

    def join(self) -> None:
        """The session has joined the model that is asked."""

    async def close(self) -> None:
        """The session closes the model that is asked."""


def former_model(memory: Memory, now: Model) -> Former | None:
    """The model of the last turn, if it was another one of the same provider; the log tells which."""
    settings, meta = memory.thread.settings or {}, memory.thread.meta
    slug, known = settings.get("model"), settings.get("comp_hash")
    comp_hash = known if isinstance(known, str) else None
    if not isinstance(slug, str) or not slug or (meta is not None and meta.provider not in ("", now.provider.id)):
        return None
    if slug == now.profile.slug and comp_hash == now.profile.comp_hash:
        return None
    try:
        facts = profile_of(slug, memory.config)
    except ConfigError:  # a catalogue that cannot be read says nothing about it
        return None
    return Former(msgspec.structs.replace(facts, comp_hash=comp_hash or facts.comp_hash), now)
