"""S21: what a newer version wrote is read, kept and counted, and what is not known is not sent (the reading part)."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from refold.core.items import enters_history, message
from refold.core.lines import decode, encode
from refold.core.profile import Profile
from refold.core.prompt import prompt_from
from refold.core.records import EventKept, ItemRecorded, Line, LineKept, SessionStarted, SettingsApplied
from refold.core.thread import Thread
from refold.rollout import Catalogue, FileStore, read_lines

CASE = Path(__file__).parent.parent / "data" / "cases" / "S21-records-from-a-newer-version"
FILE = CASE / "rollout.jsonl"
ID = "019c2000-0000-7000-8000-000000000015"


def lines() -> list[Line]:
    return list(read_lines(FILE))


def test_every_line_is_read_and_the_unknown_is_kept() -> None:
    assert [line.ordinal for line in lines()] == list(range(11))
    assert not [line for line in lines() if line.warning]
    unknown: Counter[str] = Counter()
    for line in lines():
        match line.record:
            case LineKept(type=kind):
                unknown[kind] += 1
            case ItemRecorded(item=item) if not enters_history(item):
                unknown[item["type"]] += 1
            case EventKept(payload={"type": kind}) if kind != "item_completed":
                unknown[kind] += 1
            case _:
                pass
    assert unknown == {"token_usage_record": 1, "security_risk_score": 1, "quantum_call": 1, "brand_new_event": 1}


def test_the_history_holds_what_is_known_and_nothing_else_is_sent() -> None:
    history = Thread.replay(lines()).history
    assert [e.item.get("role") or e.item["type"] for e in history] == ["user", "reasoning", "assistant"]
    sent = prompt_from(history, Profile(slug="m"), base_instructions=None).input
    assert "quantum_call" not in str(sent)
    assert len(sent) == 3


def test_the_first_text_is_that_of_the_item_once(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    shutil.copy(FILE, folder / f"rollout-2026-02-03T04-00-00-{ID}.jsonl")
    (found,) = Catalogue(tmp_path).sessions()
    assert found.first_text == "Draw the module graph."


def test_unknown_keys_survive_reading_and_writing() -> None:
    for line in lines():
        raw, own, _ = encode(line.record, thread_id=ID, turn_id=None, timestamp=line.timestamp, ordinal=line.ordinal)
        again = decode(raw.splitlines()[own], 1)
        assert again is not None
        if not isinstance(line.record, SessionStarted):
            assert again.record == line.record
    records = [line.record for line in lines()]
    started = records[0]
    assert isinstance(started, SessionStarted)
    assert started.payload["thread_source"] == "user"
    (settings,) = [record.settings for record in records if isinstance(record, SettingsApplied)]
    assert settings["new_knob"] == {"a": 1}
    assert any(isinstance(record, ItemRecorded) and record.item.get("phase") == "final_answer" for record in records)


def test_lines_that_are_appended_carry_the_next_ordinals(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    shutil.copy(FILE, path)
    thread = Thread.replay(read_lines(path))
    store = FileStore.reopen(path, thread.id, thread.next_ordinal)
    records = [ItemRecorded(message("developer", ["a"])), ItemRecorded(message("developer", ["b"]))]
    ordinals = store.append(records, turn_id=None, timestamp="2026-02-03T05:00:00.000Z")
    store.close()
    assert ordinals == [11, 12]
    assert [line.ordinal for line in read_lines(path)] == list(range(13))
