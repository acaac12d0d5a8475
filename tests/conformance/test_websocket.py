"""The recorded WebSocket frames of the real program, against those that a real session sends for the same replies.

Context items are compared by role, kinds and position, tools by whether there are any, everything else exactly.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from replay import BASE, MODELS, Hasty, spelled

from refold.core.config import Config
from refold.core.templates import template
from refold.model.responses import ResponsesModel
from refold.session.session import Session
from refold.testing import LoggedRequest, Reply, ResponsesServer
from refold.tools.commands import exec_command

DATA = Path(__file__).parent.parent / "data" / "oracle" / "websocket.json"
SAME = ["basic", "compact", "remote", "close", "error", "limit"]
LIMIT = 4_000  # tokens; the recording does not tell its own, but that 5,010 reached it
NOT_SAID = {"x-codex-beta-features"}  # a header that tells of features that are not ours


def load(name: str) -> dict[str, Any]:
    text = DATA.read_text(encoding="utf-8")
    text = text.replace("<SUMMARIZATION_PROMPT>\\n", json.dumps(template("handoff"))[1:-1])
    text = text.replace("<SUMMARY_PREFIX>", json.dumps(template("summary_prefix"))[1:-1])
    return json.loads(text.replace("<ENV>", "<environment_context>"))["scenarios"][name]


def played(scenario: dict[str, Any], folder: Path, *, remote: bool = False) -> ResponsesServer:
    """The server that heard a session of ours being given the recorded replies."""

    async def go() -> None:
        config = Config(model_auto_compact_token_limit=LIMIT)
        profile = config.profile(MODELS["mock-tokens"])
        model = ResponsesModel(
            profile, server.provider(supports_websockets=True, compaction="remote" if remote else "local")
        )
        common: dict[str, Any] = {"model": model, "tools": [exec_command], "home": folder / "home", "config": config}
        async with Session.start(cwd=folder, instructions=BASE, clock=Hasty(), **common) as session:
            await asyncio.wait_for(session.send("do it"), 30)

    with ResponsesServer([Reply.from_json(step) for step in scenario["steps"]]) as server:
        asyncio.run(go())
    return server


def recorded(scenario: dict[str, Any]) -> list[Any]:
    """What the real program said, each with the number of its connection."""
    frames, names = scenario["frames"], {}
    numbers = accumulate("open" in frame for frame in frames)
    return [_spelled(frame, number, names) for number, frame in zip(numbers, frames, strict=True) if "type" in frame]


def heard(requests: list[LoggedRequest]) -> list[Any]:
    names: dict[str, str] = {}
    bodies = [(request.connection, {**request.json, "keys": list(request.json)}) for request in requests]
    return [_spelled({**body, "tools": len(body["tools"])}, number, names) for number, body in bodies]


def _spelled(frame: dict[str, Any], number: int, names: dict[str, str]) -> Any:
    said = ("keys", "type", "stream", "store", "generate", "tool_choice", "parallel_tool_calls")
    previous = re.sub("_0*", "_", frame.get("previous_response_id") or "none")
    return {
        "connection": number,
        "previous": previous,
        "tools": frame["tools"] > 0,
        **{key: frame.get(key) for key in said},
        "input": [spelled(_named(item), names) for item in frame["input"]],
    }


def _named(item: dict[str, Any]) -> dict[str, Any]:
    """A recorded developer message by its true name: the recorder called the first of each frame base instructions."""
    if item.get("role") != "developer" or item["content"][0]["text"] not in ("<BASE>", "<CTX>"):
        return item
    text = BASE if item["id"] == "msg_@1" else "<CTX>"
    return {**item, "content": [{"type": "input_text", "text": text}]}


@pytest.mark.parametrize("name", SAME)
def test_frames_are_those_of_the_real_program(name: str, tmp_path: Path) -> None:
    scenario = load(name)
    ours, theirs = heard(played(scenario, tmp_path, remote=name == "remote").requests), recorded(scenario)
    for number, (mine, real) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == real, f"frame {number} of {name}"


def test_the_handshake_says_what_the_real_programs_says(tmp_path: Path) -> None:
    scenario = load("basic")
    (handshake,) = played(scenario, tmp_path).handshakes
    real = scenario["frames"][0]
    assert (handshake.path, handshake.body) == (real["open"], b"")
    told = {name: value for name, value in real["headers"].items() if value[:1] != "<" and name != "authorization"}
    assert {name: handshake.header(name) for name in told if name not in NOT_SAID} == {
        **{name: value for name, value in told.items() if name not in NOT_SAID},
        "originator": "refold",
    }
    missing = {name for name in real["headers"] if handshake.header(name) is None}
    assert missing == NOT_SAID | {"authorization"}, "the test's server needs no key"


def test_frames_tell_no_metadata_that_the_real_programs_do_not(tmp_path: Path) -> None:
    scenario = load("basic")
    real = [set(frame["client_metadata"]) for frame in scenario["frames"] if "type" in frame]
    ours = [request.json["client_metadata"] for request in played(scenario, tmp_path).requests]
    assert all(set(mine) <= theirs for mine, theirs in zip(ours, real, strict=True))
    kinds = [json.loads(mine["x-codex-turn-metadata"])["request_kind"] for mine in ours]
    assert kinds == ["prewarm", "turn", "turn", "turn"]


def test_every_recorded_scenario_is_accounted_for() -> None:
    assert set(json.loads(DATA.read_text(encoding="utf-8"))["scenarios"]) == {*SAME}
