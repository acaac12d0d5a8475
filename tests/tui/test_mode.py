"""`/mode` and `/personality`, at a terminal."""

from __future__ import annotations

import json

from refold.testing import ResponsesServer


def test_another_mode_counts_from_the_next_message_on_and_in_the_next_session(place):
    with ResponsesServer(["one", "two", "three"]) as server:
        place.connect(server)
        chat = place.chat(rows=40, columns=200)
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        chat.says("/mode")
        chat.sees("mode default; /mode NAME changes that: default, plan")
        chat.says("/mode plna")
        chat.sees("there is no mode 'plna'")
        chat.says("/mode plan")
        chat.sees("mode plan, from your next message on")
        chat.says("/personality Be brief.")
        chat.sees("personality Be brief., from your next message on")
        chat.says("second")
        chat.sees("two")
        chat.is_ready()
        chat.says("/new")
        chat.is_ready()
        chat.says("third")
        chat.sees("three")
    before, second, third = (json.dumps(request.input) for request in server.requests)
    assert "# Mode: plan" not in before and "personality_spec" not in before
    for later in (second, third):
        assert later.count("# Mode: plan") == 1 and later.count("<personality_spec>") == 1
