"""Compare: the first item in which two programs' requests differ, in the conformance tests' spelling.

Rule 1: everything counts exactly but the words of the permissions: each program has its own.
Rule 2: an id that the file states must be the same on both sides; any other is named by where it appears first.
Rule 3: one thing more is let through, and said: see RETELLERS.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
from tests.conformance.replay import spelled

# Each program says the permissions in words of its own, and a file holds only a hash of them. So whoever takes a window
# over tells its own text once more, behind the history, although the other's words stand in it.
RETELLERS = ("real",)
PERMISSIONS = "<permissions instructions>"

SHOWN = 500  # characters of an item that a difference shows
ID = re.compile(r'"(?:id|item_id)":"([^"]+)"')


class Differs(Exception):
    """What a check found; its text names the first difference."""


class Played(msgspec.Struct, frozen=True):
    """What a program sent in one turn, request by request, and the rollout it wrote."""

    by: str
    requests: list[list[Any]]
    rollout: Path


def ids_in(rollout: Path) -> frozenset[str]:
    """The ids that a rollout states: what is sent again must keep them, letter for letter."""
    return frozenset(ID.findall(rollout.read_text(encoding="utf-8")))


def compare(promised: Played, sent: Played, known: frozenset[str]) -> str:
    """Raise Differs at the first difference; else a note of what was let through. `known` are the ids in the file."""
    notes: list[str] = []
    both = (_spelling(promised, known, notes), _spelling(sent, known, notes))
    if len(promised.requests) != len(sent.requests):
        counts = f"{len(promised.requests)} requests by {promised.by}, {len(sent.requests)} by {sent.by}"
        raise Differs(counts)
    for number, (one, other) in enumerate(zip(*both, strict=True), 1):
        for place, (expected, found) in enumerate(itertools.zip_longest(one, other)):
            if expected != found:
                shown = f"{promised.by:6} {_shown(expected)}\n{sent.by:6} {_shown(found)}"
                raise Differs(f"request {number} of the turn, item {place}:\n{shown}")
    return ", ".join(notes)


def without_context(played: Played) -> Played:
    """The same without the items that tell surroundings."""
    kept = [[item for item in request if not is_context(item)] for request in played.requests]
    return Played(played.by, kept, played.rollout)


def is_context(item: Any) -> bool:
    """Whether an item tells surroundings."""
    return "context" in spelled(item, {})


def _spelling(played: Played, known: frozenset[str], notes: list[str]) -> list[list[Any]]:
    names = {one: one for one in sorted(known)}
    retold = [_retold(request, known) if played.by in RETELLERS else [] for request in played.requests]
    if any(retold):
        notes.append(f"{played.by} told its own permissions text again")
    kept = ([item for item in items if item not in more] for items, more in zip(played.requests, retold, strict=True))
    return [[_whole(item, spelled(item, names)) for item in items] for items in kept]


def _whole(item: Any, spelled: Any) -> Any:
    """The spelling with the words of the context, which the conformance tests leave out."""
    if "context" not in spelled:
        return spelled
    texts = [part.get("text", "") for part in item["content"]]
    return {**spelled, "texts": [PERMISSIONS if text.startswith(PERMISSIONS) else text for text in texts]}


def _retold(request: list[Any], known: frozenset[str]) -> list[Any]:
    """The message that tells nothing but permissions, where they were told before and new context belongs.

    That is behind all that the file states (and what stands in for a missing output), before all else that is new.
    """
    stated = [place for place, item in enumerate(request) if item.get("id") in known or item.get("output") == "aborted"]
    behind = stated[-1] + 1 if stated else 1  # the base instructions come first
    for item in itertools.takewhile(is_context, request[behind:]):
        if _tells_permissions(item) and len(item["content"]) == 1:
            return [item] if any(map(_tells_permissions, request[:behind])) else []
    return []


def _tells_permissions(item: Any) -> bool:
    parts = item.get("content") if item.get("role") == "developer" else None
    return any(str(part.get("text", "")).startswith(PERMISSIONS) for part in parts or [])


def _shown(item: Any) -> str:
    if item is None:
        return "nothing"
    text = json.dumps(item, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
