"""Compaction, whatever people say and providers do: it ends, only a success changes the history, and what stands there
afterwards can be sent and holds what must be in it."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.compaction.replacement import RETAINED_USER_TOKENS
from refold.core.config import parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import Item, message, message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, ItemRecorded, SteerQueued
from refold.core.thread import Thread, same_state
from refold.core.truncate import BYTES_PER_TOKEN, Budget
from refold.errors import RefoldError
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.events import CompactionEnded
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import call_reply, text_reply, usage
from refold.tools.functions import tool

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "soak"))
from legal import faults
from test_core_properties import fixed

WINDOW = 40_000  # tokens
PROFILE = Profile(slug="m", context_window=WINDOW, truncation=Budget("tokens", 2_000), known=True)
MOST_REQUESTS = 400  # in one example; more is a loop
WITHOUT_NEWS = 2  # compactions that may follow each other: before a turn, or in it, and one for a real overflow
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 90}
TOO_LONG = Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}})
RULES = "Never touch the vendored code."


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


@tool
async def look() -> str:
    """Looks."""
    return "seen " * 400


# --- what a provider may do ------------------------------------------------------------------------------------------

TOTALS = st.sampled_from([10, 20_000, 35_000, 36_000, 38_000, 45_000, 400_000])  # the limit is 36,000
sampled = st.one_of(
    st.builds(lambda total: text_reply("answer", usage=usage(total, 10)), TOTALS),
    st.builds(lambda total: call_reply("look", {}, usage=usage(total, 10)), TOTALS),
    st.just(text_reply("answer", usage=None)),
    st.just(TOO_LONG),
    st.just(Reply(fail={"code": "server_error", "message": "Oh."})),
)
compacted = st.one_of(
    st.builds(
        lambda size: text_reply("summary " * size, usage=usage(500, 10)), st.sampled_from([1, 50, 3_000, 30_000])
    ),
    st.just(Reply(items=(COMPACTION,), usage=usage(500, 10))),
    st.sampled_from(
        [
            TOO_LONG,
            text_reply(""),
            call_reply("look", {}),
            Reply(),
            Reply(items=(COMPACTION, {**COMPACTION, "id": "cmp_2"})),
            Reply(incomplete="max_output_tokens"),
            Reply(status=500, body={}),
            Reply(status=401, body={"error": {"message": "wrong key"}}),
            Reply(status=404, body={"error": {"message": "what?"}}),
        ]
    ),
)
SETTINGS = st.fixed_dictionaries(
    {
        "compaction": st.fixed_dictionaries({"fallback": st.booleans(), "outline": st.booleans()}),
        "model_auto_compact_token_limit_scope": st.sampled_from(["total", "body_after_prefix"]),
        "model_post_turn_compact_threshold_percent": st.sampled_from([0, 50]),
    }
)
WAYS = st.sampled_from(["local", "remote"])


def is_compaction(body: Any) -> bool:
    last = body["input"][-1]
    asked = message_text(last) if last.get("type") == "message" else ""
    return last.get("type") == "compaction_trigger" or "CONTEXT CHECKPOINT COMPACTION" in asked


def answering(turns: list[Reply], compactions: list[Reply], way: str) -> ScriptedModel:
    """A model that goes through each list, and then says the last of it for ever."""
    left = {False: list(turns), True: list(compactions)}

    def step(body: Any) -> Reply:
        replies = left[is_compaction(body)]
        return replies.pop(0) if len(replies) > 1 else replies[0]

    provider = Provider(
        id="p",
        name="p",
        base_url="http://127.0.0.1:1",
        env_key=None,
        request_max_retries=0,
        stream_max_retries=0,
        compaction=way,  # type: ignore[arg-type]
    )
    steps: list[Callable[[Any], Reply | str]] = [step] * MOST_REQUESTS
    return ScriptedModel(steps, profile=PROFILE, provider=provider)


def session_in(folder: Path, model: ScriptedModel, **settings: Any) -> Session:
    return Session.start(
        model=model,
        tools=[look],
        cwd=folder,
        home=folder / "home",
        clock=Hasty(),
        instructions="BASE",
        config=parse_config(settings, "test"),
    )


# --- it ends ---------------------------------------------------------------------------------------------------------


@fixed(60)
@given(
    st.lists(sampled, min_size=1, max_size=6),
    st.lists(compacted, min_size=1, max_size=4),
    st.lists(st.sampled_from([20, 4_000, 90_000, 200_000]), min_size=1, max_size=3),
    SETTINGS,
    WAYS,
)
def test_no_sizes_and_errors_make_it_go_round(
    turns: list[Reply], compactions: list[Reply], said: list[int], settings: dict[str, Any], way: str
) -> None:
    # A model that only calls tools would go on for ever by itself.
    model = answering([*turns, text_reply("answer", usage=usage(36_000, 10))], compactions, way)

    async def go(folder: Path) -> Session:
        async with session_in(folder, model, **settings) as session, asyncio.timeout(30):
            for size in said:
                before = list(session.memory.thread.history)
                try:
                    async for event in session.send("word " * (size // 5)):
                        if isinstance(event, CompactionEnded) and not event.installed:
                            assert session.memory.thread.history[: len(before)] == before or event.error is None
                        before = list(session.memory.thread.history)
                except RefoldError as error:
                    assert "script_exhausted" not in str(error)
            return session

    with tempfile.TemporaryDirectory() as folder:
        session = asyncio.run(go(Path(folder)))
        assert len(model.requests) < MOST_REQUESTS
        assert session.path is not None
        assert most_without_news(session.path) <= WITHOUT_NEWS
        assert same_state(read_thread(session.path), session.memory.thread)


def most_without_news(path: Path) -> int:
    """The most checkpoints that stand between two things that somebody said or a tool did."""
    most = count = 0
    for line in read_lines(path):
        match line.record:
            case Compacted():
                count += 1
                most = max(most, count)
            case ItemRecorded(item=item) if item.get("role") != "developer":
                count = 0
            case SteerQueued():
                count = 0
            case _:
                pass
    return most


# --- what stands there afterwards ------------------------------------------------------------------------------------

texts = st.sampled_from(
    ["fix it", "x" * 5_000, "文字" * 3_000, "never do that " * 4_000, "<environment_context>", "\x00"]
)
histories = st.lists(
    st.one_of(
        st.builds(lambda text: [message("user", [text])], texts),
        st.builds(lambda text: [message("assistant", [text])], texts),
        st.just([message("user", [SUMMARY_MARK + "an older summary"])]),
        st.just([{"type": "reasoning", "summary": [], "encrypted_content": "AAAA"}]),
        st.just(
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "see"},
                        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                    ],
                }
            ]
        ),
        st.builds(
            lambda number, text, answered: [
                {"type": "function_call", "name": "look", "arguments": "{}", "call_id": f"c{number}"},
                *([{"type": "function_call_output", "call_id": f"c{number}", "output": text}] if answered else []),
            ],
            st.integers(0, 10_000),
            texts,
            st.booleans(),
        ),
        st.just([COMPACTION]),
    ),
    min_size=1,
    max_size=12,
)


@fixed(60)
@given(histories, texts, WAYS, st.booleans())
def test_after_any_compaction_the_next_request_is_legal_and_holds_what_must_be_in_it(
    history: list[list[Item]], newest: str, way: str, again: bool
) -> None:
    compaction = Reply(items=(COMPACTION,)) if way == "remote" else text_reply("SUMMARY")
    model = answering([text_reply("answer")], [compaction], way)

    async def go(folder: Path) -> None:
        (folder / "AGENTS.md").write_text(RULES)
        async with session_in(folder, model) as session:
            await session.send("begin")
            session.memory.add([item for items in history for item in items])
            session.memory.add(message("user", [newest]))
            ended = await session.compact()
            if not ended.installed:
                return
            if again:
                await session.compact()
            await session.send("go on")
            check(model.requests[-1], session.memory.thread, newest, session.model.provider)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(go(Path(folder)))


def check(body: Any, thread: Thread, newest: str, provider: Provider) -> None:
    assert faults(msgspec.json.encode(body), provider) == []
    items: list[Item] = body["input"]
    closing = [item for item in items if is_closing(item)]
    # A summary in a message is what the provider's own compaction keeps beside its item, as the real program does.
    assert len([item for item in closing if item["type"] == "compaction"]) <= 1
    newest_closing = closing[-1]
    assert sum(item is newest_closing for item in items) == 1
    if newest_closing["type"] == "message":
        assert len(closing) == 1
    told = str(items)
    assert told.count(RULES) == told.count("<permissions instructions>") == 1
    assert sum("<cwd>" in message_text(item) for item in items if item.get("role") == "user") == 1
    if len(newest.encode()) <= RETAINED_USER_TOKENS * BYTES_PER_TOKEN and not newest.startswith("<environment"):
        assert any(message_text(item) == newest for item in items if item.get("role") == "user")
    kept = [e for e in thread.history if e.origin in ("typed", "summary", "injected")]
    assert sum(e.tokens for e in kept) + len(thread.base_instructions or "") // BYTES_PER_TOKEN < WINDOW * 95 // 100


def is_closing(item: Item) -> bool:
    is_summary = item.get("role") == "user" and message_text(item).startswith(SUMMARY_MARK)
    return item["type"] == "compaction" or is_summary


@fixed(25)
@given(histories, WAYS)
def test_compaction_of_a_resumed_session_is_that_of_the_live_one(history: list[list[Item]], way: str) -> None:
    compaction = Reply(items=(COMPACTION,)) if way == "remote" else text_reply("SUMMARY")

    def model() -> ScriptedModel:
        return answering([text_reply("answer")], [compaction], way)

    async def filled(session: Session) -> None:
        await session.send("begin")
        session.memory.add([item for items in history for item in items])

    async def live(folder: Path) -> Thread:
        async with session_in(folder, model()) as session:
            await filled(session)
            await session.compact()
            return session.memory.thread

    async def resumed(folder: Path) -> Thread:
        async with session_in(folder, model()) as session:
            await filled(session)
        again = Session.resume(session.id, model=model(), tools=[look], home=folder / "home", clock=Hasty())
        async with again:
            await again.compact()
            return again.memory.thread

    with tempfile.TemporaryDirectory() as folder:
        one, other = asyncio.run(live(Path(folder))), asyncio.run(resumed(Path(folder)))
    assert said_in(one) == said_in(other)


def said_in(thread: Thread) -> list[tuple[Any, ...]]:
    """The history without ids, which are drawn anew."""
    places = [e.address.rpartition(":")[2] for e in thread.history]
    parts = [(e.item["type"], e.item.get("role"), e.item.get("content"), e.origin) for e in thread.history]
    return list(zip(places, parts, strict=True))


@pytest.mark.parametrize("way", ["local", "remote"])
def test_only_a_success_changes_the_history(tmp_path: Path, way: str) -> None:
    """Every way to fail, one after the other, by hand: the same history, alive and from the file, and then it works."""
    bad = [TOO_LONG, text_reply(""), call_reply("look", {}), Reply(), Reply(incomplete="max_output_tokens")]
    bad += [Reply(status=500, body={}), Reply(status=401, body={"error": {"message": "no"}})]
    for number, reply in enumerate(bad):
        folder = tmp_path / f"{way}{number}"
        folder.mkdir()
        model = answering([text_reply("answer")], [reply], way)
        good = answering([text_reply("answer")], [text_reply("SUMMARY")], "local")

        async def go(folder: Path = folder, model: ScriptedModel = model, good: ScriptedModel = good) -> None:
            async with session_in(folder, model) as session:
                await session.send("first")
                before = list(session.memory.thread.history)
                with pytest.raises(RefoldError):
                    await session.compact()
                assert session.memory.thread.history == before
                assert session.memory.thread.compactions == 0
                assert session.path is not None
                assert same_state(read_thread(session.path), session.memory.thread)
            async with Session.resume(session.id, model=good, home=folder / "home", clock=Hasty()) as session:
                assert (await session.compact()).installed

        asyncio.run(go())
