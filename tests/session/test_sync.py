"""The blocking twin: the same turns, also where a loop already runs."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from refold.core.profile import Profile, Provider
from refold.core.records import TurnEnded
from refold.errors import ModelRefused, SessionClosed
from refold.model.scripted import Reply, ScriptedModel
from refold.session.session import Session
from refold.session.sync import SyncSession
from refold.testing import text_reply

PROVIDER = Provider(id="scripted", name="scripted", base_url="http://127.0.0.1:1", env_key=None)


def sync(tmp_path: Path, *replies: object) -> SyncSession:
    model = ScriptedModel(list(replies), profile=Profile(slug="m"), provider=PROVIDER)  # type: ignore[arg-type]
    return Session.start_sync(model=model, cwd=tmp_path, home=tmp_path / "home")


def test_turns_and_compaction(tmp_path: Path) -> None:
    with sync(tmp_path, text_reply("one"), text_reply("SUMMARY"), text_reply("two")) as session:
        assert session.send("first").text == "one"
        assert session.compact().installed
        assert session.send("second").text == "two"
        path = session.path
    assert path is not None
    assert path.exists()


def test_events_as_they_happen(tmp_path: Path) -> None:
    with sync(tmp_path, text_reply("one")) as session:
        events = list(session.stream("first"))
    assert isinstance(events[-1], TurnEnded)


def test_inside_a_running_loop(tmp_path: Path) -> None:
    async def notebook_cell() -> str | None:
        with sync(tmp_path, text_reply("one")) as session:
            return session.send("first").text

    assert asyncio.run(notebook_cell()) == "one"


def test_a_failed_turn_raises_and_the_session_goes_on(tmp_path: Path) -> None:
    with sync(tmp_path, Reply(status=400, body={"error": {"message": "no"}}), text_reply("fine")) as session:
        with pytest.raises(ModelRefused):
            session.send("first")
        assert session.send("second").text == "fine"


def test_a_steer_and_an_interrupt_come_from_another_thread(tmp_path: Path) -> None:
    with sync(tmp_path, text_reply("one", delay=30)) as session:
        results: list[str] = []
        turn = threading.Thread(target=lambda: results.append(session.send("first").outcome))
        turn.start()
        while not session.session.busy:
            time.sleep(0.01)
        session.steer("and this")
        assert session.interrupt()
        turn.join(10)
        assert results == ["interrupted"]


def test_leaving_a_stream_early_interrupts_its_turn(tmp_path: Path) -> None:
    with sync(tmp_path, text_reply("one", delay=30), text_reply("two")) as session:
        for _ in session.stream("first"):
            break
        while session.session.busy:
            time.sleep(0.01)
        assert session.send("second").text == "two"


def test_outside_with_it_is_closed(tmp_path: Path) -> None:
    session = sync(tmp_path)
    with pytest.raises(SessionClosed):
        session.send("first")
