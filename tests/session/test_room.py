"""Room: what a person is told when compactions come often, or can make no room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from refold.core.config import parse_config
from refold.core.profile import Profile, Provider
from refold.model.scripted import Reply, ScriptedModel
from refold.session import Session
from refold.session.events import Event, Notice
from refold.testing import text_reply, usage
from refold.tools.functions import tool

PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)


@tool
def wordy(text: str) -> str:
    """A tool that needs many words to say what it does. A tool that needs many words to say what it does. A tool that
    needs many words to say what it does. A tool that needs many words to say what it does."""
    return text


def notices(folder: Path, replies: list[Any], texts: list[str], limit: int, **settings: Any) -> list[list[str]]:
    """What was noticed in each turn."""
    profile = Profile(slug="m", context_window=100_000, auto_compact_token_limit=limit)
    model = ScriptedModel(replies, profile=profile, provider=PROVIDER)
    found: list[list[str]] = []

    async def go() -> None:
        config = parse_config(settings, "test")
        async with Session.start(
            model=model, tools=[wordy], cwd=folder, home=folder / "home", config=config, instructions="B" * 4_000
        ) as session:
            for text in texts:
                events: list[Event] = [event async for event in session.send(text)]
                found.append([event.text for event in events if isinstance(event, Notice)])

    asyncio.run(go())
    return found


def test_many_compactions_are_said_at_the_third_and_each_doubling(tmp_path: Path) -> None:
    replies: list[Any] = [text_reply("one", usage=usage(95_000, 10))]
    for _ in range(7):
        replies += [text_reply("SUMMARY"), text_reply("next", usage=usage(95_000, 10))]
    told = notices(tmp_path, replies, ["x"] * 8, 90_000)
    often = [index for index, texts in enumerate(told) if any("was compacted" in text for text in texts)]
    assert often == [3, 6]
    assert "was compacted 3 times" in str(told[3]) and "was compacted 6 times" in str(told[6])


def test_limit_below_what_every_request_holds_is_said_once_before_anything_is_sent(tmp_path: Path) -> None:
    replies = [text_reply("one", usage=usage(100, 10)), text_reply("two", usage=usage(100, 10))]
    first, second = notices(tmp_path, replies, ["x", "y"], 1_000)
    (text,) = [text for text in first if "every request holds" in text]
    assert "compaction is due at 1,000" in text and "raise model_auto_compact_token_limit" in text
    assert second == []


def test_limit_above_it_or_that_does_not_count_it_is_not_talked_about(tmp_path: Path) -> None:
    replies: list[Reply] = [text_reply("one", usage=usage(100, 10))]
    assert notices(tmp_path, replies, ["x"], 3_000) == [[]]
    scope = {"model_auto_compact_token_limit_scope": "body_after_prefix"}
    assert notices(tmp_path, replies, ["x"], 1_000, **scope) == [[]]
