"""Context: what the log says the next request holds, item by item, and how full the window is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import Item, message
from refold.core.profile import Profile
from refold.core.records import ItemRecorded, Line, Record, SessionStarted, SteerQueued, UsageCounted
from refold.core.thread import Thread
from refold.core.usage import Usage
from refold.rollout import read_lines
from refold.views import Context, context

ROLLOUTS = Path(__file__).parents[1] / "data" / "oracle" / "rollouts"
PROFILE = Profile(slug="m", context_window=100_000)


def view(*records: Record, profile: Profile = PROFILE, **started: Any) -> Context:
    meta = SessionStarted(thread_id="t", timestamp="2026-01-01T00:00:00Z", cwd="/w", **started)
    return context(Thread.replay(Line(number, record) for number, record in enumerate([meta, *records])), profile)


def recorded(name: str) -> Context:
    return context(Thread.replay(read_lines(ROLLOUTS / f"{name}.jsonl")), PROFILE)


CALL: Item = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": "{}", "call_id": "c1"}


def test_items_stand_in_the_requests_order_with_their_addresses():
    found = recorded("e_midturn")
    assert found.window_number == 1
    assert [(row.kind, row.origin) for row in found.rows] == [
        ("developer", "base"),
        ("user", "typed"),
        ("developer", "injected"),
        ("user", "injected"),
        ("user", "typed"),
        ("user", "summary"),
        ("function_call", "model"),
        ("function_call_output", "tool"),
        ("assistant", "model"),
        ("user", "typed"),
        ("assistant", "model"),
    ]
    assert [row.preview for row in found.rows if row.origin == "typed"] == [
        "user message 1",
        "user message 2",
        "user message 3",
    ]


@pytest.mark.parametrize("path", sorted(ROLLOUTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_address_is_a_line_that_holds_the_item(path):
    found = context(Thread.replay(read_lines(path)), PROFILE)
    lines = {value["ordinal"]: value for value in map(json.loads, path.read_bytes().splitlines())}
    for row in found.rows:
        if row.address:
            thread_id, _, ordinal = row.address.rpartition(":")
            assert thread_id == found.thread_id
            assert lines[int(ordinal)]["type"] in ("response_item", "compacted", "session_meta")
    assert found.rows or path.stem == "t_revert_after"
    assert found.used >= 0 and found.estimated >= 0


def test_unanswered_call_is_named_and_its_output_is_made_up():
    found = view(ItemRecorded(message("user", ["go"])), ItemRecorded(CALL))
    assert found.unanswered == ("c1",)
    assert [(row.address, row.kind) for row in found.rows] == [
        ("t:1", "user"),
        ("t:2", "function_call"),
        ("", "function_call_output"),
    ]
    assert found.rows[-1].preview == "aborted"
    assert recorded("n_kill_mid_tool").unanswered


def test_item_whose_picture_is_left_out_keeps_its_address():
    picture: Item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    found = view(ItemRecorded(picture), profile=Profile(slug="m", input_modalities=("text",)))
    assert found.rows[0].address == "t:1"
    assert found.rows[0].preview.startswith("image content omitted")


def test_steers_that_wait_are_told():
    assert view(SteerQueued("msg_1", "only\x1b[2J billing/")).steers == ("only[2J billing/",)


def test_gauge_starts_from_the_providers_count_where_there_is_one():
    usage = Usage(input_tokens=40_000, output_tokens=1_000, total_tokens=41_000)
    said, more = ItemRecorded(message("assistant", ["hi"])), ItemRecorded(message("user", ["x" * 4_000]))
    counted = view(said, UsageCounted(usage, usage), more)
    assert counted.counted and 42_000 <= counted.used <= 42_100
    assert counted.limit == 90_000 and counted.context_window == 100_000
    assert counted.percent_left is not None and 60 <= counted.percent_left <= 70
    guessed = view(said, more)
    assert not guessed.counted and guessed.used < 2_000


def test_unknown_window_is_not_guessed():
    found = view(profile=Profile(slug="m", context_window=None))
    assert (found.limit, found.context_window, found.percent_left) == (None, None, None)


def test_base_instructions_are_a_row_on_one_clean_line():
    found = view(base_instructions="Be\n\x1b[1m brief.\n" + "x" * 900)
    assert (found.rows[0].kind, found.rows[0].origin, found.rows[0].address) == ("developer", "base", "t:0")
    assert found.rows[0].preview.startswith("Be [1m brief. xx") and len(found.rows[0].preview) == 200


def test_previews_are_one_clean_line():
    found = view(ItemRecorded(message("user", ["a\n\x9b  b\r\x07c" + "d" * 500])))
    assert found.rows[0].preview.startswith("a bcd") and len(found.rows[0].preview) == 200
