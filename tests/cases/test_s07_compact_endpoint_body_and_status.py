"""S07: the compact endpoint gets a clean body, and what it answers is told as it is (checks 1 to 6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.items import message_text, user_message
from refold.core.profile import Profile
from refold.core.records import Compacted, CompactionAttempted
from refold.core.thread import same_state
from refold.errors import ModelError, ModelRefused, ModelUnavailable, RefoldError
from refold.model import ResponsesModel
from refold.rollout import read_lines
from refold.session import Session
from refold.session.clock import Clock
from refold.session.events import Event, Waiting
from refold.session.memory import read_thread
from refold.testing import LoggedRequest, Reply, ResponsesServer, text_reply, usage
from refold.tools.functions import tool
from refold.views.sent import sent

COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 40}
COMPACTED = Reply(items=(user_message("first"), COMPACTION), usage=usage(5_000, 200))
FULL = text_reply("one", usage=usage(95_000, 10))  # of 100,000: the next turn compacts first
KEY = "sk-very-secret"
REFUSED_KEYS = ("stream", "store", "include", "previous_response_id", "tool_choice", "client_metadata")
NO_FALLBACK = {"compaction": {"fallback": False}}


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


@tool
def lookup(city: str) -> str:
    """The weather."""
    return city


class Heard:
    def __init__(self, asked: list[LoggedRequest]) -> None:
        self.asked = asked
        self.events: list[Event] = []
        self.error: RefoldError | None = None
        self.seconds = 0.0
        self.session: Session

    @property
    def records(self) -> list[Any]:
        assert self.session.path is not None
        return [line.record for line in read_lines(self.session.path)]

    @property
    def checkpoints(self) -> list[Compacted]:
        return [record for record in self.records if isinstance(record, Compacted)]

    @property
    def attempts(self) -> list[tuple[str, str]]:
        found = [record for record in self.records if isinstance(record, CompactionAttempted)]
        return [(one.method, one.outcome) for one in found]

    @property
    def compacting(self) -> list[LoggedRequest]:
        return [one for one in self.asked if one.endpoint.endswith("/compact")]


def played(
    folder: Path,
    *script: Reply,
    texts: Sequence[str] = ("first", "second"),
    profile: Profile | None = None,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> Heard:
    """A session with a provider that compacts at its endpoint; the events and the error of the second turn."""

    async def go() -> Heard:
        async with ResponsesServer(list(script)) as server:
            heard = Heard(server.requests)
            provider = server.provider(compaction="endpoint", **more)
            model = ResponsesModel(profile or Profile(slug="m", context_window=100_000), provider, api_key=KEY)
            options: dict[str, Any] = {"model": model, "tools": [lookup], "cwd": folder, "home": folder / "home"}
            config = parse_config(settings or {}, "test")
            session = Session.start(**options, clock=Hasty(), instructions="BASE", config=config)
            heard.session = session
            async with asyncio.timeout(20), session:
                await session.send(texts[0])
                began = time.monotonic()
                try:
                    async for event in session.send(texts[1]):
                        heard.events.append(event)
                except RefoldError as error:
                    heard.error = error
                heard.seconds = time.monotonic() - began
                for text in texts[2:]:
                    await session.send(text)
            assert session.path is not None
            assert same_state(session.memory.thread, read_thread(session.path))
            return heard

    return asyncio.run(go())


def test_the_body_is_clean_and_can_be_made_again(tmp_path: Path) -> None:
    extra = {"store": True, "include": ["x"], "top_k": 3}
    heard = played(tmp_path, FULL, COMPACTED, text_reply("two"), extra_body=extra)
    (asked,) = heard.compacting
    assert list(asked.json) == [
        *("model", "input", "instructions", "tools", "parallel_tool_calls", "prompt_cache_key", "top_k")
    ]
    assert not set(asked.json) & set(REFUSED_KEYS)
    assert (asked.json["model"], asked.json["instructions"]) == ("m", "BASE")
    assert [one["name"] for one in asked.json["tools"]] == ["lookup"]
    assert asked.input == [*heard.asked[0].input[1:], asked.input[-1]], "the history as it was sent, and the answer"
    assert "CONTEXT CHECKPOINT" not in asked.body.decode() and "compaction_trigger" not in asked.body.decode()
    assert (asked.header("accept"), asked.header("x-client-request-id")) == ("application/json", None)
    assert heard.session.path is not None
    made = list(sent(read_lines(heard.session.path)))
    assert [one.is_same for one in made] == [True, True, True] and made[1].request.body() == asked.body


def test_every_key_that_may_be_there_stands_in_its_place(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"reasoning_effort": "high", "verbosity": "low", "service_tier": "flex"}
    profile = Profile(slug="m", context_window=100_000, **settings)
    (asked,) = played(tmp_path, FULL, COMPACTED, text_reply("two"), profile=profile).compacting
    keys = "model input instructions tools parallel_tool_calls reasoning service_tier prompt_cache_key text"
    assert list(asked.json) == keys.split()


def test_what_comes_back_takes_the_historys_place(tmp_path: Path) -> None:
    heard = played(tmp_path, FULL, COMPACTED, text_reply("two"))
    assert heard.error is None and heard.attempts == [("endpoint", "completed")]
    (checkpoint,) = heard.checkpoints
    assert (checkpoint.message, checkpoint.facts["method"], checkpoint.response_id) == ("", "endpoint", "resp_2")
    items = heard.asked[-1].input
    assert [str(one.get("role") or one["type"]) for one in items][-3:] == ["user", "compaction", "user"]
    assert [message_text(one) for one in items if one.get("role") == "user"][-2:] == ["first", "second"]
    assert items[-2]["encrypted_content"] == COMPACTION["encrypted_content"]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_no_such_endpoint_is_said_and_a_summary_is_asked_for_once(status: int, tmp_path: Path) -> None:
    missing = Reply(status=status, body={"detail": "Not here"})
    heard = played(tmp_path, FULL, missing, text_reply("SUMMARY"), text_reply("two"))
    assert heard.error is None and len(heard.compacting) == 1
    assert [method for method, _ in heard.attempts] == ["endpoint", "local"]
    assert str(status) in heard.attempts[0][1] and "does not compact there (Not here)" in heard.attempts[0][1]
    assert heard.checkpoints[0].facts["method"] == "local"

    heard = played(tmp_path, FULL, missing, settings=NO_FALLBACK)
    assert isinstance(heard.error, ModelRefused) and heard.error.status == status
    assert len(heard.compacting) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_taken_is_an_error_without_the_key(status: int, tmp_path: Path) -> None:
    wrong = Reply(status=status, body={"error": {"message": f"the key {KEY} may not compact"}})
    heard = played(tmp_path, FULL, wrong, COMPACTED, text_reply("three"), texts=("first", "second", "third"))
    assert isinstance(heard.error, ModelRefused) and heard.error.status == status
    assert str(status) in str(heard.error) and KEY not in str(heard.error)
    assert heard.session.path is not None and KEY.encode() not in heard.session.path.read_bytes()
    assert [method for method, _ in heard.attempts] == ["endpoint", "endpoint"], "not retried in the turn, no summary"


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (Reply(status=503, body={"error": {"message": "busy"}}), "high demand"),
        (Reply(cut_after="request"), "closed the connection"),
    ],
)
def test_a_busy_server_is_asked_again_as_often_as_is_set(trouble: Reply, cause: str, tmp_path: Path) -> None:
    patient: dict[str, Any] = {"request_max_retries": 2, "stream_max_retries": 5}
    heard = played(tmp_path, FULL, trouble, trouble, COMPACTED, text_reply("two"), **patient)
    assert heard.error is None and len(heard.compacting) == 3
    waits = [event for event in heard.events if isinstance(event, Waiting)]
    assert [(one.level, one.attempt, one.of) for one in waits] == [("request", 1, 2), ("request", 2, 2)]

    heard = played(tmp_path, FULL, *[trouble] * 3, **patient)
    assert isinstance(heard.error, ModelUnavailable) and cause in str(heard.error)
    assert len(heard.compacting) == 3 and heard.checkpoints == []


def test_silence_ends_in_an_error_in_time(tmp_path: Path) -> None:
    silent = Reply(delay=30)
    impatient: dict[str, Any] = {"stream_idle_timeout_ms": 75, "request_max_retries": 2}
    heard = played(tmp_path, FULL, silent, COMPACTED, text_reply("three"), texts=("1", "2", "3"), **impatient)
    assert isinstance(heard.error, ModelUnavailable)
    assert "gave no answer within 0.3 s (4 × stream_idle_timeout_ms)" in str(heard.error)
    assert heard.seconds < 1.3
    assert len(heard.compacting) == 2, "once in the turn that failed, once in the next"


@pytest.mark.parametrize(
    "trouble",
    [
        Reply(status=401, body={"error": {"message": "no"}}),
        Reply(status=500, body={}),
        Reply(cut_after="request"),
        Reply(body={"output": "no list"}),
    ],
    ids=["401", "500", "cut", "odd"],
)
def test_after_a_failure_the_history_is_as_it_was_and_the_next_turn_works(trouble: Reply, tmp_path: Path) -> None:
    script = [FULL, trouble, COMPACTED, text_reply("three")]
    once: dict[str, Any] = {"request_max_retries": 0, "settings": NO_FALLBACK}
    heard = played(tmp_path, *script, texts=("first", "second", "third"), **once)
    assert isinstance(heard.error, ModelError) or "no list of output items" in str(heard.error)
    asked = [one.input for one in heard.compacting]
    assert asked[1][: len(asked[0])] == asked[0], "the same history, and the message that was said meanwhile"
    assert len(heard.checkpoints) == 1
    assert message_text(heard.session.memory.thread.history[-1].item) == "three"
