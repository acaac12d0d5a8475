"""EDGE, surroundings → World: one file per section; `observe` asks them all.

Public names: Surroundings (what to look at), Watch (what was read before), Looking (what an observer gets), observe.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from refold.core.config import PROJECT_DOC_MAX_BYTES
from refold.core.skill import SkillSettings
from refold.core.world import World, environment_state
from refold.observe.agents_md import find_agents_md
from refold.observe.environment import local_timezone
from refold.observe.permissions import see_permissions
from refold.observe.skills import see_skills
from refold.observe.watch import Watch

__all__ = ["Looking", "Surroundings", "Watch", "observe"]


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look: the working directory, refold's home (for the user's own AGENTS.md), and what is permitted."""

    cwd: str
    home: str | None = None
    shell: str = "bash"
    sandbox_mode: str = "danger-full-access"
    approval_policy: str = "never"
    writable_roots: tuple[str, ...] = ()  # inside walls; absolute, the workspace first
    network: bool = False  # inside walls
    reviewer: str = "user"  # who is asked: user, auto_review, none
    approved: tuple[tuple[str, ...], ...] = ()  # the words with which approved commands begin
    developer_instructions: str = ""
    project_doc_max_bytes: int = PROJECT_DOC_MAX_BYTES
    project_doc_fallback_filenames: tuple[str, ...] = ()
    tell_permissions: bool = True
    tell_environment: bool = True
    skills: SkillSettings = SkillSettings()
    context_window: int | None = None  # of the model, in tokens: what the list of skills may take


class Looking(msgspec.Struct, frozen=True):
    """What an observer gets: where to look, the local time, and what was read before."""

    where: Surroundings
    now: datetime
    watch: Watch


def see_environment(looking: Looking) -> World:
    where = looking.where
    if not where.tell_environment:
        return World({})
    state = environment_state(
        cwd=where.cwd,
        shell=where.shell,
        date=looking.now.strftime("%Y-%m-%d"),
        timezone=local_timezone(os.environ),
        sandbox_mode=where.sandbox_mode,
    )
    return World({"environments": state})


def see_agents_md(looking: Looking) -> World:
    where = looking.where
    found = find_agents_md(
        Path(where.cwd),
        Path(where.home) if where.home else None,
        where.project_doc_max_bytes,
        fallbacks=where.project_doc_fallback_filenames,
        watch=looking.watch,
    )
    return World({"agents_md": found})


def see_developer(looking: Looking) -> World:
    return World({}, {"developer_instructions": looking.where.developer_instructions})


# Each gives its own sections: their part of the snapshot, and the texts beside it. None of them raises.
OBSERVERS: tuple[Callable[[Looking], World], ...] = (
    see_developer,
    see_agents_md,
    see_skills,
    see_permissions,
    see_environment,
)


def observe(where: Surroundings, now: datetime, watch: Watch | None = None) -> World:
    """Look at the surroundings once, at `now` (local time). Nothing is recorded; an unreadable file does not raise.

    `watch`: what was read the last time; only what changed is read again.
    """
    looking = Looking(where, now, watch or Watch())
    seen = [see(looking) for see in OBSERVERS]
    state = {key: value for world in seen for key, value in world.state.items()}
    return World(state, {key: text for world in seen for key, text in world.texts.items()})
