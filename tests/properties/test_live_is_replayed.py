"""The log is the session: a live thread, its log folded, and a log that a crash cut anywhere say the same."""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from refold.core.history import Entry, entry
from refold.core.items import Item, spelled
from refold.core.lines import decode
from refold.core.pairing import for_prompt
from refold.core.profile import Profile, Provider
from refold.core.prompt import Projection, Prompt, prompt_from
from refold.core.thread import Thread, same_state
from refold.core.wire import Identity, Wire
from refold.model.scripted import Reply
from refold.session.memory import read_thread
from refold.testing import text_reply

sys.path.insert(0, str(Path(__file__).parent))
from random_sessions import (
    FULL,
    PACE,
    PLAIN,
    Compact,
    Play,
    Played,
    Rules,
    Say,
    Steer,
    assert_legal,
    call,
    go_on,
    kind_of,
    perform,
    plays,
    told,
)


def fixed(examples: int) -> settings:
    """The same examples every time, however slow the machine is."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=slow)


CHECKPOINT_LINES = ["compacted", "world_state", "turn_context", "token_count"]

# The three places of a compaction, and a session that ends in an interrupt.
BEFORE = Play(((Say("one", (text_reply("1", usage=FULL, pace=PACE),)), Say("two")),))
MIDDLE = Play(((Say("one", (Reply(items=(call("echo", {"text": "x"}),), usage=FULL, pace=PACE),)),),))
BY_HAND = Play(((Say("one"), Steer("remember"), Compact()),))
RICH = Play(
    (
        (
            Rules("Say please.\n"),
            Say("one", (Reply(items=(call("echo", {"text": "é"}), call("stops", {})), usage=PLAIN, pace=PACE),)),
            Steer("and this"),
        ),
    )
)


def replayed(data: bytes) -> Thread:
    """The fold of a log that holds just these bytes."""
    lines = (decode(raw, number) for number, raw in enumerate(data.split(b"\n"), 1))
    return Thread.replay(line for line in lines if line is not None)


def kinds(data: bytes) -> list[str]:
    """What each line is: its type, or the event's."""
    lines = [json.loads(raw) for raw in data.splitlines()]
    return [line["payload"]["type"] if line["type"] == "event_msg" else line["type"] for line in lines]


def assert_continues(before: Thread, data: bytes, folder: Path, name: str, *, cwd: Path) -> list[Any]:
    """A log resumes to `before`, takes one more turn with legal requests, and keeps every byte. The turn's requests."""
    after, live, model = go_on(data, folder, name, cwd=cwd)
    closed = data if data.endswith(b"\n") else data + b"\n"
    assert after.startswith(closed)
    assert same_state(replayed(after), live)
    assert (live.id, live.turns) == (before.id, before.turns + 1)
    for body in model.requests:
        assert_legal(body)
    if live.compactions == before.compactions:
        assert [e.item for e in live.history[: len(before.history)]] == [e.item for e in before.history]
        sent = [spelled(e.item) for e in for_prompt(before.history, ("text", "image"))]
        asked = model.bodies()[0]["input"]
        assert asked[1 : 1 + len(sent)] == json.loads(json.dumps(sent)), "the model is told something else"
    return model.bodies()


# --- live == replayed ------------------------------------------------------------------------------------------------


@fixed(60)
@example(BEFORE)
@example(MIDDLE)
@example(BY_HAND)
@example(RICH)
@given(plays)
def test_a_live_thread_is_the_fold_of_its_log_after_every_write(play: Play) -> None:
    with tempfile.TemporaryDirectory() as folder:
        played = perform(play, Path(folder))
        assert same_state(read_thread(played.path), played.live)
        for size, live in played.states:
            assert same_state(replayed(played.data[:size]), live)
        assert_every_request_is_legal(played)
        assert_requests_only_grow(played)
        assert_nothing_said_is_lost(played)
        assert len(set(played.ran)) == len(played.ran), "a call ran twice"
        assert played.live.open_turn is None
        history = [e.item for e in played.live.history]
        assert [e.item for e in for_prompt(played.live.history, ("text", "image"))] == history, "a call is unanswered"


