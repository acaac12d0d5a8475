"""Blobs: long texts of a session once, beside its file; what is read of them, and what is when they are gone."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import random
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold.core.config import Config, RolloutSettings, parse_config
from refold.core.items import Item, message
from refold.core.jsonio import dump, load
from refold.core.lines import decode
from refold.core.profile import Profile
from refold.core.records import Compacted, ItemRecorded, Line, LineKept, Pinned, SessionStarted, SteerQueued
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import ConfigError, RolloutLocked
from refold.model.scripted import ScriptedModel
from refold.rollout.backward import tail_of
from refold.rollout.blobs import BLOBS, LONG, MARK, BlobReader, BlobWriter, folder_of, put_away, put_back
from refold.rollout.examination.examine import examine
from refold.rollout.examination.media import LARGE
from refold.rollout.lineage import active_lines
from refold.rollout.reader import find_line, read_lines
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread
from refold.session.session import Session
from refold.testing import text_reply
from refold.views.sent import sent

sys.path.insert(0, str(Path(__file__).parents[1] / "properties"))
from random_sessions import PROVIDER, Compact, Play, Say, Watch, perform, plays
from test_core_properties import fixed

PROFILE = Profile(slug="m", context_window=1_000_000, truncation=Budget("tokens", 10_000), known=True)
TWICE = Play(((Say("one"), Compact(), Say("two"), Compact(), Say("three")),))
ON, OFF = Config(rollout=RolloutSettings(blobs=True)), Config()


def data_url(seed: int = 1, size: int = 30_000) -> str:
    return "data:image/png;base64," + base64.b64encode(random.Random(seed).randbytes(size)).decode()


def picture(seed: int = 1, size: int = 30_000) -> Item:
    part = {"type": "input_image", "image_url": data_url(seed, size)}
    return {"type": "message", "role": "user", "content": [part, {"type": "input_text", "text": f"picture {seed}"}]}


def output(call_id: str, text: str) -> list[Item]:
    call = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": call_id, "output": text}]


def opened(folder: Path, config: Config = ON) -> Memory:
    return Memory.new(folder, PROFILE, config, Watch(), cwd="/w", instructions="BASE")


def path_of(memory: Memory) -> Path:
    assert memory.path is not None
    return memory.path


def blobs_of(path: Path) -> list[Path]:
    return sorted(folder_of(path).iterdir()) if folder_of(path).is_dir() else []


def compact(memory: Memory, times: int = 1) -> None:
    model = ScriptedModel([text_reply("SUMMARY")] * times, profile=PROFILE, provider=PROVIDER)
    for _ in range(times):
        asyncio.run(memory.make_room(model, force=True))


def kept(memory: Memory) -> Compacted:
    """A checkpoint that keeps everything, as a provider's own or a fork does."""
    history = tuple(e.item for e in memory.thread.history)
    addresses = tuple(e.address for e in memory.thread.history)
    window = memory.thread.window.next("w")
    return Compacted(message="", history=history, addresses=addresses, window=window, steers={}, facts={"method": "x"})


# --- in the file -----------------------------------------------------------------------------------------------------


def test_a_long_text_is_stored_once_however_often_a_line_says_it(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add([picture(), *output("c", "o" * LONG)])
        for _ in range(3):
            memory.record(kept(memory))
        path = path_of(memory)
    raw = path.read_bytes()
    assert data_url().encode() not in raw and b"o" * 100 not in raw
    assert sorted(one.read_text() for one in blobs_of(path)) == sorted([data_url(), "o" * LONG])
    assert raw.count(MARK) == 2 + 3 * 2, "the items and their copies"
    assert same_state(read_thread(path), memory.thread)
    assert same_state(Thread.replay(read_lines(path)), memory.thread)


def test_without_the_setting_nothing_is_beside_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, OFF) as memory:
        memory.add(picture())
        path = path_of(memory)
    assert data_url().encode() in path.read_bytes()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert json.loads(path.read_bytes().split(b"\n")[0])["payload"]["history_mode"] == "paginated"


