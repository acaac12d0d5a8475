"""What a provider can do wrong, at every place of a turn, over each transport: how the turn ends, what it tells.

FAULTS is the table: a row says how a fault is asked again after and what error remains when it does not pass. Each row
is met at each place, once (and then all is well) and for as long as it is asked. `ways` says over what it is met.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from refold.core.items import function_call_output, message, message_text
from refold.core.profile import Profile, Provider
from refold.core.records import CompactionAttempted, RequestSent, TurnEnded
from refold.core.thread import same_state
from refold.core.truncate import Budget
from refold.core.wire import Identity, Wire
from refold.errors import (
    BadModelStream,
    CompactionMadeNoRoom,
    ContextWindowExceeded,
    ModelRefused,
    ModelUnavailable,
    RefoldError,
    ResponseIncomplete,
)
from refold.model import ResponsesModel
from refold.model.events import CLOSED_EARLY, HIGH_DEMAND, TOO_MANY_REQUESTS
from refold.model.retry import backoff
from refold.session.clock import Clock
from refold.session.events import CompactionEnded, Event, Notice, PreviewDropped, SamplingStarted, ToolStarted, Waiting
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage
from refold.tools import Tool, ToolContext
from refold.tools.functions import tool

sys.path.insert(0, str(Path(__file__).parent.parent / "soak"))
from legal import faults

REQUEST_RETRIES, STREAM_RETRIES = 1, 2
JITTER = 0.01  # back-off as always, a hundred times as fast
IDLE_MS = 150  # the silence that a row of its own waits for; all other rows have PATIENCE
PATIENCE = 20  # seconds that nothing here needs
EVER = 1_000  # more often than any budget asks
FULL = usage(5_000, 10)  # of a reply after which compaction is due
PROFILE = Profile(
    slug="m", context_window=50_000, auto_compact_token_limit=3_000, truncation=Budget("tokens", 10_000), known=True
)
LEVELS: dict[str, tuple[Literal["request", "stream"], int]] = {
    "r": ("request", REQUEST_RETRIES),
    "s": ("stream", STREAM_RETRIES),
}
TOO_LONG = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
FALLING_BACK = "Falling back from WebSockets to HTTPS transport."

Way = Literal["http", "websocket"]
BOTH: tuple[Way, ...] = ("http", "websocket")
HTTP: tuple[Way, ...] = ("http",)


# --- the faults -----------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """One row. `waits`: r1 = the first wait of the request budget, s2 = the second of the stream budget; one attempt
    follows each, and what remains then is `error`. None for `error`: it is no fault at all."""

    name: str
    reply: Reply | None  # None: nobody listens
    waits: str
    error: type[RefoldError] | None
    says: str = ""  # what stands in the error's text
    asked: float | None = None  # seconds that the provider asked for; else the ordinary back-off
    ways: tuple[Way, ...] = BOTH
    first_way: str | None = None  # the waits over a WebSocket, before HTTP is tried; None: the same


def refused(status: int, error: dict[str, Any] | None = None, **headers: str) -> Reply:
    body = {"error": error or {"message": "not now"}}
    return Reply(status=status, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


STORY = (message("assistant", ["a long story"]),)
OOPS = {"code": "server_error", "message": "Oh."}
NO = {"code": "invalid_prompt", "message": "No."}
SOON = {"code": "rate_limit_exceeded", "message": "Try again in 15ms."}
CUT = "Incomplete response returned, reason: max_output_tokens"
NOISE = ("data: {oh", "<p>", ": hm")
PAGE = {"content-type": "text/html"}
EACH = "r1 s1 r1 s2 r1"  # the request budget anew for each of the stream budget

FAULTS = [
    Fault("nobody listens", None, "r1", ModelUnavailable, "cannot reach "),
    Fault("closed unanswered", Reply(cut_after="request"), EACH, ModelUnavailable, " closed ", first_way="s1 s2"),
    Fault("429 retry-after-ms", refused(429, retry_after_ms="20"), "s1 s2", ModelUnavailable, TOO_MANY_REQUESTS, 0.02),
    Fault("429 retry-after 0", refused(429, retry_after="0"), "s1 s2", ModelUnavailable, TOO_MANY_REQUESTS, 0.0),
    Fault("429 retry-after 2 h", refused(429, retry_after="7200"), "", ModelUnavailable, TOO_MANY_REQUESTS),
    Fault("429 without header", refused(429), "s1 s2", ModelUnavailable, TOO_MANY_REQUESTS),
    Fault("429 quota", refused(429, {"code": "insufficient_quota"}), "", ModelUnavailable, "quota exceeded"),
    Fault("500", refused(500), EACH, ModelUnavailable, HIGH_DEMAND),
    Fault("503", refused(503), EACH, ModelUnavailable, HIGH_DEMAND),
    Fault("503 retry-after-ms", refused(503, retry_after_ms="5"), EACH, ModelUnavailable, HIGH_DEMAND, 0.005),
    Fault("400 refused", refused(400, NO), "", ModelRefused, "400 Bad Request"),
    Fault("401", refused(401), "", ModelRefused, "401 Unauthorized"),
    Fault("cut in an item", Reply(items=STORY, cut_after="partial_item"), "s1 s2", BadModelStream, CLOSED_EARLY),
    Fault("cut after a call", call_reply("note", {}, cut_after="items"), "s1 s2", BadModelStream, CLOSED_EARLY),
    Fault("stall in a stream", Reply(items=STORY, stall=PATIENCE), "s1 s2", BadModelStream, "idle timeout waiting"),
    Fault("silence", Reply(delay=PATIENCE), "s1 s2", BadModelStream, "idle timeout waiting"),
    Fault("only headers", Reply(cut_after=0), "s1 s2", BadModelStream, CLOSED_EARLY),
    Fault("an HTML page", Reply(items=STORY, headers=PAGE), "", ModelRefused, "not an event stream", ways=HTTP),
    Fault("no JSON, then the end", Reply(cut_after=1, noise=NOISE), "s1 s2", BadModelStream, CLOSED_EARLY, ways=HTTP),
    Fault("no JSON between", Reply(items=STORY, noise=NOISE), "", None, ways=HTTP),
    Fault("failed", Reply(fail=OOPS), "s1 s2", ModelUnavailable, "response.failed: Oh."),
    Fault("failed for no reason", Reply(fail={}), "s1 s2", ModelUnavailable, "response.failed"),
    Fault("failed, refused", Reply(fail=NO), "", ModelRefused, "No."),
    Fault("failed, try again", Reply(fail=SOON), "s1 s2", ModelUnavailable, "rate limit exceeded: Try again", 0.015),
    Fault("error event", Reply(error={"message": "Oh."}), "s1 s2", ModelUnavailable, "error: Oh."),
    Fault("incomplete", Reply(items=STORY, incomplete="max_output_tokens"), "", ResponseIncomplete, CUT),
]


# --- the places -----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where in a turn the fault is met: what was sampled before it in the same turn, in what, and what comes after."""

    name: str
    kind: Literal["turn", "compaction"]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    full: bool = False  # compaction is due after the first reply
    turns_before: int = 0

    @property
    def calls(self) -> int:
        return len(self.before)


