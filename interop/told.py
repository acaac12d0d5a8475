"""Told: what the upstream of a gateway was sent, a few words an item, and what the real program wrote of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from interop.compare import Differs, is_context
from interop.real import BASE
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import Item
from refold.core.templates import template
from refold.server.seal import is_ours
from refold.testing import LoggedRequest, ResponsesServer

PLAIN = frozenset({"message", "function_call", "function_call_output", "reasoning"})


def equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Differs(f"{what}:\nfound    {found!r}\nexpected {expected!r}")


def told(request: LoggedRequest) -> list[str]:
    """The items of a request, a few words each. Raises Differs where it is not what a plain upstream takes."""
    body = request.json
    kinds = {str(tool.get("type")) for tool in body.get("tools") or []} - {"function"}
    more = {"previous_response_id", "context_management"} & body.keys()
    if kinds or more or "reasoning.encrypted_content" in (body.get("include") or []):
        raise Differs(f"the upstream was sent tools {kinds}, keys {more}, include {body.get('include')}")
    return [_word(item) for item in request.input]


def _word(item: Item) -> str:
    kind = str(item.get("type", "message"))
    if kind not in PLAIN or "encrypted_content" in item or any(key.startswith("internal_") for key in item):
        raise Differs(f"the upstream was sent {json.dumps(item)[:400]}")
    if kind != "message":
        return f"{kind} {item['name']}" if "name" in item else kind
    text = "".join(part["text"] for part in item["content"])
    if text in (BASE, template("handoff")):
        return "base" if text == BASE else "handoff"
    if text.startswith(SUMMARY_MARK):
        return f"summary: {text.removeprefix(SUMMARY_MARK)}"
    return "context" if is_context(item) else text


def equal_told(upstream: ResponsesServer, *expected: list[str]) -> str:
    """Raise Differs unless the upstream was told this, request by request."""
    found = [told(request) for request in upstream.requests]
    for number, (one, other) in enumerate(itertools.zip_longest(found, expected), 1):
        equal(f"request {number} of the upstream", one, other)
    return f"{len(found)} requests"


def tools_of(request: LoggedRequest) -> set[str]:
    return {tool["name"] for tool in request.json.get("tools") or []}


# --- what the real program wrote -----------------------------------------------------------------------------------


def items_of(rollout: Path) -> list[Item]:
    return [line["payload"] for line in lines_of(rollout) if line["type"] == "response_item"]


def item_of(rollout: Path, kind: str) -> Item:
    found = [item for item in items_of(rollout) if item["type"] == kind]
    equal(f"items {kind} in the rollout", len(found), 1)
    return found[0]


def equal_sealed(rollout: Path, count: int, *summaries: str, beside: Collection[str] = ("message",)) -> None:
    """Raise Differs unless the rollout holds so many checkpoints, each ending with an item that only the gateway reads
    behind items of these types, and no word of the summaries."""
    checkpoints = [line["payload"] for line in lines_of(rollout) if line["type"] == "compacted"]
    equal("checkpoints", len(checkpoints), count)
    for checkpoint in checkpoints:
        *before, last = checkpoint["replacement_history"]
        equal("what ends a checkpoint", last["type"], "compaction")
        equal("what else is in it", {item["type"] for item in before}, set(beside))
        if not is_ours(last["encrypted_content"]):
            raise Differs(f"the item holds {last['encrypted_content'][:80]!r}")
    text = rollout.read_text(encoding="utf-8")
    equal("summaries that can be read in the rollout", [one for one in summaries if one in text], [])


def lines_of(rollout: Path) -> list[Any]:
    return [json.loads(line) for line in rollout.read_text(encoding="utf-8").splitlines()]
