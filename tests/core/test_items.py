"""Questions about items, how they are made, and how they are spelled for a provider."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.items import (
    HISTORY_TYPES,
    ID_PREFIX,
    OUTPUT_TYPE_OF,
    PASSTHROUGH,
    answers,
    content_parts,
    enters_history,
    function_call_output,
    is_call,
    is_model_generated,
    is_output,
    message,
    message_text,
    output_for,
    spelled,
    user_message,
    with_id,
)

CALL = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": "{}", "call_id": "call_1"}


# --- questions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "enters"),
    [
        ({"type": "message", "role": "user"}, True),
        ({"type": "message", "role": "developer"}, True),
        ({"type": "message", "role": "system"}, False),
        ({"type": "reasoning"}, True),
        ({"type": "compaction"}, True),
        ({"type": "compaction_trigger"}, False),
        ({"type": "quantum_call"}, False),
        ({"type": ["message"]}, False),
        ({"type": None}, False),
        ({"role": "user"}, False),
    ],
)
def test_only_known_types_enter_the_history(item: dict[str, Any], enters: bool) -> None:
    assert enters_history(item) is enters


def test_every_type_that_enters_the_history_can_be_given_an_id() -> None:
    assert set(ID_PREFIX) >= HISTORY_TYPES


@pytest.mark.parametrize(
    ("item", "generated"),
    [
        ({"type": "message", "role": "assistant"}, True),
        ({"type": "message", "role": "user"}, False),
        ({"type": "reasoning"}, True),
        ({"type": "web_search_call"}, True),
        ({"type": "compaction"}, True),
        ({"type": "function_call_output"}, False),
        ({"type": "agent_message"}, False),
        ({"type": "additional_tools"}, False),
    ],
)
def test_what_the_model_wrote_is_told_from_what_it_was_told(item: dict[str, Any], generated: bool) -> None:
    assert is_model_generated(item) is generated


@pytest.mark.parametrize("kind", sorted(OUTPUT_TYPE_OF))
def test_a_call_is_answered_by_the_output_of_its_kind_and_id(kind: str) -> None:
    call = {"type": kind, "call_id": "call_1"}
    assert is_call(call)
    output = output_for(call, "done")
    assert is_output(output)
    assert answers(output, call)
    assert not answers({**output, "call_id": "call_2"}, call)
    assert not answers(call, output)
    assert not answers({**output, "type": "message"}, call)


@pytest.mark.parametrize("call_id", [None, "", 7, ["call_1"], {}])
def test_a_call_without_a_text_for_its_id_asks_for_no_output(call_id: Any) -> None:
    assert not is_call({**CALL, "call_id": call_id})


def test_text_parts_are_joined_without_a_separator() -> None:
    item = {"type": "message", "content": [{"type": "input_text", "text": "a"}, {"type": "x"}, {"text": "b"}]}
    assert message_text(item) == "ab"


@pytest.mark.parametrize(
    ("item", "parts"),
    [
        ({"content": "plain"}, [{"type": "input_text", "text": "plain"}]),
        ({"output": "plain"}, [{"type": "input_text", "text": "plain"}]),
        ({"output": [{"type": "input_image"}, "stray", None]}, [{"type": "input_image"}]),
        ({"content": None}, []),
        ({}, []),
    ],
)
def test_a_body_is_read_as_parts_whatever_its_form(item: dict[str, Any], parts: list[Any]) -> None:
    assert content_parts(item) == parts


# --- constructors -------------------------------------------------------------------------------------------


def test_messages_are_made_with_the_parts_of_their_role() -> None:
    assert user_message("hi") == {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    answer = message("assistant", ["a", "b"], id="msg_1")
    assert list(answer) == ["type", "id", "role", "content"]
    assert [part["type"] for part in answer["content"]] == ["output_text", "output_text"]


def test_an_output_stands_in_the_real_programs_key_order() -> None:
    assert list(function_call_output("call_1", "x", id="fco_1")) == ["type", "id", "call_id", "output"]
    assert "id" not in function_call_output("call_1", "x")


def test_a_tool_search_is_answered_with_no_tools() -> None:
    assert output_for({"type": "tool_search_call", "call_id": "c"}, "aborted") == {
        "type": "tool_search_output",
        "call_id": "c",
        "status": "completed",
        "execution": "client",
        "tools": [],
    }


def test_an_id_stands_right_after_the_type_and_is_given_once() -> None:
    item = with_id({"role": "user", "type": "message", "id": None}, "msg_1")
    assert list(item.items()) == [("type", "message"), ("id", "msg_1"), ("role", "user")]
    assert with_id(item, "msg_2") is item


# --- spelling -----------------------------------------------------------------------------------------------


def test_an_item_that_may_be_sent_as_it_is_is_shared() -> None:
    assert spelled(CALL) is CALL
    assert spelled(CALL, with_metadata=True) is CALL


STORED = {
    "type": "message",
    "id": "msg_1",
    "role": "user",
    PASSTHROUGH: {"turn_id": "t", "content_item_kinds": ["user.text"], "content_item_metadata": [{"provenance": {}}]},
    "encrypted_function_args": "x",
    "content": [],
    "unknown_field": 1,
}


def test_what_only_openai_takes_is_left_out_for_others() -> None:
    assert spelled(STORED) == {"type": "message", "id": "msg_1", "role": "user", "content": [], "unknown_field": 1}
    assert PASSTHROUGH in STORED, "the stored item is not changed"


def test_openai_gets_metadata_without_provenance_in_its_place() -> None:
    sent = spelled(STORED, with_metadata=True)
    assert sent[PASSTHROUGH] == {"turn_id": "t", "content_item_kinds": ["user.text"]}
    assert list(sent) == list(STORED)
    assert sent["encrypted_function_args"] == "x"


@pytest.mark.parametrize("item_id", ["msg_1", "x_y", "rs_0_1"])
def test_an_id_of_two_halves_is_sent(item_id: str) -> None:
    assert spelled({"type": "reasoning", "id": item_id})["id"] == item_id


@pytest.mark.parametrize("item_id", ["", "msg", "_1", "msg_", None, 5, "019c2000-0000-7000-8000-000000000001"])
@pytest.mark.parametrize("with_metadata", [False, True])
def test_an_id_that_a_provider_would_refuse_is_left_out(item_id: Any, with_metadata: bool) -> None:
    assert spelled({"type": "reasoning", "id": item_id}, with_metadata=with_metadata) == {"type": "reasoning"}


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [({"cmd": "cat ä"}, '{"cmd":"cat ä"}'), (["a"], '["a"]'), (None, "null"), ("{bad", "{bad"), ("", "")],
)
def test_arguments_are_sent_as_text(arguments: Any, sent: str) -> None:
    call = {**CALL, "arguments": arguments}
    assert spelled(call) == {**CALL, "arguments": sent}
    assert list(spelled(call)) == list(CALL)


@pytest.mark.parametrize("kind", [[], {}, None, 5])
def test_a_type_that_is_no_text_is_no_call_and_no_output(kind: Any) -> None:
    item = {"type": kind, "call_id": "c"}
    assert not is_call(item)
    assert not is_output(item)
    assert not is_model_generated(item)
    assert not enters_history(item)
