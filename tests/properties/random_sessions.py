"""Random sessions: what people, models and tools may do, drawn by hypothesis, and a player that really does it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from refold.core.items import OUTPUT_TYPES, Item, is_call, message
from refold.core.profile import Profile, Provider
from refold.core.thread import Thread
from refold.core.truncate import Budget
from refold.core.wire import Request
from refold.errors import RefoldError
from refold.model import ModelEvent
from refold.model.scripted import Reply, ScriptedModel
from refold.session.clock import Clock
from refold.session.memory import Memory
from refold.session.session import Session
from refold.testing import text_reply, usage
from refold.tools import Tool, ToolContext
from refold.tools.functions import tool

PROFILE = Profile(
    slug="m", context_window=50_000, auto_compact_token_limit=2_000, truncation=Budget("tokens", 100), known=True
)
PROVIDER = Provider(id="scripted", name="scripted", base_url="http://127.0.0.1:1", env_key=None, stream_max_retries=1)
FULL = usage(5_000, 10)  # of a reply after which compaction is due
PLAIN = usage(100, 10)
PATIENCE = 30  # seconds that no session here needs
PACE = 1e-5  # between two events: whoever watches gets a word in
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


# --- what may happen -------------------------------------------------------------------------------------------------


class Say(msgspec.Struct, frozen=True):
    """A turn: what is said, what the model answers, how attempts at a summary go, what is done at the n-th event."""

    text: str
    answers: tuple[Reply, ...] = ()
    summaries: tuple[Reply, ...] = ()
    acts: dict[int, str] = {}  # number of the event → what is steered; "" = interrupt


class Steer(msgspec.Struct, frozen=True):
    """Something is said between two turns, for the next one."""

    text: str


class Compact(msgspec.Struct, frozen=True):
    """A compaction by hand."""

    summaries: tuple[Reply, ...] = ()
    interrupted: bool = False


class Rules(msgspec.Struct, frozen=True):
    """AGENTS.md is written anew ("" = removed)."""

    text: str


Scene = Say | Steer | Compact | Rules


class Play(msgspec.Struct, frozen=True):
    """A whole session: the sittings in which it is opened, resumed and left, perhaps in the middle of a turn."""

    sittings: tuple[tuple[Scene, ...], ...]
    left_in_a_turn: bool = False


def call(name: str, arguments: dict[str, Any] | str) -> Item:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function_call", "name": name, "arguments": text}


words = st.one_of(
    st.text(min_size=1, max_size=12),
    st.sampled_from(["half a pair \ud83d", "<environment_context>", "line\nline\u2028line", "x" * 2_000, "\x00"]),
)

calls = st.one_of(
    st.builds(lambda text: call("echo", {"text": text}), words),
    st.builds(lambda text: call("steers", {"text": text}), words),
    st.builds(lambda answer: call("asks", {"answer": answer}), st.sampled_from(["yes", "no", "gone"])),
    st.sampled_from(
        [
            call("nap", {}),
            call("alone", {}),
            call("broken", {}),
            call("nothing", {}),
            call("echo", "{not json"),
            call("stops", {}),
            {"type": "custom_tool_call", "name": "patch", "input": "*** Begin Patch"},
        ]
    ),
)

said = st.builds(lambda text: message("assistant", [text]), words)

items = st.lists(
    st.one_of(
        calls,
        calls,
        calls,
        said,
        st.just({"type": "reasoning", "summary": [], "encrypted_content": "AAAA"}),
        st.just({"type": "of_tomorrow", "id": "x_1", "what": [1, {"y": None}]}),
    ),
    min_size=1,
    max_size=4,
).map(tuple)

complete = st.sampled_from([{"usage": PLAIN}, {"usage": FULL}, {"usage": FULL}, {"usage": None}])
ends = st.one_of(
    complete,
    complete,
    complete,
    st.sampled_from(
        [
            {"usage": PLAIN, "end_turn": False},
            {"cut_after": "items"},
            {"cut_after": "partial_item"},
            {"cut_after": "request"},
            {"cut_after": 3},
            {"fail": {"code": "server_error", "message": "later"}},
            {"fail": {"code": "context_length_exceeded", "message": "too long"}},
            {"status": 503, "body": {}},
            {"status": 400, "body": {"error": {"code": "invalid_prompt", "message": "not like this"}}},
            {"incomplete": "max_output_tokens", "usage": PLAIN},
        ]
    ),
)

answers = st.builds(lambda items, end: Reply(items=items, pace=PACE, **end), items, ends)

summaries = st.sampled_from(
    [
        *[text_reply("SUMMARY", pace=PACE)] * 4,
        Reply(items=(), usage=PLAIN),
        text_reply("s" * 12_000, pace=PACE),
        text_reply("half", cut_after="items"),
        Reply(status=401, body={"error": {"message": "bad key"}}),
        Reply(fail={"code": "context_length_exceeded", "message": "too long"}),
        Reply(incomplete="max_output_tokens", usage=PLAIN),
    ]
)

acts = st.one_of(st.just({}), st.dictionaries(st.integers(0, 60), st.one_of(st.just(""), words), max_size=2))
several_summaries = st.lists(summaries, max_size=3).map(tuple)
turns = st.builds(Say, words, st.lists(answers, min_size=1, max_size=4).map(tuple), several_summaries, acts)
filling = st.builds(Say, words, st.just((text_reply("a long story", usage=FULL, pace=PACE),)), several_summaries)
scenes = st.one_of(
    turns,
    turns,
    turns,
    filling,
    st.builds(Steer, words),
    st.builds(Compact, several_summaries, st.booleans()),
    st.builds(Rules, st.sampled_from(["", "Say please.\n", "Never say please.\n"])),
)
plays = st.builds(
    Play,
    st.lists(st.lists(scenes, min_size=1, max_size=5).map(tuple), min_size=1, max_size=2).map(tuple),
    st.booleans(),
)


# --- the cast --------------------------------------------------------------------------------------------------------


class Heard(ScriptedModel):
    """A scripted model that keeps the requests as they were sent, and asks for summaries from a script of their own."""

    def __init__(self) -> None:
        self.heard: list[Request] = []
        self.answers: deque[Reply] = deque()
        self.summaries: deque[Reply] = deque()
        super().__init__(self._next, profile=PROFILE, provider=PROVIDER)

    def sample(self, request: Request) -> AsyncIterator[ModelEvent]:
        self.heard.append(request)
        return super().sample(request)

    def _next(self, body: Any) -> Reply:
        if kind_of(body) == "compaction":
            return self.summaries.popleft() if self.summaries else text_reply("SUMMARY", pace=PACE)
        return self.answers.popleft() if self.answers else text_reply("done", pace=PACE)

    def bodies(self, kind: str = "turn") -> list[Any]:
        """The requests of one kind, decoded."""
        return [body for body in self.requests if kind_of(body) == kind]


class Watch(Clock):
    """A clock that sees every batch of records just before it is written. Mutable: it keeps what the thread was then.

    Its ids count, so that two sessions that do the same say the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory: Memory | None = None
        self.states: list[tuple[int, Thread]] = []  # the file's length, and the thread that was live with it
        self._ids = 0

    def uuid(self) -> str:
        self._ids += 1
        return f"0190aaaa-0000-7000-8000-{self._ids:012x}"

    def now(self) -> datetime:
        return NOON

    def jitter(self) -> float:
        return 0.0

    def timestamp(self) -> str:
        self.look()
        return "2026-05-04T12:00:00.000Z"

    def look(self) -> None:
        """Keep the state of now."""
        if self.memory is not None and self.memory.path is not None and self.memory.path.exists():
            self.states.append((self.memory.path.stat().st_size, frozen(self.memory.thread)))