def assert_every_request_is_legal(played: Played) -> None:
    for body in played.model.requests:
        assert_legal(body)
    for body in played.model.bodies():
        assert told(body) == 1, "the rules in force stand there once"


def assert_requests_only_grow(played: Played) -> None:
    """Between two requests of one window, the input's bytes only grow at their end."""
    requests = [(body, sent) for body, sent in zip(played.model.requests, played.model.heard, strict=True)]
    turns = [(body, sent) for body, sent in requests if kind_of(body) == "turn"]
    for (body, sent), (next_body, next_sent) in pairwise(turns):
        if window_of(body) == window_of(next_body):
            before = sent.head + b",".join(sent.parts)
            assert (next_sent.head + b",".join(next_sent.parts)).startswith(before)


def window_of(body: Any) -> str:
    return body["client_metadata"]["x-codex-window-id"]


def assert_nothing_said_is_lost(played: Played) -> None:
    """Every steer that was taken stands in the log once as a message, or still waits."""
    lines = [json.loads(raw) for raw in played.data.splitlines()]
    recorded = [line["payload"].get("id") for line in lines if line["type"] == "response_item"]
    queued = [line["payload"]["item_id"] for line in lines if line["payload"].get("kind") == "steer_queued"]
    for item_id in queued:
        assert recorded.count(item_id) + (item_id in played.live.steers) == 1


# --- cut anywhere ----------------------------------------------------------------------------------------------------


