"""World: the rules and surroundings in force, rendered whole or by difference (spec §7, oracle §8).

A world is a snapshot of plain JSON per section, in the shapes of the real program, and the full text of each section.
Rule 1: rendering is a pure function of two snapshots. Rule 2: the order of sections is the order in SECTIONS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from refold.core.fragments import (
    AGENTS_MD_HEAD,
    KIND_AGENTS_MD,
    KIND_CONTEXT_WINDOW,
    KIND_ENVIRONMENT,
    KIND_PERMISSIONS,
    KIND_WINDOW_GUIDANCE,
    NO_LONGER_APPLY,
    REPLACES,
    stored_message,
    tagged,
)
from refold.core.items import Item, Role
from refold.core.jsonio import JSON, is_object
from refold.core.records import Window
from refold.core.templates import template


class Fragment(msgspec.Struct, frozen=True):
    """One rendered message part of injected context; with `tags` before and after it a message of its own."""

    role: Role
    kind: str
    text: str
    tags: tuple[str, str] | None = None  # parts of their own

    @property
    def parts(self) -> list[tuple[str, str]]:
        texts = (self.text,) if self.tags is None else (self.tags[0], self.text, self.tags[1])
        return [(self.kind, text) for text in texts]


class World(msgspec.Struct, frozen=True):
    """What is in force now: a snapshot by section id, and texts that a snapshot only holds a hash of."""

    state: JSON
    texts: dict[str, str] = {}


# --- sections: what is in force ------------------------------------------------------------------------------


def permissions_text(sandbox_mode: str, approval_policy: str) -> str:
    """The body of the permissions section: one sentence or three for each setting."""
    names = (f"permissions_sandbox_{sandbox_mode}", f"permissions_approval_{approval_policy}")
    return "\n" + "".join(template(name.replace("-", "_")) for name in names)


def escaped(text: str) -> str:
    """Text as it may stand inside an XML element (the standard library's module for it costs 3 ms to import)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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


def make_world(*, permissions: str, environment: JSON, agents_md: JSON) -> World:
    """The world of three sections; `agents_md` is `{}` or `{"directory", "text"}`."""
    digest = fragment_hash("developer", _permissions_fragment(permissions))
    state: JSON = {
        "agents_md": agents_md,
        "environments": environment,
        "permissions": {"instructions": digest, "approved_command_prefixes": []},
    }
    return World(state, {"permissions": permissions})


def in_window(world: World, window: Window, guidance: str) -> World:
    """The world with what a token budget tells of it: which window this is, and how to go about it ("" = nothing)."""
    ids = {"first_id": window.first_id, "id": window.id, "previous_id": window.previous_id}
    told = {"number": window.number, **{key: value for key, value in ids.items() if value}}
    return World({**world.state, GUIDANCE: guidance, OWN: {"window": told}}, world.texts)


def window_told(state: JSON | None) -> Window | None:
    """The window that a snapshot tells of."""
    own = (state or {}).get(OWN)
    told = own.get("window") if is_object(own) else None
    if not is_object(told) or not isinstance(told.get("number"), int):
        return None
    return Window(told["number"], told.get("id"), told.get("first_id"), told.get("previous_id"))


def fragment_hash(role: str, text: str) -> str:
    """The real program's hash of a fragment (spec §7.3), so that it sees whether ours changed."""
    digest = hashlib.sha1(b"codex-world-state-fragment-v1\0", usedforsecurity=False)
    for part in (role, text.replace("\r\n", "\n")):
        encoded = part.encode("utf-8", "replace")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


# --- rendering -------------------------------------------------------------------------------------------------


def _permissions_fragment(text: str) -> str:
    return f"<permissions instructions>{text}</permissions instructions>"


def _render_permissions(world: World, before: Any) -> Fragment | None:
    return Fragment("developer", KIND_PERMISSIONS, _permissions_fragment(world.texts.get("permissions", "")))


def _render_agents_md(world: World, before: Any) -> Fragment | None:
    now: JSON = world.state["agents_md"]
    had = is_object(before) and bool(before.get("text"))
    if not now.get("text"):
        gone = f"{AGENTS_MD_HEAD}\n\n<INSTRUCTIONS>\n{NO_LONGER_APPLY}\n</INSTRUCTIONS>"
        return Fragment("user", KIND_AGENTS_MD, gone) if had else None
    text = (REPLACES if had else "") + now["text"]
    head = f"{AGENTS_MD_HEAD} for {now['directory']}"
    return Fragment("user", KIND_AGENTS_MD, f"{head}\n\n<INSTRUCTIONS>\n{text}\n</INSTRUCTIONS>")


def _render_environment(world: World, before: Any) -> Fragment | None:
    now: JSON = world.state["environments"]
    local: Mapping[str, str] = now["environments"]["local"]
    lines = [
        f"  <cwd>{escaped(local['cwd'])}</cwd>",
        f"  <shell>{escaped(local['shell'])}</shell>",
        f"  <current_date>{now['current_date']}</current_date>",
        f"  <timezone>{now['timezone']}</timezone>",
        f"  {now['filesystem']}",
    ]
    return Fragment("user", KIND_ENVIRONMENT, tagged("environment_context", "\n" + "\n".join(lines) + "\n"))


GUIDANCE = "context_window_guidance"  # the real program's name for it
OWN = "refold"  # sections that only refold has


def _render_guidance(world: World, baseline: JSON | None) -> list[Fragment]:
    now = world.state.get(GUIDANCE)
    if not now or now == (baseline or {}).get(GUIDANCE):
        return []
    return [Fragment("developer", KIND_WINDOW_GUIDANCE, tagged(GUIDANCE, f"\n{now}\n"))]


def _render_window(world: World, baseline: JSON | None) -> list[Fragment]:
    window = window_told(world.state)
    if window is None or window == window_told(baseline):
        return []
    named = (("First", window.first_id), ("Current", window.id), ("Previous", window.previous_id))
    lines = ["Agent name: /root", *(f"{which} context window id: {one}" for which, one in named if one)]
    text = "\n" + "\n".join(lines) + "\n"
    return [Fragment("developer", KIND_CONTEXT_WINDOW, text, ("<context_window>", "</context_window>"))]


# Developer sections stand in one message, user sections in the next; inside each, this order.
SECTIONS: dict[str, Callable[[World, Any], Fragment | None]] = {
    "permissions": _render_permissions,
    "agents_md": _render_agents_md,
    "environments": _render_environment,
}


def render(world: World, baseline: JSON | None) -> list[Fragment]:
    """What the model must be told: everything when `baseline` is None, else each section that changed since."""
    fragments: list[Fragment] = []
    for name, render_section in SECTIONS.items():
        before = None if baseline is None else baseline.get(name)
        if baseline is None or not _same(name, before, world.state[name]):
            fragment = render_section(world, before)
            if fragment is not None:
                fragments.append(fragment)
    first, between = _render_guidance(world, baseline), _render_window(world, baseline)
    if not first and not between:
        return fragments
    developer = [fragment for fragment in fragments if fragment.role == "developer"]
    return [*first, *developer, *between, *(fragment for fragment in fragments if fragment.role != "developer")]


def _same(name: str, before: Any, now: Any) -> bool:
    if name == "agents_md" and now != before:  # no file now and none before: nothing to say
        return not now.get("text") and not (is_object(before) and before.get("text"))
    return before == now


def messages(fragments: list[Fragment], ids: list[str], turn_id: str | None) -> list[Item]:
    """Fragments as stored messages: neighbours of one role share a message; `ids` are used in order."""
    groups: list[tuple[Role, list[tuple[str, str]]]] = []
    closed = True
    for fragment in fragments:
        if groups and groups[-1][0] == fragment.role and not closed and not fragment.tags:
            groups[-1][1].extend(fragment.parts)
        else:
            groups.append((fragment.role, fragment.parts))
        closed = fragment.tags is not None
    return [
        stored_message(role, parts, id=item_id, turn_id=turn_id)
        for (role, parts), item_id in zip(groups, ids, strict=False)
    ]


# --- RFC 7386 ----------------------------------------------------------------------------------------------------


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with a merge patch applied: null deletes, objects merge, everything else replaces."""
    if not is_object(patch):
        return patch
    result = dict(target) if is_object(target) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def diff_patch(before: Any, after: Any) -> Any:
    """The merge patch that turns `before` into `after`; {} when they are equal."""
    if not (is_object(before) and is_object(after)):
        return after
    patch: JSON = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key not in before:
            patch[key] = value
        elif before[key] != value:
            patch[key] = diff_patch(before[key], value)
    return patch
