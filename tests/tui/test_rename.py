"""/rename in the chat: the session has a name from then on."""

from __future__ import annotations

from refold.testing import ResponsesServer


def test_rename_gives_the_session_a_name_and_tells_it(place):
    with ResponsesServer(["one"]) as server:
        place.connect(server)
        chat = place.chat(columns=120)
        chat.says("first")
        chat.sees("one")
        chat.is_ready()
        chat.says("/rename")
        chat.sees("which name? /rename NAME")
        chat.says("/rename the billing bug")
        chat.sees("called the billing bug")
        chat.is_ready()
        chat.says("/rename")
        chat.sees("it is called the billing bug")
