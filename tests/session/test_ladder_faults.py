"""Every rung × every fault: what a compaction comes to, and that its log replays after each.

A row says what is done at a rung, a column what is wrong there; the model answers well from the next rung on, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest

from refold.core.config import parse_config
from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, CompactionAttempted
from refold.core.thread import same_state
from refold.errors import RefoldError
from refold.model.scripted import Reply, ScriptedModel
from refold.rollout.reader import read_lines
from refold.session import Session
from refold.session.clock import Clock
from refold.session.memory import read_thread
from refold.testing import call_reply, text_reply, usage
from refold.views.sent import sent

Rung = Literal["remote", "endpoint", "local", "flattened"]
RUNGS: tuple[Rung, ...] = ("remote", "endpoint", "local", "flattened")
PROFILE = Profile(slug="m", context_window=100_000, known=True)
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Zm9v" * 90}
MOST_REQUESTS = 60  # of one compaction; more is a loop

FAULTS: dict[str, Reply] = {
    "too long": Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}}),
    "too long, as an event": Reply(fail={"code": "context_length_exceeded", "message": "too long"}),
    "nothing": Reply(),
    "an empty text": text_reply(""),
    "a call": call_reply("look", {}),
    "a refusal": text_reply("I'm sorry, but I cannot help with that."),
    "cut off": Reply(items=text_reply("half").items, incomplete="max_output_tokens"),
    "cut in its middle": text_reply("half", cut_after="partial_item"),
    "closed unanswered": Reply(cut_after="request"),
    "busy": Reply(status=503, body={}),
    "too many": Reply(status=429, body={}, headers={"retry-after-ms": "1"}),
    "wrong key": Reply(status=401, body={"error": {"message": "wrong key"}}),
    "unknown here": Reply(status=404, body={"error": {"message": "what?"}}),
    "two items": Reply(items=(COMPACTION, {**COMPACTION, "id": "cmp_2"})),
    "far too large": text_reply("word " * 60_000),
}


NO_FAULT: tuple[Rung, str] = ("endpoint", "two items")


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


def rung_of(body: Any) -> Rung | None:
    """At which rung a request stands; None: an ordinary sampling."""
    if "input" not in body or "stream" not in body:
        return "endpoint"
    items = body["input"]
    last = items[-1]
    if last.get("type") == "compaction_trigger":
        return "remote"
    if "CONTEXT CHECKPOINT COMPACTION" not in message_text(last):
        return None
    return "local" if any(item.get("type") == "function_call" for item in items) else "flattened"


def well(rung: Rung) -> Reply:
    return Reply(items=(COMPACTION,)) if rung in ("remote", "endpoint") else text_reply("SUMMARY")


class Played:
    """One compaction by hand after a turn with a call: what came of it, alive and in the log."""

    def __init__(self, folder: Path, way: Rung, answer: Callable[[Rung], Reply], **compaction: Any) -> None:
        def step(body: Any) -> Reply:
            rung = rung_of(body)
            return answer(rung) if rung else call_reply("nope", {}) if len(model.requests) < 2 else text_reply("on")

        provider = Provider(
            id="p",
            name="p",
            base_url="http://127.0.0.1:1",
            env_key=None,
            request_max_retries=1,
            stream_max_retries=1,
            compaction=way if way in ("remote", "endpoint") else "local",  # type: ignore[arg-type]
        )
        rendering = {"rendering": "flattened"} if way == "flattened" else {}
        config = parse_config({"compaction": {**rendering, **compaction}}, "test")
        model = ScriptedModel([step] * MOST_REQUESTS, profile=PROFILE, provider=provider)
        self.model, self.error, self.installed = model, None, False
        asyncio.run(self._play(folder, config))

    async def _play(self, folder: Path, config: Any) -> None:
        place = {"home": folder / "home", "cwd": folder}
        async with (
            asyncio.timeout(30),
            Session.start(model=self.model, clock=Hasty(), config=config, instructions="B", **place) as session,
        ):
            session.memory.add(
                [
                    {"type": "message", "role": "user", "content": "go"},
                    {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c1"},
                    {"type": "function_call_output", "call_id": "c1", "output": "seen " * 300},
                    {"type": "message", "role": "assistant", "content": "I looked at all of it " * 20},
                ],
                usage=usage(900, 10),
            )
            self.before = list(session.memory.thread.history)
            try:
                self.installed = (await session.compact()).installed
            except RefoldError as error:
                self.error = error
            self.after = list(session.memory.thread.history)
            self.thread, self.path = session.memory.thread, session.path
            self.prove()
            if self.error is None:
                await session.send("and on")  # what stands there now can be sent
                self.prove()

    def prove(self) -> None:
        """The log replays to the live thread, and every request can be made again."""
        assert self.path is not None
        assert same_state(read_thread(self.path), self.thread)
        lines = list(read_lines(self.path))
        assert all(one.is_same for one in sent(lines))
        self.attempts = [line.record for line in lines if isinstance(line.record, CompactionAttempted)]
        self.checkpoints = [line.record for line in lines if isinstance(line.record, Compacted)]


@pytest.mark.parametrize(("way", "fault"), [pair for pair in product(RUNGS, FAULTS) if pair != NO_FAULT])
def test_fault_at_every_rung_there_is_leaves_the_history_and_a_log_that_replays(
    tmp_path: Path, way: Rung, fault: str
) -> None:
    played = Played(tmp_path, way, lambda rung: FAULTS[fault])
    assert len(played.model.requests) < MOST_REQUESTS
    assert not played.installed and played.checkpoints == []
    assert played.before == played.after
    assert played.attempts, "what was asked is in the log, with how it ended"
    assert played.error is not None or fault == "far too large"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("way", RUNGS)
def test_fault_at_the_first_rung_ends_at_the_next_one_or_says_why_not(tmp_path: Path, way: Rung, fault: str) -> None:
    """A wrong key or a provider that is not there is no reason to ask for something else; all the rest is."""
    played = Played(tmp_path, way, lambda rung: FAULTS[fault] if rung == way else well(rung), outline=True)
    last = fault in ("wrong key", "busy", "too many", "closed unanswered", "cut in its middle")
    if way in ("local", "flattened"):
        last = last or fault == "unknown here"
    if played.error is not None:
        assert last, f"{fault}: {played.error}"
        assert played.before == played.after
    elif played.installed:
        (checkpoint,) = played.checkpoints
        assert checkpoint.facts["method"] in ("local", "outline", "remote", "endpoint")
        assert len(played.after) < len(played.before) + 3
    else:
        assert fault == "far too large" and played.before == played.after


def test_an_endpoint_may_keep_several_items(tmp_path: Path) -> None:
    way, fault = NO_FAULT
    played = Played(tmp_path, way, lambda rung: FAULTS[fault])
    assert played.installed and [one.facts["method"] for one in played.checkpoints] == ["endpoint"]


@pytest.mark.parametrize("way", RUNGS)
def test_each_rung_compacts_when_all_is_well(tmp_path: Path, way: Rung) -> None:
    played = Played(tmp_path, way, well)
    assert played.installed and played.error is None
    method = "local" if way == "flattened" else way
    assert [one.facts["method"] for one in played.checkpoints] == [method]
