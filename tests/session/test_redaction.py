"""Redaction in a session: the log, the thread and every request hold the same, without what is not to be kept."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core.config import parse_config
from refold.core.items import message
from refold.core.profile import Profile, Provider
from refold.core.records import EventKept, Known, WorldObserved
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import ConfigError
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session.events import TextPreview
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import call_reply, text_reply, usage
from refold.tools.functions import tool
from refold.views.sent import sent

PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 200))
PROVIDER = Provider(id="p", name="p", base_url="http://127.0.0.1:1", env_key=None, stream_max_retries=0)
KEYS = tuple(f"sk-proj-{place}a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5" for place in range(9))
PASSWORD = "correct horse battery"
FULL = usage(95_000, 10)
PATIENCE = 30  # seconds that no session here needs
ON = {
    "redaction": {"detectors": ["secrets"], "environment": True, "patterns": [{"pattern": "ACME-\\d+", "name": "acme"}]}
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", PASSWORD)


def model(*replies: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), profile=PROFILE, provider=PROVIDER)


def start(answering: ScriptedModel, folder: Path, *tools: Any, **more: Any) -> Session:
    config = parse_config({**ON, **more}, "test")
    return Session.start(
        model=answering, cwd=folder, home=folder / "home", config=config, tools=tools, instructions=f"BASE {KEYS[0]}"
    )


def assert_kept_out(folder: Path, *more: str) -> None:
    """No file under a folder holds a secret, or half of one."""
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for secret in (*KEYS, PASSWORD, "ACME-42", *more):
            assert secret.encode() not in data and secret[:16].encode() not in data, f"{secret} stands in {path.name}"


def test_a_session_keeps_nothing_of_what_is_redacted_anywhere(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    def login(password: str, note: str) -> str:
        """Log in with ACME-42.

        Args:
            password: not ACME-42
            note: any
        """
        ran.append(password)
        return f"logged in with {KEYS[1]}: " + "x " * 2_000 + f" {KEYS[2]}"

    (tmp_path / "AGENTS.md").write_text(f"The database's password is {PASSWORD}.\n")
    answering = model(
        call_reply("login", {"password": PASSWORD, "note": KEYS[3]}),
        text_reply(f"done with {KEYS[4]}", usage=FULL),
        text_reply(f"SUMMARY of {KEYS[5]}"),
        text_reply("and on"),
        Reply(status=400, body={"error": {"code": "invalid_prompt", "message": f"not with {KEYS[6]}"}}),
    )

    async def go() -> Session:
        async with start(answering, tmp_path, login) as session:
            await session.send(f"log in, {KEYS[7]}")
            session.steer(f"also {KEYS[8]}")
            session.rename(f"about {KEYS[0]}")
            pinned = next(e.address for e in session.memory.thread.history if e.origin == "typed")
            session.pin(pinned)
            await session.send("go on")
            with pytest.raises(Exception, match="not with sk-proj"):
                await session.send("once more")
            return session

    session = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert ran == [PASSWORD], "a tool is run with what the model said"
    assert session.path is not None
    assert same_state(read_thread(session.path), session.memory.thread)
    assert same_state(Thread.replay(read_lines(session.path)), session.memory.thread)
    assert session.memory.thread.compactions == 1
    (tmp_path / "AGENTS.md").unlink()
    assert_kept_out(tmp_path)
    asked = json.dumps(answering.requests[1:])  # what was recorded is what the model is told from then on
    for secret in (*KEYS, PASSWORD):
        assert secret not in asked
    assert "[redacted:api-key]" in asked and "[redacted:DB_PASSWORD]" in asked
    assert session.memory.thread.name == "about [redacted:api-key]"


def test_the_screen_shows_what_the_model_says_and_the_record_does_not(tmp_path: Path) -> None:
    async def go() -> tuple[str, str, str | None]:
        async with start(model(text_reply(f"it is {KEYS[0]}")), tmp_path) as session:
            turn = session.send("which key?")
            seen = [event.text async for event in turn if isinstance(event, TextPreview)]
            said = session.memory.thread.history[-1].item["content"][0]["text"]
            return "".join(seen), said, (await turn).text

    seen, said, answer = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert (seen, answer) == (f"it is {KEYS[0]}", f"it is {KEYS[0]}")
    assert said == "it is [redacted:api-key]"


def test_rules_with_a_secret_are_told_once_and_not_anew_in_each_turn(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text(f"Use {KEYS[0]}.\n")
    answering = model(*(text_reply("ok") for _ in range(4)))

    async def go() -> Session:
        async with start(answering, tmp_path) as session:
            for text in ("one", "two", "three"):
                await session.send(text)
        return session

    session = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert session.path is not None
    observed = [line.record for line in read_lines(session.path) if isinstance(line.record, WorldObserved)]
    assert len(observed) == 1
    assert json.dumps(answering.requests[-1]["input"]).count("AGENTS.md instructions for") == 1


def test_requests_can_be_made_again_from_a_redacted_log(tmp_path: Path) -> None:
    answering = model(text_reply(f"it is {KEYS[0]}"), text_reply("two"))

    async def go() -> Session:
        async with start(answering, tmp_path) as session:
            await session.send(f"say {KEYS[1]}")
            await session.send("again")
        return session

    session = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert session.path is not None
    assert [one.request.sha256 for one in sent(read_lines(session.path))] == [
        one.recorded.sha256 for one in sent(read_lines(session.path))
    ]


def test_a_secret_in_a_tools_description_is_not_kept(tmp_path: Path) -> None:
    @tool(description=f"Use {KEYS[0]}.")
    def nothing() -> str:
        return "done"

    async def go() -> Session:
        async with start(model(text_reply("ok")), tmp_path, nothing) as session:
            await session.send("hi")
        return session

    session = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    assert session.path is not None
    known = [line.record.value for line in read_lines(session.path) if isinstance(line.record, Known)]
    assert "Use [redacted:api-key]." in json.dumps(known)
    assert_kept_out(tmp_path)


def test_a_long_output_is_redacted_before_it_is_cut(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE, config=parse_config(ON, "test")) as memory:
        memory.add({"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"})
        for before in range(380, 420):
            memory.add(
                {"type": "function_call_output", "call_id": "c", "output": "." * before + f" {KEYS[0]} " + "y " * 999}
            )
    assert_kept_out(tmp_path)
    assert b"tokens truncated" in next(tmp_path.rglob("*.jsonl")).read_bytes()


def test_long_texts_that_are_stored_beside_the_file_are_redacted_too(tmp_path: Path) -> None:
    config = parse_config({**ON, "rollout": {"blobs": True}}, "test")
    with Memory.open(tmp_path, model=PROFILE, config=config) as memory:
        memory.add(message("user", [f"{'a long story, ' * 5_000} {KEYS[0]} {PASSWORD}"]))
    assert any(b"[redacted:DB_PASSWORD]" in one.read_bytes() for one in tmp_path.rglob("*.blobs/*"))
    assert_kept_out(tmp_path)


def test_a_fork_of_a_session_from_before_is_redacted_and_its_parent_stays(tmp_path: Path) -> None:
    async def said() -> Path:
        plain = Session.start(model=model(text_reply("ok")), cwd=tmp_path, home=tmp_path / "old")
        async with plain as session:
            await session.send(f"it is {KEYS[0]}")
        assert session.path is not None
        return session.path

    path = asyncio.run(asyncio.wait_for(said(), PATIENCE))
    before = path.read_bytes()
    child = Session.fork(path, model=model(), home=tmp_path / "home", config=parse_config(ON, "test"))
    child.memory.close()
    assert path.read_bytes() == before and KEYS[0].encode() in before
    assert_kept_out(tmp_path / "home")


def test_without_settings_everything_is_kept_as_it_was_said(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE) as memory:
        memory.add(message("user", [KEYS[0]]))
        assert memory.thread.history[0].item["content"][0]["text"] == KEYS[0]


def test_a_wrong_pattern_is_a_clear_error_before_anything_is_written(tmp_path: Path) -> None:
    from refold.core.config import Config
    from refold.core.redaction_settings import RedactionSettings

    with pytest.raises(ConfigError, match=r"redaction.patterns, number 1: '\(' is no regular expression"):
        Memory.open(tmp_path, model=PROFILE, config=Config(redaction=RedactionSettings(patterns=("(",))))
    assert not list(tmp_path.rglob("*.jsonl"))


# --- always --------------------------------------------------------------------------------------------------------

hidden = st.sampled_from([KEYS[0], KEYS[1], PASSWORD, "ACME-42", "://u:hunter22222@h"])
text = st.lists(st.one_of(hidden, st.text(max_size=5)), max_size=4).map(" ".join)
added = st.one_of(
    st.builds(lambda one: message("user", [one]), text),
    st.builds(lambda one: message("assistant", [one]), text),
    st.builds(
        lambda one: {"type": "function_call", "name": "f", "call_id": "c", "arguments": json.dumps({"a": [one]})}, text
    ),
    st.builds(lambda one: {"type": "function_call_output", "call_id": "c", "output": one}, text),
    st.builds(lambda one: {"type": "of_tomorrow", "what": {"deep": [one]}}, text),
    st.builds(lambda one: {"type": "reasoning", "summary": [{"type": "summary_text", "text": one}]}, text),
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(added, min_size=1, max_size=6), text)
def test_replay_of_a_redacted_session_is_the_live_one_and_holds_no_secret(items: list[Any], instructions: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = parse_config(ON, "test")
        with Memory.open(folder, model=PROFILE, config=config, instructions=instructions) as memory:
            memory.add(items)
            memory.record(EventKept({"type": "warning", "message": instructions}))
            assert memory.path is not None
            assert same_state(read_thread(memory.path), memory.thread)
        assert_kept_out(folder, "hunter22222")
