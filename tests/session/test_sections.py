"""A host's own sections: observed before each turn, told when they changed; what they do wrong costs a notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.fragments import stored_kinds
from refold.core.items import message_text, message_texts
from refold.core.profile import Profile, Provider
from refold.core.records import WorldObserved
from refold.core.thread import same_state
from refold.core.world import Fragment, World
from refold.errors import ConfigError
from refold.model.scripted import ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.events import Event, Notice
from refold.session.memory import read_thread
from refold.session.sections import Section, with_own
from refold.session.session import Session
from refold.testing import text_reply

PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None)
PATIENCE = 30  # seconds that no session here needs


class Board:
    """A section that says what a test wants."""

    def __init__(self, value: Any = None, id: str = "board") -> None:
        self.id = id
        self.value = value
        self.seen: list[tuple[Any, Any]] = []
        self.look: Callable[[], Coroutine[Any, Any, Any]] | None = None

    async def observe(self) -> Any:
        return self.value if self.look is None else await self.look()

    def render(self, now: Any, before: Any) -> Sequence[Fragment]:
        self.seen.append((now, before))
        return [Fragment("developer", "test.board", f"<board>{now}</board>")]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def model() -> ScriptedModel:
    return ScriptedModel(lambda _: text_reply("well"), profile=Profile(slug="m"), provider=PROVIDER)


def start(folder: Path, *sections: Section) -> Session:
    return Session.start(model=model(), cwd=folder, home=folder / "home", sections=sections)


def again(folder: Path, session: Session, *sections: Section) -> Session:
    return Session.resume(session.id, model=model(), home=folder / "home", sections=sections)


def boards(session: Session) -> list[str]:
    items = [e.item for e in session.memory.thread.history]
    parts = [pair for item in items for pair in zip(stored_kinds(item), message_texts(item), strict=False)]
    return [text for kind, text in parts if kind == "test.board"]


async def said(session: Session, text: str) -> list[Event]:
    return [event async for event in session.send(text)]


def notices(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice) and event.text.startswith("section ")]


def test_one_is_told_once_and_again_when_it_changed(tmp_path: Path) -> None:
    async def work() -> None:
        board = Board("a")
        async with start(tmp_path, board) as session:
            for value in ("a", "a", "b", "b"):
                board.value = value
                await session.send(value)
            assert boards(session) == ["<board>a</board>", "<board>b</board>"]
            assert board.seen == [("a", None), ("b", "a")]

    run(work())


def test_it_stands_behind_refolds_own_of_its_role(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, Board("a")) as session:
            await session.send("hello")
            first = session.memory.thread.history[0].item
            assert first["role"] == "developer"
            assert [text.partition(">")[0] for text in message_texts(first)] == ["<permissions instructions", "<board"]

    run(work())


def test_a_compaction_tells_it_anew_once_and_a_resume_does_not(tmp_path: Path) -> None:
    async def work() -> None:
        board = Board({"n": 1})
        async with start(tmp_path, board) as session:
            await session.send("hello")
            board.value = {"n": 2}
            await session.compact()
            assert boards(session) == ["<board>{'n': 2}</board>"]
            assert board.seen[-1] == ({"n": 2}, None)
        async with again(tmp_path, session, board) as resumed:
            await resumed.send("go on")
            assert len(boards(resumed)) == 1
        async with Session.fork(session.id, model=model(), home=tmp_path / "home", sections=[board]) as child:
            await child.send("go on")
            assert len(boards(child)) == 1

    run(work())


def test_what_holds_no_more_is_told_and_what_never_held_is_not(tmp_path: Path) -> None:
    async def work() -> None:
        board, other = Board("a"), Board(None, "other")
        async with start(tmp_path, board, other) as session:
            await session.send("hello")
            board.value = None
            await session.send("go on")
            await session.send("go on")
            assert (board.seen, other.seen) == ([("a", None), (None, "a")], [])

    run(work())


def test_what_it_observed_reads_back_from_the_log_as_it_was(tmp_path: Path) -> None:
    value = {"tuple": (1, 2), "null": None, "deep": {"null": None, "list": [None, {"x": None}]}, "half": "\ud83d"}

    async def work() -> None:
        async with start(tmp_path, Board(value)) as session:
            await session.send("hello")
            await session.send("again")
            assert session.path is not None
            assert same_state(read_thread(session.path), session.memory.thread)
            assert len(boards(session)) == 1
            assert session.memory.thread.world is not None
            kept = session.memory.thread.world["refold"]["board"]
            assert kept == {"tuple": [1, 2], "deep": {"list": [None, {}]}, "half": "\ufffd"}

    run(work())


def test_the_next_turns_record_only_what_changed_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        board, other = Board({"a": 1, "b": 1}), Board("x", "other")
        async with start(tmp_path, board, other) as session:
            await session.send("hello")
            board.value = {"a": 2, "c": 1}
            await session.send("again")
            assert session.path is not None
            told = [line.record for line in read_lines(session.path) if isinstance(line.record, WorldObserved)]
            assert told[-1] == WorldObserved(False, {"refold": {"board": {"a": 2, "b": None, "c": 1}}})

    run(work())


def test_one_that_fails_goes_on_as_told_and_says_so(tmp_path: Path) -> None:
    async def broken() -> Any:
        raise ValueError("no board")

    async def no_json() -> Any:
        return {"x": object()}

    async def work() -> None:
        board = Board("a")
        async with start(tmp_path, board) as session:
            assert notices(await said(session, "hello")) == []
            for look, why in ((broken, "ValueError: no board"), (no_json, "TypeError")):
                board.look = look
                [told] = notices(await said(session, "go on"))
                assert told.startswith("section board: observing it failed: ") and why in told
            await session.compact()
            board.look = None
            await session.send("go on")
            assert boards(session) == ["<board>a</board>"]

    run(work())


def test_one_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    async def work() -> None:
        board, other = Board("a"), Board("b", "other")
        async with start(tmp_path, board, other) as session:
            await session.send("hello")
            board.look, other.value = asyncio.Event().wait, "c"
            heard = session.memory.feed.listen()
            world = await with_own(World({}), session.memory, [board, other], 0.01)
            assert world.state == {"refold": {"board": "a", "other": "c"}}
            told = await heard.get()
            assert isinstance(told, Notice) and "did not answer within 0.01 seconds" in told.text

    run(work())


def test_one_whose_telling_fails_is_not_told_and_the_rest_is(tmp_path: Path) -> None:
    class Mute(Board):
        def render(self, now: Any, before: Any) -> Sequence[Fragment]:
            raise KeyError("words")

    async def work() -> None:
        async with start(tmp_path, Mute("a", "mute"), Board("b")) as session:
            [told] = notices(await said(session, "hello"))
            assert told == "section mute: telling it failed: KeyError: 'words'"
            assert boards(session) == ["<board>b</board>"]

    run(work())


def test_an_interrupt_while_one_looks_loses_nothing_that_was_said(tmp_path: Path) -> None:
    async def work() -> None:
        looking = asyncio.Event()

        async def slowly() -> Any:
            looking.set()
            await asyncio.Event().wait()

        board = Board()
        board.look = slowly
        async with start(tmp_path, board) as session:
            turn = session.send("do not lose this")
            await looking.wait()
            session.interrupt()
            assert (await turn).outcome == "interrupted"
            assert "do not lose this" in [message_text(e.item) for e in session.memory.thread.history]

    run(work())


@pytest.mark.parametrize("ids", [("window",), ("switched",), ("",), ("twice", "twice")])
def test_an_id_is_its_own(tmp_path: Path, ids: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="sections"):
        start(tmp_path, *(Board("a", name) for name in ids))


def test_one_that_a_resume_does_not_give_is_forgotten_and_told_when_it_is_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with start(tmp_path, Board("a")) as session:
            await session.send("hello")
        async with again(tmp_path, session) as without:
            await without.send("go on")
        async with again(tmp_path, session, Board("a")) as back:
            await back.send("go on")
            assert len(boards(back)) == 2

    run(work())


@pytest.mark.parametrize(
    "told",
    ["<board>", [7], [Fragment("assistant", "k", "t")], [Fragment("user", "k", 5)]],
    ids=str,  # type: ignore[list-item,arg-type]
)
def test_what_is_no_fragment_costs_a_notice_and_not_what_the_user_said(tmp_path: Path, told: Any) -> None:
    class Wrong(Board):
        def render(self, now: Any, before: Any) -> Sequence[Fragment]:
            return told

    async def work() -> None:
        async with start(tmp_path, Wrong(1)) as session:
            events = await said(session, "hello")
            assert [e.text for e in events if isinstance(e, Notice) and "telling it failed" in e.text]
            assert "hello" in [message_text(e.item) for e in session.memory.thread.history]

    run(work())


def test_what_could_not_be_told_is_told_when_it_can_be(tmp_path: Path) -> None:
    class Late(Board):
        fails = True

        def render(self, now: Any, before: Any) -> Sequence[Fragment]:
            if self.fails:
                raise ValueError("not now")
            return super().render(now, before)

    async def work() -> None:
        board = Late(5)
        async with start(tmp_path, board) as session:
            await said(session, "one")
            assert boards(session) == []
            board.fails = False
            await said(session, "two")
            await said(session, "three")
            assert boards(session) == ["<board>5</board>"] and board.seen == [(5, None)]
            board.fails = True
            await session.compact()
            board.fails = False
            await said(session, "four")
            assert boards(session) == ["<board>5</board>"], "after a compaction it is told when it can be, too"
        assert session.path is not None
        assert same_state(read_thread(session.path), session.memory.thread)

    run(work())
