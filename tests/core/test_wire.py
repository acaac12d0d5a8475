"""Requests: the body's keys in order, bytes that only grow at their end, each entry encoded once."""

from __future__ import annotations

import json
import uuid
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.fragments import KIND_TYPED, stored_message
from refold.core.history import Entry, entry
from refold.core.items import PASSTHROUGH, Item, message
from refold.core.jsonio import without_lone_surrogates
from refold.core.profile import Profile, Provider
from refold.core.prompt import Prompt, prompt_from
from refold.core.wire import BLOCK_BYTES, Identity, Request, Wire

THREAD = "019c2000-0000-7000-8000-000000000001"
IDENTITY = Identity(thread_id=THREAD, turn_id="t1", window_number=2)
OTHER = Provider(id="mine", name="mine")
PROFILE = Profile(slug="m-1", reasoning_effort="medium")
TOOL = {"type": "function", "name": "look", "parameters": {}}
# As the real program orders them (oracle §2); `text` stands only where a model or schema asks for it.
KEYS = ["model", "stream", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "store", "include"]
KEYS += ["prompt_cache_key", "client_metadata"]


def entries(*items: Item) -> list[Entry]:
    return [entry(item, f"T:{number}") for number, item in enumerate(items)]


def prompt(history: list[Entry], base: str | None = "Be terse.", **more: Any) -> Prompt:
    return prompt_from(history, PROFILE, base_instructions=base, **more)


def body(request: Request) -> dict[str, Any]:
    return json.loads(request.body().decode("utf-8", "strict"))


def asked(wire: Wire, history: list[Entry], **more: Any) -> dict[str, Any]:
    return body(wire.request(prompt(history, **more), IDENTITY))


# --- the body -----------------------------------------------------------------------------------------------


def test_the_bodys_keys_stand_in_the_real_programs_order() -> None:
    assert list(asked(Wire(OTHER, PROFILE), entries(message("user", ["hi"])), tools=[TOOL])) == KEYS


def test_the_body_says_what_the_real_program_says() -> None:
    sent = asked(Wire(OTHER, PROFILE), [], base=None, tools=[TOOL])
    assert {key: sent[key] for key in KEYS[:-1]} == {
        "model": "m-1",
        "stream": True,
        "input": [],
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": THREAD,
    }


def test_no_tools_are_an_empty_list_and_no_effort_an_empty_object() -> None:
    sent = asked(Wire(OTHER, Profile(slug="m")), [])
    assert (sent["tools"], sent["parallel_tool_calls"], sent["reasoning"]) == ([], False, {})


def test_verbosity_and_schema_share_one_text_object_before_the_metadata() -> None:
    sent = asked(Wire(OTHER, Profile(slug="m", verbosity="low")), [], output_schema={"type": "object"})
    assert list(sent)[-3:] == ["prompt_cache_key", "text", "client_metadata"]
    assert sent["text"] == {
        "verbosity": "low",
        "format": {
            "type": "json_schema",
            "strict": True,
            "schema": {"type": "object"},
            "name": "codex_output_schema",
        },
    }


def test_metadata_in_body_and_headers_tell_thread_turn_and_window() -> None:
    request = Wire(OTHER, PROFILE).request(prompt([]), IDENTITY)
    told = body(request)["client_metadata"]
    assert (told["thread_id"], told["session_id"], told["turn_id"]) == (THREAD, THREAD, "t1")
    assert told["x-codex-window-id"] == request.headers["x-codex-window-id"] == f"{THREAD}:2"
    turn = json.loads(told["x-codex-turn-metadata"])
    assert turn == json.loads(request.headers["x-codex-turn-metadata"])
    assert (turn["request_kind"], turn["window_number"], turn["turn_id"]) == ("turn", 2, "t1")
    for name in ("session-id", "thread-id", "x-client-request-id"):
        assert request.headers[name] == THREAD
    assert request.headers["originator"] == "refold"


def test_a_request_for_a_summary_says_so_and_a_missing_turn_is_left_out() -> None:
    identity = Identity(thread_id=THREAD, request_kind="compaction")
    told = body(Wire(OTHER, PROFILE).request(prompt([]), identity))["client_metadata"]
    assert "turn_id" not in told
    assert json.loads(told["x-codex-turn-metadata"])["request_kind"] == "compaction"


# --- base instructions --------------------------------------------------------------------------------------


def test_base_instructions_are_the_first_developer_message_with_a_constant_id() -> None:
    wire = Wire(OTHER, PROFILE)
    first = asked(wire, [])["input"]
    assert first == [
        {
            "type": "message",
            "id": "msg_bb0c479a-8028-584e-b1b4-51918e1132db",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be terse."}],
        }
    ]
    assert first[0]["id"] == f"msg_{uuid.uuid5(uuid.NAMESPACE_OID, THREAD)}"
    later = Identity(thread_id=THREAD, turn_id="t9", window_number=7)
    assert body(Wire(Provider(), Profile(slug="x")).request(prompt([]), later))["input"] == first
    other = Identity(thread_id="another")
    assert body(wire.request(prompt([]), other))["input"][0]["id"] != first[0]["id"]


