"""Waiting, as a session sees it: a disk that fails costs no turn, is told, is tried again, and nothing is lost."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.core.config import Config, RolloutSettings
from refold.core.items import message
from refold.core.profile import Profile, Provider
from refold.core.records import TurnEnded
from refold.core.thread import same_state
from refold.errors import RolloutLocked, RolloutUnwritten
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout import FileStore
from refold.rollout.disk import Disk
from refold.session.clock import Clock
from refold.session.events import LogCaughtUp, LogChanged, LogWaits
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import ResponsesServer, call_reply, text_reply
from refold.tools.functions import tool
from refold.tools.sandbox import sandbox_works

PROFILE = Profile(slug="m", context_window=100_000)
PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, stream_max_retries=0)
PATIENCE = 30  # seconds that no session here needs
SOURCE = str(Path(refold.__file__).parents[1])


def in_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that awaits, for so long at most."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), PATIENCE))

    return run


@contextmanager
def full_disk(path: Path, room: int = 0) -> Generator[None]:
    """Inside, no file of this process may grow beyond this one's size and so many bytes more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Hasty(Clock):
    """Waits no longer than it has to."""

    def jitter(self) -> float:
        return 0.01


def started(folder: Path, *replies: Reply, blobs: bool = False, **options: Any) -> Session:
    script = list(replies)
    model = ScriptedModel(lambda _: script.pop(0) if script else text_reply("done"), profile=PROFILE, provider=PROVIDER)
    config = Config(rollout=RolloutSettings(blobs=blobs))
    options = {"instructions": "BASE", "clock": Hasty(), "cwd": folder, **options}
    return Session.start(model=model, home=folder / "home", config=config, **options)


async def events_of(session: Session, text: str) -> list[Any]:
    return [event async for event in session.send(text)]


def kinds(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events if isinstance(event, LogWaits | LogCaughtUp | LogChanged)]


def assert_resumes_as(session: Session) -> None:
    assert session.path is not None
    assert same_state(read_thread(session.path), session.memory.thread)


# --- a full disk -----------------------------------------------------------------------------------------------------


@in_time
async def test_turn_goes_on_while_the_disk_is_full_and_the_next_one_writes_it_all(tmp_path: Path) -> None:
    async with started(tmp_path) as session:
        await session.send("one")
        assert session.path is not None
        with full_disk(session.path):
            events = await events_of(session, "two")
            assert kinds(events) == ["LogWaits"]
            assert isinstance(events[-1], TurnEnded)
            on_disk = read_thread(session.path)
        assert on_disk.turns == 1
        behind = session.memory.store.behind
        assert behind is not None and behind.records > 3
        events = await events_of(session, "three")
        assert kinds(events) == ["LogCaughtUp"]
        assert session.memory.store.behind is None
    assert_resumes_as(session)
    assert session.memory.thread.turns == 3


@in_time
async def test_steer_on_a_full_disk_is_read_and_told_to_wait_in_memory(tmp_path: Path) -> None:
    @tool
    async def steers() -> str:
        """Somebody speaks while it runs."""
        assert session.path is not None
        with full_disk(session.path):
            ids.append(session.steer("hurry"))
            assert session.memory.store.behind is not None
        return "told"

    ids: list[str] = []
    async with started(tmp_path, call_reply("steers", {}), tools=[steers]) as session:
        events = await events_of(session, "go")
    assert kinds(events) == ["LogWaits", "LogCaughtUp"]
    assert ids[0] in [e.item.get("id") for e in read_thread(session.path or Path()).history]
    assert_resumes_as(session)


@in_time
async def test_idle_session_catches_up_by_itself_and_says_so_in_the_next_turn(tmp_path: Path) -> None:
    async with started(tmp_path) as session:
        await session.send("one")
        assert session.path is not None
        with full_disk(session.path):
            assert kinds(await events_of(session, "two")) == ["LogWaits"]
            await asyncio.sleep(0.1)  # it is tried in vain meanwhile
        while session.memory.store.behind is not None:
            await asyncio.sleep(0.01)
        assert_resumes_as(session)
        assert kinds(await events_of(session, "three")) == ["LogCaughtUp"]
    assert_resumes_as(session)


@in_time
async def test_what_was_recorded_while_the_disk_was_full_can_be_undone_and_pinned(tmp_path: Path) -> None:
    async with started(tmp_path) as session:
        await session.send("one")
        assert session.path is not None
        with full_disk(session.path):
            await session.send("two")
            waiting = next(e for e in session.memory.thread.history if e.item["content"][0]["text"] == "two")
            assert session.pin(waiting.address).text == "two"
            await session.undo(turns=1)
            texts = [e.item["content"][0]["text"] for e in session.memory.thread.history]
            assert "one" in texts
            assert "two" not in texts[:-1], "only as what is pinned"
            assert session.memory.store.behind is not None
    assert_resumes_as(session)


