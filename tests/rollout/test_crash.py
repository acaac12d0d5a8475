"""Crash: a log that ends anywhere is gone on with; what was acknowledged before that place is there, nothing else."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import refold
from refold.core.config import Config
from refold.core.items import OUTPUT_TYPES, is_call, message
from refold.core.profile import Profile, Provider
from refold.core.records import Line
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import RolloutCorrupt
from refold.model.responses import ResponsesModel
from refold.model.scripted import ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage
from refold.tools.functions import tool

ROLLOUTS = Path(__file__).parents[1] / "data" / "oracle" / "rollouts"
SOURCE = str(Path(refold.__file__).parents[1])
PROFILE = Profile(slug="m", context_window=20_000, truncation=Budget("tokens", 500))
PATIENCE = 60  # seconds that nothing here needs
SEEDED_CUTS = 500


class Watch(Clock):
    """Keeps what was live before each batch of records, with how long the file was then. Mutable.

    Rule: records never change a value inside a thread, only its lists and dicts grow.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory: Memory | None = None
        self.states: list[tuple[int, Thread]] = []

    def timestamp(self) -> str:
        if self.memory is not None and self.memory.path is not None and self.memory.path.exists():
            still = copy.copy(self.memory.thread)
            for name in ("history", "steers", "known", "pins", "dropped_rules", "shadows"):
                setattr(still, name, copy.copy(getattr(still, name)))
            self.states.append((self.memory.path.stat().st_size, still))
        return super().timestamp()


class Lived(NamedTuple):
    """A session that was played: its bytes, its lines, what was live at the end, and before each batch."""

    data: bytes
    lines: list[Line]
    live: Thread
    states: list[tuple[int, Thread]]


def answer(request: LoggedRequest) -> Reply | str:
    """Calls a tool when it is asked to, writes summaries when asked for one, and else says something."""
    if '"request_kind":"compaction"' in request.json["client_metadata"]["x-codex-turn-metadata"]:
        return text_reply("What was done so far: Grüße 🙂.", usage=usage(900, 40))
    newest = next((item for item in reversed(request.input) if item.get("role") == "user"), {})
    if "tool" in json.dumps(newest) and request.input[-1]["type"] != "function_call_output":
        return call_reply("look", {"text": "x" * 3_000}, usage=usage(800, 20))
    if "steer" in json.dumps(newest) and request.input[-1]["type"] != "function_call_output":
        return call_reply("steers", {}, usage=usage(800, 20))
    return text_reply('Done: 你好 \u2028 \\ " \t.', usage=usage(1_000, 30, cached=500))


async def live(folder: Path) -> Lived:
    """Turns with tools, a steer, pins, compactions and an undo, over real HTTP."""

    @tool
    async def look(text: str) -> str:
        """Shows it twice."""
        return text * 2

    @tool
    async def steers() -> str:
        """Somebody speaks while it runs."""
        session.steer("and be brief")
        return "told"

    (folder / "AGENTS.md").write_text("Always say please.\n")
    clock = Watch()
    with ResponsesServer(answer) as server:
        provider = Provider(id="p", name="p", base_url=server.url, env_key=None, stream_max_retries=0)
        model = ResponsesModel(PROFILE, provider, api_key="k")
        options: dict[str, Any] = {"model": model, "tools": [look, steers], "cwd": folder, "home": folder / "home"}
        async with Session.start(instructions="BASE", config=Config(), clock=clock, **options) as session:
            clock.memory = session.memory
            await session.send("use the tool")
            await session.send("let me steer")
            session.pin(session.memory.thread.history[2].address)
            await session.compact()
            await session.send("use the tool again")
            await session.undo()
            await session.send("Grüße")
            await session.compact(outline=True)
            (folder / "AGENTS.md").write_text("Never say please.\n")
            await session.send("use the tool once more")
            await session.undo(turns=1)
            await session.send("the last one")
            clock.timestamp()
        assert session.path is not None
        return Lived(session.path.read_bytes(), list(read_lines(session.path)), session.memory.thread, clock.states)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return asyncio.run(asyncio.wait_for(live(tmp_path_factory.mktemp("lived")), PATIENCE))


