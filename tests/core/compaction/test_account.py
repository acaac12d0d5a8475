"""What a checkpoint tells the real program, in the shape of recorded ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.account import account
from refold.core.profile import Profile, Provider
from refold.core.records import CompactionAttempted, SessionStarted, SettingsApplied, TurnStarted, UsageCounted
from refold.core.thread import Thread, same_state
from refold.core.usage import Usage
from refold.model.scripted import ScriptedModel
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import text_reply, usage

ROLLOUTS = Path(__file__).parents[2] / "data" / "oracle" / "rollouts"
USED = Usage(input_tokens=400, output_tokens=10, total_tokens=410)


def recorded() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for path in sorted(ROLLOUTS.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found += [(f"{path.stem}:{line['ordinal']}", line["payload"]) for line in lines if line["type"] == "compacted"]
    return found


def shape(value: Any) -> Any:
    """Keys and types; a text and null are alike where a recorded one may be either."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return str if value is None else type(value)


def written(folder: Path) -> dict[str, Any]:
    """The payload of the checkpoint line that a session writes."""
    replies = [text_reply("one", usage=usage(95_000, 10)), text_reply("SUMMARY", usage=usage(400, 10)), text_reply("2")]
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
    model = ScriptedModel(replies, profile=Profile(slug="m", context_window=100_000, comp_hash="1"), provider=provider)

    async def go() -> Path:
        async with Session.start(model=model, cwd=folder, home=folder / "home", instructions="BASE") as session:
            await session.send("first")
            await session.send("second")
            assert session.path is not None
            assert same_state(session.memory.thread, read_thread(session.path))
            return session.path

    lines = [json.loads(line) for line in asyncio.run(go()).read_text(encoding="utf-8").splitlines()]
    (payload,) = [line["payload"] for line in lines if line["type"] == "compacted"]
    return payload


@pytest.mark.parametrize(("name", "theirs"), recorded(), ids=[name for name, _ in recorded()])
def test_every_key_of_a_recorded_checkpoint_is_written_in_its_shape(
    name: str, theirs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours = written(tmp_path_factory.mktemp("checkpoint"))
    assert list(ours) == [*theirs, "refold"]
    for key in ("latest_token_usage_record", "resume_metadata"):
        assert shape(ours[key]) == shape(theirs[key]), key


def test_usage_and_settings_are_those_of_the_session(tmp_path: Path) -> None:
    ours = written(tmp_path)
    told, resume = ours["latest_token_usage_record"], ours["resume_metadata"]
    assert told["response_id"] == ours["compaction_response_id"] == "resp_2"
    assert told["usage"]["total_tokens"] == told["turn_token_usage"]["total_tokens"] == 410
    assert told["thread_token_usage"]["total_tokens"] == 95_010 + 410
    assert told["turn_id"] == resume["last_started_turn_id"] == resume["turn_attribution"]["turn_id"]
    assert resume["previous_turn_settings"] == {"model": "m", "comp_hash": "1", "realtime_active": False}
    assert ours["refold"]["comp_hash"] == "1"
    kept = [item["id"] for item in ours["replacement_history"] if item["role"] == "user"]
    assert ours["refold"]["goal_ids"][0] in kept and len(ours["refold"]["goal_ids"]) == 1


def thread(*more: Any) -> Thread:
    made = Thread()
    started = SessionStarted(thread_id="T", timestamp="2026-01-01T00:00:00.000Z", cwd="/w")
    for ordinal, record in enumerate([started, *more]):
        made.apply(record, ordinal)
    return made


def test_compaction_by_hand_belongs_to_the_turn_before() -> None:
    settings = SettingsApplied({"turn_id": "one", "model": "m"})
    made = thread(TurnStarted("one"), settings, UsageCounted(USED, USED), TurnStarted("two"))
    told = account(made, None, "standalone_turn")["resume_metadata"]
    assert (told["last_started_turn_id"], told["turn_attribution"]["turn_id"]) == ("two", "one")
    assert account(made, None, "pre_turn")["resume_metadata"]["turn_attribution"]["turn_id"] == "two"


def test_what_is_not_known_is_null_or_left_out() -> None:
    assert account(thread(), "resp_1", None) == {}, "a host without turns"
    made = thread(TurnStarted("one"), CompactionAttempted(method="local", outcome="completed", response_id="resp_1"))
    told = account(made, "resp_1", "pre_turn")
    assert told["latest_token_usage_record"] is None and told["resume_metadata"]["previous_turn_settings"] is None
    other = CompactionAttempted(method="local", outcome="completed", response_id="resp_2", usage=USED)
    assert account(thread(TurnStarted("one"), other), "resp_1", "pre_turn")["latest_token_usage_record"] is None
