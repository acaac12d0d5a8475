"""/undo in the chat: what came of it is said, and the next message is answered with the history that counts."""

from __future__ import annotations

import json

from refold.testing import ResponsesServer


def said(request) -> list[str]:
    found = [part["text"] for item in request.input if item.get("role") == "user" for part in item["content"]]
    return [text for text in found if not text.startswith(("<", "#"))]


def test_undo_takes_a_compaction_back_and_says_so(place):
    with ResponsesServer(["one", "SUMMARY", "two", "three"]) as server:
        place.connect(server)
        chat = place.chat(columns=160)
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        chat.says("/undo")
        chat.sees("! there is nothing to undo")
        chat.is_ready()
        chat.says("/compact")
        chat.sees("⇣ compacted: ")
        chat.is_ready()
        chat.says("/undo")
        chat.sees("is undone: ")
        chat.is_ready()
        chat.says("second")
        chat.sees("two")
        chat.is_ready()
        chat.says("/undo")
        chat.sees("⇣ the undo at ")
        chat.is_ready()
        chat.says("third")
        chat.sees("three")
    assert said(server.requests[2]) == ["first", "second"]
    assert "SUMMARY" not in json.dumps(server.requests[2].input)
    assert "SUMMARY" in json.dumps(server.requests[3].input)
    assert said(server.requests[3])[-2:] == ["second", "third"]


def test_help_lists_undo_also_at_a_dumb_terminal(place):
    with ResponsesServer([]) as server:
        place.connect(server)
        chat = place.chat(TERM="dumb", rows=60)
        chat.sees("[idle")
        chat.types("/help\n")
        chat.sees("/undo")
        chat.types("/undo\n")
        chat.sees("! there is nothing to undo yet")
