"""Plays a recorded scenario of the real program through real sessions; gives both sides' requests in one spelling."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from refold.core.config import Config, parse_config
from refold.core.profile import Profile
from refold.core.templates import template
from refold.core.truncate import Budget
from refold.errors import RefoldError
from refold.model.responses import ResponsesModel
from refold.session.clock import Clock
from refold.session.session import Session
from refold.testing import Reply, ResponsesServer
from refold.tools.commands import exec_command

DATA = Path(__file__).parent.parent / "data" / "oracle" / "scenarios"
LEFT_OUT = ("id", "internal_chat_message_metadata_passthrough")
BIG = 4000  # characters; longer texts are recorded by their hash
BASE = "<BASE_INSTRUCTIONS>"
MODELS = {
    "mock-tokens": Profile(slug="mock-tokens", truncation=Budget("tokens", 10_000), comp_hash="0001"),
    "mock-small": Profile(
        slug="mock-small", context_window=50_000, truncation=Budget("tokens", 10_000), comp_hash="0001"
    ),
}


def load(name: str) -> dict[str, Any]:
    text = (DATA / f"{name}.json").read_text(encoding="utf-8")
    text = text.replace("<SUMMARIZATION_PROMPT>\\n", json.dumps(template("handoff"))[1:-1])
    return json.loads(text.replace("<SUMMARY_PREFIX>", json.dumps(template("summary_prefix"))[1:-1]))


def recorded(scenario: dict[str, Any]) -> list[list[Any]]:
    return _same_spelling([x["input"] for run in scenario["runs"] for x in run["exchanges"]])


def played(scenario: dict[str, Any], folder: Path) -> list[list[Any]]:
    """The requests that sessions of ours send when they are given the recorded replies."""
    replies = [Reply.from_json(x["response"]) for run in scenario["runs"] for x in run["exchanges"]]
    work = folder / "w"
    work.mkdir()
    with ResponsesServer(replies) as server:
        asyncio.run(_play(scenario, server, folder / "home", work))
        return _same_spelling([request.input for request in server.requests])


def _said(run: dict[str, Any]) -> str:
    """What the user of a run said: its last argument, or, where that only tells a length, the recorded message."""
    if run["args"][-1] != "-" and not re.fullmatch(r"<\d+ bytes>", run["args"][-1]):
        return run["args"][-1]
    turn = next(exchange for exchange in run["exchanges"] if exchange["request_kind"] == "turn")
    typed = [item for item in turn["input"] if item.get("role") == "user"][-1]["content"][0]["text"]
    return typed if isinstance(typed, str) else _made_anew(typed["$big"])


def _made_anew(big: dict[str, Any]) -> str:
    """A long text from its recorded head and length; the hash proves that it is the same."""
    head = big["head"]
    if not head.startswith("MSG"):
        text = head[:2] * (big["bytes"] // len(head[:2].encode()))
    else:
        tag = head.split(" ", 1)[0]
        text = "".join(f"{tag} {n:06d} the quick brown fox\n" for n in range(1, big["bytes"] // 20))[: big["bytes"]]
    assert sha256(text.encode()).hexdigest() == big["sha256"], "the generator does not make the recorded text"
    return text


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0  # the recorded waits are not what is compared here


async def _play(scenario: dict[str, Any], server: ResponsesServer, home: Path, work: Path) -> None:
    settings = scenario["config"]
    config = parse_config({k: v for k, v in settings.items() if k in Config.__struct_fields__}, "scenario")
    provider = server.provider(
        stream_max_retries=settings.get("stream_max_retries", 5),
        request_max_retries=settings.get("request_max_retries", 4),
    )
    session_id = None
    for run in scenario["runs"]:
        words = list(run["args"])
        verb = words.pop(0) if words[0] in ("resume", "fork") else "start"
        slug = words[words.index("-m") + 1]
        text = _said(run)
        model = ResponsesModel(config.profile(MODELS[slug]), provider)
        common: dict[str, Any] = {
            "model": model,
            "tools": [exec_command],
            "home": home,
            "config": config,
            "clock": Hasty(),
        }
        if verb == "start":
            session = Session.start(cwd=work, instructions=BASE, **common)
        else:
            session = Session.resume(session_id, **common)
        session_id = session.id
        async with session:
            with contextlib.suppress(RefoldError):  # a turn that the recording lets fail
                await session.send(text)


# --- one spelling for both ---------------------------------------------------------------------------------------


def _same_spelling(requests: list[list[Any]]) -> list[list[Any]]:
    names: dict[str, str] = {}
    return [[_spelled(item, names) for item in items] for items in requests]


def _spelled(item: dict[str, Any], names: dict[str, str]) -> Any:
    """Ids by first appearance; context by role and kinds; command output without its clock."""
    renamed = {"id": names.setdefault(item["id"], f"#{len(names)}")} if "id" in item else {}
    texts = [part.get("text", "") for part in item.get("content") or [] if isinstance(part, dict)]
    context = [kind for text in texts if (kind := _context_kind(item, text))]
    if context:
        return {"role": item["role"], "context": sorted(set(context)), **renamed}
    plain = {key: value for key, value in item.items() if key not in LEFT_OUT and value is not None}
    if isinstance(plain.get("content"), list):
        plain["content"] = [_part(part) for part in plain["content"]]
    if isinstance(plain.get("output"), str):
        plain["output"] = re.sub(
            r"Chunk ID: \w+\nWall time: [\d.]+", "Chunk ID: 000000\nWall time: 0.0000", plain["output"]
        )
    return {**plain, **renamed}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """A part with a long text as its length and hash, as the recordings hold it."""
    text = part.get("text")
    if isinstance(text, dict):
        return {**part, "text": {"bytes": text["$big"]["bytes"], "sha256": text["$big"]["sha256"]}}
    if isinstance(text, str) and len(text) > BIG:
        return {**part, "text": {"bytes": len(text.encode()), "sha256": sha256(text.encode()).hexdigest()}}
    return part


def _context_kind(item: dict[str, Any], text: Any) -> str | None:
    if not isinstance(text, str):
        return None
    if item.get("role") == "developer":
        return None if text == BASE else "developer"
    if item.get("role") == "user":
        for start in ("<environment_context>", "# AGENTS.md instructions", "<turn_aborted>"):
            if text.startswith(start):
                return start
    return None
