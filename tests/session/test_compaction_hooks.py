"""Hooks around a compaction: they look, add to what a summary keeps, change it, or keep the history as it is."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.due import Due
from refold.core.config import parse_config
from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.thread import same_state
from refold.errors import CompactionBlocked, ContextWindowExceeded, RefoldError
from refold.model.scripted import Reply, ScriptedModel
from refold.session import Session
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, Event, Notice
from refold.session.hooks import Hook
from refold.session.memory import read_thread
from refold.testing import text_reply, usage

PROFILE = Profile(slug="m", context_window=100_000, known=True)
FULL = usage(95_000, 10)
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 40}
TOO_LONG = Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}})


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


class Listener(Hook):
    """Writes down what it is told, and answers what it was given."""

    def __init__(self, before: str | Exception | None = None, after: str | Exception | None = None) -> None:
        self.heard: list[tuple[str, str, str | None]] = []
        self._before, self._after = before, after

    async def before_compaction(self, why: Due) -> str | None:
        self.heard.append((why.reason, why.phase, None))
        return answer(self._before)

    async def after_compaction(self, why: Due, summary: str | None) -> str | None:
        self.heard.append((why.reason, why.phase, summary))
        return answer(self._after)


def answer(value: str | Exception | None) -> str | None:
    if isinstance(value, Exception):
        raise value
    return value


def played(
    folder: Path,
    replies: Sequence[Any],
    *,
    hooks: Sequence[Hook] = (),
    way: str = "local",
    configured: dict[str, Any] | None = None,
) -> tuple[ScriptedModel, Session, list[Event]]:
    """Two turns; compaction is due before the second."""
    provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, compaction=way)  # type: ignore[arg-type]
    model = ScriptedModel([text_reply("one", usage=FULL), *replies], profile=PROFILE, provider=provider)
    events: list[Event] = []

    async def go() -> Session:
        session = Session.start(
            model=model,
            cwd=folder,
            home=folder / "home",
            clock=Hasty(),
            config=parse_config({"hooks": configured or {}}, "test"),
        )
        session.hooks += hooks
        async with session:
            await session.send("first")
            events.extend([event async for event in session.send("second")])
            return session

    session = asyncio.run(go())
    assert session.path is not None
    assert same_state(read_thread(session.path), session.memory.thread)
    return model, session, events


def summary_in(session: Session) -> str:
    (found,) = [e.item for e in session.memory.thread.history if e.origin == "summary"]
    return message_text(found).partition("\n")[2]


def notices(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


# --- in Python -------------------------------------------------------------------------------------------------------


def test_hooks_are_told_why_and_what_came_of_it(tmp_path: Path) -> None:
    hook = Listener()
    _, session, _ = played(tmp_path, [text_reply("SUMMARY"), text_reply("two")], hooks=[hook])
    assert hook.heard == [("context_limit", "pre_turn", None), ("context_limit", "pre_turn", "SUMMARY")]
    assert summary_in(session) == "SUMMARY"


def test_what_hooks_add_the_summary_is_asked_to_keep(tmp_path: Path) -> None:
    hooks = [Listener(before="the port number"), Listener(before=" "), Listener(before="the user's name")]
    model, _, _ = played(tmp_path, [text_reply("SUMMARY"), text_reply("two")], hooks=hooks)
    asked = message_text(model.requests[1]["input"][-1])
    assert asked.rstrip().endswith("the port number\n\nthe user's name")


def test_each_hook_changes_the_summary_as_the_one_before_it_left_it(tmp_path: Path) -> None:
    first, second, third = Listener(after="BETTER"), Listener(), Listener(after="BEST")
    model, session, _ = played(tmp_path, [text_reply("SUMMARY"), text_reply("two")], hooks=[first, second, third])
    assert [hook.heard[-1][2] for hook in (first, second, third)] == ["SUMMARY", "BETTER", "BETTER"]
    assert summary_in(session) == "BEST"
    assert "BEST" in str(model.requests[2]["input"]) and "SUMMARY" not in str(model.requests[2]["input"])


def test_summary_takes_the_place_of_an_item_that_only_the_provider_can_read(tmp_path: Path) -> None:
    hook = Listener(after="READABLE")
    _, session, _ = played(tmp_path, [Reply(items=(COMPACTION,)), text_reply("two")], hooks=[hook], way="remote")
    assert hook.heard[-1][2] is None
    assert summary_in(session) == "READABLE"
    assert not any(e.item["type"] == "compaction" for e in session.memory.thread.history)


@pytest.mark.parametrize("error", [CompactionBlocked("not now"), ValueError("not now")], ids=["blocked", "broken"])
def test_hook_that_says_no_keeps_the_history_and_the_turn_goes_on(tmp_path: Path, error: Exception) -> None:
    model, session, events = played(tmp_path, [text_reply("two")], hooks=[Listener(before=error)])
    assert len(model.requests) == 2, "nobody was asked for a summary"
    assert session.memory.thread.compactions == 0
    assert [text for text in notices(events) if text.startswith("not compacted:") and "not now" in text]
    assert [event.installed for event in events if isinstance(event, CompactionEnded)] == [False]


def test_hook_that_does_not_like_the_result_keeps_the_history(tmp_path: Path) -> None:
    replies = [text_reply("SUMMARY"), text_reply("two")]
    _, session, events = played(tmp_path, replies, hooks=[Listener(after=CompactionBlocked("it lies"))])
    assert session.memory.thread.compactions == 0
    assert any("it lies" in text for text in notices(events))


def test_compaction_by_hand_that_a_hook_blocks_says_so(tmp_path: Path) -> None:
    model = ScriptedModel([text_reply("one")], profile=PROFILE)

    async def go() -> None:
        async with Session.start(model=model, cwd=tmp_path, home=tmp_path / "home") as session:
            session.hooks.append(Listener(before=CompactionBlocked("not on Mondays")))
            await session.send("first")
            before = list(session.memory.thread.history)
            with pytest.raises(CompactionBlocked, match="not on Mondays"):
                await session.compact()
            assert session.memory.thread.history == before

    asyncio.run(go())


def test_blocked_compaction_of_a_real_overflow_fails_the_turn_and_does_not_go_round(tmp_path: Path) -> None:
    with pytest.raises(ContextWindowExceeded):
        played(tmp_path, [TOO_LONG, TOO_LONG, TOO_LONG], hooks=[Listener(before=CompactionBlocked("no"))])


# --- configured commands ---------------------------------------------------------------------------------------------


def says(value: Any) -> str:
    return f"printf '%s' {shlex.quote(json.dumps(value))}"


def commands(**hooks: str) -> dict[str, Any]:
    return {event: [{"command": command}] for event, command in hooks.items()}


def test_commands_are_told_what_the_real_programs_are(tmp_path: Path) -> None:
    told = tmp_path / "told"
    config = commands(PreCompact=f"cat >> {told}", PostCompact=f"cat >> {told}")
    _, session, _ = played(tmp_path, [text_reply("SUMMARY"), text_reply("two")], configured=config)
    before, after = [json.loads(line) for line in told.read_text().splitlines()]
    assert before["hook_event_name"] == "PreCompact" and after["hook_event_name"] == "PostCompact"
    assert (before["session_id"], before["trigger"], before["phase"]) == (session.id, "auto", "pre_turn")
    assert before["tokens"] > 95_000 and "summary" not in before
    assert after["summary"] == "SUMMARY"


def test_commands_add_change_and_refuse(tmp_path: Path) -> None:
    adds = says({"hookSpecificOutput": {"additionalContext": "the port number"}})
    changes = says({"hookSpecificOutput": {"updatedSummary": "BETTER"}})
    model, session, _ = played(
        tmp_path, [text_reply("SUMMARY"), text_reply("two")], configured=commands(PreCompact=adds, PostCompact=changes)
    )
    assert message_text(model.requests[1]["input"][-1]).rstrip().endswith("the port number")
    assert summary_in(session) == "BETTER"


@pytest.mark.parametrize(
    ("event", "command", "why"),
    [
        ("PreCompact", "echo 'not today' >&2; exit 2", "a PreCompact hook said no: not today"),
        ("PostCompact", says({"decision": "block", "reason": "it lies"}), "a PostCompact hook said no: it lies"),
        ("PreCompact", "exec /no/such/program", "could not"),
    ],
    ids=["before", "after", "cannot look"],
)
def test_commands_that_say_no_or_cannot_look_keep_the_history(
    tmp_path: Path, event: str, command: str, why: str
) -> None:
    replies = [text_reply("SUMMARY"), text_reply("two")] if event == "PostCompact" else [text_reply("two")]
    _, session, events = played(tmp_path, replies, configured=commands(**{event: command}))
    assert session.memory.thread.compactions == 0
    assert any(why in text for text in notices(events))


def test_matcher_is_for_what_set_it_off(tmp_path: Path) -> None:
    told = tmp_path / "told"
    entry = {"command": f"cat >> {told}", "matcher": "manual"}
    _, session, _ = played(tmp_path, [text_reply("SUMMARY"), text_reply("two")], configured={"PreCompact": [entry]})
    assert not told.exists()
    model = ScriptedModel([text_reply("SUMMARY")], profile=PROFILE)

    async def by_hand() -> None:
        config = parse_config({"hooks": {"PreCompact": [entry]}}, "test")
        async with Session.resume(session.id, model=model, home=tmp_path / "home", config=config) as again:
            await again.compact()

    asyncio.run(by_hand())
    assert json.loads(told.read_text())["trigger"] == "manual"


def test_a_misspelt_event_is_an_error() -> None:
    with pytest.raises(RefoldError, match="did you mean PreCompact"):
        parse_config({"hooks": {"PreCompaction": [{"command": "true"}]}}, "test")
