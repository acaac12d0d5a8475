"""Undo: the history comes back from the log, whatever was done to it; the next turn and the next resume know."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from refold.core.compaction.due import Due
from refold.core.compaction.undo import told_after, waits
from refold.core.config import Config
from refold.core.items import Item, message, message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, WorldObserved
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import CompactionFailed, RefoldError, SessionBusy, SessionClosed
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import CompactionStarted
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import call_reply, text_reply, usage
from refold.tools import ToolContext
from refold.tools.functions import tool

COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 40}
PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000))
SMALL = Profile(slug="m", context_window=1_000, truncation=Budget("tokens", 10_000))  # due at 900, usable 950
TOO_LONG = Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}})
FULL = usage(95_000, 10)
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


class Heard(ScriptedModel):
    """Answers from one script, and writes summaries from another."""

    def __init__(self, *answers: Reply, summaries: Sequence[Reply] = (), profile: Profile = PROFILE) -> None:
        self.answers, self.summaries = list(answers), list(summaries)
        provider = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, stream_max_retries=0)
        super().__init__(self._next, profile=profile, provider=provider)

    def _next(self, body: Any) -> Reply:
        if self.kind(body) == "compaction":
            return self.summaries.pop(0) if self.summaries else text_reply("SUMMARY")
        return self.answers.pop(0) if self.answers else text_reply("done")

    @staticmethod
    def kind(body: Any) -> str:
        return json.loads(body["client_metadata"]["x-codex-turn-metadata"])["request_kind"]

    def asked(self) -> list[str]:
        """The kinds of requests, in order."""
        return [self.kind(body) for body in self.requests]


def start(answering: ScriptedModel, folder: Path, **more: Any) -> Session:
    return Session.start(model=answering, cwd=folder, home=folder / "home", clock=Hasty(), instructions="BASE", **more)


def again(answering: ScriptedModel, folder: Path, session: Session) -> Session:
    return Session.resume(session.id, model=answering, home=folder / "home", clock=Hasty())


def prompt(session: Session | Memory) -> list[Item]:
    memory = session.memory if isinstance(session, Session) else session
    return memory.prompt().input


def texts(items: Sequence[Item]) -> list[str]:
    """What was said, without context."""
    found = [message_text(item) for item in items if item.get("type") == "message"]
    return [text.partition("\n")[2] or text for text in found if not text.startswith(("<", "# AGENTS", "BASE"))]


def told(items: Sequence[Item], text: str) -> int:
    return sum(text in message_text(item) for item in items)


def is_in_its_log(session: Session) -> bool:
    assert session.path is not None
    return same_state(read_thread(session.path), session.memory.thread)


def checkpoints(path: Path | None) -> list[tuple[int, Compacted]]:
    assert path is not None
    return [(line.ordinal, line.record) for line in read_lines(path) if isinstance(line.record, Compacted)]


# --- the newest compaction -------------------------------------------------------------------------------------------


@in_time
async def test_of_a_compaction_brings_back_the_very_prompt(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        await session.send("second")
        before = prompt(session)
        await session.compact()
        assert prompt(session) != before
        assert session.path is not None
        data = session.path.read_bytes()
        undone = await session.undo()
        assert prompt(session) == before
        assert session.path.read_bytes().startswith(data), "nothing is edited"
        (compacted_at, _), (undone_at, line) = checkpoints(session.path)
        assert (undone.what, undone.undoes) == ("compaction", f"{session.id}:{compacted_at}")
        assert undone.address == f"{session.id}:{undone_at}"
        assert (line.facts["method"], line.facts["undoes"]) == ("undo", undone.undoes)
        assert list(line.history or ()) == [e.item for e in session.memory.thread.history]
        assert (undone.items, undone.before, undone.after) == (
            6,
            line.facts["tokens_before"],
            line.facts["tokens_after"],
        )
        assert session.memory.thread.compactions == 1, "an undo is no compaction"
        assert is_in_its_log(session)


@in_time
async def test_keeps_the_addresses_so_that_both_branches_can_be_shown(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        before = [e.address for e in session.memory.thread.history]
        await session.compact()
        summary = session.memory.thread.history[-1].address
        await session.undo()
        assert [e.address for e in session.memory.thread.history] == before
        assert summary.startswith(session.id) and summary not in before
        lines = {f"{session.id}:{line.ordinal}" for line in read_lines(session.path)}  # type: ignore[arg-type]
        assert {*before, summary} <= lines


@in_time
async def test_keeps_what_was_recorded_since(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        before = prompt(session)
        await session.compact()
        await session.send("second")
        await session.undo()
        assert prompt(session)[: len(before)] == before
        assert texts(prompt(session)) == ["first", "done", "second", "done"]
        assert is_in_its_log(session)


@in_time
async def test_of_an_undo_restores_the_compacted_history(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        whole = prompt(session)
        await session.compact()
        compacted = prompt(session)
        await session.undo()
        undone = await session.undo()
        assert (undone.what, prompt(session)) == ("undo", compacted)
        await session.undo()
        assert prompt(session) == whole
        assert is_in_its_log(session)


@in_time
async def test_in_a_session_that_was_resumed_between(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        before = prompt(session)
        await session.compact()
    async with again(Heard(), tmp_path, session) as session:
        await session.undo()
        assert prompt(session) == before
    async with again(Heard(), tmp_path, session) as session:
        assert prompt(session) == before
        await session.send("second")
        assert texts(session.model.requests[0]["input"])[-3:] == ["first", "done", "second"]  # type: ignore[attr-defined]


@in_time
async def test_steers_that_wait_go_on_waiting(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        await session.compact()
        session.steer("and this")
        await session.undo()
        await session.send("second")
        assert texts(prompt(session)) == ["first", "done", "and this", "second", "done"]


@in_time
async def test_of_a_compaction_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    @tool
    async def look(context: ToolContext) -> str:
        """Looks."""
        return "seen"

    answering = Heard(call_reply("look", {}, "c1", usage=FULL), text_reply("found"))
    async with start(answering, tmp_path, tools=[look]) as session:
        await session.send("first")
        assert session.memory.thread.compactions == 1
        await session.undo()
        kinds = [e.item["type"] for e in session.memory.thread.history if e.origin != "injected"]
        assert kinds == ["message", "function_call", "function_call_output", "message"]
        assert is_in_its_log(session)


def test_of_a_checkpoint_that_only_holds_its_summary() -> None:
    memory = Memory.open(None, model=PROFILE, instructions="BASE")
    memory.add([message("user", ["first"]), message("assistant", ["one"])])
    before = prompt(memory)
    memory.record(Compacted(message="SUMMARY", history=None))
    memory.add(message("assistant", ["two"]))
    assert "SUMMARY" in str(prompt(memory))
    memory.undo()
    assert prompt(memory)[: len(before)] == before
    assert texts(prompt(memory)) == ["first", "one", "two"]


# --- what the next turn is told --------------------------------------------------------------------------------------


@in_time
async def test_next_turn_is_told_what_only_the_undone_checkpoint_had_told(tmp_path: Path) -> None:
    rules = tmp_path / "AGENTS.md"
    rules.write_text("Say please.")
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        world = session.memory.thread.world
        rules.write_text("Say thanks.")
        await session.compact()
        await session.undo()
        assert session.memory.thread.world == world
        assert told(prompt(session), "Say thanks.") == 0
        await session.send("second")
        assert (told(prompt(session), "Say please."), told(prompt(session), "Say thanks.")) == (1, 1)
        assert is_in_its_log(session)


@in_time
async def test_next_turn_is_not_told_again_what_was_told_since(tmp_path: Path) -> None:
    rules = tmp_path / "AGENTS.md"
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        await session.compact()
        rules.write_text("Say thanks.")
        await session.send("second")
        await session.undo()
        assert (await session.send("third")).text == "done"
        assert told(prompt(session), "Say thanks.") == 1
        assert told(prompt(session), "<environment_context>") == 1
        assert is_in_its_log(session)


@in_time
async def test_settings_are_those_of_the_last_turn_that_still_counts(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        before = session.memory.thread.settings
        await session.compact()
        await session.undo()
        assert session.memory.thread.settings == before
        await session.undo()
        await session.send("second")
        newest = session.memory.thread.settings
        assert newest != before
        await session.undo()
        assert session.memory.thread.settings == newest


@in_time
async def test_history_that_a_former_model_left_is_its_own_again(tmp_path: Path) -> None:
    """So that what only that model can read is not sent to another one."""
    facts = {"context_window": 100_000, "truncation": Budget("tokens", 10_000)}
    old, new = (Profile(slug=slug, comp_hash=comp_hash, **facts) for slug, comp_hash in (("m", "1"), ("n", "2")))
    async with start(Heard(profile=old), tmp_path) as session:
        await session.send("first")
    async with again(Heard(profile=new), tmp_path, session) as session:
        await session.send("second")
        assert [line.facts["reason"] for _, line in checkpoints(session.path)] == ["comp_hash_changed"]
        assert (session.memory.thread.settings or {})["model"] == "n"
        await session.undo()
        told_by = session.memory.thread.settings or {}
        assert (told_by["model"], told_by["comp_hash"]) == ("m", "1")
        assert is_in_its_log(session)
        events = [event async for event in session.send("third")]
        assert not [event for event in events if isinstance(event, CompactionStarted)], "plain text is read by both"


def test_section_is_known_as_it_was_told_last() -> None:
    old = {"a": {"x": 1, "y": 1}, "b": 1, "c": 1}
    now = {"a": {"x": 2, "y": 1}, "b": 2, "c": 1}  # what an undone checkpoint told
    changes = [WorldObserved(False, {"a": {"y": 3}, "c": None})]
    assert told_after(old, now, changes) == {"a": {"x": 2, "y": 3}, "b": 1}
    assert told_after(None, now, changes) is None
    assert told_after(old, None, changes) == old, "a change without a base says nothing"
    assert told_after(None, now, [WorldObserved(True, {"d": 1}), WorldObserved(False, {"d": 2})]) == {"d": 2}


# --- then automatic compaction waits ---------------------------------------------------------------------------------


async def filled(folder: Path, *answers: Reply) -> Session:
    """A session whose history is over the limit, compacted by hand and undone."""
    answering = Heard(text_reply("x" * 3_200, usage=usage(905, 10)), *answers, profile=SMALL)
    async with start(answering, folder) as session:
        await session.send("first")
        await session.compact()
        await session.undo()
        assert is_in_its_log(session)
        return session


@in_time
async def test_next_turn_does_not_compact_what_was_restored_and_the_one_after_does(tmp_path: Path) -> None:
    session = await filled(tmp_path)
    for _ in range(2):  # it says so in the log, so a copy of it decides the same
        shutil.copytree(tmp_path / "home", tmp_path / "kept", dirs_exist_ok=True)
        answering = Heard(text_reply("two", usage=usage(920, 10)), text_reply("three"), profile=SMALL)
        async with again(answering, tmp_path, session) as resumed:
            assert resumed.memory.tokens >= 900
            events = [event async for event in resumed.send("second")]
            assert not [event for event in events if isinstance(event, CompactionStarted)]
            assert answering.asked() == ["turn"]
            events = [event async for event in resumed.send("third")]
            assert [event.phase for event in events if isinstance(event, CompactionStarted)] == ["pre_turn"]
        shutil.rmtree(tmp_path / "home")
        shutil.copytree(tmp_path / "kept", tmp_path / "home")


@in_time
async def test_refusal_of_the_provider_is_reason_enough(tmp_path: Path) -> None:
    session = await filled(tmp_path)
    answering = Heard(TOO_LONG, text_reply("two"), profile=SMALL)
    async with again(answering, tmp_path, session) as resumed:
        assert (await resumed.send("second")).text == "two"
    assert answering.asked() == ["turn", "compaction", "turn"]


@in_time
async def test_host_with_its_own_loop_is_not_made_to_compact_either(tmp_path: Path) -> None:
    session = await filled(tmp_path)
    assert session.path is not None
    with Memory.reopen(session.path, SMALL, Config(), Clock()) as memory:
        answering = Heard(profile=SMALL)
        assert await memory.make_room(answering) is None
        memory.add(message("user", ["more"]))
        assert await memory.make_room(answering) is not None


def restored(tokens: int, *more: Item) -> Thread:
    """A thread that an undo left with about so many tokens."""
    thread = Thread()
    items = (message("user", ["x" * 4 * tokens]), *more)
    thread.apply(Compacted(message="", history=items, facts={"method": "undo", "waits": True}), 0)
    thread.usage_told = True
    return thread


@pytest.mark.parametrize(
    ("tokens", "pending", "expected"),
    [(910, 0, True), (910, 10, True), (910, 500, False), (2_000, 10, True)],
    ids=["at the limit", "a short message", "a message without room", "over the window: the provider may say so"],
)
def test_compaction_at_the_limit_waits_unless_the_message_has_no_room(
    tokens: int, pending: int, expected: bool
) -> None:
    due = Due("context_limit", "pre_turn", tokens + pending, 900)
    assert waits(restored(tokens), due, 950, pending) is expected


def test_compaction_for_another_model_waits_if_that_can_hold_and_read_the_history() -> None:
    smaller, other = (Due(reason, "pre_turn", 910, 900) for reason in ("model_downshift", "comp_hash_changed"))
    assert waits(restored(910), smaller, 950) and not waits(restored(910), smaller, 800)
    assert waits(restored(910), other, 950) and not waits(restored(910, COMPACTION), other, 950)
    assert not waits(restored(910), Due("user_requested", "standalone_turn", 910, 900), 950)


def test_anything_new_ends_the_waiting() -> None:
    thread = restored(910)
    due = Due("context_limit", "pre_turn", 910, 900)
    assert waits(thread, due, 950)
    memory = Memory.open(None, model=SMALL)
    thread.apply(memory.item(message("user", ["more"])), 1)
    assert not waits(thread, due, 950)


# --- turns -----------------------------------------------------------------------------------------------------------


@in_time
async def test_of_turns_goes_back_to_before_them(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        states: list[tuple[list[Item], Any]] = [(prompt(session), None)]
        for text in ("first", "second", "third"):
            await session.send(text)
            states.append((prompt(session), session.memory.thread.world))
        undone = await session.undo(turns=1)
        assert (undone.what, undone.turns, undone.undoes) == ("turns", 1, "")
        assert (prompt(session), session.memory.thread.world) == states[2]
        await session.undo(turns=2)
        assert (prompt(session), session.memory.thread.world) == states[0]
        assert is_in_its_log(session)
        await session.undo()
        assert prompt(session) == states[2][0], "an undo of it brings them back"
        await session.send("another way")
        assert texts(prompt(session)) == ["first", "done", "second", "done", "another way", "done"]
        assert told(prompt(session), "<environment_context>") == 1


@in_time
async def test_of_one_turn_after_the_other_knows_what_the_history_told_at_each(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        states: list[Any] = []
        for text in ("first", "second", "third"):
            (tmp_path / "AGENTS.md").write_text(f"Rules of the {text}.")
            await session.send(text)
            states.append((prompt(session), session.memory.thread.world, session.memory.thread.settings))
        for state in reversed(states[:-1]):
            await session.undo(turns=1)
            assert (prompt(session), session.memory.thread.world, session.memory.thread.settings) == state
        assert is_in_its_log(session)


@in_time
async def test_steer_is_part_of_its_turn(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        before = prompt(session)
        turn = session.send("second")
        session.steer("but quickly")
        await turn
        assert "but quickly" in texts(prompt(session))
        await session.undo(turns=1)
        assert prompt(session) == before


@in_time
async def test_turns_before_a_compaction_come_from_the_log(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        first = prompt(session)
        await session.send("second")
        await session.compact()
        compacted = prompt(session)
        await session.send("third")
        await session.undo(turns=1)
        assert prompt(session) == compacted, "it was there before the third turn"
        await session.undo(turns=1)
        assert prompt(session) == first
        assert is_in_its_log(session)


@pytest.mark.parametrize("phase", ["pre_turn", "mid_turn"])
@in_time
async def test_compaction_in_a_turn_goes_with_it(tmp_path: Path, phase: str) -> None:
    """As in the real program (case S23)."""

    @tool
    async def look(context: ToolContext) -> str:
        """Looks."""
        return "seen"

    ends = FULL if phase == "pre_turn" else usage(100, 10)
    asks = call_reply("look", {}, "c1", usage=FULL if phase == "mid_turn" else usage(100, 10))
    async with start(Heard(text_reply("one", usage=ends), asks), tmp_path, tools=[look]) as session:
        await session.send("first")
        before = prompt(session)
        await session.send("second")
        assert checkpoints(session.path)[0][1].facts["phase"] == phase
        await session.undo(turns=1)
        assert prompt(session) == before
        assert is_in_its_log(session)


@in_time
async def test_of_turns_after_an_undo_goes_back_in_the_restored_history(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Say please.")
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        state = prompt(session), session.memory.thread.world
        await session.compact()
        (tmp_path / "AGENTS.md").write_text("Say thanks.")
        await session.send("second")
        await session.undo()
        await session.undo(turns=1)
        assert (prompt(session), session.memory.thread.world) == state
        await session.send("third")
        assert told(prompt(session), "Say thanks.") == 1
        assert is_in_its_log(session)


# --- what cannot be undone -------------------------------------------------------------------------------------------


@in_time
async def test_without_anything_to_undo_says_so_and_changes_nothing(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        with pytest.raises(CompactionFailed, match="nothing to undo yet: nothing was said"):
            await session.undo()
        await session.send("first")
        assert session.path is not None
        before = session.path.read_bytes()
        with pytest.raises(CompactionFailed, match="this session was not compacted yet"):
            await session.undo()
        with pytest.raises(CompactionFailed, match="2 turns cannot be undone: only 1 of them"):
            await session.undo(turns=2)
        with pytest.raises(CompactionFailed, match="0 turns cannot be undone"):
            await session.undo(turns=0)
        assert session.path.read_bytes() == before
    with pytest.raises(SessionClosed):
        await session.undo()


@in_time
async def test_fork_cannot_undo_what_its_parent_did(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as parent:
        await parent.send("first")
        await parent.compact()
        await parent.send("second")
    async with Session.fork(parent.id, model=Heard(), home=tmp_path / "home") as child:
        with pytest.raises(CompactionFailed, match=f"taken over from {parent.id}"):
            await child.undo()
        await child.send("third")
        with pytest.raises(CompactionFailed, match=f"only 2 of them .* {parent.id}, which it was forked from"):
            await child.undo(turns=3)
        await child.undo(turns=2)
        assert "second" not in texts(prompt(child)) and "SUMMARY" in texts(prompt(child))
        assert is_in_its_log(child)


@in_time
async def test_while_a_turn_runs_is_refused(tmp_path: Path) -> None:
    async with start(Heard(), tmp_path) as session:
        await session.send("first")
        await session.compact()
        turn = session.send("second")
        with pytest.raises(SessionBusy, match="a turn is running"):
            await session.undo()
        assert (await turn).text == "done"


def test_blocking_session_and_memory_undo_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": Heard(), "cwd": tmp_path, "home": tmp_path / "home"}
    with Session.start_sync(**options) as session:
        session.send("first")
        before = prompt(session.session)
        session.compact()
        assert session.undo().what == "compaction"
        assert prompt(session.session) == before
        assert session.undo(turns=1).items == 0


# --- whatever is done ------------------------------------------------------------------------------------------------

ACTS = """
    say say full compact compact outline rules other-rules steer undo undo back-1 back-2 resume failed-compaction
    """.split()  # noqa: SIM905 (words read better than a list of strings)
acts = st.lists(st.sampled_from(ACTS), min_size=2, max_size=9)


def fixed(examples: int) -> settings:
    """The same examples every time, however slow the machine is."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=slow)


