"""Environment: where a session works: folder, shell, date, time zone, file system (spec §7.2).

A change of one of them tells all of them, as recorded (oracle §8, k_world_state).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.core.fragments import KIND_ENVIRONMENT, tagged
from refold.core.jsonio import JSON
from refold.core.world.section import Fragment, Section, World

ID = "environments"


def escaped(text: str) -> str:
    """Text as the real program writes it in an XML element, quotes too (the standard library's module for it costs 3 ms
    to import)."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&apos;")


def environment_state(*, cwd: str, shell: str, date: str, timezone: str, sandbox_mode: str) -> JSON:
    """The environment's snapshot: working directory, shell, local date (YYYY-MM-DD), time zone, file system rights."""
    profile = {"danger-full-access": ("disabled", "unrestricted")}.get(sandbox_mode, (sandbox_mode, sandbox_mode))
    root = f"<workspace_roots><root>{escaped(cwd)}</root></workspace_roots>"
    rights = f'<permission_profile type="{profile[0]}"><file_system type="{profile[1]}" /></permission_profile>'
    return {
        "environments": {"local": {"cwd": cwd, "status": "available", "shell": shell}},
        "current_date": date,
        "timezone": timezone,
        "filesystem": f"<filesystem>{root}{rights}</filesystem>",
    }


def _render(world: World, before: Any) -> list[Fragment]:
    now: JSON | None = world.state.get(ID)
    if now is None:
        return []
    local: Mapping[str, str] = now["environments"]["local"]
    lines = [
        f"  <cwd>{escaped(local['cwd'])}</cwd>",
        f"  <shell>{escaped(local['shell'])}</shell>",
        f"  <current_date>{now['current_date']}</current_date>",
        f"  <timezone>{now['timezone']}</timezone>",
        f"  {now['filesystem']}",
    ]
    text = tagged("environment_context", "\n" + "\n".join(lines) + "\n")
    return [Fragment("user", KIND_ENVIRONMENT, text)]


ENVIRONMENT = Section(ID, _render)