def frozen(thread: Thread) -> Thread:
    """The thread as it is now; records never change a value inside it, only its lists grow."""
    still = copy.copy(thread)
    still.history, still.steers, still.known = list(thread.history), dict(thread.steers), set(thread.known)
    return still


class Gone(Exception):
    """The host's own code failed: nobody is there to ask."""


async def approve(asked: Item) -> bool:
    """What a person says to a call."""
    answer = json.loads(asked["arguments"])["answer"]
    await asyncio.sleep(0)
    if answer == "gone":
        raise Gone
    return answer == "yes"


class Played(msgspec.Struct):
    """What a play left: its file and folder, what the live session was, what was sent, and which calls ran."""

    folder: Path
    path: Path
    data: bytes
    live: Thread
    states: list[tuple[int, Thread]]
    model: Heard
    ran: list[str]

    @property
    def line_ends(self) -> list[int]:
        """The lengths at which the log may be cut between two lines."""
        return [index + 1 for index, byte in enumerate(self.data) if byte == 0x0A]


def tools_for(current: Callable[[], Session], ran: list[str]) -> list[Tool]:
    """Tools that write down which call ran."""

    @tool
    async def echo(text: str, context: ToolContext) -> str:
        """Says it again."""
        ran.append(context.call_id)
        return text

    @tool
    async def nap(context: ToolContext) -> str:
        """Takes its time."""
        ran.append(context.call_id)
        await asyncio.sleep(0.001)
        return "rested"

    @tool(parallel=False)
    async def alone(context: ToolContext) -> str:
        """Wants no company."""
        ran.append(context.call_id)
        await asyncio.sleep(0)
        return "x" * 3_000

    @tool
    async def broken(context: ToolContext) -> str:
        """Never works."""
        ran.append(context.call_id)
        raise ValueError("no luck")

    @tool
    async def steers(text: str, context: ToolContext) -> str:
        """Somebody speaks while it runs."""
        ran.append(context.call_id)
        current().steer(text)
        return "told"

    @tool
    async def stops(context: ToolContext) -> str:
        """Somebody interrupts while it runs."""
        ran.append(context.call_id)
        current().interrupt()
        await asyncio.sleep(PATIENCE)
        return "never"

    @tool(needs_approval=True)
    async def asks(answer: str, context: ToolContext) -> str:
        """Somebody is asked first."""
        ran.append(context.call_id)
        return answer

    return [echo, nap, alone, broken, steers, stops, asks]


