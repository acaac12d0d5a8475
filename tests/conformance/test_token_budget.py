"""The recorded token-budget path of the real program, against what real sessions send for the same replies.

Everything is compared exactly but prose of our own (permissions, environment) and what a new window begins with: the
real program's holds nothing that a person said, ours keeps it and adds an outline (docs/deviations.md).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from replay import BASE, MODELS, Hasty, spelled

from refold.core.config import parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import is_model_generated, message_text
from refold.model.responses import ResponsesModel
from refold.rollout.reader import read_lines
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage
from refold.tools.commands import exec_command

DATA = Path(__file__).parent.parent / "data" / "oracle" / "token_budget.json"
SCENARIOS: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))["scenarios"]
SAID = "first"
LOW = usage(90, 10)

# The recording has no replies: what left no trace in the next request, and the usage that the oracle's text tells.
LAST_CALL = call_reply("exec_command", {"cmd": "echo 2"}, "call_2", usage=usage(1_590, 10))
UNSEEN: dict[str, dict[int, Reply]] = {
    "rollover_mid_turn": {1: LAST_CALL, 3: text_reply("done")},
    "reminder": {2: LAST_CALL, 3: text_reply("done")},
    "new_context_tool": {1: call_reply("new_context", {}, "call_2", usage=LOW), 2: text_reply("done")},
}
TOLD = {("reminder", 1): usage(880, 10)}  # 890 reported + 28 estimated: 82 of 1,000 are left


def replies(name: str) -> list[Reply]:
    exchanges = SCENARIOS[name]["exchanges"]
    return [
        UNSEEN[name].get(number) or Reply(items=new_items(exchanges, number), usage=TOLD.get((name, number), LOW))
        for number in range(len(exchanges))
    ]


def new_items(exchanges: list[dict[str, Any]], number: int) -> tuple[dict[str, Any], ...]:
    """What the model wrote after a request: its items that the next one has and this one has not."""
    known = {item["id"] for item in exchanges[number]["input"]}
    later = exchanges[number + 1]["input"]
    return tuple(item for item in later if item["id"] not in known and is_model_generated(item))


def played(name: str, folder: Path) -> tuple[list[LoggedRequest], Path]:
    """The requests of a session of ours that is given the recorded replies, and its log."""

    async def go() -> Path:
        config = parse_config(nested(SCENARIOS[name]["config"]), "scenario")
        model = ResponsesModel(config.profile(MODELS["mock-tokens"]), server.provider())
        session = Session.start(
            model=model,
            tools=[exec_command],
            home=folder / "home",
            config=config,
            cwd=folder,
            instructions=BASE,
            clock=Hasty(),
        )
        async with session:
            await asyncio.wait_for(session.send(SAID), 30)
            assert session.path is not None
            return session.path

    with ResponsesServer(replies(name)) as server:
        path = asyncio.run(go())
    return server.requests, path


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in settings.items() if "." not in key}
    return {**plain, "features": {"token_budget": settings["features.token_budget"], "undo": True}}


# --- one spelling for both ---------------------------------------------------------------------------------------


def number(request: LoggedRequest) -> int:
    return int((request.header("x-codex-window-id") or "").rpartition(":")[2])


def name_of(found: re.Match[str], names: dict[str, str]) -> str:
    return names.setdefault(found[0], f"id {len(names)}")


def spelled_all(requests: list[list[dict[str, Any]]]) -> list[list[Any]]:
    ids: dict[str, str] = {}
    windows: dict[str, str] = {}
    return [[spelled_one(item, ids, windows) for item in items] for items in requests]


def spelled_one(item: dict[str, Any], ids: dict[str, str], windows: dict[str, str]) -> Any:
    if item.get("role") != "developer":
        return spelled(with_context_tag(item), ids)
    texts = [part["text"] for part in item["content"]]
    named = [re.sub(r"#\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", by_name(windows), text) for text in texts]
    parts = ["prose" if is_prose(text) else text for text in named]
    once = [text for place, text in enumerate(parts) if text != "prose" or text not in parts[:place]]
    return {"role": "developer", "parts": once, "id": ids.setdefault(item["id"], f"#{len(ids)}")}


def by_name(names: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda found: name_of(found, names)


def is_prose(text: str) -> bool:
    """Whether a developer's part is prose, which each program has its own of."""
    return text.startswith("<permissions") or re.fullmatch("<(CONTEXT|SKILLS|PERMISSIONS)_PROSE>", text) is not None


def with_context_tag(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") != "message" or item["content"][0]["text"] != "<ENV>":
        return item
    return {**item, "content": [{"type": "input_text", "text": "<environment_context>"}]}


def kept(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What people said and the outline, of a request."""
    return [item for item in items if item.get("role") == "user" and is_kept(message_text(item))]


def is_kept(text: str) -> bool:
    return text == SAID or text.startswith(SUMMARY_MARK)


# --- the comparison ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_requests_are_those_of_the_real_program_but_for_what_a_new_window_keeps(name: str, tmp_path: Path) -> None:
    requests, _ = played(name, tmp_path)
    exchanges = SCENARIOS[name]["exchanges"]
    assert [number(request) for request in requests] == [one["window_number"] for one in exchanges]
    first = next(item for item in requests[0].input if message_text(item) == SAID)
    mine: list[list[dict[str, Any]]] = []
    for request in requests:
        ours = kept(request.input) if number(request) else []
        mine.append([item for item in request.input if item not in ours])
        if number(request):  # the deviation, and all of it
            assert [item["id"] for item in ours][:1] == [first["id"]]
            said, outline = map(message_text, ours)
            assert said == SAID
            assert "## Goals" in outline
            assert SAID in outline
            assert "new_context" not in outline
    ours, theirs = spelled_all(mine), spelled_all([one["input"] for one in exchanges])
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == other, f"request {place} of {name}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_two_tools_stand_where_the_real_program_has_them(name: str, tmp_path: Path) -> None:
    requests, _ = played(name, tmp_path)
    for request, exchange in zip(requests, SCENARIOS[name]["exchanges"], strict=True):
        ours = [tool["name"] for tool in request.json["tools"]]
        assert ours == [tool for tool in exchange["tools"] if tool in ours]
        assert {"new_context", "get_context_remaining"} < set(ours)


@pytest.mark.parametrize("name", SCENARIOS)
def test_window_ids_that_the_model_is_told_are_those_of_the_log(name: str, tmp_path: Path) -> None:
    requests, path = played(name, tmp_path)
    window = read_thread(path).window
    text = next(
        part["text"]
        for item in requests[-1].input
        if item.get("role") == "developer"
        for part in item["content"]
        if "context window id" in part["text"]
    )
    assert re.findall("window id: (.*)\n", text) == [window.first_id, window.id, window.previous_id]
    assert window.number == 1
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    (begun,) = [line["payload"]["context_window"]["window_id"] for line in lines if line["type"] == "session_meta"]
    assert window.first_id == window.previous_id == begun
    assert any(line.record.__class__.__name__ == "Compacted" for line in read_lines(path))
