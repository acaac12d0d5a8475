"""A real `refold run` that is ended at every place of its work, and gone on with: nothing recorded is lost, nothing
that finished is done twice, and the next request is legal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.core.items import OUTPUT_TYPES, is_call
from refold.session.memory import read_thread
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage

PATIENCE = 40  # seconds that nothing here needs
MODEL = {"slug": "m", "context_window": 50_000, "truncation_policy": {"mode": "tokens", "limit": 10_000}}
FOREIGN = ("REFOLD_", "CODEX_", "OPENAI_", "NO_COLOR", "FORCE_COLOR")
SOURCE = str(Path(refold.__file__).parents[1])
COMPACT_LIMIT = 3_000  # tokens
FULL = usage(5_000, 10)


class Desk:
    """A home, a folder to work in, a scripted provider, and `refold` as a real process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        os.mkfifo(self.work / "never")  # whoever opens it to read waits
        self.ran = self.work / "ran"  # every command leaves a line when it begins
        self.group = self.work / "group"  # the process group of the command that waits
        self.out = folder / "out"
        self.replies: deque[Reply | str] = deque()
        self.server = ResponsesServer(self._answer)

    def _answer(self, request: LoggedRequest) -> Reply | str:
        if self.replies:
            return self.replies.popleft()
        return "SUMMARY" if is_compaction(request) else "finished"

    def connect(self) -> None:
        home = self.folder / "home"
        home.mkdir()
        (self.folder / "models.json").write_text(json.dumps({"models": [MODEL]}))
        (home / "config.toml").write_text(
            f'model = "m"\nmodel_provider = "x"\nmodel_catalog_json = "{self.folder}/models.json"\n'
            f"model_auto_compact_token_limit = {COMPACT_LIMIT}\n"
            f'[model_providers.x]\nname = "scripted"\nbase_url = "{self.server.url}"\n'
            "request_max_retries = 0\nstream_max_retries = 0\n"
        )

    @contextmanager
    def refold(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that is running; its standard output goes to a file that is looked into meanwhile."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        environ |= {"HOME": str(self.folder), "REFOLD_HOME": str(self.folder / "home"), "PYTHONPATH": SOURCE}
        with self.out.open("wb") as out, (self.folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "refold", *words, "--allow-exec"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.work,
                env=environ | {"NO_PROXY": "127.0.0.1"},
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def goes_on(self) -> LoggedRequest:
        """`refold resume ID "go on"` to its end; the turn's first request."""
        asked = len(self.server.requests)
        with self.refold("resume", read_thread(self.rollout).id, "go on") as process:
            assert process.wait(PATIENCE) == 0, self.complaints
        assert self.out.read_text() == "finished\n"
        return next(request for request in self.server.requests[asked:] if not is_compaction(request))

    @property
    def rollout(self) -> Path:
        [path] = (self.folder / "home").glob("sessions/*/*/*/*.jsonl")
        return path

    @property
    def log(self) -> bytes:
        """What the rollout holds; nothing before it is there."""
        return b"".join(path.read_bytes() for path in (self.folder / "home").glob("sessions/*/*/*/*.jsonl"))

    @property
    def complaints(self) -> str:
        return (self.folder / "err").read_text()

    def end_the_waiting(self) -> None:
        """End the command that a killed refold left behind."""
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.killpg(int(self.group.read_text()), signal.SIGKILL)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    with desk.server:
        desk.connect()
        try:
            yield desk
        finally:
            desk.end_the_waiting()


def is_compaction(request: LoggedRequest) -> bool:
    return '"request_kind":"compaction"' in request.json["client_metadata"]["x-codex-turn-metadata"]


def until(sees: Callable[[], Any], process: subprocess.Popen[bytes]) -> None:
    """Wait for a place in the work."""
    end = time.monotonic() + PATIENCE
    while not sees():
        assert process.poll() is None, "it ended before it came there"
        assert time.monotonic() < end, "it never came there"
        time.sleep(0.005)


def assert_legal(items: list[dict[str, Any]]) -> None:
    """Every call has exactly one output, after it, and no output stands without its call."""
    waiting: list[str] = []
    for item in items:
        if is_call(item):
            waiting.append(item["call_id"])
        elif item["type"] in OUTPUT_TYPES:
            waiting.remove(item["call_id"])
    assert waiting == []


# --- the places ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Somewhere in the work: what the provider says until then, how to see that it is reached, and what must be so."""

    name: str
    replies: tuple[Reply, ...]
    reached: Callable[[Desk], bool]
    ran: str = ""  # what commands wrote, beside the one that finished long ago
    outputs: tuple[str, ...] = ()  # how the output of each call ends, beside that one's; "" = it was cut off
    group: bool = False  # whether a command is running


def command(text: str) -> dict[str, Any]:
    return call_reply("exec_command", {"cmd": text}).items[0]


WAITING = "echo $$ > group.part && mv group.part group"  # whole or absent
EARLIER = Reply(items=(command("echo earlier >> ran; echo that was earlier"),), usage=usage(100, 10))

PLACES = [
    Place(
        "while it samples",
        (text_reply("never to be finished", cut_after=5, stall=PATIENCE),),
        lambda desk: desk.out.read_bytes() != b"",
    ),
    Place(
        "between a call and what it does",
        (Reply(items=(command(f"{WAITING}; cat never; echo late >> ran"),), usage=usage(100, 10)),),
        lambda desk: desk.group.exists() and desk.log.count(b'"type":"function_call"') == 2,
        outputs=("",),
        group=True,
    ),
    Place(
        "in the middle of a tool",
        (Reply(items=(command(f"echo begun >> ran; {WAITING}; cat never"),), usage=usage(100, 10)),),
        lambda desk: desk.group.exists(),
        ran="begun\n",
        outputs=("",),
        group=True,
    ),
    Place(
        "between two outputs",
        (
            Reply(
                items=(
                    command("echo first >> ran; echo this was first"),
                    command(f"until grep -q first ran; do sleep 0.01; done; echo second >> ran; {WAITING}; cat never"),
                ),
                usage=usage(100, 10),
            ),
        ),
        lambda desk: desk.group.exists() and desk.log.count(b'"type":"function_call_output"') == 2,
        ran="first\nsecond\n",
        outputs=("this was first\n", ""),
        group=True,
    ),
    Place(
        "while it compacts",
        (
            Reply(items=(command("echo large >> ran; echo this was large"),), usage=FULL),
            text_reply("SUMMARY", delay=PATIENCE),
        ),
        lambda desk: any(is_compaction(request) for request in desk.server.requests),
        ran="large\n",
        outputs=("this was large\n",),
    ),
    Place(
        "in the final answer",
        (text_reply("all of the answer", stall=PATIENCE),),
        lambda desk: b"all of the answer" in desk.log and b'"output_text"' in desk.log,
    ),
]
every_place = pytest.mark.parametrize("place", PLACES, ids=[place.name for place in PLACES])


@contextmanager
def at(desk: Desk, place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """`refold run` when it has come to a place."""
    desk.replies.extend((EARLIER, *place.replies))
    with desk.refold("run", "start") as process:
        until(lambda: len(desk.server.requests) > 1 and place.reached(desk), process)
        yield process


# --- killed ----------------------------------------------------------------------------------------------------------


@every_place
def test_killed_and_gone_on_with_nothing_is_lost_or_done_twice(desk: Desk, place: Place) -> None:
    with at(desk, place) as process:
        process.kill()
        process.wait(PATIENCE)
    desk.replies.clear()
    log, history = desk.log, [e.item for e in read_thread(desk.rollout).history]
    request = desk.goes_on()
    assert_grown(desk, log)
    for asked in desk.server.requests:
        assert_legal(asked.input)
    assert desk.ran.read_text() == f"earlier\n{place.ran}"
    assert said(request)[-1] == "go on" and "start" in said(request)
    thread = read_thread(desk.rollout)
    assert thread.open_turn is None
    if thread.compactions:
        assert place.name == "while it compacts"
        request = next(asked for asked in reversed(desk.server.requests) if is_compaction(asked))
    else:
        assert [e.item for e in thread.history[: len(history)]] == history
        assert sum("<permissions instructions>" in json.dumps(item) for item in request.input) == 1
    for output, end in zip(outputs_in_call_order(request), ("that was earlier\n", *place.outputs), strict=True):
        assert output.endswith(end) if end else output == "aborted"
    if place.name == "in the final answer":
        assert "all of the answer" in said(request, "assistant")


def assert_grown(desk: Desk, log: bytes) -> None:
    """What stood in the file stands there still; only a half line was closed."""
    assert desk.log.startswith(log if log.endswith(b"\n") else log + b"\n")
    assert len(desk.log) > len(log)


def outputs_in_call_order(request: LoggedRequest) -> list[str]:
    outputs = {item["call_id"]: item["output"] for item in request.input if item["type"] == "function_call_output"}
    return [outputs[item["call_id"]] for item in request.input if item["type"] == "function_call"]


def said(request: LoggedRequest, role: str = "user") -> list[str]:
    return [part["text"] for item in request.input if item.get("role") == role for part in item["content"]]


def test_cut_between_the_lines_of_a_checkpoint_the_finished_file_goes_on_as_if_it_were_whole(desk: Desk) -> None:
    """No kill can hit this: the lines are one write. So the file is cut where a disk could have lost its end."""
    desk.replies.extend((EARLIER, Reply(items=(command("echo large >> ran"),), usage=FULL)))
    with desk.refold("run", "start") as process:
        assert process.wait(PATIENCE) == 0
    lines = desk.log.splitlines(keepends=True)
    names = [json.loads(line)["type"] for line in lines]
    checkpoint = names.index("compacted")
    assert names[checkpoint : checkpoint + 4] == ["compacted", "world_state", "turn_context", "event_msg"]
    asked: list[list[Any]] = []
    for kept in (4, 3, 2, 1):
        log = b"".join(lines[: checkpoint + kept])
        desk.rollout.write_bytes(log)
        request = desk.goes_on()
        assert_grown(desk, log)
        assert_legal(request.input)
        asked.append([{**item, "id": None} if said_now(item) else item for item in request.input])
    assert asked[1:] == asked[:1] * 3
    assert sum("<permissions instructions>" in json.dumps(item) for item in asked[0]) == 1
    assert desk.ran.read_text() == "earlier\nlarge\n"


def said_now(item: dict[str, Any]) -> bool:
    """Whether it is the message of this very resume, whose id is new."""
    return item.get("role") == "user" and item["content"][0]["text"] == "go on"


# --- asked to end ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")
@every_place
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_asked_to_end_it_settles_the_turn_and_leaves_no_process(
    desk: Desk, place: Place, number: signal.Signals
) -> None:
    with at(desk, place) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == 1
    assert "Traceback" not in desk.complaints
    lines = [json.loads(line) for line in desk.log.splitlines()]
    assert (lines[-1]["payload"]["type"], lines[-1]["payload"]["reason"]) == ("turn_aborted", "interrupted")
    assert_legal([line["payload"] for line in lines if line["type"] == "response_item"])
    assert desk.ran.read_text() == f"earlier\n{place.ran}"
    thread = read_thread(desk.rollout)
    assert (thread.open_turn, thread.compactions) == (None, 0)
    assert desk.group.exists() == place.group
    if place.group:
        assert living(int(desk.group.read_text())) == []


def living(group: int) -> list[str]:
    """The processes of a group, without those that have ended and only wait to be reaped."""
    found: list[str] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(stat.read_text())
    return found
