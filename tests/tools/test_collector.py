"""The two ends of a byte stream, whatever its chunks, in constant memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.tools.collector import HEAD_BYTES, KEPT_BYTES, TAIL_BYTES, Collector


def collected(data: bytes, chunk: int) -> Collector:
    collector = Collector()
    for start in range(0, len(data), chunk):
        collector.feed(data[start : start + chunk])
    return collector


def pattern(length: int) -> bytes:
    return b"".join(b"%09d\n" % i for i in range(length // 10 + 1))[:length]


def test_the_kept_halves_are_the_real_programs() -> None:
    assert (HEAD_BYTES, TAIL_BYTES, KEPT_BYTES) == (524_288, 524_288, 1_048_576)


def test_nothing_gives_nothing() -> None:
    captured = collected(b"", 1).captured()
    assert (captured.text(), captured.omitted, captured.total_bytes, captured.lines) == ("", 0, 0, 0)


@pytest.mark.parametrize("chunk", [1_000, 65_536, 600_000, 10_000_000])
@pytest.mark.parametrize(
    "length", [1, HEAD_BYTES, HEAD_BYTES + 1, KEPT_BYTES - 1, KEPT_BYTES, KEPT_BYTES + 1, 5_000_001]
)
def test_both_ends_are_kept_whatever_the_chunks(length: int, chunk: int) -> None:
    data = pattern(length)
    captured = collected(data, chunk).captured()
    assert captured.omitted == max(0, length - KEPT_BYTES)
    assert captured.total_bytes == length
    if captured.omitted:
        assert captured.head == data[:HEAD_BYTES]
        assert captured.tail == data[-TAIL_BYTES:]
        assert captured.text() == (
            f"{data[:HEAD_BYTES].decode()}\n... {captured.omitted} bytes omitted ...\n{data[-TAIL_BYTES:].decode()}"
        )
    else:
        assert captured.head + captured.tail == data


@settings(database=None, deadline=None)
@given(st.lists(st.sampled_from([b"", b"a", b"\n", b"a\n", b"\r\n", b"\xff"])))
def test_lines_and_bytes_are_counted_across_chunks(chunks: list[bytes]) -> None:
    collector = Collector()
    for chunk in chunks:
        collector.feed(chunk)
    data = b"".join(chunks)
    assert collector.captured().lines == data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))
    assert collector.total_bytes == len(data)


def test_a_character_across_two_chunks_or_across_the_halves_is_whole() -> None:
    assert collected("漢字".encode(), 1).captured().text() == "漢字"
    data = b"x" * (HEAD_BYTES - 1) + "漢".encode() + b"y"
    assert collected(data, 65_536).captured().text() == data.decode()


def test_invalid_utf8_is_replaced() -> None:
    assert collected(b"a\xff\xfeb\xe6\xbc", 2).captured().text() == "a\ufffd\ufffdb\ufffd"


def test_it_can_be_looked_at_and_go_on() -> None:
    collector = collected(pattern(2_000_000), 65_536)
    before = collector.captured()
    collector.feed(b"more")
    assert before.total_bytes == 2_000_000
    assert collector.captured().tail == (before.tail + b"more")[-TAIL_BYTES:]


@pytest.mark.parametrize(("stream", "chunk"), [(20_000_000, 100), (200_000_000, 50_000), (200_000_000, 1_000_000)])
def test_memory_does_not_grow_with_the_stream(stream: int, chunk: int) -> None:
    data = pattern(chunk)
    collector = Collector()
    tracemalloc.start()
    try:
        for _ in range(stream // chunk):
            collector.feed(data)
        captured = collector.captured()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert captured.total_bytes == stream // chunk * chunk
    assert captured.omitted == captured.total_bytes - KEPT_BYTES
    assert captured.lines == stream // chunk * data.count(b"\n")
    assert peak < 4 * KEPT_BYTES
