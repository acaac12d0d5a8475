"""Backward: which lines are enough, and when a file has to be read whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.compaction.carried import carried, carried_by
from refold.core.config import Config
from refold.core.items import message, message_text
from refold.core.profile import Profile
from refold.core.records import Compacted
from refold.core.thread import Thread, same_state
from refold.errors import RolloutCorrupt
from refold.model.scripted import ScriptedModel
from refold.rollout.backward import Tail, tail_of
from refold.rollout.reader import read_lines
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread
from refold.testing import text_reply, usage

HOLE = 8 << 30  # bytes that are not on any disk
PROFILE = Profile(slug="m", context_window=50_000)


def line(kind: str, payload: Any, **beside: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00.000Z", "type": kind, "payload": payload, **beside}


def event(kind: str, **told: Any) -> dict[str, Any]:
    return line("event_msg", {"type": kind, **told})


def said(text: str) -> dict[str, Any]:
    return line("response_item", message("user", [text]))


def checkpoint(text: str, **told: Any) -> dict[str, Any]:
    history = [message("user", [text])]
    return line("compacted", {"message": "m", "replacement_history": history, "window_number": 1, **told})


def counted(total: int) -> dict[str, Any]:
    told = {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10}
    return event("token_count", info={"last_token_usage": told, "total_token_usage": {**told, "total_tokens": total}})


META = line("session_meta", {"id": "t", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w"})


def written(folder: Path, *lines: dict[str, Any], numbered: bool = True) -> Path:
    path = folder / "rollout.jsonl"
    first = [{"timestamp": "", **({"ordinal": number} if numbered else {}), **one} for number, one in enumerate(lines)]
    path.write_bytes(b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in first))
    return path


def texts(tail: Tail) -> list[str]:
    return [message_text(e.item) for e in Thread.replay(tail.lines).history]


def ordinals(tail: Tail) -> list[int]:
    return [one.ordinal for one in tail.lines]


async def compacted(folder: Path) -> tuple[Path, Thread]:
    """A file of ours with a checkpoint, and the thread that wrote it."""
    model = ScriptedModel([text_reply("SUMMARY", usage=usage(100, 10))], profile=PROFILE)
    memory = Memory.new(folder, PROFILE, Config(), Clock(), cwd="/w", instructions="BASE")
    with memory:
        memory.add(message("user", ["one"]))
        await memory.make_room(model, force=True)
        memory.add(message("user", ["two"]))
        assert memory.path is not None
        return memory.path, memory.thread


# --- what is read ----------------------------------------------------------------------------------------------------


def test_nothing_between_the_identity_and_a_checkpoint_of_ours_is_read(tmp_path: Path) -> None:
    path, live = asyncio.run(compacted(tmp_path))
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(number for number, raw in enumerate(lines) if b'"type":"compacted"' in raw)
    with path.open("wb") as file:
        file.write(lines[0])
        file.seek(HOLE, 1)
        file.write(b"\n" + b"".join(lines[at:]))
    assert same_state(read_thread(path), live)
    with pytest.raises(RolloutCorrupt, match="is longer than"):
        list(read_lines(path))


def test_a_checkpoint_carries_what_a_thread_holds_beside_its_history(tmp_path: Path) -> None:
    path, live = asyncio.run(compacted(tmp_path))
    (record,) = [one.record for one in read_lines(path) if isinstance(one.record, Compacted)]
    told = carried_by(record, live.id)
    assert told is not None and (told.thread, told.sent, told.compactions) == (live.id, 1, 0)
    assert set(told.known) == live.known and told.used.total_tokens == 110
    assert carried_by(record, "another thread's copy") is None
    assert carried(live, settings={"model": "m"})["carried"]["compactions"] == 1
    assert carried(live, settings=None)["carried"].get("settings") == live.settings


def test_before_a_checkpoint_of_another_program_only_what_still_matters_is_taken(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        META,
        event("task_started", turn_id="a"),
        said("one"),
        line("turn_context", {"model": "old"}),
        line("turn_context", {"model": "new"}),
        counted(10),
        event("task_complete", turn_id="a"),
        counted(20),
        event("task_started", turn_id="b", model_context_window=77),
        counted(30),
        checkpoint("SUMMARY"),
        said("two"),
    )
    tail = tail_of(path)
    assert (tail.is_whole, tail.is_alone) == (False, False)
    thread = Thread.replay(tail.lines)
    assert [one.ordinal for one in tail.lines if one.ordinal >= 10] == [10, 11] and len(tail.lines) == 9
    assert (thread.turns, thread.open_turn, thread.usable_window, thread.settings) == (2, "b", 77, {"model": "new"})
    assert (thread.used_before_turn.total_tokens, thread.total_usage.total_tokens) == (20, 30)


def test_ordinals_are_line_numbers_where_a_file_has_none(tmp_path: Path) -> None:
    path = written(tmp_path, META, said("one"), said("two"), checkpoint("SUMMARY"), said("three"), numbered=False)
    assert ordinals(tail_of(path, block=16)) == [1, 4, 5]


def test_damage_behind_a_checkpoint_has_its_line_number(tmp_path: Path) -> None:
    path = written(tmp_path, META, said("one"), checkpoint("SUMMARY"), said("two"))
    with path.open("ab") as file:
        file.write(b'{"timestamp":"","ordinal":4,"type":"respo')
    assert ordinals(tail_of(path)) == [0, 2, 3, 5]


def test_a_line_that_only_talks_of_checkpoints_is_none(tmp_path: Path) -> None:
    talk = said('"type":"compacted","payload":{"replacement_history":[]} thread_rolled_back')
    path = written(tmp_path, META, said("one"), checkpoint("SUMMARY"), talk, event("x", item={"type": "compacted"}))
    assert ordinals(tail_of(path)) == [0, 2, 3, 4]
    assert tail_of(written(tmp_path, META, talk, event("x", item={"type": "compacted"}))).is_whole


def test_an_undo_after_a_resume_still_knows_the_shadow_of_an_older_encrypted_item(tmp_path: Path) -> None:
    def sealed(content: str, **told: Any) -> dict[str, Any]:
        item = {"type": "compaction", "encrypted_content": content}
        own = {"method": "remote", "steers": {}, "shadow": f"what {content} holds", "provider": "p", **told}
        return line("compacted", {"message": "", "replacement_history": [item], "window_number": 1, "refold": own})

    carries = {"carried": {"thread": "t", "compactions": 1}}
    path = written(tmp_path, META, said("one"), sealed("older"), said("two"), sealed("newer", **carries), said("three"))
    assert ordinals(tail_of(path)) == [0, 4, 5] and set(read_thread(path).shadows) == {"newer"}
    with Memory.reopen(path, PROFILE, Config(), Clock()) as memory:
        memory.undo()
        assert {seal: one.text for seal, one in memory.thread.shadows.items()} == {"older": "what older holds"}
    assert same_state(read_thread(path), memory.thread)


# --- which one counts ------------------------------------------------------------------------------------------------

TURN = event("task_started", turn_id="a")
ROLLBACK = event("thread_rolled_back", num_turns=1)


def test_a_checkpoint_that_a_rollback_undid_does_not_count(tmp_path: Path) -> None:
    first, second = checkpoint("FIRST"), checkpoint("SECOND")
    path = written(tmp_path, META, TURN, said("one"), first, TURN, said("two"), second, ROLLBACK, said("three"))
    tail = tail_of(path)
    assert not tail.is_whole and texts(tail) == ["FIRST", "three"]


def test_a_checkpoint_that_stands_before_the_undone_turns_counts(tmp_path: Path) -> None:
    path = written(tmp_path, META, TURN, said("one"), checkpoint("FIRST"), TURN, said("two"), ROLLBACK, said("three"))
    tail = tail_of(path)
    assert not tail.is_whole and texts(tail) == ["FIRST", "three"]


def test_a_rollback_of_the_only_checkpoint_brings_back_what_it_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, META, TURN, said("one"), TURN, said("two"), checkpoint("FIRST"), ROLLBACK, said("three"))
    tail = tail_of(path)
    assert tail.is_whole and texts(tail) == ["one", "three"]


@pytest.mark.parametrize(
    "before",
    [
        [ROLLBACK],
        [line("refold", {"kind": "steer_queued", "item_id": "m", "text": "wait"})],
        [line("event_msg", {"type": "task_started"}), META],
    ],
    ids=["a rollback", "a steer", "a late identity"],
)
def test_a_file_is_read_whole_where_its_items_matter(before: list[Any], tmp_path: Path) -> None:
    first = [] if META in before else [META]
    path = written(tmp_path, *first, *before, said("one"), checkpoint("SUMMARY"), said("two"))
    tail = tail_of(path)
    assert tail.is_whole and same_state(Thread.replay(tail.lines), Thread.replay(read_lines(path)))


def test_a_checkpoint_of_2025_is_no_place_to_begin(tmp_path: Path) -> None:
    bare = line("compacted", {"message": "SUMMARY"})
    assert tail_of(written(tmp_path, META, said("one"), bare, said("two"))).is_whole
    assert ordinals(tail_of(written(tmp_path, META, said("zero"), checkpoint("S"), said("one"), bare))) == [0, 2, 3, 4]


def test_damaged_line_that_begins_like_a_checkpoint_is_passed_once(tmp_path: Path) -> None:
    path = written(tmp_path, META, said("zero"), checkpoint("S"), said("one"))
    with path.open("ab") as file:
        file.write(b'{"a":"compacted"}\n"compacted"\n' + json.dumps(said("two")).encode() + b"\n")
    for block in range(20, 200):
        assert texts(tail_of(path, block=block)) == ["S", "one", "two"]


@pytest.mark.parametrize("damage", [None, b'"OLD', b'"OLD","x":' + b"9" * 5_000])
def test_an_older_checkpoint_that_is_damaged_inside_is_not_counted(tmp_path: Path, damage: bytes | None) -> None:
    path = written(tmp_path, META, said("zero"), checkpoint("OLD"), said("one"), checkpoint("NEW"), said("two"))
    if damage:
        path.write_bytes(path.read_bytes().replace(b'"OLD"', damage))
    thread = Thread.replay(tail_of(path).lines)
    assert same_state(thread, Thread.replay(read_lines(path)))
    assert thread.compactions == (1 if damage else 2)


COUNT = '"info":{"last_token_usage":%s,"total_token_usage":{"input_tokens":7,"output_tokens":2,"total_tokens":9}'
COUNTS = [
    COUNT % '{"input_tokens":5,"output_tokens":1,"total_tokens":6,"of_tomorrow":1}' + ',"model_context_window":99}}}',
    COUNT % '{"input_tokens":5.0,"total_tokens":6}' + "}}}",
    COUNT % '{"input_tokens":"5"}' + "}}}",
    COUNT % '{"input_tokens":"five"}' + "}}}",
    COUNT % "null" + "}}}",
    COUNT % "{}" + ',"last_token_usage":{"input_tokens":3}}}}',
    COUNT % '{"input_tokens":5}' + '},"info":null}}',
    COUNT % '{"input_tokens":5}' + '},"type":"task_complete"}}',
    COUNT % '{"input_tokens":5}' + '}},"type":"turn_context","x":{}}',
    COUNT % '{"input_tokens":99999999999999999999}' + "}}}",
    COUNT % '{"input_tokens":5,"x":"\\ud83d"}' + "}}}",
    COUNT % '{"input_tokens":5' + "}}}",
    COUNT % '{"input_tokens":5,"of_tomorrow":' + "9" * 5_000 + "}}}",
    COUNT % '{"input_tokens":5}' + ',"model_context_window":' + '[{"a":' * 5_000 + "1" + "}]" * 5_000 + "}}}",
    '"info":{"last_token_usage":{"input_tokens":5}}}}',
    '"info":{}}}',
    '"info":null}}',
]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("behind", [False, True], ids=["without a checkpoint", "behind one"])
def test_a_count_of_tokens_is_the_same_read_the_quick_way(tmp_path: Path, count: str, behind: bool) -> None:
    path = written(tmp_path, META, said("one"), counted(4), *([checkpoint("S")] if behind else []), said("two"))
    start = b'{"timestamp":"2026-01-01T00:00:00.000Z","ordinal":9,"type":"event_msg","payload":{"type":"token_count",'
    path.write_bytes(path.read_bytes() + start + count.encode() + b"\n")
    assert same_state(read_thread(path), Thread.replay(read_lines(path)))


# --- as if it ended earlier ------------------------------------------------------------------------------------------


def test_lines_from_an_ordinal_on_can_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, META, said("one"), checkpoint("FIRST"), said("two"), checkpoint("SECOND"), said("three"))
    assert texts(tail_of(path)) == ["SECOND", "three"]
    assert texts(tail_of(path, before=5)) == ["SECOND"]
    assert texts(tail_of(path, before=4)) == ["FIRST", "two"]
    assert texts(tail_of(path, before=2)) == ["one"]
    with path.open("ab") as file:
        file.write(b"torn")
    assert texts(tail_of(path, before=4)) == ["FIRST", "two"]


# --- every field of a thread -----------------------------------------------------------------------------------------

# Where a thread that is read from a checkpoint of ours on has each of its fields from. A new one needs a place here.
FIELDS = {
    "the session_meta line": "id meta meta_ordinal",
    "the checkpoint": "history window world settings steers pins dropped_rules retained checkpoint restored",
    "what the checkpoint carries": "total_usage used_before_turn usage_told turns compactions known sent open_turn"
    " usable_window name",
    "it begins anew at a checkpoint": "last_usage counted window_prefix attempted shadows",
    "the lines behind it": "next_ordinal told_at",
    "it is computed": "_holds_seal _guessed",
    "of the lines that were read": "damaged",
}


def test_every_field_of_a_thread_is_known_from_its_newest_checkpoint_on() -> None:
    placed = [name for names in FIELDS.values() for name in names.split()]
    assert sorted(placed) == sorted(vars(Thread())), "a field that a checkpoint does not give is lost on resume"
