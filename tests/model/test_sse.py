"""The SSE decoder gives the same events however the bytes are cut (case S29)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refold.errors import BadModelStream
from refold.model import sse
from refold.model.events import decode_event
from refold.model.sse import SseDecoder

CASE = Path(__file__).parents[1] / "data" / "cases" / "S29-sse-bytes"
STREAM = (CASE / "stream.sse").read_bytes()
EXPECTED = json.loads((CASE / "expected.json").read_text("utf-8"))


def events(*chunks: bytes) -> list[tuple[str, str]]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


WHOLE = events(STREAM)


def test_the_stream_of_the_case_holds_the_expected_events_and_the_garbage_between_them():
    assert [name for name, _ in WHOLE] == [
        "response.created",
        "response.output_text.delta",
        "response.output_item.done",
        "message",
        "message",
        "response.completed",
        "message",
    ]
    decoded = []
    for _, data in WHOLE:
        try:
            decoded.append(json.loads(data))
        except ValueError:
            decoded.append(data)
    assert decoded[3] == "this is not json"
    assert decoded[4] == {"type": "response.some_future_event", "x": 1}
    assert decoded[6] == "[DONE]"
    message, completed = decoded[2], decoded[5]
    assert decoded[1] == EXPECTED[1]
    assert message == EXPECTED[2]
    assert completed == EXPECTED[3]


def test_finished_text_keeps_every_character():
    item = json.loads(WHOLE[2][1])["item"]
    text = item["content"][0]["text"]
    assert text == "Grüße 世界 🚀 line\u2028sep nel\u0085end"
    assert "\ufffd" not in text


def test_only_the_events_that_count_become_model_events():
    kinds = [type(event).__name__ for name, data in WHOLE if (event := decode_event(name, data)) is not None]
    assert kinds == ["ResponseStarted", "TextDelta", "ItemDone", "Completed"]


def test_fed_byte_by_byte_gives_the_same_events():
    assert events(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == WHOLE


def test_split_in_two_at_every_position_gives_the_same_events():
    for position in range(len(STREAM) + 1):
        assert events(STREAM[:position], STREAM[position:]) == WHOLE, position


@pytest.mark.parametrize("size", [2, 3, 5, 7, 64])
def test_fed_in_pieces_of_any_size_gives_the_same_events(size: int):
    assert events(*(STREAM[i : i + size] for i in range(0, len(STREAM), size))) == WHOLE


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end_ends_a_line_at_once(end: bytes):
    decoder = SseDecoder()
    assert decoder.feed(b"event: a" + end + b"data: 1" + end + end) == [("a", "1")]
    assert decoder.feed(b"data: 2" + end + end) == [("message", "2")]


def test_a_line_end_cut_between_cr_and_lf_is_one_line_end():
    assert events(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [("message", "1\n2")]


def test_an_empty_chunk_changes_nothing():
    assert events(b"data: 1\r", b"", b"\n", b"", b"\n") == [("message", "1")]


def test_a_byte_order_mark_is_dropped_at_the_start_only():
    assert events(b"\xef\xbb", b"\xbfdata: 1\n\n") == [("message", "1")]
    assert events(b"data: \xef\xbb\xbf1\n\n\xef\xbb\xbfdata: 2\n\n") == [("message", "\ufeff1")]


def test_comments_ids_and_events_without_data_give_no_event():
    assert events(b": hi\n\nid: 7\nretry: 1\n\nevent: ping\n\ndata: 1\n\n") == [("message", "1")]


def test_one_leading_space_is_dropped_and_a_bare_data_line_is_empty():
    assert events(b"data:  x\ndata\ndata:y\n\n") == [("message", " x\n\ny")]


def test_the_name_of_an_event_without_data_is_not_inherited():
    assert events(b"event: ping\n\ndata: 1\n\n") == [("message", "1")]


def test_an_unfinished_event_is_dropped_at_the_end():
    cut_inside_a_character = STREAM[: STREAM.index("世".encode()) + 1]
    assert [name for name, _ in events(cut_inside_a_character)] == ["response.created"]
    assert events(b"data: 1\n\ndata: 2\n") == [("message", "1")]


def test_bytes_that_are_no_utf8_do_not_stop_the_stream():
    assert events(b"data: \xff\n\ndata: 2\n\n") == [("message", "\ufffd"), ("message", "2")]


def test_an_endless_line_or_event_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "LARGEST_EVENT", 1000)
    with pytest.raises(BadModelStream, match="larger than 1,000 bytes"):
        events(*[b"data: " + b"x" * 100] * 11)
    with pytest.raises(BadModelStream, match="larger than 1,000 bytes"):
        events(*[b"data: " + b"x" * 100 + b"\n"] * 11)
    assert len(events(*[b"data: " + b"x" * 900 + b"\n\n"] * 11)) == 11