@fixed(60)
@example(["say", "compact", "undo", "undo", "say", "undo", "back-1"])
@example(["rules", "say", "other-rules", "compact", "say", "undo", "say", "resume", "back-2"])
@example(["full", "say", "undo", "back-1", "undo", "say"])
@given(acts)
def test_live_resumed_and_replayed_say_the_same_after_every_step(acts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(play(acts, Path(folder)), PATIENCE))


async def play(acts: list[str], folder: Path) -> None:
    answering = Heard()
    session = start(answering, folder)
    await session.__aenter__()
    try:
        for act in ["say", *acts]:
            if act == "resume":
                await session.__aexit__(None, None, None)
                session = again(answering, folder, session)
                await session.__aenter__()
            before = prompt(session), session.memory.thread.world
            try:
                await do(act, session, answering, folder)
            except RefoldError:
                assert (prompt(session), session.memory.thread.world) == before, f"{act} failed, and changed something"
            assert is_in_its_log(session)
            if act in ("compact", "outline") and session.memory.thread.restored is None:
                await session.undo()
                assert (prompt(session), session.memory.thread.world) == before
                await session.undo()
                assert is_in_its_log(session)
            if act in ("say", "full"):
                assert_rules_are_told(prompt(session), folder / "AGENTS.md")
    finally:
        await session.__aexit__(None, None, None)


def assert_rules_are_told(items: Sequence[Item], rules: Path) -> None:
    """What the prompt says of them last is what is in force."""
    spoken = [message_text(item) for item in items if "# AGENTS.md instructions" in message_text(item)]
    assert not rules.exists() or rules.read_text() in spoken[-1]


async def do(act: str, session: Session, answering: Heard, folder: Path) -> None:
    match act.split("-"):
        case ["say"]:
            await session.send(f"turn {session.memory.thread.turns}")
        case ["full"]:
            answering.answers = [text_reply("much", usage=FULL)]
            await session.send("and much more")
        case ["compact"]:
            await session.compact()
        case ["outline"]:
            await session.compact(outline=True)
        case ["failed", "compaction"]:
            answering.summaries = [Reply(status=401, body={"error": {"message": "wrong key"}})]
            await session.compact()
        case ["rules"]:
            (folder / "AGENTS.md").write_text("Say please.")
        case ["other", "rules"]:
            (folder / "AGENTS.md").write_text("Say thanks.")
        case ["steer"]:
            session.steer("remember this")
        case ["undo"]:
            await session.undo()
        case ["back", turns]:
            await session.undo(turns=int(turns))
        case _:
            assert act == "resume"
