"""Every kind of item: whether it enters history, is sent, what it is estimated at, how it pairs, how it is shown."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from refold.core.history import entry
from refold.core.items import OUTPUT_TYPE_OF, Item, enters_history, is_call, is_model_generated, is_output
from refold.core.lines import decode, encode
from refold.core.pairing import for_prompt
from refold.core.profile import Profile, Provider
from refold.core.prompt import prompt_from
from refold.core.records import ItemRecorded
from refold.core.thread import Thread
from refold.core.tokens import IMAGE_BYTES
from refold.core.wire import Identity, Wire
from refold.views.shown import shown_text
from refold.views.transcript import transcript

PROFILE = Profile(slug="m", input_modalities=("text", "image", "audio"))
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64," + "QUJD" * 1000, "detail": "high"}
AUDIO = {"type": "input_audio", "audio_url": "data:audio/wav;base64,QUJD"}
SECRET = {"type": "encrypted_content", "encrypted_content": "x" * 160}
HEAD = len("data:image/png;base64,")


def ceil4(size: int) -> int:
    return -(-size // 4)


class Kind(NamedTuple):
    """One kind: an example, whether history takes it, whether a request has it, its tokens, what a person reads."""

    item: Item
    enters: bool
    sent: bool
    tokens: int
    shown: str


def msg(role: str, *parts: Any) -> Item:
    return {"type": "message", "id": "msg_1", "role": role, "content": list(parts)}


def text(value: str, kind: str = "input_text") -> Item:
    return {"type": kind, "text": value}


KINDS: dict[str, Kind] = {
    "user text": Kind(msg("user", text("hello"), text("you")), True, True, ceil4(8), "helloyou"),
    "user image": Kind(msg("user", text("see"), IMAGE), True, True, ceil4(3 + IMAGE_BYTES + HEAD), "[input_image]"),
    "user image by address": Kind(
        msg("user", {"type": "input_image", "image_url": "https://e.invalid/a.png"}),
        True,
        True,
        ceil4(23),
        "[input_image]",
    ),
    "user audio": Kind(msg("user", AUDIO), True, True, 1, "[input_audio]"),
    "assistant": Kind(msg("assistant", text("an answer", "output_text")), True, True, ceil4(9), "an answer"),
    "developer": Kind(msg("developer", text("rules")), True, True, ceil4(5), "rules"),
    "system": Kind(msg("system", text("rules")), False, False, ceil4(5), "rules"),
    "agent message": Kind(
        {"type": "agent_message", "id": "amsg_1", "author": "/a", "recipient": "/b", "content": [text("do"), SECRET]},
        True,
        True,
        ceil4(2 + 90),
        "do",
    ),
    "reasoning": Kind(
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "why"}],
            "encrypted_content": "e" * 120,
        },
        True,
        True,
        10,
        "why",
    ),
    "open reasoning": Kind(
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "x" * 99}]},
        True,
        True,
        0,
        "not shown",
    ),
    "function call": Kind(
        {
            "type": "function_call",
            "id": "fc_1",
            "name": "look",
            "namespace": "ns",
            "arguments": '{"a":1}',
            "call_id": "c",
        },
        True,
        True,
        ceil4(4 + 2 + 7),
        'look {"a":1}',
    ),
    "function output": Kind(
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "seen"},
        True,
        False,
        ceil4(1 + 4),
        "seen",
    ),
    "output of parts": Kind(
        {"type": "function_call_output", "id": "fco_2", "call_id": "c", "output": [text("seen"), IMAGE, SECRET]},
        True,
        False,
        ceil4(1 + 4 + IMAGE_BYTES + HEAD + 90),
        "[input_image]",
    ),
    "custom call": Kind(
        {
            "type": "custom_tool_call",
            "id": "ctc_1",
            "name": "patch",
            "input": "+ line",
            "call_id": "c",
            "status": "completed",
        },
        True,
        True,
        ceil4(5 + 6),
        "patch + line",
    ),
    "custom output": Kind(
        {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "c", "name": "patch", "output": "done"},
        True,
        False,
        ceil4(1 + 5 + 4),
        "done",
    ),
    "local shell call": Kind(
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed", "action": {"type": "exec"}},
        True,
        True,
        -1,
        "exec",
    ),
    "tool search call": Kind(
        {"type": "tool_search_call", "id": "tsc_1", "call_id": "c", "execution": "client", "arguments": {"q": "x"}},
        True,
        True,
        -1,
        '"q"',
    ),
    "tool search output of the server": Kind(
        {
            "type": "tool_search_output",
            "id": "tso_1",
            "call_id": None,
            "execution": "server",
            "status": "completed",
            "tools": [],
        },
        True,
        True,
        -1,
        "server",
    ),
    "web search call": Kind(
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        True,
        True,
        -1,
        "search",
    ),
    "image generation call": Kind(
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "status": "completed",
            "revised_prompt": "a cat",
            "result": "QUJD" * 99,
        },
        True,
        True,
        ceil4(5 + IMAGE_BYTES),
        "a cat",
    ),
    "compaction": Kind({"type": "compaction", "id": "cmp_1", "encrypted_content": "e" * 120}, True, True, 10, "120"),
    "compaction's alias": Kind(
        {"type": "compaction_summary", "id": "cmp_1", "encrypted_content": "e" * 24}, True, True, 2, "24"
    ),
    "context compaction": Kind({"type": "context_compaction", "id": "cmp_1"}, True, True, 0, "0"),
    "additional tools": Kind(
        {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": []}, True, False, 0, "tools"
    ),
    "compaction trigger": Kind({"type": "compaction_trigger"}, False, False, -1, "{}"),
    "configuration update": Kind(
        {"type": "configuration_update", "reasoning_effort": "high"}, False, False, -1, "high"
    ),
    "unknown": Kind({"type": "from_the_future", "id": "ftf_1", "new": {"deep": [1, None]}}, False, False, -1, "deep"),
}
NAMES = list(KINDS)


@pytest.mark.parametrize("name", NAMES)
def test_whether_it_enters_the_history(name: str) -> None:
    kind = KINDS[name]
    assert enters_history(kind.item) is kind.enters
    thread = Thread()
    thread.apply(ItemRecorded(kind.item), 1)
    assert [e.item for e in thread.history] == ([kind.item] if kind.enters else [])


@pytest.mark.parametrize("name", NAMES)
def test_whether_it_is_sent(name: str) -> None:
    """An output without its call is not, nor are tools of another request; a call gets an output made up."""
    kind = KINDS[name]
    if not kind.enters:
        return
    prompt = prompt_from([entry(kind.item, "T:1")], PROFILE, base_instructions=None)
    sent = json.loads(Wire(Provider(), PROFILE).request(prompt, Identity(thread_id="T")).body())["input"]
    assert (kind.item in sent) is kind.sent
    assert len(sent) == (2 if is_call(kind.item) else int(kind.sent))


@pytest.mark.parametrize("name", NAMES)
def test_what_it_is_estimated_at(name: str) -> None:
    kind = KINDS[name]
    tokens = entry(kind.item, "T:1").tokens
    if kind.tokens >= 0:
        assert tokens == kind.tokens
    else:  # its whole JSON text
        assert tokens == ceil4(len(json.dumps(kind.item, separators=(",", ":"))))


@pytest.mark.parametrize("name", NAMES)
def test_a_round_trip_through_the_log_changes_nothing(name: str) -> None:
    item = KINDS[name].item
    strange = {**item, "later": {"key": [1, 2.5, None, "é"]}}
    for one in (item, strange):
        raw, own, _ = encode(
            ItemRecorded(one), thread_id="T", turn_id=None, timestamp="2026-01-01T00:00:00Z", ordinal=1
        )
        line = decode(raw.splitlines()[own], 1)
        assert line is not None
        assert isinstance(line.record, ItemRecorded)
        assert line.record.item == one
        assert list(line.record.item) == list(one), "keys keep their order"


@pytest.mark.parametrize("name", NAMES)
def test_how_it_is_shown(name: str) -> None:
    kind = KINDS[name]
    assert kind.shown in shown_text(kind.item)
    assert "QUJDQUJD" not in shown_text(kind.item), "no person reads base64"
    raw, own, _ = encode(ItemRecorded(kind.item), thread_id="T", turn_id=None, timestamp="", ordinal=1)
    line = decode(raw.splitlines()[own], 1)
    assert line is not None
    assert len(transcript([line]).rows) == 1


def test_each_call_pairs_with_its_kind_of_output_and_no_other() -> None:
    for call_type, output_type in OUTPUT_TYPE_OF.items():
        call = entry({"type": call_type, "call_id": "c", "name": "n"}, "T:1")
        for other in sorted({*OUTPUT_TYPE_OF.values()}):
            output = entry({"type": other, "call_id": "c", "output": "x", "tools": []}, "T:2")
            sent = for_prompt([call, output], PROFILE.input_modalities)
            assert (output in sent) is (other == output_type)
            assert len(sent) == 2


def test_what_the_model_wrote_is_what_its_usage_counts() -> None:
    written = {name for name, kind in KINDS.items() if is_model_generated(kind.item)}
    assert written == {
        "assistant",
        "reasoning",
        "open reasoning",
        "function call",
        "custom call",
        "local shell call",
        "tool search call",
        "web search call",
        "image generation call",
        "compaction",
        "compaction's alias",
        "context compaction",
    }
    assert not any(is_output(kind.item) for name, kind in KINDS.items() if name in written)
