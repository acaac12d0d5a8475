"""Preview: what a compaction would do is shown before it is done, and nothing but its cost is left when it is not."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import Config, parse_config
from refold.core.items import Item, message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, CompactionAttempted
from refold.core.thread import same_state
from refold.core.truncate import Budget
from refold.errors import CompactionFailed, ModelRefused, SessionBusy, SessionClosed
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, CompactionStarted
from refold.session.feed import drain
from refold.session.home import Home
from refold.session.memory import read_thread
from refold.session.preview import aside
from refold.session.session import Session
from refold.testing import call_reply, text_reply, usage
from refold.tools import ToolContext
from refold.tools.functions import tool
from refold.views.sent import sent

COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 40}
PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000))
PATIENCE = 30  # seconds that no session here needs


def in_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that awaits, for so long at most."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), PATIENCE))

    return run


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


def model(*replies: Reply, compaction: str = "local") -> ScriptedModel:
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, compaction=compaction)  # type: ignore[arg-type]
    return ScriptedModel(list(replies), profile=PROFILE, provider=provider)


def start(answering: ScriptedModel, folder: Path, **settings: Any) -> Session:
    config = parse_config(settings, "test")
    home = folder / "home"
    return Session.start(model=answering, cwd=folder, home=home, clock=Hasty(), instructions="BASE", config=config)


def prompt(session: Session) -> list[Item]:
    return session.memory.prompt().input


def told(items: Sequence[Item], text: str) -> int:
    return sum(text in message_text(item) for item in items)


def records(session: Session, kind: type[Any]) -> list[Any]:
    assert session.path is not None
    return [line.record for line in read_lines(session.path) if isinstance(line.record, kind)]


def is_in_its_log(session: Session) -> bool:
    assert session.path is not None
    return same_state(read_thread(session.path), session.memory.thread)


# --- looking ---------------------------------------------------------------------------------------------------------


@in_time
async def test_preview_shows_the_new_context_and_changes_nothing_but_the_account(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("two"), text_reply("SUMMARY", usage=usage(300, 20, cached=100)))
    async with start(answering, tmp_path, model_price={"input": 10.0, "output": 100.0, "cached_input": 1.0}) as session:
        await session.send("first")
        await session.send("second")
        before, used = prompt(session), session.memory.thread.total_usage
        preview = await session.compact(preview=True)
        preview.discard()
        assert prompt(session) == before
        assert records(session, Compacted) == []
        [attempt] = records(session, CompactionAttempted)
        assert (attempt.outcome, attempt.usage, preview.usage) == (
            "completed",
            usage(300, 20, cached=100),
            attempt.usage,
        )
        assert session.memory.thread.total_usage - used == preview.usage
        assert preview.cost == pytest.approx((200 * 10 + 100 * 1 + 20 * 100) / 1e6)
        assert (preview.method, preview.dropped, preview.limit) == ("local", 0, 90_000)
        texts = [message_text(item) for item in preview.items]
        assert [text for text in texts if not text.startswith(("<", "# AGENTS"))][:2] == ["first", "second"]
        assert texts[-1].endswith("SUMMARY")
        assert len(preview.addresses) == len(preview.items)
        assert [(one.kind, one.origin, one.text) for one in preview.gone] == [
            ("assistant", "model", "one"),
            ("assistant", "model", "two"),
        ], "the context is told anew, the user's messages stay"
        assert is_in_its_log(session)


@in_time
async def test_preview_names_what_goes_by_address_kind_and_first_words(tmp_path: Path) -> None:
    @tool
    async def look(where: str, context: ToolContext) -> str:
        """Looks."""
        return "line\n" * 200

    replies = [call_reply("look", {"where": "a\nb"}, "c1"), text_reply("one"), text_reply("SUMMARY")]
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
    answering = ScriptedModel(replies, profile=PROFILE, provider=provider)
    async with Session.start(model=answering, tools=[look], cwd=tmp_path, home=tmp_path / "home") as session:
        await session.send("x" * 90_000)
        preview = await session.compact(preview=True)
        kinds = [(one.kind, one.in_part) for one in preview.gone]
        assert kinds == [
            ("user", True),  # more than 20,000 tokens: its ends are kept
            ("function_call", False),
            ("function_call_output", False),
            ("assistant", False),
        ]
        call, output = preview.gone[1], preview.gone[2]
        assert call.text == r'look {"where": "a\nb"}'
        assert output.text.startswith("line line line") and len(output.text.encode()) <= 160 and output.tokens > 200
        entries = {entry.address: entry for entry in session.memory.thread.history}
        assert all(entries[one.address].tokens == one.tokens for one in preview.gone)


@in_time
async def test_preview_without_a_model_costs_nothing(tmp_path: Path) -> None:
    answering = model(text_reply("I will use tabs."))
    async with start(answering, tmp_path) as session:
        await session.send("first")
        preview = await session.compact(outline=True, preview=True)
        assert (preview.method, preview.usage.total_tokens, preview.cost) == ("outline", 0, None)
        assert "I will use tabs." in message_text(preview.items[-1])
        assert len(answering.requests) == 1


@in_time
async def test_watchers_are_told_that_it_was_a_preview(tmp_path: Path) -> None:
    async with start(model(text_reply("one"), text_reply("SUMMARY")), tmp_path) as session:
        await session.send("first")
        listener = session.memory.feed.listen()
        preview = await session.compact(preview=True)
        await preview.commit()
        session.memory.feed.end(listener)
        events = [event async for event in drain(listener)]
        assert len([event for event in events if isinstance(event, CompactionStarted)]) == 1
        looked, put = [event for event in events if isinstance(event, CompactionEnded)]
        assert (looked.installed, looked.error, put.installed) == (False, "this is a preview", True)


@in_time
async def test_failed_preview_raises_and_leaves_the_account(tmp_path: Path) -> None:
    refused = Reply(status=401, body={"error": {"message": "wrong key"}})
    async with start(model(text_reply("one"), refused), tmp_path) as session:
        await session.send("first")
        before = prompt(session)
        with pytest.raises(ModelRefused, match="wrong key"):
            await session.compact(preview=True)
        assert prompt(session) == before and not session.busy
        assert len(records(session, CompactionAttempted)) == 1
        assert is_in_its_log(session)


# --- committing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["local", "remote"])
@in_time
async def test_commit_puts_in_place_what_was_shown(tmp_path: Path, by: str) -> None:
    summary = text_reply("SUMMARY") if by == "local" else Reply(items=(COMPACTION,))
    async with start(model(text_reply("one"), summary, text_reply("two"), compaction=by), tmp_path) as session:
        await session.send("first")
        preview = await session.compact(preview=True)
        ended = await preview.commit()
        assert (ended.installed, ended.before, ended.after) == (True, preview.before, preview.after)
        assert tuple(entry.item for entry in session.memory.thread.history) == preview.items
        [checkpoint] = records(session, Compacted)
        assert (checkpoint.facts["method"], checkpoint.facts["tokens_after"]) == (by, preview.after)
        assert is_in_its_log(session)
        await session.send("second")
        assert told(prompt(session), "<environment_context>") == 1
        assert all(one.is_same for one in sent(read_lines(session.path)))  # type: ignore[arg-type]


@in_time
async def test_what_was_said_after_the_preview_stays_behind_it(tmp_path: Path) -> None:
    rules = tmp_path / "AGENTS.md"
    rules.write_text("Say please.")
    replies = [text_reply("one"), text_reply("SUMMARY"), text_reply("two"), text_reply("three")]
    async with start(model(*replies), tmp_path) as session:
        await session.send("first")
        preview = await session.compact(preview=True)
        rules.write_text("Say thanks.")
        await session.send("second")
        settings = session.memory.thread.settings
        await preview.commit()
        assert session.memory.thread.settings == settings, "those of the last turn"
        texts = [message_text(item) for item in prompt(session)]
        assert texts[-2:] == ["second", "two"]
        assert "one" not in texts
        assert is_in_its_log(session)
        await session.send("third")
        assert (told(prompt(session), "Say please."), told(prompt(session), "Say thanks.")) == (1, 1)
        assert is_in_its_log(session)


@in_time
async def test_rules_that_only_the_preview_knew_are_told_by_it(tmp_path: Path) -> None:
    rules = tmp_path / "AGENTS.md"
    replies = [text_reply("one"), text_reply("SUMMARY"), text_reply("two"), text_reply("three")]
    async with start(model(*replies), tmp_path) as session:
        await session.send("first")
        rules.write_text("Say please.")
        preview = await session.compact(preview=True)
        rules.unlink()
        await session.send("second")
        await preview.commit()
        await session.send("third")
        assert [told([item], "no longer apply") for item in prompt(session)].count(1) == 1, "told that they are gone"


@in_time
async def test_commit_is_refused_when_the_history_is_another_one(tmp_path: Path) -> None:
    replies = [text_reply("one"), text_reply("SUMMARY"), text_reply("OTHER")]
    async with start(model(*replies), tmp_path) as session:
        await session.send("first")
        preview = await session.compact(preview=True)
        await session.compact()
        before, data = prompt(session), session.path.read_bytes()  # type: ignore[union-attr]
        with pytest.raises(CompactionFailed, match="the history was replaced"):
            await preview.commit()
        assert (prompt(session), session.path.read_bytes()) == (before, data)  # type: ignore[union-attr]
        await session.undo()
        with pytest.raises(CompactionFailed, match="the history was replaced"):
            await preview.commit()


@in_time
async def test_preview_is_good_once(tmp_path: Path) -> None:
    replies = [text_reply("one"), text_reply("A"), text_reply("B"), text_reply("C"), text_reply("two")]
    async with start(model(*replies), tmp_path) as session:
        await session.send("first")
        left, kept = await session.compact(preview=True), await session.compact(preview=True)
        left.discard()
        with pytest.raises(CompactionFailed, match="was discarded already"):
            await left.commit()
        await kept.commit()
        with pytest.raises(CompactionFailed, match="was committed already"):
            await kept.commit()
        late = await session.compact(preview=True)
        turn = session.send("second")
        with pytest.raises(SessionBusy, match="when it has ended"):
            await late.commit()
        await turn
    with pytest.raises(SessionClosed):
        await late.commit()


@in_time
async def test_committed_preview_can_be_undone(tmp_path: Path) -> None:
    async with start(model(text_reply("one"), text_reply("SUMMARY")), tmp_path) as session:
        await session.send("first")
        before = prompt(session)
        await (await session.compact(preview=True)).commit()
        await session.undo()
        assert prompt(session) == before


def test_blocking_session_has_previews_too(tmp_path: Path) -> None:
    answering = model(text_reply("one"), text_reply("A"), text_reply("B"))
    with Session.start_sync(model=answering, cwd=tmp_path, home=tmp_path / "home", config=Config()) as session:
        session.send("first")
        before = prompt(session.session)
        preview = session.compact(preview=True)
        preview.discard()
        with pytest.raises(CompactionFailed, match="discarded"):
            preview.commit()
        assert prompt(session.session) == before
        preview = session.compact(preview=True)
        assert preview.commit().installed
        assert tuple(entry.item for entry in session.session.memory.thread.history) == preview.items


# --- somebody else's file --------------------------------------------------------------------------------------------


@in_time
async def test_file_that_is_looked_at_aside_is_only_read(tmp_path: Path) -> None:
    async with start(model(text_reply("one")), tmp_path) as session:
        await session.send("first")
    assert session.path is not None
    data = session.path.read_bytes()
    home = Home.find({"REFOLD_HOME": str(tmp_path / "other"), "HOME": str(tmp_path)})
    async with aside(session.path, model=model(text_reply("SUMMARY")), config=Config(), home=home) as looking:
        preview = await looking.compact(preview=True)
        assert looking.id == session.id and preview.gone[0].address.startswith(session.id)
        assert looking.path is None
    assert session.path.read_bytes() == data
    assert not (tmp_path / "other").exists()
