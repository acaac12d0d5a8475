"""Transcript: a log as a story, with its addresses, its damage, and what this version does not understand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import Item, message
from refold.core.lines import decode
from refold.core.records import (
    Compacted,
    CompactionAttempted,
    EventKept,
    ItemRecorded,
    Line,
    LineKept,
    Record,
    RolledBack,
    SessionStarted,
    SteerQueued,
    TurnEnded,
    TurnStarted,
    Window,
)
from refold.rollout import read_lines
from refold.views import Row, Transcript, transcript
from refold.views.shown import shown_text

DATA = Path(__file__).parents[1] / "data"
ROLLOUTS = DATA / "oracle" / "rollouts"
CASES = DATA / "cases"


def story(*records: Record) -> Transcript:
    started = SessionStarted(thread_id="t", timestamp="2026-01-01T00:00:00Z", cwd="/w")
    return transcript(Line(number, record) for number, record in enumerate([started, *records]))


def row(record: Record) -> Row:
    return story(record).rows[1]


def item_row(item: Item) -> Row:
    return row(ItemRecorded(item))


# --- recorded sessions ------------------------------------------------------------------------------------------------


def test_recorded_session_reads_as_it_went():
    told = transcript(read_lines(ROLLOUTS / "e_midturn.jsonl"))
    kinds = [one.kind for one in told.rows if one.kind not in ("turn", "note", "context")]
    assert kinds == [
        *("session", "user", "assistant"),
        *("user", "call", "output", "call", "output"),
        *("assistant", "compaction"),  # the summary, as the model said it
        *("call", "output", "assistant", "user", "assistant"),
    ]
    assert not told.warnings


@pytest.mark.parametrize("path", sorted(ROLLOUTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_everything_that_was_said_is_in_the_story_at_its_address(path):
    told = {one.address: one for one in transcript(read_lines(path)).rows}
    raw = [json.loads(line) for line in path.read_bytes().splitlines()]
    thread_id = raw[0]["payload"]["id"]
    for line in raw:
        if line["type"] == "response_item" and line["payload"]["type"] == "message":
            texts = [part.get("text") for part in line["payload"]["content"]]
            text = "".join(one for one in texts if isinstance(one, str))  # a long one is recorded by its hash
            assert text in told[f"{thread_id}:{line['ordinal']}"].text


def test_copied_ancestry_is_not_a_second_session():
    told = transcript(read_lines(CASES / "S26-fork-identity" / "child.jsonl"))
    assert [one.title[-4:] for one in told.rows if one.kind == "session"] == ["0402"]
    assert {one.address.rpartition(":")[0][-4:] for one in told.rows} == {"0402"}
    assert Counter(one.kind for one in told.rows)["user"] == 2  # S26.2


def test_what_a_newer_version_wrote_is_counted_by_its_type():
    told = transcript(read_lines(CASES / "S21-records-from-a-newer-version" / "rollout.jsonl"))
    assert told.unknown == {
        "token_usage_record": 1,
        "security_risk_score": 1,
        "quantum_call": 1,
        "brand_new_event": 1,
    }  # S21.1
    assert not told.warnings
    assert [one.text for one in told.rows if one.kind == "user"] == ["Draw the module graph."]  # S21.3


@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("S18-partial-line/tail_cut.jsonl", 1),
        ("S18-partial-line/glued.jsonl", 1),
        ("S20-invalid-utf8-bytes/rollout.jsonl", 2),
    ],
)
def test_damage_is_a_warning_with_its_place(case, count):
    told = transcript(read_lines(CASES / case))
    assert len(told.warnings) == count
    assert all(warning.startswith("line ") and ", byte " in warning for warning in told.warnings)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_ordinary_rows_name_their_kind():
    call: Item = {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "c1"}
    custom: Item = {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"}
    reasoning: Item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I think"}]}
    assert item_row(message("user", ["hi"])) == Row("t:1", "user", "hi")
    assert item_row(message("assistant", ["yes"])) == Row("t:1", "assistant", "yes")
    assert item_row(message("developer", ["rules"])) == Row("t:1", "context", "rules", "developer")
    assert item_row(call) == Row("t:1", "call", 'exec_command {"cmd":"ls"}', "c1")
    assert item_row(custom) == Row("t:1", "call", "apply_patch *** Begin", "c2")
    assert item_row(reasoning) == Row("t:1", "reasoning", "I think")
    assert item_row({"type": "reasoning", "summary": [], "encrypted_content": "x"}).text == "[not shown by the model]"
    assert item_row({"type": "function_call_output", "call_id": "c1", "output": "ok"}) == Row(
        "t:1", "output", "ok", "c1"
    )
    assert item_row({"type": "compaction", "encrypted_content": "x" * 5000}).text == "[encrypted, 5,000 characters]"


def test_media_is_a_note_not_its_bytes():
    picture: Item = {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        ],
    }
    assert item_row(picture).text == "look\n[input_image]"


def test_events_that_matter_are_notes():
    assert row(TurnStarted("one")) == Row("t:1", "turn", "", "one")
    assert (
        row(TurnEnded(turn_id="one", outcome="failed", error="no", duration_ms=1500)).text == "failed after 1.5 s: no"
    )
    assert row(RolledBack(2)).title == "rolled back"
    assert row(SteerQueued("m", "and this")) == Row("t:1", "note", "and this", "steer waits")
    assert row(EventKept({"type": "error", "message": "oh"})) == Row("t:1", "note", "oh", "error")
    assert (
        row(CompactionAttempted(method="local", outcome="too large", dropped=3)).text == "too large (3 items left out)"
    )
    assert story(CompactionAttempted(method="local", outcome="completed")).rows[1:] == ()
    assert story(EventKept({"type": "token_count"})).rows[1:] == ()


def test_compaction_says_what_it_kept_and_won():
    kept = Compacted(
        message="m",
        history=({"type": "message"},) * 3,
        window=Window(2),
        facts={"tokens_before": 9000, "tokens_after": 500},
    )
    assert row(kept).text == "3 items, 9,000 → 500 tokens, window 2\nm"
    assert row(Compacted(message="", history=None)).text == "no history list"
    assert row(Compacted(message="", history=(), facts={"tokens_before": "?"})).text == "0 items"


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (LineKept("future", {}), "future"),
        (LineKept("response_item", {"type": "ghost_snapshot"}), "ghost_snapshot"),
        (LineKept("response_item", {"type": 5}), "response_item"),
        (LineKept("refold", {"kind": "later"}), "refold later"),
        (ItemRecorded({"type": "quantum_call"}), "quantum_call"),
        (EventKept({"type": "new_event"}), "new_event"),
        (EventKept({"type": ["odd"]}), "['odd']"),
    ],
)
def test_unknown_kinds_are_counted_under_the_name_that_tells_most(record, kind):
    assert story(record, record).unknown == {kind: 2}


# --- control characters ---------------------------------------------------------------------------------------------

EVIL = "\x1b[31m\x07\x9b2J\x08\r\x00\x7f\u202e\u2066x\ty\nz"


def strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for part in pair for text in strings(part)]
        case list() | tuple():
            return [text for part in value for text in strings(part)]
        case _:
            return []


def test_no_control_character_of_a_log_is_in_the_story():
    lines = [
        {"type": "session_meta", "payload": {"id": f"t{EVIL}", "timestamp": EVIL, "cwd": EVIL}},
        {"type": "response_item", "payload": message("user", [EVIL])},
        {"type": "response_item", "payload": message("assistant", [EVIL])},
        {
            "type": "response_item",
            "payload": {"type": "function_call", "name": EVIL, "arguments": EVIL, "call_id": EVIL},
        },
        {"type": "response_item", "payload": {"type": "function_call_output", "call_id": EVIL, "output": EVIL}},
        {"type": "response_item", "payload": {"type": f"odd{EVIL}", "a": EVIL}},
        {"type": "event_msg", "payload": {"type": "task_started", "turn_id": EVIL}},
        {"type": "event_msg", "payload": {"type": "error", "message": EVIL}},
        {"type": "event_msg", "payload": {"type": EVIL}},
        {"type": EVIL, "payload": {}},
        {"type": "refold", "payload": {"kind": "steer_queued", "item_id": "m", "text": EVIL}},
        {"type": "refold", "payload": {"kind": "compaction_attempted", "method": "local", "outcome": EVIL}},
    ]
    raw = [json.dumps(line).encode() for line in lines] + [f"{EVIL} not json".replace("\n", "").encode()]
    found = [line for number, one in enumerate(raw, 1) if (line := decode(one, number)) is not None]
    told = transcript(found)
    assert len(told.rows) >= 11
    everything = strings([(one.address, one.title, one.text) for one in told.rows] + [told.unknown, told.warnings])
    assert not {sign for text in everything for sign in text} & set("\x1b\x07\x9b\x08\r\x00\x7f\u202e\u2066")
    assert shown_text(message("user", [EVIL])) == "[31m2Jx\ty\nz"
