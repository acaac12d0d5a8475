"""S30: response.failed arrives but the connection stays open (checks 1 to 5)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refold.core.profile import Profile, Provider
from refold.core.wire import Request
from refold.errors import ContextWindowExceeded, ModelError, ModelRefused, ModelUnavailable
from refold.model import Completed, ModelEvent, ResponsesModel
from refold.model.retry import backoff, is_worth_retrying, wait_before_retry

CASE = Path(__file__).parent.parent / "data" / "cases" / "S30-failed-event-while-socket-open"
ROWS = json.loads((CASE / "failed.json").read_text("utf-8"))
NAMES = [str(row["code"]) for row in ROWS]
HI = Request(head=b'{"model":"m","stream":true,"input":[', parts=(), tail=b"]}", items=0)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
CREATED = {"type": "response.created", "response": {"id": "resp_1"}}
COMPLETED = {"type": "response.completed", "response": {"id": "resp_1"}}
OPEN_SECONDS = 30  # the socket stays open for so long
AT_ONCE = 0.2  # seconds


def failed(row: dict[str, Any]) -> dict[str, Any]:
    error = {"code": row["code"], "message": row["message"]} if row["code"] else None
    response = {"id": "resp_1", "status": "failed", **({"error": error} if error else {})}
    return {"type": "response.failed", "response": response}


class Heard(NamedTuple):
    """What came of one request. `after`: seconds from the last byte to the end; `closed`: until the client left."""

    events: list[ModelEvent]
    error: ModelError | None
    after: float
    closed: float


def heard(*events: dict[str, Any]) -> Heard:
    """One sample of a server that says these events and then nothing, with the socket open."""

    async def go() -> Heard:
        said: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        left: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"]}")
            writer.write(HEAD + b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events))
            await writer.drain()
            said.set_result(time.monotonic())
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    while await reader.read(1024):
                        pass
            except ConnectionError:
                pass
            left.set_result(time.monotonic())
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            model = ResponsesModel(
                Profile(slug="m"), Provider(base_url=url, env_key=None, stream_idle_timeout_ms=5_000)
            )
            found, error = list[ModelEvent](), None
            try:
                async for event in model.sample(HI):
                    found.append(event)
            except ModelError as raised:
                error = raised
            ended = time.monotonic()
            closed = await left - ended if error else 0.0  # after a completion the connection may be kept
            await model.close()
        return Heard(found, error, ended - said.result(), closed)

    return asyncio.run(asyncio.wait_for(go(), 10))


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_the_typed_error_is_there_at_once_with_the_servers_words(row: dict[str, Any]) -> None:
    found = heard(CREATED, failed(row))
    assert found.error is not None
    assert found.after < AT_ONCE
    assert (row["message"] or "response.failed") in str(found.error)


CLASSES: dict[str, Callable[[ModelError], bool]] = {
    "context window exceeded": lambda error: type(error) is ContextWindowExceeded,
    "quota exceeded": lambda error: type(error) is ModelUnavailable and "quota exceeded" in str(error),
    "usage not included": lambda error: type(error) is ModelRefused and error.code == "usage_not_included",
    "invalid request": lambda error: type(error) is ModelRefused and error.code == "invalid_prompt",
    "overloaded": lambda error: type(error) is ModelUnavailable and error.status == 503,
    "retryable": lambda error: type(error) is ModelUnavailable and error.retryable and error.status != 503,
}


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_class_retry_and_delay_are_those_of_the_file(row: dict[str, Any]) -> None:
    error = heard(CREATED, failed(row)).error
    assert error is not None
    assert CLASSES[row["class"]](error)
    assert is_worth_retrying(error) is row["retry"]
    expected = backoff(1) if row["delay_s"] is None else row["delay_s"]
    if row["retry"]:
        assert wait_before_retry(error, 1) == pytest.approx(expected, abs=0.001)
    else:
        assert getattr(error, "retry_after", None) is None


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_the_client_closes_the_connection(row: dict[str, Any]) -> None:
    assert heard(CREATED, failed(row)).closed < AT_ONCE


def test_a_completion_after_the_failure_is_ignored() -> None:
    found = heard(CREATED, failed(ROWS[0]), COMPLETED)
    assert type(found.error) is ContextWindowExceeded
    assert not any(isinstance(event, Completed) for event in found.events)


def test_a_failure_after_the_completion_does_not_undo_it() -> None:
    found = heard(CREATED, COMPLETED, failed(ROWS[0]))
    assert found.error is None
    assert found.events[-1] == Completed("resp_1")
    assert found.after < AT_ONCE


def test_a_failure_without_an_error_object_is_retryable_and_says_so() -> None:
    error = heard(CREATED, failed({"code": None})).error
    assert type(error) is ModelUnavailable
    assert (str(error), is_worth_retrying(error)) == ("response.failed", True)
