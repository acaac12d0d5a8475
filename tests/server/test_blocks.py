"""Cutting a stream into events: the bytes stay, only whole events come out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from refold.server.blocks import EventCutter, event_of

STREAM = (
    b": hello\n\n"
    b'event: response.created\ndata: {"type":"response.created"}\n\n'
    b'data: {"type":"response.output_text.delta","delta":"\xc3\xa4"}\r\n\r\n'
    b'event: x\r\ndata: {"type":\r\ndata: "response.completed"}\r\n\r\n'
    b'data: {"error":{"message":"no"}}\n\n'
    b"data: [DONE]\n\n"
)
TYPES = ["", "response.created", "response.output_text.delta", "x", "error", "[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_how_the_stream_was_cut(cuts: list[int]) -> None:
    cutter, places = EventCutter(), [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(places)]
    events = [event for chunk in chunks for event in cutter.feed(chunk)]
    assert b"".join(event.raw for event in events) == STREAM
    assert [event.type for event in events] == TYPES


def test_half_an_event_does_not_come_out() -> None:
    cutter = EventCutter()
    assert [event.type for event in cutter.feed(STREAM[:80])] == ["", "response.created"]
    assert cutter.feed(b"") == []


def test_bare_carriage_returns_end_lines() -> None:
    cutter = EventCutter()
    events = cutter.feed(b'data: {"type":"a"}\r\rdata: {"type":"b"}\r\r')
    events += cutter.feed(b"data: 1\n\n")
    assert [event.type for event in events][:2] == ["a", "b"]


def test_large_event_in_small_pieces_is_one_event() -> None:
    data = b'data: {"type":"big","text":"' + b"x" * 500_000 + b'"}\n\n'
    cutter = EventCutter()
    events = [event for place in range(0, len(data), 1000) for event in cutter.feed(data[place : place + 1000])]
    assert [event.raw for event in events] == [data]


def test_own_event_reads_back() -> None:
    event = event_of({"type": "response.created", "text": "a\nb"})
    assert EventCutter().feed(event.raw) == [event]