def test_a_blob_is_its_text_under_the_name_of_its_hash_for_its_owner_only(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
    [blob] = blobs_of(path_of(memory))
    assert blob.name == hashlib.sha256(blob.read_bytes()).hexdigest()
    assert stat.S_IMODE(blob.stat().st_mode) == 0o600 and stat.S_IMODE(blob.parent.stat().st_mode) == 0o700
    assert blob.parent.name == path_of(memory).name.replace(".jsonl", ".blobs")


@pytest.mark.parametrize(("text", "count"), [("x" * (LONG - 1), 0), ("x" * LONG, 1), ("ö" * (LONG // 2), 1)])
def test_a_text_is_long_by_its_bytes(tmp_path: Path, text: str, count: int) -> None:
    with opened(tmp_path) as memory:
        memory.record(ItemRecorded(output("c", text)[1]))
    assert len(blobs_of(path_of(memory))) == count
    assert same_state(read_thread(path_of(memory)), memory.thread)


def test_everything_that_a_line_says_may_be_long_but_the_identity_stays_whole(tmp_path: Path) -> None:
    texts = [character * LONG for character in "abcdefg"]
    with Memory.new(tmp_path, PROFILE, ON, Watch(), cwd="/w", instructions="B" * LONG) as memory:
        memory.record(SteerQueued("i", texts[0]), Pinned("a:1", texts[1]))
        memory.record(ItemRecorded({"type": "reasoning", "summary": [], "encrypted_content": texts[2]}))
        memory.record(ItemRecorded({"type": "of_tomorrow", "deep": [{"down": {"there": texts[3]}}]}))
        memory.record(LineKept("world_state", {"full": True, "state": {"x": texts[4]}}))
        memory.record(LineKept("turn_context", {"x": texts[5]}))
        memory.record(ItemRecorded(message("user", [texts[6]])))
        path = path_of(memory)
    assert sorted(one.read_text() for one in blobs_of(path)) == sorted(texts)
    assert b"B" * LONG in path.read_bytes().split(b"\n")[0]
    found = Thread.replay(read_lines(path))
    assert found.steers == {"i": texts[0]} and list(found.pins) == [("a:1", texts[1])]
    assert found.world == {"x": texts[4]} and found.settings == {"x": texts[5]}
    assert found.base_instructions == "B" * LONG


def test_a_session_that_goes_on_keeps_its_mode_whatever_is_set_now(tmp_path: Path) -> None:
    for begun, now in ((ON, OFF), (OFF, ON)):
        with opened(tmp_path / str(begun.rollout.blobs), begun) as memory:
            memory.add(picture(1))
        path = path_of(memory)
        with Memory.reopen(path, PROFILE, now, Clock()) as again:
            again.add([picture(1), picture(2)])
        assert len(blobs_of(path)) == (2 if begun is ON else 0)
        assert same_state(read_thread(path), again.thread)
        assert data_url(2) in dump([e.item for e in again.thread.history]).decode()


def test_a_session_in_this_process_only_has_nothing_beside_it() -> None:
    memory = Memory.new(None, PROFILE, ON, Clock(), cwd="/w", instructions=None)
    memory.add(picture())
    assert Thread.replay(memory.store.lines()).history[0].item == memory.thread.history[0].item
    assert memory.thread.meta is not None and memory.thread.meta.history_mode == "paginated"


def test_half_a_surrogate_pair_in_a_long_text_is_mended_as_everywhere(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.record(ItemRecorded(message("user", ["x" * LONG + "\ud83d"])))
    assert same_state(read_thread(path_of(memory)), memory.thread)
    assert [one.read_text() for one in blobs_of(path_of(memory))] == ["x" * LONG + "\ufffd"]


# --- what somebody else wrote ----------------------------------------------------------------------------------------

ODD: list[Any] = [
    {"$blob": "0" * 64, "bytes": LONG},
    {"$blob": None, "value": {"a": 1}},
    {"$blob": None, "value": {"$blob": None, "value": {"$blob": "x", "bytes": 1}}},
    {"$blob": ["x" * LONG], "bytes": 3},
    {"$blob": 5, "$$blob": {"$blob": {}}},
    "$blob",
    '{"$blob": "0", "bytes": 1}',
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("config", [ON, OFF], ids=["blobs", "plain"])
def test_an_object_that_looks_like_a_reference_is_read_as_it_was_written(
    tmp_path: Path, odd: Any, config: Config
) -> None:
    item = {"type": "of_tomorrow", "id": "x_1", "value": odd, "more": [odd, {"in": odd}]}
    with opened(tmp_path, config) as memory:
        memory.record(ItemRecorded(item), LineKept("event_msg", {"type": "odd", "it": odd}))
        path = path_of(memory)
    records = [line.record for line in read_lines(path)]
    assert [one.item for one in records if isinstance(one, ItemRecorded)] == [item]
    shown = find_line(path, next(line.ordinal for line in read_lines(path) if isinstance(line.record, ItemRecorded)))
    assert shown is not None and json.loads(shown)["payload"] == item


json_values = st.recursive(
    st.one_of(st.none(), st.integers(-3, 3), st.text(max_size=3), st.sampled_from(["x" * LONG, "ab" * LONG, "$blob"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["$blob", "bytes", "value", "type", "text", "a"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@fixed(300)
@given(json_values)
def test_what_is_put_away_comes_back_as_it_was(value: Any) -> None:
    texts: list[str] = []

    def put(text: str) -> Any:
        texts.append(text)
        return {"$blob": str(len(texts) - 1), "bytes": len(text)}

    stored = put_away(value, put)
    assert "x" * LONG not in str(stored)
    through_a_file, _ = load(dump(stored))
    assert put_back(through_a_file, lambda name, _: (texts[int(name)], True)) == value


def test_a_value_without_long_texts_is_not_even_copied() -> None:
    value = {"type": "message", "content": [{"text": "short"}, {"n": [1, 2, {"a": None}]}]}
    assert put_away(value, lambda text: {"$blob": text}) is value


# --- what is missing -------------------------------------------------------------------------------------------------


def lost(path: Path, how: str) -> str:
    [blob] = blobs_of(path)
    match how:
        case "deleted":
            blob.unlink()
        case "folder deleted":
            shutil.rmtree(blob.parent)
        case "cut":
            blob.write_bytes(blob.read_bytes()[:-1])
        case "changed":
            blob.write_bytes(b"?" + blob.read_bytes()[1:])
        case "a folder":
            blob.unlink()
            blob.mkdir()
        case "a pipe":
            blob.unlink()
            os.mkfifo(blob)
    return blob.name[:12]


HOW = ["deleted", "folder deleted", "cut", "changed", "a folder", "a pipe"]


@pytest.mark.parametrize("how", HOW)
def test_a_lost_blob_costs_its_text_alone_and_is_named(tmp_path: Path, how: str) -> None:
    with opened(tmp_path) as memory:
        memory.add([picture(), {"role": "user", "content": "and this"}])
        compact(memory)
        memory.add({"role": "user", "content": "go on"})
        path = path_of(memory)
    name = lost(path, how)
    thread = read_thread(path)
    whole = Thread.replay(read_lines(path))
    assert same_state(thread, whole)
    warned = [line.warning for line in read_lines(path) if line.warning]
    assert warned and all(f"missing or damaged: blob {name}" in (one or "") for one in warned)
    assert (warned[0] or "").startswith("line ")


def test_words_stand_in_a_lost_pictures_place_so_that_a_provider_takes_the_item(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
    name = lost(path_of(memory), "deleted")
    size = len(data_url())
    [item] = [e.item for e in read_thread(path_of(memory)).history]
    words = f"[a text or picture of {size:,} bytes is missing here: blob {name}]"
    assert item["content"] == [{"type": "input_text", "text": words}, {"type": "input_text", "text": "picture 1"}]


LOST: list[tuple[Item, str, Any]] = [
    ({"type": "function_call_output", "call_id": "c", "output": "o" * LONG}, "output", str),
    (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":"' + "x" * LONG + '"}'},
        "arguments",
        dict,
    ),
    ({"type": "image_generation_call", "id": "i", "result": "r" * LONG}, "result", ""),
    ({"type": "reasoning", "summary": [], "encrypted_content": "e" * LONG}, "encrypted_content", None),
]


@pytest.mark.parametrize(("item", "key", "then"), LOST, ids=lambda value: value if isinstance(value, str) else "")
def test_an_item_whose_text_is_lost_is_still_one_of_its_kind(tmp_path: Path, item: Item, key: str, then: Any) -> None:
    with opened(tmp_path) as memory:
        memory.record(ItemRecorded(item))
    name = lost(path_of(memory), "deleted")
    found = next(one.record.item for one in read_lines(path_of(memory)) if isinstance(one.record, ItemRecorded))
    assert found["type"] == item["type"] and f"blob {name}" in dump(found).decode()
    if then is dict:
        assert f"blob {name}" in json.loads(found[key])["missing"]
    elif then is str:
        assert isinstance(found[key], str)
    else:
        assert found[key] == then


def test_a_session_goes_on_after_a_loss_and_other_blobs_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture(1))
    path = path_of(memory)
    lost(path, "deleted")
    with Memory.reopen(path, PROFILE, ON, Clock()) as again:
        again.add(picture(2))
        compact(again)
        live = again.thread
    assert same_state(read_thread(path), live)
    restored = [line.record for line in read_lines(path)]
    assert data_url(2) in dump([one.item for one in restored if isinstance(one, ItemRecorded)]).decode()


def test_a_damaged_blob_is_written_anew_when_its_text_comes_again(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
    path = path_of(memory)
    lost(path, "changed")
    with Memory.reopen(path, PROFILE, ON, Clock()) as again:
        again.add(picture())
    assert [one.read_text() for one in blobs_of(path)] == [data_url()]
    assert not [line.warning for line in read_lines(path) if line.warning]


def test_a_blob_that_goes_while_the_session_is_open_is_there_again_with_the_next_line_that_needs_it(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
        shutil.rmtree(folder_of(path_of(memory)))
        memory.record(kept(memory))
        memory.store.sync()
    assert same_state(read_thread(path_of(memory)), memory.thread)


def test_a_reference_leads_nowhere_but_into_the_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * LONG)
    with opened(tmp_path) as memory:
        memory.add(picture())
    path = path_of(memory)
    [blob] = blobs_of(path)
    for name in ("../" * 9 + str(secret)[1:], str(secret), "..", "", "\x00", blob.name.upper()):
        reader = BlobReader(folder_of(path))
        found, missing = reader.whole({"type": "x", "payload": {"$blob": name, "bytes": LONG}})
        assert "sss" not in str(found) and missing == "missing or damaged: a blob without a name"


def test_a_file_of_another_mode_has_no_references(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
    path = path_of(memory)
    path.write_bytes(path.read_bytes().replace(BLOBS.encode(), b"paginated"))
    assert data_url() not in dump([e.item for e in read_thread(path).history]).decode()
    assert not [line.warning for line in read_lines(path) if line.warning]


HOSTILE = [
    b'{"$blob":"%s","bytes":1}' % (b"0" * 64),
    b'{"timestamp":"t","type":"compacted","payload":{"$blob":"%s","bytes":1}}' % (b"0" * 64),
    b'{"timestamp":"t","type":"response_item","payload":{"$blob":null,"value":{"type":"message","role":"user"}}}',
    b'{"timestamp":"t","type":"response_item","payload":{"type":{"$blob":"%s","bytes":-1}}}' % (b"0" * 64),
    b'{"type":"x","payload":' + b"[" * 700 + b'"$blob"' + b"]" * 700 + b"}",
    b'{"type":"x","payload":{"a":' + b"[" * 450 + b'{"$blob":"0","bytes":"many"}' + b"]" * 450 + b"}}",
]


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_a_line_that_nobody_would_write_raises_nothing(tmp_path: Path, raw: bytes) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
    path = path_of(memory)
    path.write_bytes(path.read_bytes() + raw + b"\n")
    assert len(list(read_lines(path))) == len(path.read_bytes().splitlines())
    assert len(read_thread(path).history) >= 1 or raw == HOSTILE[1]
    assert find_line(path, 999) is None


# --- on the disk -----------------------------------------------------------------------------------------------------


def test_a_text_stays_in_its_line_where_its_blob_cannot_be_written(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add({"role": "user", "content": "begin"})
        path = path_of(memory)
        folder_of(path).write_text("in the way")
        memory.add(picture())
        memory.store.sync()
        folder_of(path).unlink()
        memory.add(picture())
    assert path.read_bytes().count(data_url().encode()) == 1 and len(blobs_of(path)) == 1
    assert same_state(read_thread(path), memory.thread)


def test_a_blob_is_there_before_the_line_that_refers_to_it(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with opened(tmp_path) as memory:
        path = path_of(memory)
        writer = BlobWriter(path)
        line = writer.stored({"type": "x", "payload": "p" * LONG})
        seen.append((len(blobs_of(path)), len(path.read_bytes()) if path.exists() else 0))
    assert seen == [(1, 0)] and line["payload"]["bytes"] == LONG


def test_a_file_cut_anywhere_reads_as_its_whole_lines_and_what_is_too_many_harms_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add([picture(1), *output("c", "o" * 20_000)])
        compact(memory)
        memory.add(picture(2))
        memory.record(kept(memory))
        path = path_of(memory)
    data = path.read_bytes()
    start = data[:-1].rfind(b"\n") + 1
    for cut in [*range(start, len(data), 41), *random.Random(5).sample(range(data.index(b"\n") + 1, len(data)), 20)]:
        path.write_bytes(data[:cut])
        whole = data[: data[:cut].rfind(b"\n") + 1]
        lines = [line.record for line in read_lines(path)][: whole.count(b"\n")]
        full = [decoded.record for decoded in _decoded(path, whole)]
        assert lines == full
        assert same_state(Thread.replay(tail_of(path, block=64).lines), Thread.replay(read_lines(path)))
        with Memory.reopen(path, PROFILE, ON, Clock()) as again:
            again.add(picture(3))
        assert data_url(3) in dump(read_thread(path).history[-1].item).decode()


def _decoded(path: Path, data: bytes) -> list[Line]:
    reader = BlobReader(folder_of(path))
    return [line for raw in data.splitlines() if (line := decode(raw, 0, reader.whole)) is not None]


def test_the_log_and_its_blobs_may_be_moved_together(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as memory:
        memory.add(picture())
    path = path_of(memory)
    place = tmp_path / "elsewhere" / path.name
    place.parent.mkdir()
    shutil.move(path, place)
    shutil.move(folder_of(path), folder_of(place))
    assert read_thread(place).history[0].item == memory.thread.history[0].item


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell what an open file is called")
def test_a_log_that_is_moved_while_it_is_open_takes_its_blobs_along(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as memory:
        memory.add(picture(1))
        path = path_of(memory)
        place = tmp_path / "b" / path.name
        place.parent.mkdir()
        path.rename(place)
        memory.add(picture(2))
        memory.store.sync()
        memory.add(picture(3))
    assert path_of(memory) == place and len(blobs_of(place)) == 3
    assert same_state(read_thread(place), memory.thread)


def test_a_log_that_is_deleted_with_its_blobs_has_them_again_at_the_next_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
        path = path_of(memory)
        shutil.rmtree(tmp_path / "sessions")
        memory.add({"role": "user", "content": "still here"})
        memory.record(kept(memory))
        memory.store.sync()
    assert path_of(memory) == path and same_state(read_thread(path), memory.thread)


def test_a_setting_that_is_no_setting_is_named() -> None:
    assert parse_config({"rollout": {"blobs": True}}, "here").rollout.blobs is True
    with pytest.raises(ConfigError, match=r"rollout\.blob: is not a setting; did you mean blobs\? \(here\)"):
        parse_config({"rollout": {"blob": True}}, "here")
    with pytest.raises(ConfigError, match="rollout"):
        parse_config({"rollout": {"blobs": "yes"}}, "here")


def test_a_link_to_the_log_finds_its_blobs(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as memory:
        memory.add(picture())
    link = tmp_path / "short.jsonl"
    link.symlink_to(path_of(memory))
    assert read_thread(link).history[0].item == memory.thread.history[0].item


def test_a_compressed_log_finds_its_blobs_and_goes_on_plain(tmp_path: Path) -> None:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    with opened(tmp_path) as memory:
        memory.add(picture(1))
    path = path_of(memory)
    packed = path.with_name(path.name + ".zst")
    packed.write_bytes(zstd.compress(path.read_bytes()))
    path.unlink()
    with Memory.reopen(packed, PROFILE, OFF, Clock()) as again:
        again.add(picture(2))
        assert again.path == path
    assert len(blobs_of(path)) == 2 and same_state(read_thread(path), again.thread)


def test_a_second_writer_is_refused_as_ever(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
        with pytest.raises(RolloutLocked):
            Memory.reopen(path_of(memory), PROFILE, ON, Clock())


# --- sessions --------------------------------------------------------------------------------------------------------


def session(folder: Path, config: Config, script: list[Any]) -> tuple[Session, list[bytes]]:
    model = ScriptedModel(script, profile=PROFILE, provider=PROVIDER)
    folder.mkdir(exist_ok=True)

    async def play() -> Session:
        found = Session.start(
            model=model, home=folder / "home", cwd=folder, config=config, instructions="BASE", clock=Watch()
        )
        async with found:
            await found.send("look at this: " + "y" * LONG)
            found.pin(found.memory.thread.history[-1].address)
            await found.send("and on")
            await found.compact()
            await found.send("go on")
        return found

    return asyncio.run(play()), [dump(body) for body in model.requests]


def test_a_whole_session_sends_and_remembers_the_same_with_and_without_blobs(tmp_path: Path) -> None:
    script = [text_reply("a" * LONG), text_reply("b"), text_reply("SUMMARY"), text_reply("c")]
    one, asked = session(tmp_path / "plain", OFF, script)
    two, also = session(tmp_path / "blobs", ON, script)
    here, there = str(tmp_path / "plain").encode(), str(tmp_path / "blobs").encode()
    assert [body.replace(here, b"/") for body in asked] == [body.replace(there, b"/") for body in also]
    assert one.path is not None and two.path is not None
    assert blobs_of(two.path) and not blobs_of(one.path)
    assert two.path.stat().st_size < one.path.stat().st_size / 2
    for found in (one, two):
        assert found.path is not None
        assert same_state(read_thread(found.path), found.memory.thread)
        requests = list(sent(read_lines(found.path)))
        assert len(requests) == 4 and all(request.is_same for request in requests), "made again byte for byte"


def test_a_fork_is_in_the_mode_that_is_set_and_needs_nothing_of_its_parent(tmp_path: Path) -> None:
    for begun, now in ((ON, ON), (ON, OFF), (OFF, ON)):
        folder = tmp_path / f"{begun.rollout.blobs}{now.rollout.blobs}"
        with opened(folder, begun) as memory:
            memory.add(picture())
        model = ScriptedModel([], profile=PROFILE, provider=PROVIDER)
        child = Session.fork(path_of(memory), model=model, config=now, home=folder, cwd=tmp_path)
        child.memory.close()
        path = path_of(child.memory)
        assert len(blobs_of(path)) == (now is ON)
        path_of(memory).unlink()
        shutil.rmtree(folder_of(path_of(memory)), ignore_errors=True)
        assert read_thread(path).history[0].item == memory.thread.history[0].item


def test_an_undo_puts_back_what_only_blobs_hold(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add([picture(), {"role": "user", "content": "and this"}])
        before = [e.item for e in memory.thread.history]
        compact(memory)
        assert [e.item for e in memory.thread.history] != before
        memory.undo()
        assert [e.item for e in memory.thread.history] == before
        path = path_of(memory)
    assert [e.item for e in read_thread(path).history] == before
    assert len(blobs_of(path)) == 1


def test_fifty_checkpoints_of_a_hundred_pictures_cost_what_the_pictures_cost(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add([picture(seed) for seed in range(100)])
        for _ in range(50):
            memory.record(kept(memory))
        path = path_of(memory)
    unique = sum(len(data_url(seed)) for seed in range(100))
    used = path.stat().st_size + sum(one.stat().st_size for one in blobs_of(path))
    envelopes = 51 * sum(len(dump({**picture(seed), "content": []})) + 400 for seed in range(100))
    assert used < unique + envelopes, "pictures of 40 kB here, so that the test is quick; bench/blobs.py has 200 KiB"
    assert len(blobs_of(path)) == 100
    assert same_state(Thread.replay(active_lines(path)), memory.thread)


@fixed(25)
@example(TWICE, [300, 700])
@given(plays, st.lists(st.integers(0, 1_000), max_size=3))
def test_any_session_folds_to_the_same_thread_with_its_texts_beside_it(play: Play, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = perform(play, folder)
        path = folder / "packed.jsonl"
        writer, packed = BlobWriter(path, long=24), list[bytes]()  # nearly every text and id
        for raw in played.data.splitlines():
            line = writer.stored(json.loads(raw))
            if line["type"] == "session_meta":
                line["payload"]["history_mode"] = BLOBS
            packed.append(dump(line) + b"\n")
        for count in [len(packed), *(max(1, len(packed) * cut // 1_000) for cut in cuts)]:
            plain = folder / "plain.jsonl"
            plain.write_bytes(b"".join(played.data.splitlines(keepends=True)[:count]))
            path.write_bytes(b"".join(packed[:count]))
            assert same_state(Thread.replay(read_lines(path)), Thread.replay(read_lines(plain)))
            assert same_state(read_thread(path), read_thread(plain))
        assert sum(raw.count(MARK) for raw in packed) > len(packed)


def test_the_identity_tells_the_mode(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add(picture())
    first = next(read_lines(path_of(memory))).record
    assert isinstance(first, SessionStarted) and first.history_mode == BLOBS


def test_doctor_tells_of_pictures_beside_the_file_each_counted_once(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.add([picture(), picture(2, LARGE * 3 // 4 + 3)])
        memory.record(kept(memory))
        path = path_of(memory)
    told = examine(path)
    assert told.media["count"] == 2 and told.media["repeats"] == 0
    assert LARGE < told.media["bytes"] < LARGE + 60_000
    found = {one.kind for one in told.findings}
    assert "media_large" in found and "media_repeated" not in found
