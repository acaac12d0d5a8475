"""S06: the trigger is answered with none or two compaction items, a broken stream, or a refusal (checks 1 to 5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted, CompactionAttempted
from refold.core.thread import same_state
from refold.errors import CompactionFailed, ModelRefused, RefoldError
from refold.model import ResponsesModel
from refold.rollout import read_lines
from refold.session import Session
from refold.session.clock import Clock
from refold.session.events import Event, Notice, TextPreview, Waiting
from refold.session.memory import read_thread

CASE = Path(__file__).parent.parent / "data" / "cases" / "S06-trigger-compaction-wrong-item-count"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
REFUSAL = b'{"error":{"message":"Invalid input type \'compaction_trigger\' at index 3","type":"invalid_request_error"}}'
REFUSED = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n" + REFUSAL
TRIGGER = {"type": "compaction_trigger"}


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.0


def case(name: str) -> bytes:
    return HEAD + (CASE / name).read_bytes()


def answer(text: str, tokens: int = 10) -> bytes:
    """A stream with this text and this many input tokens."""
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    usage = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1}
    done = {"type": "response.completed", "response": {"id": "resp_x", "usage": usage}}
    events = ({"type": "response.output_item.done", "item": item}, done)
    return HEAD + b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


FULL = answer("one", tokens=95_000)  # of 100,000: the next turn compacts first


class Heard:
    """What a session said and was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self.error: RefoldError | None = None
        self.path = Path()

    @property
    def checkpoints(self) -> list[Compacted]:
        return [line.record for line in read_lines(self.path) if isinstance(line.record, Compacted)]

    @property
    def attempts(self) -> list[str]:
        found = [line.record for line in read_lines(self.path) if isinstance(line.record, CompactionAttempted)]
        return [f"{one.method}: {one.outcome}" for one in found]


def played(folder: Path, *answers: bytes, texts: Sequence[str] = ("first", "second"), **settings: Any) -> Heard:
    """A session that is given these answers, in order, while these texts are said; the last turn's events."""
    heard = Heard()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        heard.asked.append(json.loads(await reader.readexactly(length)))
        writer.write(answers[len(heard.asked) - 1])
        await writer.drain()
        writer.close()

    async def go() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            provider = Provider(id="x", name="x", base_url=url, env_key=None, compaction="remote")
            model = ResponsesModel(Profile(slug="m", context_window=100_000), provider)
            config = parse_config(settings, "test")
            options: dict[str, Any] = {"model": model, "cwd": folder, "home": folder / "home", "config": config}
            async with asyncio.timeout(20), Session.start(**options, clock=Hasty(), instructions="BASE") as session:
                for text in texts:
                    heard.events, heard.error = [], None
                    try:
                        async for event in session.send(text):
                            heard.events.append(event)
                    except RefoldError as error:
                        heard.error = error
                assert session.path is not None
                heard.path = session.path
                assert same_state(session.memory.thread, read_thread(session.path))

    asyncio.run(go())
    return heard


def test_the_one_compaction_item_is_used_and_a_stray_message_is_no_answer(tmp_path: Path) -> None:
    heard = played(tmp_path, FULL, case("one_plus_message.sse"), answer("two"))
    assert heard.error is None and heard.asked[1]["input"][-1] == TRIGGER
    raw = (CASE / "one_plus_message.sse").read_bytes()
    (sent,) = [item for item in heard.asked[2]["input"] if item["type"] == "compaction"]
    assert b'"encrypted_content":"%b"' % sent["encrypted_content"].encode() in raw
    assert "Compacted." not in json.dumps(heard.asked[2])
    said = [event.text for event in heard.events if isinstance(event, TextPreview)]
    assert "Compacted." not in "".join(said)
    assert heard.attempts == ["remote: completed"]


@pytest.mark.parametrize(("file", "got", "items"), [("zero.sse", 0, 0), ("two.sse", 2, 2)])
def test_another_number_is_a_typed_error_that_states_both(file: str, got: int, items: int, tmp_path: Path) -> None:
    setting: dict[str, Any] = {"compaction": {"fallback": False}}
    heard = played(tmp_path, FULL, case(file), **setting)
    assert isinstance(heard.error, CompactionFailed)
    assert f"with {got} compaction items in {items} output items; expected 1" in str(heard.error)
    assert heard.checkpoints == [] and len(heard.asked) == 2
    assert b'"type":"compacted"' not in heard.path.read_bytes()


def test_a_stream_that_does_not_complete_is_asked_again(tmp_path: Path) -> None:
    heard = played(tmp_path, FULL, case("not_completed.sse"), case("one_plus_message.sse"), answer("two"))
    assert heard.error is None
    assert heard.asked[1] == heard.asked[2]
    assert [event.of for event in heard.events if isinstance(event, Waiting)] == [2]
    assert len(heard.checkpoints) == 1 and len(heard.attempts) == 2


def test_a_refused_trigger_is_not_sent_again_and_a_summary_is_asked_for_once(tmp_path: Path) -> None:
    heard = played(tmp_path, FULL, REFUSED, answer("SUMMARY"), answer("two"))
    assert heard.error is None
    assert [TRIGGER in asked["input"] for asked in heard.asked] == [False, True, False, False]
    assert [one.facts["method"] for one in heard.checkpoints] == ["local"]
    assert [event for event in heard.events if isinstance(event, Notice) and "compaction_trigger" in event.text]


def test_without_a_fallback_the_refusal_is_the_error_and_the_history_stays_usable(tmp_path: Path) -> None:
    off: dict[str, Any] = {"compaction": {"fallback": False}}
    again = (FULL, REFUSED, case("one_plus_message.sse"), answer("three"))
    heard = played(tmp_path, *again, texts=("first", "second", "third"), **off)
    assert heard.error is None and len(heard.checkpoints) == 1
    heard = played(tmp_path, FULL, REFUSED, **off)
    assert isinstance(heard.error, ModelRefused) and heard.error.status == 400
    assert "compaction_trigger" in str(heard.error) and heard.checkpoints == []


@pytest.mark.parametrize("file", ["zero.sse", "one_plus_message.sse", "not_completed.sse"])
def test_the_trigger_is_in_the_request_only(file: str, tmp_path: Path) -> None:
    heard = played(tmp_path, FULL, case(file), *[case("one_plus_message.sse")] * (file[0] == "n"), *[answer("s")] * 2)
    assert heard.error is None
    assert b"compaction_trigger" not in heard.path.read_bytes()
    assert TRIGGER not in heard.asked[-1]["input"]