@pytest.mark.parametrize("base", [None, ""])
def test_no_base_instructions_are_no_message(base: str | None) -> None:
    assert asked(Wire(OTHER, PROFILE), [], base=base)["input"] == []


# --- items --------------------------------------------------------------------------------------------------

STORED = stored_message("user", [(KIND_TYPED, "hi")], id="msg_1", turn_id="t1")


def test_metadata_is_sent_to_openai_alone() -> None:
    assert PASSTHROUGH not in asked(Wire(OTHER, PROFILE), entries(STORED), base=None)["input"][0]
    assert asked(Wire(Provider(), PROFILE), entries(STORED), base=None)["input"] == [STORED]


def test_an_id_that_would_be_refused_is_not_sent() -> None:
    history = entries(message("user", ["a"], id="msg_1"), message("user", ["b"], id="0193"))
    assert [item.get("id") for item in asked(Wire(OTHER, PROFILE), history, base=None)["input"]] == ["msg_1", None]


def test_unknown_fields_of_a_known_item_are_sent() -> None:
    item = {**message("assistant", ["x"], id="msg_1"), "phase": "final_answer", "new": {"a": [None]}}
    assert asked(Wire(OTHER, PROFILE), entries(item), base=None)["input"] == [item]


TEXTS = st.text(st.characters(), max_size=20)


@settings(deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_any_text_is_sent_as_strict_utf8(said: str, called: str, seen: str) -> None:
    history = entries(
        message("user", [said], id="msg_1"),
        {"type": "custom_tool_call", "name": "edit", "input": called, "call_id": "c"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": seen},
    )
    sent = asked(Wire(OTHER, PROFILE), history, base="!" + said)["input"]
    got = [sent[0]["content"][0]["text"], sent[1]["content"][0]["text"], sent[2]["input"], sent[3]["output"]]
    assert got == [without_lone_surrogates(text) for text in ("!" + said, said, called, seen)]


# --- a request only grows at its end ------------------------------------------------------------------------


def turn(number: int) -> list[Item]:
    call = {"type": "function_call", "id": f"fc_{number}", "name": "look", "arguments": "{}", "call_id": f"c{number}"}
    return [call, {"type": "function_call_output", "id": f"fco_{number}", "call_id": f"c{number}", "output": "seen"}]


def test_each_request_begins_with_the_whole_input_of_the_one_before() -> None:
    wire, history = Wire(OTHER, PROFILE), entries(STORED)
    before = wire.request(prompt(history), IDENTITY)
    for number in range(20):
        history += entries(*turn(number))
        after = wire.request(prompt(history), IDENTITY)
        input_before = before.head + b",".join(before.parts)
        assert after.body().startswith(input_before + b",")
        before = after


def test_each_entry_is_encoded_once() -> None:
    wire, history = Wire(OTHER, PROFILE), entries(STORED)
    for number in range(50):
        history += entries(*turn(number))
        request = wire.request(prompt(history), IDENTITY)
        assert wire.encodes == len(history) == request.items - 1


def test_entries_that_a_compaction_took_out_are_forgotten_and_the_rest_is_not_encoded_again() -> None:
    wire = Wire(OTHER, PROFILE)
    history = entries(*(item for number in range(100) for item in turn(number)))
    wire.request(prompt(history), IDENTITY)
    kept = history[-2:]
    wire.request(prompt(kept), IDENTITY)
    assert wire.encodes == len(history)
    wire.request(prompt(kept), IDENTITY)
    wire.request(prompt(history), IDENTITY)
    assert wire.encodes == 2 * len(history) - len(kept), "what was forgotten is encoded when it is needed again"


def test_joined_bytes_are_the_json_that_the_parts_say() -> None:
    request = Wire(OTHER, PROFILE).request(prompt(entries(STORED, *turn(1))), IDENTITY)
    assert request.size == len(request.body())
    assert json.loads(b"[" + b",".join(request.parts) + b"]") == body(request)["input"]
    assert request.items == len(body(request)["input"])


def test_a_long_history_is_a_few_blocks_and_a_loose_end() -> None:
    wire, history = Wire(OTHER, PROFILE), entries(*(item for number in range(2_000) for item in turn(number)))
    whole = wire.request(prompt(history), IDENTITY)
    for number in range(2_000, 2_010):
        history += entries(*turn(number))
        grown = wire.request(prompt(history), IDENTITY)
    largest = 2 * BLOCK_BYTES
    assert len(whole.body()) > 4 * BLOCK_BYTES
    assert all(len(part) < largest for part in grown.parts)
    assert len([part for part in grown.parts if len(part) >= BLOCK_BYTES]) >= len(whole.body()) // largest
    assert [part for part in whole.parts if len(part) >= BLOCK_BYTES] == [
        part for part in grown.parts if len(part) >= BLOCK_BYTES
    ], "blocks are joined once"
    assert grown.sha256 == sha256(grown.body()).hexdigest()
    assert whole.sha256 == sha256(whole.body()).hexdigest()
    assert grown.body() == Wire(OTHER, PROFILE).request(prompt(history), IDENTITY).body()
