"""What another agent says, in each form that was ever written (spec §3.4, §8.2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.core.history import drop_user_turns, entry, is_user_turn
from refold.core.items import is_agent_envelope
from refold.core.lines import decode
from refold.core.records import ItemRecorded, LineKept
from refold.core.thread import Thread

TOLD = {"author": "/root/a", "recipient": "/root", "other_recipients": [], "content": "done", "trigger_turn": False}


def said(text: str, role: str = "assistant", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}], **more}


def test_assistant_message_that_is_an_envelope_is_a_turn_of_its_own() -> None:
    item = said(json.dumps(TOLD), phase="commentary")
    assert is_agent_envelope(item) and is_user_turn(item)
    history = [entry(one, "t:1") for one in (said("hi", "user"), said("yes"), item, said("fine"))]
    assert [e.item for e in drop_user_turns(history, 1)] == [said("hi", "user"), said("yes")]


@pytest.mark.parametrize(
    "item",
    [
        said("plain words"),
        said('{"trigger_turn": true}'),
        said(json.dumps({**TOLD, "trigger_turn": "yes"})),
        said(json.dumps({**TOLD, "author": None})),
        said(json.dumps(TOLD) + " and more"),
        said('"trigger_turn" \ud800'),
        {"type": "message", "role": "assistant", "content": [*said(json.dumps(TOLD))["content"]] * 2},
        {"type": "message", "role": "assistant", "content": json.dumps(TOLD)},
        said(json.dumps(TOLD), "developer"),
    ],
)
def test_what_only_looks_like_an_envelope_is_none(item: dict[str, Any]) -> None:
    assert not is_agent_envelope(item)


def line(payload: dict[str, Any], kind: str = "inter_agent_communication") -> bytes:
    return json.dumps({"timestamp": "t", "ordinal": 5, "type": kind, "payload": payload}).encode()


def test_line_of_a_communication_is_the_message_that_it_stands_for() -> None:
    record = decode(line({**TOLD, "id": "am_1"}), 1).record  # type: ignore[union-attr]
    assert record == ItemRecorded(
        {
            "type": "agent_message",
            "author": "/root/a",
            "recipient": "/root",
            "content": [{"type": "input_text", "text": "done"}],
        }
    )
    thread = Thread()
    thread.apply(record, 5)
    assert is_user_turn(thread.history[0].item)


def test_encrypted_communication_has_a_heading_and_what_is_encrypted() -> None:
    told = {**TOLD, "content": "", "encrypted_content": "gAAA", "trigger_turn": True}
    record = decode(line(told), 1).record  # type: ignore[union-attr]
    assert isinstance(record, ItemRecorded)
    assert record.item["content"] == [
        {"type": "input_text", "text": "Message Type: NEW_TASK\nTask name: /root\nSender: /root/a\nPayload:\n"},
        {"type": "encrypted_content", "encrypted_content": "gAAA"},
    ]


def test_line_in_a_shape_that_is_not_known_is_kept() -> None:
    for payload, kind in (({"author": 1}, "inter_agent_communication"), ({}, "inter_agent_communication_metadata")):
        assert decode(line(payload, kind), 1).record == LineKept(kind, payload)  # type: ignore[union-attr]