PLACES = [
    Place("first sampling", "turn"),
    Place("after a tool", "turn", before=("turn",)),
    Place("compaction after a tool", "compaction", before=("turn",), after=("turn",), full=True),
    Place("compaction before the turn", "compaction", after=("turn",), full=True, turns_before=1),
]


class Brisk(Clock):
    def jitter(self) -> float:
        return JITTER


class Desk:
    """A provider that can go down and come up again, and a session that asks it. Mutable: it counts what is left."""

    def __init__(self, folder: Path, place: Place, fault: Reply | None, times: int, way: Way) -> None:
        self.folder, self.place, self.fault, self.way = folder, place, fault, way
        self.times = 0  # how often the fault will still be met; nothing before its place
        self._times = times
        self._calls = place.calls
        self.ran: list[str] = []  # call ids, as tools began
        self.requests: list[LoggedRequest] = []
        self._kept = socket.socket()  # holds the port while nobody listens: a connection to it is refused
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", 0))
        self._server: ResponsesServer | None = None
        stalls = fault is not None and bool(fault.stall or fault.delay)
        self.provider = Provider(
            id="scripted",
            name="scripted",
            base_url=f"http://127.0.0.1:{self._kept.getsockname()[1]}/v1",
            env_key=None,
            request_max_retries=REQUEST_RETRIES,
            stream_max_retries=STREAM_RETRIES,
            stream_idle_timeout_ms=IDLE_MS if stalls else PATIENCE * 1000,
            supports_websockets=way == "websocket",
        )

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        self.come_up()
        model = ResponsesModel(PROFILE, self.provider)
        options: dict[str, Any] = {"model": model, "tools": [self._note()], "clock": Brisk(), "cwd": self.folder}
        try:
            async with asyncio.timeout(PATIENCE), Session.start(home=self.folder / "home", **options) as session:
                for _ in range(self.place.turns_before):
                    await session.send("before")
                if not self.place.calls:
                    self._break()
                yield session
        finally:
            self._go_down()
            self._kept.close()

    def _note(self) -> Tool:
        @tool
        async def note(context: ToolContext) -> str:
            """Remembers that it ran."""
            self.ran.append(context.call_id)
            if len(self.ran) == self.place.calls:
                self._break()
            return "noted"

        return note

    def _break(self) -> None:
        """The place is reached."""
        self.times = self._times
        if self.fault is None:
            self._go_down()

    def come_up(self) -> None:
        if self._server is None:
            port = self._kept.getsockname()[1]
            self._server = ResponsesServer(self._answer, port=port).start()

    def _go_down(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.__exit__(None, None, None)  # raises what went wrong in it

    def _answer(self, request: LoggedRequest) -> Reply | str:
        first = not self.requests
        self.requests.append(request)
        summary = '"request_kind":"compaction"' in request.json["client_metadata"]["x-codex-turn-metadata"]
        if self.times and self.fault is not None and summary == (self.place.kind == "compaction"):
            self.times -= 1
            return self.fault
        if summary:
            return "SUMMARY"
        told = FULL if first and self.place.full else usage(100, 10)
        if self._calls:
            self._calls -= 1
            return call_reply("note", {}, usage=told)
        return text_reply("done", usage=told)

    async def hear(self, session: Session, text: str) -> tuple[list[Event], RefoldError | None]:
        """The events of one turn and the error that it ended in. Who was down comes up when its time is over."""
        events: list[Event] = []
        try:
            async for event in session.send(text):
                events.append(event)
                if self.fault is None and isinstance(event, Waiting):
                    self.times -= 1
                    if self.times <= 0:
                        self.come_up()
        except RefoldError as error:
            return events, error
        return events, None

    def recover(self) -> None:
        """From now on all is well."""
        self.times = 0
        self.come_up()


# --- what must hold in every cell -----------------------------------------------------------------------------------


def of(kind: type[Any], events: Sequence[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def assert_in_order(desk: Desk, session: Session, *said: str) -> None:
    """The log says what the live session knows, holds what the user said, and the next request is legal."""
    assert session.path is not None
    replayed = read_thread(session.path)
    assert same_state(replayed, session.memory.thread)
    assert replayed.open_turn is None
    texts = [message_text(entry.item) for entry in replayed.history if entry.item.get("role") == "user"]
    assert [text for text in texts if text in said] == list(said)
    request = Wire(desk.provider, PROFILE).request(session.memory.prompt(), Identity(thread_id=session.id))
    assert faults(request.body(), desk.provider) == []


def assert_asked_legally(desk: Desk) -> None:
    """Nothing was sent that a provider would refuse; what goes on from an earlier response is not whole."""
    for request in desk.requests:
        if "previous_response_id" not in request.json:
            assert faults(request.body, desk.provider) == []


def waits_of(fault: Fault, way: Way, *, once: bool) -> list[tuple[str, int, int, float]]:
    """The row's waits as events tell them: level, attempt, of, seconds."""
    first = fault.waits if fault.first_way is None or way == "http" else fault.first_way
    each = [*first.split(), *(fault.waits.split() if way == "websocket" else ())]
    found: list[tuple[str, int, int, float]] = []
    for level, attempt in each[:1] if once else each:
        (name, most), number = LEVELS[level], int(attempt)
        found.append((name, number, most, backoff(number, JITTER) if fault.asked is None else fault.asked))
    return found


CELLS = [
    pytest.param(fault, place, once, way, id=f"{fault.name}-{place.name}-{'once' if once else 'ever'}-{way}")
    for fault, place, once, way in product(FAULTS, PLACES, (True, False), BOTH)
    if way in fault.ways and (once or fault.waits)  # what is not asked again is met only once
]


@pytest.mark.parametrize(("fault", "place", "once", "way"), CELLS)
def test_a_fault_ends_as_its_row_says(fault: Fault, place: Place, once: bool, way: Way, tmp_path: Path) -> None:
    waits = waits_of(fault, way, once=once)
    passes = fault.error is None or (once and bool(fault.waits))
    falls_back = way == "websocket" and bool(fault.waits) and not once
    attempts = 1 + len(waits) + falls_back
    failures = 0 if fault.error is None else attempts - passes
    samples = place.kind == "turn"
    finished_calls = failures if samples and fault.name == "cut after a call" else 0

    async def go() -> None:
        desk = Desk(tmp_path, place, fault.reply, 1 if once else EVER, way)
        async with desk.session() as session:
            asked_before = len(desk.requests)
            events, error = await desk.hear(session, "go")

            # how it ended
            if passes:
                assert error is None
            else:
                assert type(error) is fault.error
                assert fault.says in str(error)
            ended = events[-1]
            assert isinstance(ended, TurnEnded)
            assert (ended.outcome, ended.error) == ("completed" if passes else "failed", str(error) if error else None)
            story = samples and fault.error is None
            assert ended.last_message == (("a long story" if story else "done") if passes else None)

            # what it told
            told = [(event.level, event.attempt, event.of, event.seconds) for event in of(Waiting, events)]
            assert told == [(*wait[:3], pytest.approx(wait[3])) for wait in waits]
            assert all(fault.says in event.reason for event in of(Waiting, events))
            assert len(of(PreviewDropped, events)) == (failures if samples else 0)
            notices = [event.text for event in of(Notice, events)]
            assert [text.startswith(FALLING_BACK) for text in notices] == [True] * falls_back

            # what was asked
            kinds = [*place.before, *[place.kind] * attempts, *(place.after if passes else ())]
            assert [event.kind for event in of(SamplingStarted, events)] == kinds
            assert [record.kind for record in of(RequestSent, events)] == kinds, "each leaves a line in the log"
            unheard = failures if fault.reply is None else 0
            assert len(desk.requests) - asked_before == len(kinds) - unheard

            # what was run
            assert len(desk.ran) == len(set(desk.ran)) == place.calls + finished_calls
            assert [event.call["call_id"] for event in of(ToolStarted, events)] == desk.ran

            # what became of the compaction
            compactions = of(CompactionEnded, events)
            assert [event.installed for event in compactions] == ([] if samples else [passes])
            assert [event.error for event in compactions] == ([] if samples else [str(error) if error else None])
            outcomes = [record.outcome for record in of(CompactionAttempted, events)]
            assert len(outcomes) == (0 if samples else attempts), "each attempt leaves a record of its cost"
            assert all(fault.says in outcome for outcome in outcomes[:failures])
            assert outcomes[failures:] == (["completed"] if passes and not samples else [])
            assert session.memory.thread.window.number == (passes and not samples)

            # what is left of it
            before = ["before"] * place.turns_before
            assert_in_order(desk, session, *before, "go")
            desk.recover()
            ran = list(desk.ran)
            assert (await session.send("again")).text == "done"
            assert desk.ran == ran
            assert_in_order(desk, session, *before, "go", "again")
        assert_asked_legally(desk)

    asyncio.run(go())


# --- an input that does not fit: compaction is the cure, so it is not asked again as it was --------------------------

OVERFLOWS = [
    pytest.param(reply, way, id=f"{name}-{way}")
    for (name, reply), way in product(
        [
            ("400", refused(400, TOO_LONG)),
            ("413", refused(413)),
            ("failed", Reply(fail=TOO_LONG)),
            ("error event", Reply(error=TOO_LONG)),
        ],
        BOTH,
    )
]
SAMPLINGS, COMPACTIONS = PLACES[:2], PLACES[2:]
by_name = {"ids": lambda place: place.name}


@pytest.mark.parametrize("place", SAMPLINGS, **by_name)
@pytest.mark.parametrize(("reply", "way"), OVERFLOWS)
def test_an_overflow_while_sampling_compacts_once_and_goes_on(
    reply: Reply, way: Way, place: Place, tmp_path: Path
) -> None:
    async def go() -> None:
        desk = Desk(tmp_path, place, reply, 1, way)
        async with desk.session() as session:
            events, error = await desk.hear(session, "go")
            assert error is None
            kinds = [event.kind for event in of(SamplingStarted, events)]
            assert kinds == [*place.before, "turn", "compaction", "turn"]
            assert [(event.installed, event.error) for event in of(CompactionEnded, events)] == [(True, None)]
            assert len(of(PreviewDropped, events)) == 1
            assert not of(Waiting, events)
            assert not of(Notice, events)
            assert (len(desk.ran), session.memory.thread.window.number) == (place.calls, 1)
            assert_in_order(desk, session, "go")
            assert (await session.send("again")).text == "done"
            assert_in_order(desk, session, "go", "again")
        assert_asked_legally(desk)

    asyncio.run(go())


@pytest.mark.parametrize("place", SAMPLINGS, **by_name)
@pytest.mark.parametrize(("reply", "way"), OVERFLOWS)
def test_an_overflow_that_compaction_does_not_cure_fails_the_turn(
    reply: Reply, way: Way, place: Place, tmp_path: Path
) -> None:
    async def go() -> None:
        desk = Desk(tmp_path, place, reply, EVER, way)
        async with desk.session() as session:
            events, error = await desk.hear(session, "go")
            [compacted] = of(CompactionEnded, events)
            assert compacted.installed
            # What made room and is refused all the same is the provider's; what made none is told with its numbers.
            assert type(error) is (ContextWindowExceeded if compacted.made_room else CompactionMadeNoRoom)
            kinds = [event.kind for event in of(SamplingStarted, events)]
            assert kinds == [*place.before, "turn", "compaction", "turn"], "it does not go round for ever"
            assert len(of(PreviewDropped, events)) == 2
            assert not of(Waiting, events)
            [ended] = of(TurnEnded, events)
            assert (ended.outcome, ended.error) == ("failed", str(error))
            assert len(desk.ran) == place.calls
            assert_in_order(desk, session, "go")
            desk.recover()
            assert (await session.send("again")).text == "done"
            assert_in_order(desk, session, "go", "again")
        assert_asked_legally(desk)

    asyncio.run(go())


@pytest.mark.parametrize("place", COMPACTIONS, **by_name)
@pytest.mark.parametrize(("reply", "way"), OVERFLOWS)
def test_an_overflow_of_a_summary_leaves_out_the_oldest_item(
    reply: Reply, way: Way, place: Place, tmp_path: Path
) -> None:
    async def go() -> None:
        desk = Desk(tmp_path, place, reply, 1, way)
        async with desk.session() as session:
            events, error = await desk.hear(session, "go")
            assert error is None
            attempts = of(CompactionAttempted, events)
            assert [record.dropped for record in attempts] == [0, 1]
            assert [record.outcome == "completed" for record in attempts] == [False, True]
            sizes = [event.items for event in of(SamplingStarted, events) if event.kind == "compaction"]
            assert sizes[1] == sizes[0] - 1
            assert [(event.installed, event.dropped) for event in of(CompactionEnded, events)] == [(True, 1)]
            assert not of(Waiting, events)
            assert not of(PreviewDropped, events)
            assert len(desk.ran) == place.calls
            before = ["before"] * place.turns_before
            assert_in_order(desk, session, *before, "go")
            assert (await session.send("again")).text == "done"
            assert_in_order(desk, session, *before, "go", "again")
        assert_asked_legally(desk)

    asyncio.run(go())


@pytest.mark.parametrize("place", COMPACTIONS, **by_name)
@pytest.mark.parametrize(("reply", "way"), OVERFLOWS)
def test_a_summary_that_never_fits_fails_when_nothing_is_left_to_leave_out(
    reply: Reply, way: Way, place: Place, tmp_path: Path
) -> None:
    async def go() -> None:
        desk = Desk(tmp_path, place, reply, EVER, way)
        async with desk.session() as session:
            events, error = await desk.hear(session, "go")
            assert type(error) is ContextWindowExceeded
            sizes = [event.items for event in of(SamplingStarted, events) if event.kind == "compaction"]
            dropped = [record.dropped for record in of(CompactionAttempted, events)]
            assert len(sizes) == len(dropped)
            assert sizes == [sizes[0] - count for count in dropped]
            assert dropped == sorted(set(dropped)), "each attempt asks for less"
            [ended] = of(CompactionEnded, events)
            assert (ended.installed, ended.error) == (False, str(error))
            assert not of(Waiting, events)
            assert session.memory.thread.window.number == 0
            assert len(desk.ran) == place.calls
            before = ["before"] * place.turns_before
            assert_in_order(desk, session, *before, "go")
            desk.recover()
            assert (await session.send("again")).text == "done"
            assert_in_order(desk, session, *before, "go", "again")
        assert_asked_legally(desk)

    asyncio.run(go())


# --- the matrix can fail --------------------------------------------------------------------------------------------


def test_the_legal_check_sees_an_output_without_its_call() -> None:
    provider = Provider(id="scripted", name="scripted", env_key=None)
    lone = function_call_output("c1", "seen", id="fco_1")
    assert faults(b'{"input":[%b]}' % repr(lone).replace("'", '"').encode(), provider)


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"([rs]\d ?)*", fault.waits) for fault in FAULTS)
