"""S29: an event stream cut anywhere, with comments and odd line ends (checks 1 to 6)."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from backports import zstd

from refold.core.items import message_text
from refold.core.profile import Profile, Provider
from refold.core.wire import Request
from refold.errors import BadModelStream
from refold.model import Completed, ItemDone, ModelEvent, ResponsesModel, ResponseStarted
from refold.model.events import CLOSED_EARLY, IDLE_TIMEOUT, decode_event, read_event
from refold.model.sse import SseDecoder

CASE = Path(__file__).parent.parent / "data" / "cases" / "S29-sse-bytes"
STREAM = (CASE / "stream.sse").read_bytes()
CREATED, *REST = json.loads((CASE / "expected.json").read_text("utf-8"))
assert CREATED == {"type": "response.created"}, "the file leaves out its response"
EXPECTED = [ResponseStarted("resp_u"), *map(read_event, REST)]
COMPLETED_AT = STREAM.index(b"\r\rdata: [DONE]") + 2  # the length at which the completing event is whole
HI = Request(head=b'{"model":"m","stream":true,"input":[', parts=(), tail=b"]}", items=0)
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
PLAIN = HEAD + b"content-type: text/event-stream\r\n\r\n"


def decoded(*chunks: bytes) -> list[ModelEvent]:
    """The events that count, up to the completion, as these chunks bring them."""
    decoder, found = SseDecoder(), list[ModelEvent]()
    for chunk in chunks:
        for name, data in decoder.feed(chunk):
            event = decode_event(name, data)
            if event is not None and not any(isinstance(one, Completed) for one in found):
                found.append(event)
    return found


def received(
    serve: Callable[[asyncio.StreamWriter], Awaitable[None]], *, idle_ms: int = 5_000
) -> tuple[list[ModelEvent], str | None, bytes]:
    """What a model makes of an answer in bytes of our own: its events, the error if there was one, what it had sent."""

    async def go() -> tuple[list[ModelEvent], str | None, bytes]:
        asked: list[bytes] = []

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            try:
                await serve(writer)
                await writer.drain()
            except ConnectionError:
                pass  # it had seen enough
            finally:
                writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            model = ResponsesModel(
                Profile(slug="m"), Provider(base_url=url, env_key=None, stream_idle_timeout_ms=idle_ms)
            )
            events, error = list[ModelEvent](), None
            try:
                async for event in model.sample(HI):
                    events.append(event)
            except BadModelStream as broken:
                error = str(broken)
            finally:
                await model.close()
        return events, error, asked[0]

    return asyncio.run(asyncio.wait_for(go(), 20))


def test_the_bytes_give_the_same_events_whole_one_by_one_and_split_in_two_anywhere() -> None:
    assert decoded(STREAM) == EXPECTED
    assert decoded(*(bytes([byte]) for byte in STREAM)) == EXPECTED
    for position in range(len(STREAM) + 1):
        assert decoded(STREAM[:position], STREAM[position:]) == EXPECTED, position


def test_over_http_they_give_the_same_events_whole_and_one_by_one() -> None:
    async def whole(writer: asyncio.StreamWriter) -> None:
        writer.write(PLAIN + STREAM)

    async def one_by_one(writer: asyncio.StreamWriter) -> None:
        writer.write(PLAIN)
        for byte in STREAM:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    assert received(whole)[:2] == received(one_by_one)[:2] == (EXPECTED, None)


def test_the_finished_text_has_every_character() -> None:
    [item] = [event.item for event in decoded(STREAM) if isinstance(event, ItemDone)]
    assert message_text(item) == "Grüße 世界 🚀 line\u2028sep nel\u0085end"
    assert "\ufffd" not in json.dumps(item, ensure_ascii=False)


@pytest.mark.parametrize("line", [b": hello\n", b"id: 7\n", b"retry: 3000\n", b"event: ping\n", b"\r\r\r"])
def test_comments_ids_and_events_without_data_produce_no_event(line: bytes) -> None:
    assert SseDecoder().feed(line + b"\n") == []
    assert decoded(line + b"\n" + STREAM.removeprefix(b"\xef\xbb\xbf")) == EXPECTED


def test_each_byte_that_comes_resets_the_idle_time_out() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(PLAIN)
        for byte in b": keep-alive":  # one comment, for longer than the idle time-out
            writer.write(bytes([byte]))
            await asyncio.sleep(0.04)
        writer.write(b"\n\n" + STREAM.removeprefix(b"\xef\xbb\xbf"))

    async def silence(writer: asyncio.StreamWriter) -> None:
        writer.write(PLAIN + b": keep-alive\n\n")
        await writer.drain()
        await asyncio.sleep(0.5)

    assert received(slowly, idle_ms=300)[:2] == (EXPECTED, None)
    assert received(silence, idle_ms=100)[:2] == ([], IDLE_TIMEOUT)


def test_what_cannot_be_read_is_skipped_with_a_note_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="refold"):
        assert decoded(STREAM[:COMPLETED_AT]) == EXPECTED
    notes = [record.getMessage() for record in caplog.records]
    assert len(notes) == 2
    assert "this is not json" in notes[0]
    assert "response.some_future_event" in notes[1]
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


def test_an_event_that_the_end_leaves_unfinished_is_dropped() -> None:
    for position in range(COMPLETED_AT):
        found = decoded(STREAM[:position])
        assert found == EXPECTED[: len(found)]
        assert not any(isinstance(event, Completed) for event in found), position


@pytest.mark.parametrize(
    ("position", "count"),
    [
        (STREAM.index("世".encode()) + 1, 1),
        (STREAM.index("🚀".encode()) + 2, 2),
        (STREAM.index(b"response.completed"), 3),
        (COMPLETED_AT - 2, 3),
    ],
    ids=["in a character", "in an emoji", "in a name", "before the end of an event"],
)
def test_a_stream_that_ends_in_a_character_or_event_was_closed_before_completion(position: int, count: int) -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(PLAIN + STREAM[:position])

    assert received(cut)[:2] == (EXPECTED[:count], CLOSED_EARLY)


@pytest.mark.parametrize(
    ("name", "packed"),
    [("gzip", gzip.compress(STREAM)), ("deflate", zlib.compress(STREAM)), ("zstd", zstd.compress(STREAM))],
)
def test_a_compressed_body_gives_the_same_events_although_none_was_asked_for(name: str, packed: bytes) -> None:
    async def pack(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"content-type: text/event-stream\r\ncontent-encoding: %b\r\n\r\n" % name.encode() + packed)

    events, error, asked = received(pack)
    assert (events, error) == (EXPECTED, None)
    assert b"accept-encoding: identity\r\n" in asked.lower()


@pytest.mark.parametrize("kind", [b"content-type: text/event-stream\r\n", b"content-type: text/plain\r\n", b""])
def test_a_missing_charset_means_utf8(kind: bytes) -> None:
    async def plain(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + kind + b"\r\n" + STREAM)

    assert received(plain)[:2] == (EXPECTED, None)