# --- playing ---------------------------------------------------------------------------------------------------------


def perform(play: Play, folder: Path) -> Played:
    """Play it under `folder`; the log may be cut and gone on with afterwards."""
    return asyncio.run(_perform(play, folder))


async def _perform(play: Play, folder: Path) -> Played:
    work, home = folder / "work", folder / "home"
    work.mkdir()
    model, clock, ran, sessions = Heard(), Watch(), list[str](), list[Session]()
    tools = tools_for(lambda: sessions[-1], ran)
    options: dict[str, Any] = {"model": model, "tools": tools, "approve": approve, "cwd": work, "home": home}
    options["clock"] = clock
    for number, sitting in enumerate(play.sittings):
        if sessions and sessions[-1].path is not None and sessions[-1].path.exists():
            session = Session.resume(sessions[-1].id, **options)
        else:
            session = Session.start(instructions="BASE", **options)
        sessions.append(session)
        clock.memory = session.memory
        async with asyncio.timeout(PATIENCE), session:
            for scene in sitting:
                await _act(session, model, work, scene)
            if play.left_in_a_turn:
                model.answers, model.summaries = deque([text_reply("unheard", pace=PACE)]), deque()
                session.send("and then?")
                await asyncio.sleep(number * PACE)  # in the first sitting it is left before it has begun
            elif session.memory.thread.turns == 0:
                await session.send("at least this")
    clock.look()
    session = sessions[-1]
    assert session.path is not None
    return Played(folder, session.path, session.path.read_bytes(), session.memory.thread, clock.states, model, ran)


async def _act(session: Session, model: Heard, work: Path, scene: Scene) -> None:
    match scene:
        case Say():
            await _talk(session, model, scene)
        case Steer(text=text):
            session.steer(text)
        case Compact(summaries=summaries, interrupted=interrupted):
            model.summaries = deque(summaries)
            compaction = asyncio.create_task(session.compact())
            if interrupted:
                await asyncio.sleep(0)
                session.interrupt()
            await asyncio.wait([compaction])
            assert isinstance(compaction.exception(), RefoldError | None)
        case Rules(text=""):
            (work / "AGENTS.md").unlink(missing_ok=True)
        case Rules(text=text):
            (work / "AGENTS.md").write_text(text)


async def _talk(session: Session, model: Heard, scene: Say) -> None:
    model.answers, model.summaries = deque(scene.answers), deque(scene.summaries)
    number = 0
    try:
        async for _ in session.send(scene.text):
            act = scene.acts.get(number)
            number += 1
            if act == "":
                session.interrupt()
            elif act is not None:
                session.steer(act)
    except (RefoldError, Gone):
        pass


def go_on(data: bytes, folder: Path, name: str, *, cwd: Path) -> tuple[bytes, Thread, Heard]:
    """Resume a log that holds just `data`, say "go on"; the file's bytes then, the live thread, and what was sent."""
    path = folder / f"{name}.jsonl"
    path.write_bytes(data)

    async def resumed() -> tuple[bytes, Thread, Heard]:
        model = Heard()
        tools = tools_for(lambda: session, [])  # the rules in force depend on the tools and on who is asked
        options: dict[str, Any] = {"model": model, "tools": tools, "approve": approve, "cwd": cwd}
        session = Session.resume(path, in_place=True, clock=Watch(), home=folder / "other", **options)
        async with asyncio.timeout(PATIENCE), session:
            result = await session.send("go on")
            assert (result.outcome, result.text) == ("completed", "done")
        return path.read_bytes(), session.memory.thread, model

    return asyncio.run(resumed())


# --- what must hold of every request ---------------------------------------------------------------------------------


def kind_of(body: Any) -> str:
    """Whether a request samples for a turn or asks for a summary."""
    return json.loads(body["client_metadata"]["x-codex-turn-metadata"])["request_kind"]


def assert_legal(body: Any) -> None:
    """Every call has exactly one output, after it, and no output stands without its call."""
    waiting: set[str] = set()
    known: set[str] = set()
    for item in body["input"]:
        if is_call(item):
            assert item["call_id"] not in known, f"{item['call_id']} is called twice"
            known.add(item["call_id"])
            waiting.add(item["call_id"])
        elif item.get("type") in OUTPUT_TYPES:
            assert item["call_id"] in waiting, f"{item['call_id']} is an orphan, or answered twice"
            waiting.remove(item["call_id"])
    assert not waiting, f"unanswered: {waiting}"


def told(body: Any, mark: str = "<permissions instructions>") -> int:
    """How many items of a request hold this piece of injected context."""
    return sum(item.get("role") == "developer" and mark in json.dumps(item) for item in body["input"])