@fixed(40)
@example(BEFORE, [3, 9, 14])
@example(MIDDLE, [8, 9, 11])
@given(plays, st.lists(st.integers(0, 400), min_size=3, max_size=3))
def test_a_log_cut_between_two_lines_goes_on_from_what_was_there(play: Play, places: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = perform(play, folder)
        live_at = dict(played.states)
        ends = played.line_ends
        for number, place in enumerate(places):
            size = ends[place % len(ends)]
            before = live_at.get(size) or replayed(played.data[:size])  # in the middle of one write nobody saw a state
            asked = assert_continues(before, played.data[:size], folder, str(number), cwd=folder / "work")
            most = 1 if size in live_at else 2  # a write that broke off between context and snapshot: told once more
            assert 1 <= told(asked[0]) <= most


@fixed(30)
@given(plays, st.integers(0, 400), st.lists(st.integers(0, 4_000), min_size=8, max_size=8))
def test_a_log_cut_inside_a_line_resumes_to_the_whole_lines_before(play: Play, place: int, bytes_: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = perform(play, folder)
        ends = played.line_ends
        last = 2 + place % (len(ends) - 2)  # behind the line that says whose log it is
        first = ends[last - 2]
        for number, byte in enumerate(bytes_):
            size = first + byte % (ends[last] - first)
            data = played.data[:size]
            whole = max(end for end in (0, *ends) if end <= size + 1)  # only the line's end may be missing
            before = replayed(played.data[:whole])
            assert same_state(replayed(data), before)
            if number < 2:
                assert_continues(before, data, folder, str(number), cwd=folder / "work")


def test_a_log_cut_at_every_byte_of_its_last_two_records_resumes(tmp_path: Path) -> None:
    played = perform(RICH, tmp_path)
    ends = played.line_ends
    for size in range(ends[-3], len(played.data) + 1):
        whole = max(end for end in ends if end <= size + 1)
        before = replayed(played.data[:whole])
        path = tmp_path / "cut.jsonl"
        path.write_bytes(played.data[:size])
        assert same_state(read_thread(path), before)
        if size % 11 == 0 or size + 1 in ends or size in ends:
            assert_continues(before, played.data[:size], tmp_path, "cut", cwd=tmp_path / "work")


# --- the gaps of a checkpoint ----------------------------------------------------------------------------------------


@fixed(25)
@example(BEFORE)
@example(MIDDLE)
@example(BY_HAND)
@given(plays)
def test_a_log_cut_between_the_lines_of_a_checkpoint_asks_the_same_next(play: Play) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = perform(play, folder)
        names, ends = kinds(played.data), played.line_ends
        checkpoints = [index for index, kind in enumerate(names) if kind == "compacted"]
        assert play not in (BEFORE, MIDDLE, BY_HAND) or checkpoints
        for index in checkpoints[-1:]:
            assert names[index : index + 4] == CHECKPOINT_LINES
            asked = []
            for lines in (4, 3, 2, 1):  # whole first
                data = played.data[: ends[index + lines - 1]]
                before = replayed(data)
                assert same_state(before, replayed(played.data[: ends[index + 3]])), "a line was needed"
                bodies = assert_continues(before, data, folder, f"{index}-{lines}", cwd=folder / "work")
                asked.append(bodies[0])
                assert told(bodies[0]) == 1
            assert asked[1:] == asked[:1] * 3


@pytest.mark.parametrize("play", [BEFORE, MIDDLE, BY_HAND], ids=["before a turn", "in its middle", "by hand"])
def test_a_checkpoint_that_was_not_written_leaves_the_history_as_it_was(play: Play, tmp_path: Path) -> None:
    played = perform(play, tmp_path)
    index = kinds(played.data).index("compacted")
    data = played.data[: played.line_ends[index - 1]]
    live_at = dict(played.states)
    assert same_state(replayed(data), live_at[len(data)])
    assert replayed(data).compactions == 0
    after, live, model = go_on(data, tmp_path, "cut", cwd=tmp_path / "work")
    assert after.startswith(data)
    assert same_state(replayed(after), live)
    for body in model.requests:
        assert_legal(body)


# --- the projection --------------------------------------------------------------------------------------------------

ids = st.sampled_from(["a", "b", "c"])
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}


def said(text: str) -> Item:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def asked(call_id: str) -> Item:
    return {"type": "function_call", "name": "f", "arguments": "{}", "call_id": call_id, "id": f"fc_{call_id}"}


stored = st.one_of(
    st.builds(said, st.text(max_size=5)),
    st.builds(asked, ids),
    st.builds(lambda one: {"type": "function_call_output", "call_id": one, "output": "done"}, ids),
    st.builds(lambda one: {"type": "custom_tool_call", "name": "f", "input": "", "call_id": one}, ids),
    st.builds(lambda one: {"type": "custom_tool_call_output", "call_id": one, "output": "done"}, ids),
    st.sampled_from(
        [
            {"type": "message", "role": "user", "content": [IMAGE]},
            {"type": "tool_search_output", "execution": "server", "call_id": None, "tools": []},
            {"type": "tool_search_output", "call_id": "a", "tools": []},
            {"type": "tool_search_call", "call_id": "a"},
            {"type": "reasoning", "summary": [], "encrypted_content": "AAAA"},
        ]
    ),
)
steps = st.lists(st.one_of(st.lists(stored, max_size=4), st.sampled_from(["shorter", "other", "same"])), max_size=8)


def again(e: Entry) -> Entry:
    return entry(e.item, e.address, e.turn_id)


def seen(prompt: Prompt) -> tuple[Any, ...]:
    entries = [(e.item, e.tokens, e.address, e.turn_id) for e in prompt.entries]
    return entries, prompt.tokens, prompt.base_instructions, prompt.tools, prompt.parallel_tool_calls


@fixed(200)
@given(steps, st.sampled_from([("text",), ("text", "image")]), st.sampled_from([None, "", "BASE"]))
def test_a_projection_that_goes_on_says_what_one_from_scratch_says(
    steps: list[Any], modalities: tuple[str, ...], base: str | None
) -> None:
    profile = Profile(slug="m", input_modalities=modalities)
    projection, wire = Projection(profile), Wire(Provider(name="x"), profile)
    identity = Identity(thread_id="t")
    history: list[Entry] = []
    for step in steps:
        match step:
            case "shorter":  # a rollback: another list that shares entries
                history = history[: len(history) // 2]
            case "other":  # a checkpoint: another list, which may be as long
                history = [*map(again, reversed(history)), entry(said("more"), "t:0")]
            case "same":
                pass
            case _:
                history += [entry(item, f"t:{len(history)}") for item in step]
        goes_on = projection.prompt(history, base_instructions=base, tools=[{"name": "f"}])
        afresh = prompt_from(history, profile, base_instructions=base, tools=[{"name": "f"}])
        assert seen(goes_on) == seen(afresh)
        once = Wire(Provider(name="x"), profile).request(afresh, identity)
        assert wire.request(goes_on, identity).body() == once.body()