class Folded:
    """What the first lines of a log fold to, kept by their number."""

    def __init__(self, lived: Lived) -> None:
        self._lines = lived.lines
        self._ends = [index + 1 for index, byte in enumerate(lived.data) if byte == 0x0A]
        self._known: dict[int, Thread] = {}

    def at(self, size: int) -> Thread:
        """Of the lines that are whole in so many bytes; one that lacks its newline only is."""
        count = sum(end <= size + 1 for end in self._ends)
        if count not in self._known:
            self._known[count] = Thread.replay(self._lines[:count])
        return self._known[count]


def goes_on(path: Path, thread: Thread) -> tuple[bytes, Thread]:
    """Reopen what was read and say something; what was added, and the live thread then."""
    before = path.read_bytes()
    memory = Memory.reopen(path, PROFILE, Config(), Clock(), thread=thread)
    memory.add(message("user", ["go on"]))
    memory.close()
    after = path.read_bytes()
    assert after.startswith(before), "nothing that stood there was changed"
    return after[len(before) :], memory.thread


def assert_gone_on_with(path: Path, expected: Thread, *, wholly: bool = True) -> None:
    """Read, it is what is expected; gone on with, it is well-formed and reads as what is live."""
    read = read_thread(path)
    assert same_state(read, expected)
    torn = bool(path.read_bytes()) and not path.read_bytes().endswith(b"\n")
    added, thread = goes_on(path, read)
    assert added.startswith(b"\n") == torn
    lines = [json.loads(line) for line in added.removeprefix(b"\n").splitlines()]
    assert [line["type"] for line in lines] == ["response_item", "event_msg"]
    assert all(line["ordinal"] >= expected.next_ordinal for line in lines)
    assert len(thread.history) == len(expected.history) + 1
    assert same_state(read_thread(path), thread), "live == resumed"
    if wholly:
        log = list(read_lines(path))
        assert same_state(Thread.replay(log), thread), "live == replayed"
        assert sum(line.warning is not None for line in log) <= torn, "at most the line that the crash cut off"


def test_the_session_that_is_cut_is_a_real_one(lived: Lived) -> None:
    kinds = {type(line.record).__name__ for line in lived.lines}
    for kind in ("Compacted", "SteerQueued", "Pinned", "RequestSent", "Known", "TurnEnded", "WorldObserved"):
        assert kind in kinds
    assert lived.live.turns == 8
    assert lived.live.compactions == 2
    assert len(lived.data) > 60_000


def test_killed_between_any_two_writes_the_log_holds_exactly_what_was_acknowledged(
    tmp_path: Path, lived: Lived
) -> None:
    path = tmp_path / "log.jsonl"
    assert len({size for size, _ in lived.states}) > 60
    for size, thread in lived.states:
        path.write_bytes(lived.data[:size])
        assert same_state(read_thread(path), thread)


def places(lived: Lived) -> Iterator[int]:
    """Every byte of the last two records, and so many seeded ones."""
    ends = [index + 1 for index, byte in enumerate(lived.data) if byte == 0x0A]
    yield from range(ends[-3], len(lived.data) + 1)
    draw = random.Random(9)
    yield from (draw.randrange(ends[0] - 1, len(lived.data)) for _ in range(SEEDED_CUTS))


def test_cut_anywhere_it_is_a_prefix_of_what_was_acknowledged_and_goes_on(tmp_path: Path, lived: Lived) -> None:
    path, folded, count = tmp_path / "log.jsonl", Folded(lived), 0
    for size in places(lived):
        path.write_bytes(lived.data[:size])
        assert_gone_on_with(path, folded.at(size), wholly=count % 5 == 0)
        count += 1
    assert count > SEEDED_CUTS + 300


def test_cut_in_its_first_line_it_is_no_session_and_says_so(tmp_path: Path, lived: Lived) -> None:
    path = tmp_path / "log.jsonl"
    end = lived.data.index(b"\n")
    for size in range(0, end, 50):
        path.write_bytes(lived.data[:size])
        with pytest.raises(RolloutCorrupt, match=r"is empty|is not a rollout"):
            read_thread(path)


@pytest.mark.parametrize("name", ["m_multi_compact", "g_remote_multi_users", "k_world_state", "t_manual_compact"])
def test_file_of_the_real_program_that_is_cut_anywhere_goes_on(tmp_path: Path, name: str) -> None:
    data = (ROLLOUTS / f"{name}.jsonl").read_bytes()
    lines = list(read_lines(ROLLOUTS / f"{name}.jsonl"))
    folded = Folded(Lived(data, lines, Thread(), []))
    path, draw = tmp_path / "log.jsonl", random.Random(name)
    for _ in range(40):
        size = draw.randrange(data.index(b"\n") + 1, len(data))
        path.write_bytes(data[:size])
        assert_gone_on_with(path, folded.at(size))


