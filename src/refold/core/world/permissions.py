"""Permissions: what commands may do and who is asked, told as one text (spec §7.2–7.3; docs/permissions.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refold.core.fragments import KIND_PERMISSIONS, KIND_PREFIX_SAVED, PREFIX_SAVED
from refold.core.jsonio import JSON, dump, is_list, is_object
from refold.core.templates import template
from refold.core.world.section import Fragment, Section, World
from refold.core.world.snapshot import fragment_hash

ID = "permissions"  # {"instructions": a hash of the text without prefixes, "approved_command_prefixes": [[word, …], …]}
PREFIXES = "approved_command_prefixes"


def permissions_text(
    sandbox_mode: str,
    approval_policy: str,
    *,
    writable_roots: Sequence[str] = (),
    network: bool = False,
    reviewer: str = "user",
) -> str:
    """The body of the permissions section, without approved prefixes: a line or two for each setting.

    `writable_roots`: every folder that commands can write, absolute, the workspace first. `reviewer`: who answers
    when something is asked: `user`, `auto_review` (a program in the user's place), `none`.
    """
    sandbox = template(f"permissions_sandbox_{sandbox_mode}".replace("-", "_"))
    if sandbox_mode == "workspace-write":
        sandbox = sandbox.format(roots="".join(f"- {root}\n" for root in writable_roots))
    if sandbox_mode != "danger-full-access":
        sandbox += template("permissions_network_on" if network else "permissions_network_off")
    approval = template(f"permissions_approval_{approval_policy}".replace("-", "_"))
    if approval_policy != "never":
        approval += template(f"permissions_reviewer_{reviewer}")
    return f"\n{sandbox}{approval}"


def permissions_state(text: str, prefixes: Iterable[Sequence[str]] = ()) -> JSON:
    """The section's snapshot. `prefixes`: the words with which an approved command begins."""
    return {
        "instructions": fragment_hash("developer", _fragment(text)),
        PREFIXES: [list(words) for words in prefixes],
    }


def _fragment(text: str) -> str:
    return f"<permissions instructions>{text}</permissions instructions>"


def _lines(prefixes: Iterable[Any]) -> str:
    return "\n".join(f"- {dump(words).decode()}" for words in prefixes)


def _render(world: World, before: Any) -> list[Fragment]:
    now: Any = world.state.get(ID)
    if not is_object(now):
        return []
    new = _only_new(before, now)
    if new:
        return [Fragment("developer", KIND_PREFIX_SAVED, f"{PREFIX_SAVED}\n{_lines(new)}\n")]
    prefixes: list[Any] = now.get(PREFIXES) or []
    told = template("permissions_prefixes").format(prefixes=_lines(prefixes)) if prefixes else ""
    return [Fragment("developer", KIND_PERMISSIONS, _fragment(world.texts.get(ID, "") + told))]


def _only_new(before: Any, now: JSON) -> list[Any]:
    """The prefixes that came to what was told, if nothing else changed."""
    if not is_object(before) or before.get("instructions") != now["instructions"]:
        return []
    old, new = before.get(PREFIXES), now[PREFIXES]
    old = old if is_list(old) else []
    return [words for words in new if words not in old] if all(words in new for words in old) else []


PERMISSIONS = Section(ID, _render)
