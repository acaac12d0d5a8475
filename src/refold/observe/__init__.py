"""EDGE, surroundings → World: one file per section; `observe` asks them all.

Public names: Surroundings (what to look at), observe.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec

from refold.core.config import PROJECT_DOC_MAX_BYTES
from refold.core.world import World, environment_state, make_world, permissions_text
from refold.observe.agents_md import find_agents_md
from refold.observe.environment import local_timezone

__all__ = ["Surroundings", "observe"]


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look: the working directory, refold's home (for the user's own AGENTS.md), and what is permitted."""

    cwd: str
    home: str | None = None
    shell: str = "bash"
    sandbox_mode: str = "danger-full-access"
    approval_policy: str = "never"
    project_doc_max_bytes: int = PROJECT_DOC_MAX_BYTES


def observe(where: Surroundings, now: datetime) -> World:
    """Look at the surroundings once, at `now` (local time). Nothing is recorded; an unreadable file does not raise."""
    return make_world(
        permissions=permissions_text(where.sandbox_mode, where.approval_policy),
        environment=environment_state(
            cwd=where.cwd,
            shell=where.shell,
            date=now.strftime("%Y-%m-%d"),
            timezone=local_timezone(os.environ),
            sandbox_mode=where.sandbox_mode,
        ),
        agents_md=find_agents_md(
            Path(where.cwd), Path(where.home) if where.home else None, where.project_doc_max_bytes
        ),
    )
