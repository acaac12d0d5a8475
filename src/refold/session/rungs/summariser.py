"""Summariser: the model that is asked for a summary, where `[compaction]` names another one than the session's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import msgspec

from refold.core.config import Config
from refold.core.wire import Wire
from refold.errors import ConfigError
from refold.model import HasSecondWay, Model
from refold.session.former import Former
from refold.session.home import model_named, profile_of
from refold.session.rungs.job import Job


class Neighbour(Former):
    """Another model, or the same with another effort, asked through the connection of the session's."""

    def fall_back(self, thread_id: str) -> bool:
        """Take the second way of the model that is asked; see `HasSecondWay`."""
        return isinstance(self._now, HasSecondWay) and self._now.fall_back(thread_id)


def summariser_of(config: Config, model: Model, environ: Mapping[str, str] | None = None) -> Model | None:
    """Who is asked for a summary instead of this model; None: nobody else. Raises ConfigError (provider, key).

    What is set about the window of the session's model does not hold for another one.
    """
    asked, slug = config.compaction, model.profile.slug
    if not (asked.model or asked.provider or asked.effort):
        return None
    name = asked.model or slug
    settings = msgspec.structs.replace(config, model_reasoning_effort=asked.effort or config.model_reasoning_effort)
    if name != slug:
        settings = msgspec.structs.replace(settings, model_context_window=None, model_auto_compact_token_limit=None)
    if asked.provider is None or asked.provider == model.provider.id:
        if name != slug:
            return Neighbour(profile_of(name, settings), model)
        return Neighbour(
            msgspec.structs.replace(model.profile, reasoning_effort=settings.model_reasoning_effort), model
        )
    try:
        return model_named(name, msgspec.structs.replace(settings, model_provider=asked.provider), environ)
    except ConfigError as error:
        if error.key != "model_provider":
            raise
        raise ConfigError("compaction.provider", error.why) from None


@asynccontextmanager
async def summarising(job: Job) -> AsyncGenerator[Job]:
    """The job as its summariser does it. A connection of the summariser's own is for one compaction: the next is far
    away, and a host that owns the loop has nobody to close it later."""
    own = summariser_of(job.memory.config, job.model)
    if own is None:
        yield job
        return
    own.join()
    try:
        yield msgspec.structs.replace(job, model=own, wire=Wire(own.provider, own.profile))
    finally:
        await own.close()