def test_turn_goes_on_from_any_cut_with_a_legal_request(tmp_path: Path, lived: Lived) -> None:
    draw = random.Random(4)
    ends = [index + 1 for index, byte in enumerate(lived.data) if byte == 0x0A]
    for number in range(20):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(lived.data[: draw.randrange(ends[3], len(lived.data))])
        before = path.read_bytes()
        model = ScriptedModel(lambda _: text_reply("done"), profile=PROFILE)

        async def turn(path: Path = path, model: ScriptedModel = model) -> Thread:
            session = Session.resume(path, in_place=True, model=model, cwd=tmp_path, home=tmp_path / "home")
            async with session:
                assert (await session.send("go on")).text == "done"
            return session.memory.thread

        thread = asyncio.run(asyncio.wait_for(turn(), PATIENCE))
        assert path.read_bytes().startswith(before)
        assert same_state(read_thread(path), thread)
        assert thread.open_turn is None
        for body in model.requests:
            assert_legal(body["input"])


def assert_legal(items: list[dict[str, Any]]) -> None:
    """Every call has exactly one output, after it, and no output stands without its call."""
    waiting: list[str] = []
    for item in items:
        if is_call(item):
            waiting.append(item["call_id"])
        elif item["type"] in OUTPUT_TYPES:
            waiting.remove(item["call_id"])
    assert waiting == []


# --- killed for real -------------------------------------------------------------------------------------------------

KILLED = """
import os, signal
from datetime import datetime
from pathlib import Path
from refold.core.config import Config
from refold.core.items import message
from refold.core.profile import Profile
from refold.core.records import SessionStarted, TurnStarted, TurnEnded
from refold.core.thread import Thread
from refold.rollout import FileStore
from refold.rollout.disk import Disk
from refold.session.clock import Clock
from refold.session.memory import Memory

class Killing(Disk):
    def __init__(self, at, part):
        self.left, self.part = at, part

    def write(self, fd, data):
        self.left -= 1
        if self.left < 0:
            super().write(fd, data[: int(len(data) * self.part)])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(fd, data)

def play(path, at, part, acknowledged):
    store = FileStore(path, "thread", disk=Killing(at, part))
    memory = Memory(store, Thread(), Profile(slug="m"), Config(), Clock())
    for number in range(6):
        started = SessionStarted(thread_id="thread", timestamp="t", cwd="/w", history_mode="paginated")
        memory.record(*([started] if number == 0 else []), TurnStarted(f"turn {number}"))
        memory.add(message("user", [f"said {number}"]))
        memory.add([message("assistant", [f"one {number}"]), message("assistant", [f"two {number}"])])
        os.write(acknowledged, b"%d\\n" % len(memory.thread.history))
        memory.record(TurnEnded(turn_id=f"turn {number}", outcome="completed"))
        memory.store.sync()
    os._exit(0)

folder = Path(sys.argv[1])
for at in range(25):
    for part in (0, 0.5, 1):
        path, told = folder / f"{at}-{part}.jsonl", folder / f"{at}-{part}.told"
        child = os.fork()
        if child == 0:
            play(path, at, part, os.open(told, os.O_WRONLY | os.O_CREAT))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == (0 if at == 24 else -signal.SIGKILL), (at, status)
"""


def test_killed_before_within_and_after_each_write_nothing_that_was_acknowledged_is_missing(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {SOURCE!r})\n{KILLED}"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stderr
    files = [path for path in tmp_path.glob("*.jsonl") if path.stat().st_size and b"\n" in path.read_bytes()]
    assert len(files) > 70
    for path in files:
        acknowledged = path.with_suffix(".told").read_text().split()
        thread = read_thread(path)
        assert len(thread.history) >= int(acknowledged[-1] if acknowledged else 0)
        said = [e.item["content"][0]["text"] for e in thread.history]
        assert said == [f"{what} {turn}" for turn in range(6) for what in ("said", "one", "two")][: len(said)]
        assert_gone_on_with(path, Thread.replay(read_lines(path)))