@in_time
async def test_what_is_not_written_when_a_session_ends_is_saved_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rescue = tmp_path / "rescue"
    rescue.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(rescue))
    session = started(tmp_path)
    await session.__aenter__()
    await session.send("one")
    assert session.path is not None
    with full_disk(session.path, room=10):
        await session.send("two")
        with pytest.raises(RolloutUnwritten, match="File too large") as raised:
            await session.__aexit__(None, None, None)
    assert raised.value.rescued is not None
    assert raised.value.rescued.parent == rescue
    with session.path.open("ab") as file:
        file.write(raised.value.rescued.read_bytes())
    assert_resumes_as(session)


def test_host_without_a_loop_goes_on_and_catches_up_with_its_next_record(tmp_path: Path) -> None:
    memory = Memory.open(tmp_path, instructions="BASE")
    memory.add(message("user", ["one"]))
    assert memory.path is not None
    with full_disk(memory.path):
        memory.add(message("user", ["two"]))
        memory.add(message("assistant", ["three"]))
        assert memory.store.behind is not None and memory.store.behind.records == 2
        assert [item["content"][0]["text"] for item in memory.prompt().input] == ["one", "two", "three"]
    memory.add(message("user", ["four"]))
    assert memory.store.behind is None
    assert same_state(read_thread(memory.path), memory.thread)
    memory.close()


# --- the file is taken away ------------------------------------------------------------------------------------------


class Unreadable(Disk):
    """What was written cannot be read back."""

    def read(self, fd: int, size: int, offset: int) -> bytes:
        raise OSError(5, os.strerror(5))


@pytest.mark.parametrize("numbered", [True, False], ids=["ordinals", "line numbers"])
def test_session_whose_lines_are_lost_goes_on_from_a_checkpoint_of_all_it_holds(tmp_path: Path, numbered: bool) -> None:
    memory = Memory.open(tmp_path, instructions="BASE")
    memory.add(message("user", ["one"]))
    memory.add(message("assistant", ["two"]))
    memory.close()
    path = memory.path
    assert path is not None
    if not numbered:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        path.write_text("".join(json.dumps({k: v for k, v in one.items() if k != "ordinal"}) + "\n" for one in lines))
    thread = read_thread(path)
    store = FileStore.reopen(path, thread.id, thread.next_ordinal, disk=Unreadable())
    memory = Memory(store, thread, PROFILE, Config(), Clock())
    listener = memory.feed.listen()
    memory.add(message("user", ["three"]))
    path.unlink()
    memory.add(message("user", ["four"]))
    memory.add(message("user", ["five"]))
    told = [listener.get_nowait() for _ in range(listener.qsize())]
    assert kinds(told) == ["LogWaits", "LogChanged", "LogCaughtUp"]
    assert memory.path == path
    assert [item["content"][0]["text"] for item in memory.prompt().input] == ["one", "two", "three", "four", "five"]
    assert same_state(read_thread(path), memory.thread)
    addresses = [e.address for e in memory.thread.history]
    assert len(set(addresses)) == 5, "what is kept keeps its addresses, and nothing new takes one of them"
    assert all(b'"ordinal":' in line for line in path.read_bytes().splitlines())
    memory.close()
    again = Memory.reopen(path, PROFILE, Config(), Clock())
    again.add(message("user", ["six"]))
    assert same_state(read_thread(path), again.thread)
    again.close()


@in_time
async def test_session_whose_folder_is_deleted_in_a_turn_goes_on_with_all_its_lines(tmp_path: Path) -> None:
    @tool
    async def cleans_up() -> str:
        """Deletes too much."""
        assert session.path is not None
        kept.append(session.path.read_bytes())
        subprocess.run(["rm", "-rf", str(tmp_path / "home")], check=True)
        return "clean"

    kept: list[bytes] = []
    async with started(tmp_path, call_reply("cleans_up", {}), tools=[cleans_up]) as session:
        events = await events_of(session, "go")
    assert kinds(events) == ["LogChanged"]
    assert session.path is not None
    assert session.path.read_bytes().startswith(kept[0])
    assert_resumes_as(session)


# --- by another process ----------------------------------------------------------------------------------------------

