"""Bad input: what hosts, models and tools hand over although they should not, from the record to the resumed request.

Each kind has one defined behaviour, whichever way it comes in; the record keeps it, and the request stays legal.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from refold.core.items import Item, content_parts, message, message_text
from refold.core.jsonio import load
from refold.core.profile import Profile, Provider
from refold.core.records import ItemRecorded, SettingsApplied, SteerQueued, TurnStarted, WorldObserved
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget, exec_output, recording_budget
from refold.core.wire import Identity, Wire
from refold.errors import RefoldError
from refold.rollout import read_lines
from refold.session import Session
from refold.session.memory import Memory, read_thread
from refold.testing import ScriptedModel
from refold.tools.collector import Collector
from refold.views.shown import clean, shown_text

sys.path.insert(0, str(Path(__file__).parent.parent / "soak"))
from legal import faults

PROFILE = Profile(slug="m", truncation=Budget("tokens", 1_000))
ALLOWED = recording_budget(PROFILE.truncation)
OPENAI, OTHER = Provider(), Provider(id="other", name="Other")
USER = message("user", ["hi"])
CALL: Item = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c", "id": "fc_1"}
EDIT: Item = {"type": "custom_tool_call", "name": "edit", "input": "x", "call_id": "c", "id": "ctc_1"}

WAYS = ("add", "record", "record as it is", "foreign file")


def output(value: Any, kind: str = "function_call_output") -> Item:
    return {"type": kind, "id": "fco_1", "call_id": "c", "output": value}


def memory_of(folder: Path, *items: Item, way: str = "add") -> Memory:
    """A session that holds these items, which came in this way."""
    memory = Memory.open(folder, model=PROFILE)
    memory.add({**USER, "id": "msg_1"})
    for item in items:
        match way:
            case "add":
                memory.add(item)
            case "record":
                memory.record(memory.item(item))
            case "record as it is":
                memory.record(ItemRecorded(item))
            case _:
                memory.close()
                line = {"ordinal": memory.thread.next_ordinal, "type": "response_item", "payload": item}
                with path_of(memory).open("a") as file:
                    file.write(json.dumps({"timestamp": "", **line}) + "\n")
                memory = Memory.open(folder, model=PROFILE)
    return memory


def path_of(memory: Memory) -> Path:
    assert memory.path is not None
    return memory.path


def sent(memory: Memory) -> list[Item]:
    """What is sent after the greeting, for a session that resumes to what it is, and whose requests are legal."""
    resumed = read_thread(path_of(memory))
    assert same_state(resumed, memory.thread)
    bodies = requests(memory)
    for raw, provider in zip(bodies, (OPENAI, OTHER), strict=True):
        assert faults(raw, provider) == []
    memory.close()
    with Memory.open(path_of(memory), model=PROFILE) as again:
        assert requests(again) == bodies
    return json.loads(bodies[1].decode("utf-8", "strict"))["input"][1:]


def requests(memory: Memory) -> list[bytes]:
    prompt = memory.prompt()
    return [Wire(provider, PROFILE).request(prompt, Identity(thread_id="T")).body() for provider in (OPENAI, OTHER)]


def recorded(memory: Memory) -> list[Item]:
    """The items in the log after the greeting."""
    records = [line.record for line in read_lines(path_of(memory))]
    return [record.item for record in records if isinstance(record, ItemRecorded)][1:]


# --- halves of surrogate pairs ---------------------------------------------------------------------------------------

HALVES, WHOLE = "a \ud83d b \ude00 c \ud83d\ude80", "a \ufffd b \ufffd c \U0001f680"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "item",
    [
        message("assistant", [HALVES], id="msg_2"),
        {**USER, "id": f"msg_{HALVES}"},
        {**USER, "id": "msg_2", "of_tomorrow": [HALVES]},
        {**USER, "id": "msg_2", HALVES: 1},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": HALVES}]},
        {**CALL, "arguments": f'{{"cmd":"{HALVES}"}}'},
        {**CALL, "arguments": {"cmd": HALVES}},
        {**CALL, "id": f"fc_{HALVES}"},
        {**EDIT, "input": HALVES},
    ],
    ids=["text", "id", "unknown value", "key", "summary", "arguments", "arguments as object", "id of a call", "input"],
)
def test_half_a_surrogate_pair_becomes_one_replacement_character_everywhere(
    item: Item, way: str, tmp_path: Path
) -> None:
    memory = memory_of(tmp_path, item, way=way)
    asked = sent(memory)
    for told in (asked[0], recorded(memory)[0], memory.thread.history[1].item):
        text = json.dumps(told, ensure_ascii=False)
        assert WHOLE in text
        assert text.count("\ufffd") == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_call_and_its_output_find_each_other_by_a_call_id_that_was_mended(way: str, tmp_path: Path) -> None:
    pair = {**CALL, "call_id": "c\ud83d"}, {**output("seen"), "call_id": "c\ud83d"}
    asked = sent(memory_of(tmp_path, *pair, way=way))
    assert [(item["call_id"], item.get("output")) for item in asked] == [("c\ufffd", None), ("c\ufffd", "seen")]


@pytest.mark.parametrize(
    "record",
    [
        SettingsApplied({"cwd": "caf\udce9"}),
        WorldObserved(True, {"cwd": "caf\udce9"}),
        TurnStarted("\ud83d"),
        SteerQueued("msg_\ud83d", "\ud83d"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_what_stands_beside_the_items_is_mended_too(record: Any, tmp_path: Path) -> None:
    """A folder whose name is not UTF-8 comes as half surrogate pairs."""
    with memory_of(tmp_path) as memory:
        memory.record(record)
        assert same_state(read_thread(path_of(memory)), memory.thread)


def test_base_instructions_are_mended_too(tmp_path: Path) -> None:
    with Memory.open(tmp_path, model=PROFILE, instructions="Be \ud83d terse.") as memory:
        memory.add(USER)
        live, resumed = memory.prompt().base_instructions, read_thread(path_of(memory)).base_instructions
        assert ascii([live, resumed]) == ascii(["Be \ufffd terse."] * 2)


# --- bytes that are not UTF-8 ----------------------------------------------------------------------------------------


def test_bytes_of_a_command_that_are_not_utf8_are_replaced_and_whole_characters_survive_the_pipe(
    tmp_path: Path,
) -> None:
    collector = Collector()
    for chunk in (
        b"caf\xe9 \xff\xfe ok \xe6",
        b"\xbc\xa2 cut \xe6\xbc",
    ):  # 漢 comes in two pieces, then a third one ends
        collector.feed(chunk)
    text = exec_output(collector.captured(), PROFILE.truncation, chunk_id="000000", wall_seconds=0, exit_code=0)
    memory = memory_of(tmp_path, CALL, output(text))
    told = sent(memory)[1]["output"].partition("Output:\n")[2]
    assert told == "caf\ufffd \ufffd\ufffd ok 漢 cut \ufffd"
    assert recorded(memory)[1]["output"].endswith(told)


def test_bytes_of_a_file_that_are_not_utf8_are_replaced_and_stay_in_the_file(tmp_path: Path) -> None:
    memory = memory_of(tmp_path, {**USER, "id": "msg_2", "content": "caf\u00e9 ok"})
    memory.close()
    path = path_of(memory)
    broken = path.read_bytes().replace("\u00e9".encode(), b"\xe9")
    path.write_bytes(broken)
    with Memory.open(path, model=PROFILE) as again:
        assert sent(again)[0]["content"] == "caf\ufffd ok"
    assert path.read_bytes() == broken


# --- control characters ----------------------------------------------------------------------------------------------

CONTROL = "a\x00b\x1b[31mred\x1b[0m\x1b]0;title\x07\r\n\tc\x7f\x9b"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "item",
    [message("user", [CONTROL], id="msg_2"), {**CALL, "arguments": CONTROL}, {**EDIT, "input": CONTROL}],
    ids=["text", "arguments", "input"],
)
def test_nul_and_escape_sequences_are_kept_and_sent_and_only_hidden_from_a_reader(
    item: Item, way: str, tmp_path: Path
) -> None:
    memory = memory_of(tmp_path, item, way=way)
    assert recorded(memory) == [item]
    assert sent(memory)[0] == item
    assert clean(CONTROL) == "ab[31mred[0m]0;title\n\tc"
    assert shown_text(item).endswith(clean(CONTROL))


def test_control_characters_of_a_command_are_kept_and_sent(tmp_path: Path) -> None:
    memory = memory_of(tmp_path, CALL, output(CONTROL))
    assert sent(memory)[1]["output"] == recorded(memory)[1]["output"] == CONTROL


# --- one line of 60 MB -----------------------------------------------------------------------------------------------

HUGE = 60_000_000


@pytest.mark.parametrize("letter", ["x", "漢", '"', "\x00"], ids=["ascii", "wide", "quotes", "nul"])
def test_a_line_of_60_mb_is_cut_to_the_recording_budget_quickly(letter: str, tmp_path: Path) -> None:
    line = "<" + letter * (HUGE // len(letter.encode())) + ">"
    with memory_of(tmp_path, CALL) as memory:
        began = time.perf_counter()
        memory.add(output(line))
        assert time.perf_counter() - began < 20, "a budget for a busy machine; it takes about half a second"
        (_, told) = sent(memory)
    head, marker, tail = told["output"].split("…")
    assert (head[:2], tail[-2:]) == ("<" + letter, letter + ">")
    assert len((head + tail).encode()) <= ALLOWED.bytes
    assert marker == f"{-(-(len(line.encode()) - ALLOWED.bytes) // 4)} tokens truncated"
    assert path_of(memory).stat().st_size < 50_000


def test_a_line_of_60_mb_needs_no_more_than_a_few_copies_of_it(tmp_path: Path) -> None:
    item = output("x" * HUGE)
    with memory_of(tmp_path, CALL) as memory:
        tracemalloc.start()
        try:
            memory.add(item)
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 * HUGE
    assert kept < 1_000_000


def test_a_command_that_writes_60_mb_is_held_in_constant_memory() -> None:
    chunk = b"x" * 65_536
    collector = Collector()
    tracemalloc.start()
    try:
        for _ in range(HUGE // len(chunk)):
            collector.feed(chunk)
        text = exec_output(collector.captured(), PROFILE.truncation, chunk_id="000000", wall_seconds=0, exit_code=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
    assert f"Original token count: {HUGE // len(chunk) * len(chunk) // 4}\n" in text
    assert len(text.encode()) <= ALLOWED.bytes


# --- outputs that are no text ----------------------------------------------------------------------------------------


def part(text: str) -> Item:
    return {"type": "input_text", "text": text}


NO_TEXT = [
    (5, "5"),
    (0, "0"),
    (1.5, "1.5"),
    (False, "false"),
    (None, ""),
    ({"a": 1}, '{"a":1}'),
    ({}, "{}"),
    ([], []),
    (["seen"], [part("seen")]),
    ([5, None, part("seen")], [part("5"), part(""), part("seen")]),
    ([["a"]], [part('["a"]')]),
    ([{"type": "input_text", "text": 5}], None),
    ([{"type": ["odd"], "text": "seen"}], None),
    ([{}], None),
]


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("given", "expected"), NO_TEXT, ids=[json.dumps(given) for given, _ in NO_TEXT])
def test_an_output_that_is_no_text_is_kept_as_it_came_and_sent_as_its_json(
    given: Any, expected: Any, way: str, kind: str, tmp_path: Path
) -> None:
    """None = a list of objects, which goes out as it is: what its parts mean is for the provider to say."""
    call = CALL if kind == "function_call_output" else EDIT
    memory = memory_of(tmp_path, call, output(given, kind), way=way)
    assert sent(memory)[1]["output"] == (given if expected is None else expected)
    assert recorded(memory)[1]["output"] == given


def test_an_output_that_is_missing_is_sent_as_no_text(tmp_path: Path) -> None:
    bare = {"type": "function_call_output", "call_id": "c"}
    assert sent(memory_of(tmp_path, CALL, bare, way="record as it is"))[1]["output"] == ""


@pytest.mark.parametrize("way", ["add", "record"])
@pytest.mark.parametrize(
    "given", [{"a": "x" * 1_000_000}, ["x" * 1_000_000], [["x" * 1_000_000]]], ids=["object", "list", "deep list"]
)
def test_a_huge_output_that_is_no_text_is_cut_as_a_text_would_be(given: Any, way: str, tmp_path: Path) -> None:
    (_, told) = sent(memory_of(tmp_path, CALL, output(given), way=way))
    assert "truncated…" in message_text(told)
    assert len(message_text(told).encode()) <= ALLOWED.bytes + len("…250000 tokens truncated…".encode())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("content", [5, None, {"a": 1}, ["seen"], [None]], ids=json.dumps)
def test_a_message_that_is_no_text_is_kept_as_it_came_and_sent_as_text(content: Any, way: str, tmp_path: Path) -> None:
    item = {**USER, "id": "msg_2", "content": content}
    memory = memory_of(tmp_path, item, way=way)
    (told,) = sent(memory)
    assert all(isinstance(one.get("text"), str) for one in content_parts(told))
    assert recorded(memory) == [item]


# --- call ids that come again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_call_id_that_comes_again_is_sent_as_another_one_and_recorded_as_it_came(way: str, tmp_path: Path) -> None:
    again, second = {**CALL, "id": "fc_2"}, {**output("two"), "id": "fco_2"}
    items = [CALL, output("one"), again, second]
    memory = memory_of(tmp_path, *items, way=way)
    asked = sent(memory)
    assert [item.get("output") for item in asked] == [None, "one", None, "two"]
    assert asked[0]["call_id"] == asked[1]["call_id"] == "c"
    assert asked[2]["call_id"] == asked[3]["call_id"] != "c"
    assert recorded(memory) == items


@pytest.mark.parametrize("way", WAYS)
def test_a_second_output_of_one_call_is_recorded_and_not_sent(way: str, tmp_path: Path) -> None:
    items = [CALL, output("one"), {**output("two"), "id": "fco_2"}]
    memory = memory_of(tmp_path, *items, way=way)
    assert sent(memory) == items[:2]
    assert recorded(memory) == items


@pytest.mark.parametrize("way", WAYS)
def test_an_output_before_its_call_is_recorded_and_sent_behind_it(way: str, tmp_path: Path) -> None:
    memory = memory_of(tmp_path, output("early"), CALL, way=way)
    assert sent(memory) == [CALL, output("early")]
    assert recorded(memory) == [output("early"), CALL]


@pytest.mark.parametrize("kinds", [(CALL, EDIT), (CALL, CALL)], ids=["of two kinds", "of one kind"])
def test_what_was_sent_may_be_recorded_again(kinds: tuple[Item, Item], tmp_path: Path) -> None:
    """A host that keeps the whole input of a request and adds it all: no id is used twice."""
    memory = memory_of(tmp_path, *kinds)
    memory.add(memory.prompt().input)
    memory.add(memory.prompt().input)
    sent(memory)


# --- arguments that are not JSON -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{not json", "{not json"),
        ("", ""),
        ("null", "null"),
        ({"cmd": "é"}, '{"cmd":"é"}'),
        (["ls"], '["ls"]'),
        (5, "5"),
        (False, "false"),
    ],
    ids=str,
)
def test_arguments_are_kept_as_they_came_and_sent_as_text(given: Any, expected: str, way: str, tmp_path: Path) -> None:
    call = {**CALL, "arguments": given}
    memory = memory_of(tmp_path, call, output("seen"), way=way)
    assert sent(memory)[0] == {**CALL, "arguments": expected}
    assert recorded(memory)[0] == call


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", [CALL, EDIT], ids=["arguments", "input"])
def test_a_call_without_a_text_for_what_it_wants_is_sent_with_one(call: Item, way: str, tmp_path: Path) -> None:
    key = "arguments" if call is CALL else "input"
    for number, odd in enumerate(({**call, key: None}, {name: call[name] for name in call if name != key})):
        memory = memory_of(tmp_path / str(number), odd, way=way)
        assert isinstance(sent(memory)[0][key], str)
        assert recorded(memory)[0] == odd


# --- the rest --------------------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [nested(300), [nested(100), "\ud83d"]], ids=["300 levels", "to be mended"])
def test_what_is_nested_deeply_is_kept(value: Any, way: str, tmp_path: Path) -> None:
    (told,) = sent(memory_of(tmp_path, {**USER, "id": "msg_2", "of_tomorrow": value}, way=way))
    assert len(json.dumps(told["of_tomorrow"])) >= 200


@pytest.mark.parametrize("way", ["add", "record"])
def test_what_is_nested_too_deeply_is_refused_with_nothing_written(way: str, tmp_path: Path) -> None:
    memory = memory_of(tmp_path)
    before = path_of(memory).read_bytes()
    deep = {**USER, "id": "msg_2", "of_tomorrow": nested(100_000)}
    with pytest.raises((RefoldError, ValueError), match="nested too deeply"):
        memory.add(deep) if way == "add" else memory.record(memory.item(deep))
    assert path_of(memory).read_bytes() == before
    assert same_state(read_thread(path_of(memory)), memory.thread)
    memory.close()


@pytest.mark.parametrize("way", ["add", "record"])
def test_however_deeply_it_is_nested_what_was_recorded_can_be_read_again(way: str, tmp_path: Path) -> None:
    """Also by a program that stands deeper in its own calls when it resumes."""
    for depth in (*range(800, 920, 10), *range(920, 1_000)):
        memory = memory_of(tmp_path / str(depth))
        try:
            item = {**USER, "id": "msg_2", "of_tomorrow": nested(depth)}
            memory.add(item) if way == "add" else memory.record(memory.item(item))
        except (RefoldError, ValueError, RecursionError):
            assert len(memory.thread.history) == 1
        memory.close()
        for frames in (0, 200):
            resumed = from_deep_within(frames, path_of(memory))
            assert len(resumed.history) == len(memory.thread.history), f"lost at {depth} levels, {frames} calls deep"


def from_deep_within(frames: int, path: Path) -> Thread:
    return read_thread(path) if frames == 0 else from_deep_within(frames - 1, path)


def test_a_number_beyond_all_bounds_is_the_same_live_and_resumed(tmp_path: Path) -> None:
    """JSON may hold 1e999; Python reads infinity, and can write none."""
    item = load(b'{"type":"message","id":"msg_2","role":"user","content":"x","of_tomorrow":1e999}')[0]
    memory = memory_of(tmp_path, item, way="record")
    assert sent(memory)[0] == memory.thread.history[1].item


def test_bad_items_at_once_leave_a_log_that_folds_to_what_is_live(tmp_path: Path) -> None:
    memory = memory_of(tmp_path, {**CALL, "id": 5, "arguments": {"a": "\ud83d"}}, output("\x00\x1b[0m"), EDIT, CALL)
    assert len(sent(memory)) == 6
    assert same_state(Thread.replay(memory.store.lines()), memory.thread)


def test_whatever_was_recorded_can_be_forked_and_compacted(tmp_path: Path) -> None:
    """A checkpoint holds an item a few levels deeper than its own line does."""
    memory = Memory.open(tmp_path, model=Profile(slug="m"))
    deepest = 0
    for levels in (400, 480, 485, 488, 490, 492, 495, 500):
        try:
            memory.add({"type": "web_search_call", "id": f"ws_{levels}", "action": nested(levels)})
            deepest = levels
        except RefoldError:
            break
    assert 480 <= deepest < 500
    ended = asyncio.run(memory.make_room(ScriptedModel(["SUMMARY"]), force=True))
    assert ended is not None
    memory.add({"type": "web_search_call", "id": "ws_again", "action": nested(deepest)})
    assert memory.path is not None
    memory.close()
    child = Session.fork(memory.path, model=ScriptedModel(["x"]), home=tmp_path)
    assert child.memory.thread.history[-1].item["id"] == "ws_again"
    child.memory.close()
