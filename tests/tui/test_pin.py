"""/pin in the chat: the newest message or an address; what was pinned is said, and told after a compaction."""

from __future__ import annotations

import json

from refold.testing import ResponsesServer


def texts(request) -> list[str]:
    return [part["text"] for item in request.input for part in item.get("content", [])]


def test_pin_keeps_the_newest_message_or_the_record_at_an_address(place):
    with ResponsesServer(["The port is 8443.", "SUMMARY", "two"]) as server:
        place.connect(server)
        chat = place.chat(columns=160)
        chat.is_ready()
        chat.says("/pin")
        chat.sees("! nothing was said yet that could be pinned")
        chat.is_ready()
        chat.says("Which port?")
        chat.sees("8443")
        chat.is_ready()
        chat.says("/pin")
        chat.sees(": Which port?")
        chat.sees("tokens for pins")
        chat.is_ready()
        chat.says("/pin 999")
        chat.sees("! no record with a text at ")
        chat.is_ready()
        [rollout] = place.home.glob("sessions/*/*/*/*")
        records = [json.loads(line) for line in rollout.read_bytes().splitlines()]
        ordinal = next(one["ordinal"] for one in records if "8443" in str(one) and one["type"] == "response_item")
        chat.says(f"/pin {ordinal}")
        chat.sees(": The port is 8443.")
        chat.is_ready()
        chat.says("/compact")
        chat.sees("⇣ compacted: ")
        chat.is_ready()
        chat.says("go on")
        chat.sees("two")
    assert texts(server.requests[2]).count("The port is 8443.") == 1
    assert texts(server.requests[2]).count("Which port?") == 1