RUN = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv[:] = ["refold", *sys.argv[2:]]
runpy.run_module("refold", run_name="__main__")
"""


def refold_command(folder: Path, limit: int, *words: str) -> subprocess.CompletedProcess[str]:
    """`refold` as a process none of whose files may be larger than so many bytes."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("REFOLD_", "CODEX_", "OPENAI_"))}
    environ |= {"HOME": str(folder), "REFOLD_HOME": str(folder / "home"), "PYTHONPATH": SOURCE, "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-B", "-c", RUN, str(limit), *words],
        cwd=folder,
        env=environ | {"TMPDIR": str(folder / "rescue")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("json_lines", [False, True], ids=["for people", "for programs"])
def test_command_says_that_the_disk_is_full_and_where_the_rest_is(tmp_path: Path, json_lines: bool) -> None:
    (tmp_path / "rescue").mkdir()
    (tmp_path / "home").mkdir()
    with ResponsesServer(["first", "second", "third"]) as server:
        (tmp_path / "home" / "config.toml").write_text(
            'model = "gpt-5.5"\nmodel_provider = "x"\n'
            f'[model_providers.x]\nname = "scripted"\nbase_url = "{server.url}"\n'
        )
        assert refold_command(tmp_path, 1 << 30, "run", "one").returncode == 0
        [path] = (tmp_path / "home").glob("sessions/*/*/*/*.jsonl")
        thread = read_thread(path)
        more = ["--json"] if json_lines else []
        ended = refold_command(tmp_path, path.stat().st_size + 10, "resume", thread.id, "two", *more)
    [rescued] = (tmp_path / "rescue").iterdir()
    assert ended.returncode == 1
    assert f"saved in {rescued}" in ended.stderr
    if json_lines:
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        (waiting,) = [line for line in lines if line["type"] == "refold.log.waiting"]
        assert (waiting["path"], waiting["why"], waiting["records"]) == (str(path), "File too large", 1)
        assert waiting["bytes"] > 0 and "waits in memory only" in waiting["message"]
        assert "turn.completed" in [line["type"] for line in lines], "the turn itself went well"
    else:
        assert ended.stdout == "second\n"
        assert ended.stderr.count("• the log cannot be written") == 1
    with path.open("ab") as file:
        file.write(rescued.read_bytes())
    whole = read_thread(path)
    assert (whole.turns, whole.open_turn) == (2, None)
    assert "second" in json.dumps([e.item for e in whole.history])


@in_time
async def test_looking_at_a_session_works_while_another_process_writes_it(tmp_path: Path) -> None:
    async with started(tmp_path) as session:
        await session.send("one")
        assert session.path is not None
        before = session.path.read_bytes()
        for words in (["show", session.id], ["context", session.id], ["sent", session.id], ["sessions"]):
            ended = refold_command(tmp_path, 1 << 30, *words)
            assert (ended.returncode, ended.stderr) == (0, ""), words
        ended = refold_command(tmp_path, 1 << 30, "undo", session.id, "--turns", "1")
        assert ended.returncode == 1
        assert f"is being written by process {os.getpid()} (" in ended.stderr
        with pytest.raises(RolloutLocked):
            Memory.reopen(session.path, PROFILE, Config(), Clock())
        assert session.path.read_bytes() == before
        await session.send("two")
    assert_resumes_as(session)


# --- a volume of its own ---------------------------------------------------------------------------------------------

ON_A_SMALL_VOLUME = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:4]
from refold.rollout.blobs import folder_of
from test_waiting_session import assert_resumes_as, events_of, kinds, started

async def go(blobs):
    volume = Path(sys.argv[1]) / str(blobs)
    volume.mkdir()
    async with started(volume, blobs=blobs) as session:
        await session.send("one")
        with (volume.parent / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(512))
            except OSError as error:
                assert error.errno == 28, error
        told = [kinds(await events_of(session, "two" + "x" * 20_000))]
        assert "No space left" in session.memory.store.behind.why
        (volume.parent / "ballast").unlink()
        told.append(kinds(await events_of(session, "three")))
    assert_resumes_as(session)
    assert folder_of(session.path).exists() == blobs
    return told

for blobs in (False, True):
    print(asyncio.run(go(blobs)))
"""


@pytest.mark.skipif(not sandbox_works(), reason="only bubblewrap gives a test a volume of its own")
def test_volume_that_is_full_costs_nothing_once_there_is_room_again(tmp_path: Path) -> None:
    volume = ["bwrap", "--dev-bind", "/", "/", "--size", str(512 * 1024), "--tmpfs", str(tmp_path)]
    words = ["-B", "-c", ON_A_SMALL_VOLUME, str(tmp_path), SOURCE, str(Path(__file__).parent)]
    ended = subprocess.run(
        [*volume, sys.executable, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout.splitlines() == ["[['LogWaits'], ['LogCaughtUp']]"] * 2
