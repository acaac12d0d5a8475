"""Memory: a log and its thread for hosts that have a loop of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold.core.profile import Profile, Provider
from refold.core.thread import same_state
from refold.core.truncate import Budget
from refold.errors import CompactionFailed, RolloutCorrupt, RolloutLocked, SessionClosed
from refold.model.scripted import Reply, ScriptedModel
from refold.session.memory import Memory, read_thread
from refold.testing import text_reply

PROFILE = Profile(slug="m", context_window=50_000, auto_compact_token_limit=1_000, truncation=Budget("tokens", 100))
PROVIDER = Provider(id="scripted", name="scripted", base_url="http://127.0.0.1:1", env_key=None)
USER = {"type": "message", "role": "user", "content": "Hello"}
CALL = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1"}


def test_a_memory_of_this_process_gives_back_what_was_added() -> None:
    memory = Memory.open(None, model=PROFILE, instructions="Be brief.")
    memory.add(USER)
    prompt = memory.prompt()
    assert prompt.base_instructions == "Be brief."
    assert [{key: value for key, value in item.items() if key != "id"} for item in prompt.input] == [USER]
    assert str(prompt.input[0]["id"]).startswith("msg_")


def test_a_message_may_leave_out_its_type() -> None:
    memory = Memory.open(None, model=PROFILE)
    memory.add([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert [item["type"] for item in memory.prompt().input] == ["message", "message"]


def test_objects_of_an_sdk_are_taken() -> None:
    class Sdk:
        def model_dump(self, **_: Any) -> dict[str, Any]:
            return dict(CALL)

    memory = Memory.open(None, model=PROFILE)
    memory.add([Sdk()])
    assert [item["type"] for item in memory.prompt().input] == ["function_call", "function_call_output"]


def test_what_is_no_item_is_refused_before_anything_is_written() -> None:
    memory = Memory.open(None, model=PROFILE)
    with pytest.raises(TypeError, match="not a Responses item"):
        memory.add([USER, "text"])
    assert not memory.thread.history


def test_an_unanswered_call_is_answered_in_the_prompt_only() -> None:
    memory = Memory.open(None, model=PROFILE)
    memory.add([USER, CALL])
    assert memory.prompt().input[-1]["output"] == "aborted"
    assert len(memory.thread.history) == 2


def test_a_tool_output_is_cut_to_the_recording_budget_of_the_model() -> None:
    memory = Memory.open(None, model=PROFILE)
    memory.add([CALL, {"type": "function_call_output", "call_id": "c1", "output": "x" * 10_000}])
    output = memory.prompt().input[-1]["output"]
    assert len(output.replace("…2380 tokens truncated…", "")) == 480


def test_a_folder_goes_on_with_its_newest_session(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add(USER)
    with Memory.open(tmp_path, model=PROFILE) as again:
        assert again.id == memory.id
        assert same_state(again.thread, memory.thread)
        again.add({"role": "assistant", "content": "Hi"})
    assert len(read_thread(again.path).history) == 2  # type: ignore[arg-type]


def test_nothing_is_written_before_something_was_added(tmp_path: Path) -> None:
    Memory.open(tmp_path, model=PROFILE).close()
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add(USER)
        with pytest.raises(RolloutLocked):
            Memory.open(tmp_path, model=PROFILE)


def test_a_closed_memory_takes_nothing(tmp_path: Path) -> None:
    memory = Memory.open(tmp_path, model=PROFILE)
    memory.close()
    with pytest.raises(SessionClosed):
        memory.add(USER)


def test_a_file_that_is_no_rollout_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("hello\n")
    with pytest.raises(RolloutCorrupt, match=r"x\.jsonl is not a rollout"):
        Memory.open(tmp_path / "x.jsonl", model=PROFILE)
    (tmp_path / "y.jsonl").write_text("")
    with pytest.raises(RolloutCorrupt, match=r"y\.jsonl is empty"):
        Memory.open(tmp_path / "y.jsonl", model=PROFILE)


def test_make_room_compacts_when_the_limit_is_reached_and_not_before(tmp_path: Path) -> None:
    model = ScriptedModel([text_reply("SUMMARY")], profile=PROFILE, provider=PROVIDER)
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add(USER)
        assert asyncio.run(memory.make_room(model)) is None
        usage = {"input_tokens": 990, "output_tokens": 10, "total_tokens": 1_000}
        memory.add({"role": "assistant", "content": "Hi"}, usage=usage)
        ended = asyncio.run(memory.make_room(model))
        assert ended is not None
        assert ended.installed
        texts = [item["content"] for item in memory.prompt().input]
        assert texts[0] == "Hello"
        assert texts[1][0]["text"].endswith("\nSUMMARY")
        assert memory.tokens < 1_000
        assert same_state(read_thread(memory.path), memory.thread)  # type: ignore[arg-type]


def test_a_host_without_usage_is_compacted_by_estimate() -> None:
    model = ScriptedModel([text_reply("SUMMARY")], profile=PROFILE, provider=PROVIDER)
    memory = Memory.open(None, model=PROFILE)
    memory.add({"role": "user", "content": "so many words " * 400})
    assert 1_000 <= memory.tokens <= 1_400
    assert asyncio.run(memory.make_room(model)) is not None


def test_only_a_success_replaces_the_history() -> None:
    refusal = Reply(status=400, body={"error": {"message": "no"}})
    model = ScriptedModel([refusal], profile=PROFILE, provider=PROVIDER)
    memory = Memory.open(None, model=PROFILE)
    memory.add({"role": "user", "content": "so many words " * 600})
    before = list(memory.thread.history)
    with pytest.raises(Exception, match="no"):
        asyncio.run(memory.make_room(model))
    assert memory.thread.history == before


def test_a_second_compaction_keeps_one_summary_and_every_user_message() -> None:
    """Case S05, for a host."""
    model = ScriptedModel([text_reply("FIRST"), text_reply("SECOND")], profile=PROFILE, provider=PROVIDER)
    memory = Memory.open(None, model=PROFILE)
    memory.add({"role": "user", "content": "Port the parser to Python."})
    asyncio.run(memory.make_room(model, force=True))
    memory.add({"role": "user", "content": "Also keep the old error codes."})
    asyncio.run(memory.make_room(model, force=True))
    items = memory.prompt().input
    assert [item["content"] for item in items[:2]] == ["Port the parser to Python.", "Also keep the old error codes."]
    assert len(items) == 3
    assert items[2]["content"][0]["text"].endswith("\nSECOND")
    assert memory.thread.window.number == 2


def test_a_history_mode_of_a_newer_version_is_refused_instead_of_misread(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add(USER)
    assert memory.path is not None
    memory.path.write_bytes(memory.path.read_bytes().replace(b'"paginated"', b'"blobs-of-2030"'))
    with pytest.raises(RolloutCorrupt, match="history mode 'blobs-of-2030'"):
        Memory.open(tmp_path, model=PROFILE)


def test_a_compaction_that_another_one_overtook_changes_nothing() -> None:
    slow = [text_reply("ONE", delay=0.02), text_reply("TWO", delay=0.05)]
    model = ScriptedModel(slow, profile=PROFILE, provider=PROVIDER)
    memory = Memory.open(None, model=PROFILE)
    memory.add([{"role": "user", "content": f"old {n}"} for n in range(5)])

    async def go() -> list[object]:
        found = await asyncio.gather(*[memory.make_room(model, force=True) for _ in range(2)], return_exceptions=True)
        return list(found)

    results = asyncio.run(go())
    assert sum(isinstance(result, CompactionFailed) for result in results) == 1
    assert memory.thread.window.number == 1
    assert [item["content"] for item in memory.prompt().input[:5]] == [f"old {n}" for n in range(5)]


def test_no_compaction_between_a_call_and_its_output() -> None:
    model = ScriptedModel([text_reply("ONE")], profile=PROFILE, provider=PROVIDER)
    memory = Memory.open(None, model=PROFILE)
    memory.add([USER, CALL])
    assert asyncio.run(memory.make_room(model, force=True)) is None
    memory.add({"type": "function_call_output", "call_id": "c1", "output": "seen"})
    assert memory.prompt().input[-1]["output"] == "seen"


def test_what_a_host_does_with_its_own_item_later_is_not_history() -> None:
    memory = Memory.open(None, model=PROFILE)
    item: dict[str, Any] = {"role": "user", "content": [{"type": "input_text", "text": "as it was"}]}
    memory.add(item)
    item["content"][0]["text"] = "CHANGED"
    assert memory.prompt().input[0]["content"][0]["text"] == "as it was"
