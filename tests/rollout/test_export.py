"""Export and import: one file that stands alone, sessions from elsewhere: both fold to what they came from."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from refold.core.config import Config, RolloutSettings
from refold.core.items import message_text
from refold.core.profile import Profile
from refold.core.records import ItemRecorded
from refold.core.thread import Thread, same_state
from refold.core.truncate import Budget
from refold.errors import CompactionFailed, RolloutCorrupt, RolloutError, RolloutNotFound
from refold.rollout.backward import tail_of
from refold.rollout.blobs import BLOBS, folder_of
from refold.rollout.export import likeness, self_contained, write_new
from refold.rollout.reader import read_lines
from refold.session.adoption import adopt, adopt_items, is_items, superseded
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread

sys.path.insert(0, str(Path(__file__).parents[1] / "properties"))
from random_sessions import Compact, Play, Say, Watch, perform, plays
from test_core_properties import fixed

ROLLOUTS = Path(__file__).parents[1] / "data" / "oracle" / "rollouts"
ALONE = [one for one in sorted(ROLLOUTS.glob("*.jsonl")) if b'"history_base"' not in one.read_bytes()]
PROFILE = Profile(slug="m", context_window=1_000_000, truncation=Budget("tokens", 10_000), known=True)
ON, OFF = Config(rollout=RolloutSettings(blobs=True)), Config()
LONG = "data:image/png;base64," + "A" * 20_000
TWICE = Play(((Say("one"), Compact(), Say("two"), Compact(), Say("three")),))


def placed(folder: Path, **names: str) -> list[Path]:
    """Recorded files under names of our own, in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(ROLLOUTS / f"{one}.jsonl", folder / f"{name}.jsonl")) for one, name in names.items()]


def written(folder: Path, config: Config = OFF, *texts: str) -> Path:
    """A session of ours: a picture, texts, a call, a pin."""
    with Memory.new(folder, PROFILE, config, Clock(), cwd="/w", instructions="BASE") as memory:
        memory.add({"role": "user", "content": [{"type": "input_image", "image_url": LONG}]})
        memory.add([{"role": "user", "content": text} for text in texts or ("hello",)])
        assert memory.path is not None
        return memory.path


def exported(path: Path, target: Path) -> tuple[Path, list[str]]:
    told: list[str] = []
    write_new(self_contained(path, told.append), target)
    return target, told


def texts(thread: Thread) -> list[str]:
    return [message_text(e.item) for e in thread.history if e.item.get("role") in ("user", "assistant")]


def metas(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(raw) for raw in path.read_bytes().splitlines()]
    return [line["payload"] for line in lines if line["type"] == "session_meta"]


def ordinals(path: Path) -> list[int]:
    return [json.loads(raw)["ordinal"] for raw in path.read_bytes().splitlines()]


# --- export ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_a_file_that_stands_alone_is_exported_byte_for_byte(path: Path, tmp_path: Path) -> None:
    target, told = exported(path, tmp_path / "out.jsonl")
    assert target.read_bytes() == path.read_bytes() and not told


def test_blobs_are_put_back_so_that_the_file_is_as_if_there_had_been_none(tmp_path: Path) -> None:
    path = written(tmp_path / "home", ON, "one", "x" * 20_000)
    target, told = exported(path, tmp_path / "out.jsonl")
    assert not told and LONG.encode() in target.read_bytes()
    [meta] = metas(target)
    assert meta["history_mode"] == "paginated" and "refold" not in meta
    shutil.rmtree(folder_of(path))
    moved = tmp_path / "else" / "out.jsonl"
    moved.parent.mkdir()
    shutil.move(target, moved)
    with Memory.reopen(moved, PROFILE, ON, Clock()) as memory:
        assert texts(memory.thread)[-1] == "x" * 20_000
        memory.add({"role": "user", "content": LONG})
    assert not folder_of(moved).exists(), "it is a plain file now"


def test_what_is_missing_is_told_and_the_rest_is_exported(tmp_path: Path) -> None:
    path = written(tmp_path / "home", ON)
    [blob] = folder_of(path).iterdir()
    blob.unlink()
    target, told = exported(path, tmp_path / "out.jsonl")
    assert told == [f"{path.name}: line 2: missing or damaged: blob {blob.name[:12]}"]
    assert texts(read_thread(target))[-1] == "hello"
    assert f"missing here: blob {blob.name[:12]}" in target.read_text()


def test_a_fork_of_the_real_program_becomes_one_file_with_the_history_it_took_over(tmp_path: Path) -> None:
    parent, child = placed(tmp_path / "from", i_resume_fork_parent="a", i_resume_fork_child="b")
    target, told = exported(child, tmp_path / "out.jsonl")
    parent.unlink()
    thread, before = read_thread(target), Thread.replay(list(read_lines(target)))
    assert not told and same_state(thread, before)
    placed(tmp_path / "from", i_resume_fork_parent="a")
    asked = read_thread(child)
    assert [(e.item, e.address) for e in thread.history] == [(e.item, e.address) for e in asked.history]
    assert (thread.world, thread.settings, thread.window, thread.last_usage) == (
        asked.world,
        asked.settings,
        asked.window,
        asked.last_usage,
    )
    [meta] = metas(target)
    assert (meta["id"], meta["forked_from_id"]) == ("#46", "#1") and "history_base" not in meta
    numbers = ordinals(target)
    assert numbers[0] == 0 and numbers == sorted(set(numbers))
    assert numbers[-10:] == ordinals(child)[-10:], "its own lines keep theirs"
    assert [json.loads(raw)["type"] for raw in target.read_bytes().splitlines()[1:4]] == [
        "compacted",
        "world_state",
        "turn_context",
    ]


def test_a_reverted_thread_becomes_one_file_with_the_lines_that_still_count(tmp_path: Path) -> None:
    base, after = placed(tmp_path / "from", t_revert_base="a", t_revert_after="b")
    target, _ = exported(after, tmp_path / "out.jsonl")
    assert same_state(read_thread(target), read_thread(after))
    [meta] = metas(target)
    assert meta["id"] == metas(after)[0]["id"] and "history_base" not in meta
    numbers = ordinals(target)
    assert numbers == sorted(set(numbers)) and numbers[0] == 0
    first = base.read_bytes().splitlines()
    assert target.read_bytes().splitlines()[1:14] == first[1:14], "the base's own lines, as they are"


def test_a_base_that_is_gone_is_an_error_unless_the_file_can_do_without(tmp_path: Path) -> None:
    [child] = placed(tmp_path / "from", i_resume_fork_child="b")
    with pytest.raises(RolloutNotFound, match="goes on from line 67 of the session #1"):
        exported(child, tmp_path / "out.jsonl")
    assert not list(tmp_path.glob("*out*")), "nothing half is left"
    with Memory.reopen(
        placed(tmp_path / "all", i_resume_fork_parent="a", i_resume_fork_child="b")[1], PROFILE, OFF, Clock()
    ) as memory:
        memory.undo(turns=1)
    (tmp_path / "all" / "a.jsonl").unlink()
    target, told = exported(tmp_path / "all" / "b.jsonl", tmp_path / "out.jsonl")
    assert len(told) == 1 and "goes on from line 67" in told[0]
    assert same_state(read_thread(target), read_thread(tmp_path / "all" / "b.jsonl"))


def test_files_that_go_on_from_each_other_are_an_error(tmp_path: Path) -> None:
    base, after = placed(tmp_path, t_revert_base="a", t_revert_after="b")
    lines = base.read_bytes().splitlines(keepends=True)
    meta = json.loads(lines[0])
    meta["payload"]["history_base"] = {"thread_id": meta["payload"]["id"], "end_ordinal_exclusive": 99}
    meta["ordinal"] = 1
    base.write_bytes(json.dumps(meta).encode() + b"\n" + b"".join(lines[1:]))
    with pytest.raises((RolloutCorrupt, RolloutNotFound)):
        list(self_contained(after, lambda _: None))


def test_damage_stays_as_it_is_and_a_torn_end_is_closed(tmp_path: Path) -> None:
    path = written(tmp_path / "home", ON)
    data = path.read_bytes() + b"\n{\xff not json\r\n" + b'{"timestamp":"2026'
    path.write_bytes(data)
    target, _ = exported(path, tmp_path / "out.jsonl")
    assert target.read_bytes().endswith(b'\n\n{\xff not json\r\n{"timestamp":"2026\n')
    assert len(target.read_bytes().splitlines()) == len(data.splitlines()), "line numbers stay"
    assert same_state(read_thread(target), read_thread(path))


def test_nothing_is_written_over_a_file_that_is_there(tmp_path: Path) -> None:
    path = written(tmp_path / "home")
    target = tmp_path / "out.jsonl"
    target.write_text("mine")
    with pytest.raises(RolloutError, match=r"out.jsonl is there already; --force replaces it"):
        write_new(self_contained(path, lambda _: None), target)
    assert target.read_text() == "mine"
    write_new(self_contained(path, lambda _: None), target, replace=True)
    assert target.read_bytes() == path.read_bytes() and target.stat().st_mode & 0o777 == 0o600
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RolloutError, match="is there already"):
        write_new([b"x"], tmp_path / "dangling")
    with pytest.raises(RolloutError, match="cannot be written: No such file or directory"):
        write_new([b"x"], tmp_path / "no" / "folder")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["dangling", "home", "out.jsonl"]


@fixed(25)
@example(TWICE)
@given(plays)
def test_any_session_goes_through_an_import_with_blobs_and_an_export_unchanged(play: Play) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = perform(play, folder)
        home = folder / "second"
        done = adopt(played.path, home, Clock(), blobs=True)
        assert same_state(read_thread(done.path), read_thread(played.path))
        target, _ = exported(done.path, folder / "out.jsonl")
        assert target.read_bytes() == played.data
        assert adopt(target, home, Clock()).what == "known"


# --- import ----------------------------------------------------------------------------------------------------------


def fingerprint(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(one): (one.read_bytes(), one.stat().st_mtime_ns) for one in folder.rglob("*") if one.is_file()}


def test_an_import_keeps_id_times_and_lines_and_only_reads(tmp_path: Path) -> None:
    path = written(tmp_path / "one")
    os.utime(path, ns=(1_700_000_000_000_000_000, 1_700_000_000_000_000_000))
    before = fingerprint(tmp_path / "one")
    done = adopt(path, tmp_path / "two", Clock())
    assert fingerprint(tmp_path / "one") == before
    assert (done.what, done.id, done.items, done.notes) == ("imported", read_thread(path).id, 2, ())
    assert done.path.relative_to(tmp_path / "two") == path.relative_to(tmp_path / "one")
    assert done.path.read_bytes() == path.read_bytes()
    assert done.path.stat().st_mtime_ns == 1_700_000_000_000_000_000
    assert sorted(one.name for one in (tmp_path / "two").iterdir()) == ["sessions"], "nothing else is left"


def test_an_import_takes_away_what_a_killed_one_left_and_no_other_one_still_writes(tmp_path: Path) -> None:
    path, home = written(tmp_path / "one"), tmp_path / "two"
    for name in (".import-1", ".import-2"):
        (home / name).mkdir(parents=True)
        (home / name / "half.jsonl").write_text("{")
    os.utime(home / ".import-1", (0, 0))
    adopt(path, home, Clock())
    assert sorted(one.name for one in home.iterdir()) == [".import-2", "sessions"]


@pytest.mark.parametrize("thread_id", ["../../../../../../out", "a/b", "a\nb", "x" * 300, ""])
def test_an_id_that_can_name_no_file_is_refused_unless_as_new(tmp_path: Path, thread_id: str) -> None:
    home = tmp_path / "a" / "b" / "home"
    put = written(home)
    path = tmp_path / "theirs.jsonl"
    path.write_bytes(put.read_bytes().replace(read_thread(put).id.encode(), json.dumps(thread_id)[1:-1].encode()))
    before = fingerprint(tmp_path)
    with pytest.raises(RolloutError, match="cannot name a file; --as-new gives a new one"):
        adopt(path, home, Clock())
    assert fingerprint(tmp_path) == before
    done = adopt(path, home, Clock(), as_new=True)
    assert texts(read_thread(done.path)) == texts(read_thread(put)) and done.path.parent == put.parent


def test_an_id_that_begins_another_one_is_another_session(tmp_path: Path) -> None:
    put = written(tmp_path / "home")
    path = tmp_path / "theirs.jsonl"
    whole = read_thread(put).id
    path.write_bytes(put.read_bytes().replace(whole.encode(), whole[:8].encode()).replace(b"hello", b"other"))
    assert adopt(path, tmp_path / "home", Clock()).what == "imported"


@pytest.mark.parametrize("begun", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "once"])
def test_a_beginning_that_is_in_no_year_is_that_of_the_file(
    tmp_path: Path, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theirs.jsonl"
    path.write_bytes((ROLLOUTS / "b_tool_loop.jsonl").read_bytes())
    lines = [json.loads(raw) for raw in path.read_bytes().splitlines()]
    lines[0]["payload"]["timestamp"] = begun
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    for zone in ("America/New_York", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            assert adopt(path, tmp_path / zone, Clock()).path.exists()
        finally:
            monkeypatch.undo()
            time.tzset()


def test_a_file_without_a_name_goes_where_its_own_beginning_belongs(tmp_path: Path) -> None:
    [path] = placed(tmp_path / "from", b_tool_loop="whatever")
    path.write_text(path.read_text().replace('"<time>"', '"2026-02-03T12:00:00.000Z"'))
    done = adopt(path, tmp_path / "home", Clock())
    assert done.path.parent == tmp_path / "home/sessions/2026/02/03" and done.path.name.endswith("-#1.jsonl")
    assert same_state(read_thread(done.path), read_thread(path))


def test_a_compressed_file_becomes_a_plain_one(tmp_path: Path) -> None:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    path = written(tmp_path / "one")
    packed = tmp_path / f"{path.name}.zst"
    packed.write_bytes(zstd.compress(path.read_bytes()))
    done = adopt(packed, tmp_path / "two", Clock())
    assert done.path.name == path.name and done.path.read_bytes() == path.read_bytes()


def test_the_settings_say_whether_an_imported_session_has_blobs(tmp_path: Path) -> None:
    for begun, now in ((OFF, ON), (ON, OFF), (ON, ON)):
        folder = tmp_path / f"{begun.rollout.blobs}{now.rollout.blobs}"
        path = written(folder / "one", begun)
        done = adopt(path, folder / "two", Clock(), blobs=now.rollout.blobs)
        shutil.rmtree(folder / "one")
        assert metas(done.path)[0]["history_mode"] == (BLOBS if now is ON else "paginated")
        assert folder_of(done.path).exists() == (now is ON)
        assert read_thread(done.path).history[0].item["content"][0]["image_url"] == LONG


def test_a_file_of_the_first_generation_keeps_its_mode_through_blobs(tmp_path: Path) -> None:
    path = written(tmp_path / "one", OFF, "hello", "x" * 20_000)
    lines = [json.loads(raw) for raw in path.read_bytes().splitlines()]
    for line in lines:
        line.pop("ordinal")
    lines[0]["payload"]["history_mode"] = "legacy"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    done = adopt(path, tmp_path / "two", Clock(), blobs=True)
    with Memory.reopen(done.path, PROFILE, OFF, Clock()) as memory:
        memory.add({"role": "user", "content": LONG})
    assert len(list(folder_of(done.path).iterdir())) == 3 - 1, "the picture is the same text"
    target, _ = exported(done.path, tmp_path / "out.jsonl")
    assert metas(target)[0]["history_mode"] == "legacy"
    assert target.read_bytes().startswith(path.read_bytes())


def test_the_same_session_twice_is_known_and_a_longer_one_at_home_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "one")
    first = adopt(path, tmp_path / "two", Clock(), blobs=True)
    assert adopt(path, tmp_path / "two", Clock()).what == "known"
    with Memory.reopen(first.path, PROFILE, OFF, Clock()) as memory:
        memory.add({"role": "user", "content": "and on, here"})
    again = adopt(path, tmp_path / "two", Clock())
    assert (again.what, again.path) == ("known", first.path)
    assert texts(read_thread(first.path))[-1] == "and on, here"


def test_another_session_with_the_same_id_is_refused_unless_as_new(tmp_path: Path) -> None:
    path = written(tmp_path / "one", OFF, "hello")
    home = tmp_path / "two"
    first = adopt(path, home, Clock())
    with Memory.reopen(path, PROFILE, OFF, Clock()) as memory:
        memory.add({"role": "user", "content": "and on, there"})
    with pytest.raises(RolloutError, match=f"has the id {first.id} .*--as-new gives this one a new id"):
        adopt(path, home, Clock())
    assert texts(read_thread(first.path))[-1] == "hello"
    done = adopt(path, home, Clock(), as_new=True)
    assert done.id != first.id and done.forked_from == first.id
    thread = read_thread(done.path)
    assert thread.meta is not None and (thread.id, thread.meta.forked_from) == (done.id, first.id)
    assert texts(thread)[-1] == "and on, there"
    assert {e.address.partition(":")[0] for e in thread.history} == {done.id}


def test_a_copy_under_a_new_id_has_addresses_of_its_own_and_can_be_undone(tmp_path: Path) -> None:
    played = perform(TWICE, tmp_path)
    done = adopt(played.path, tmp_path / "two", Clock(), as_new=True)
    thread, before = read_thread(done.path), read_thread(played.path)
    assert same_state(thread, Thread.replay(list(read_lines(done.path))))
    assert [e.item for e in thread.history] == [e.item for e in before.history]
    assert [e.address for e in thread.history] == [e.address.replace(before.id, done.id) for e in before.history]
    assert (thread.turns, thread.compactions, thread.sent) == (before.turns, before.compactions, before.sent)
    assert tail_of(done.path).is_alone, "its newest checkpoint still is enough"
    for path in (done.path, played.path):
        with Memory.reopen(path, PROFILE, OFF, Clock()) as memory:
            memory.undo()
            memory.undo(turns=1)
    assert [e.item for e in read_thread(done.path).history] == [e.item for e in read_thread(played.path).history]


def test_a_copy_says_in_texts_what_the_session_said(tmp_path: Path) -> None:
    with Memory.new(tmp_path / "one", PROFILE, OFF, Watch(), cwd="/w", instructions="BASE") as memory:
        said = f"your id is {memory.id}, and {memory.id}:1 is where this stands"
        memory.add({"role": "user", "content": said})
        assert memory.path is not None
    done = adopt(memory.path, tmp_path / "two", Clock(), as_new=True)
    assert texts(read_thread(done.path)) == [said]


def test_forks_and_reverts_of_the_real_program_are_taken_in_standing_alone(tmp_path: Path) -> None:
    files = placed(
        tmp_path / "from", i_resume_fork_parent="a", i_resume_fork_child="b", t_revert_base="c", t_revert_after="d"
    )
    for path in files[2:]:
        path.write_text(path.read_text().replace('"#1"', '"#9"'))
    assert superseded(files) == {files[2]: files[3]}
    home = tmp_path / "home"
    done = [adopt(path, home, Clock()) for path in (files[0], files[1], files[3])]
    asked = [read_thread(path) for path in (files[0], files[1], files[3])]
    shutil.rmtree(tmp_path / "from")
    for one, before in zip(done, asked, strict=True):
        assert [e.item for e in read_thread(one.path).history] == [e.item for e in before.history]
        assert one.id == before.id


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "is empty"),
        (b"not json\n", "is not a rollout"),
        (
            b'{"timestamp":"t","type":"session_meta","payload":{"id":"x","history_mode":"of-2031"}}\n',
            "history mode 'of-2031'",
        ),
        (b"\x28\xb5\x2f\xfdbroken", "broken zstd data|ends in its middle"),
    ],
)
def test_what_is_no_session_is_refused_and_nothing_is_left(tmp_path: Path, data: bytes, error: str) -> None:
    path = tmp_path / "rollout-2026-02-03T04-05-06-x.jsonl"
    path.write_bytes(data)
    with pytest.raises(RolloutCorrupt, match=error):
        adopt(path, tmp_path / "home", Clock())
    assert not (tmp_path / "home").exists()


def test_a_name_that_is_taken_by_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path / "one")
    taken = tmp_path / "two" / path.relative_to(tmp_path / "one")
    taken.mkdir(parents=True)
    with pytest.raises(RolloutError):
        adopt(path, tmp_path / "two", Clock())
    assert sorted(one.name for one in (tmp_path / "two").iterdir()) == ["sessions"]


# --- items -----------------------------------------------------------------------------------------------------------


def test_a_list_of_items_becomes_a_session_that_holds_them_as_they_are(tmp_path: Path) -> None:
    items = [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "long " * 40_000},
        {"type": "of_tomorrow", "id": "x_1"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]
    source = tmp_path / "items.json"
    source.write_text("\ufeff" + json.dumps(items), encoding="utf-8")
    assert is_items(source)
    done = adopt_items(source, tmp_path / "home", Clock(), OFF, model="gpt-5.5", cwd="/w")
    thread = read_thread(done.path)
    assert (done.what, done.items) == ("imported", 4), "what no model is sent is in the log only"
    found = [line.record.item for line in read_lines(done.path) if isinstance(line.record, ItemRecorded)]
    assert [item["type"] for item in found] == ["message", *[item["type"] for item in items[1:]]]
    assert found[1:4] == items[1:4], "nothing is cut"
    assert texts(thread) == ["hello", "done"] and thread.meta is not None and thread.meta.cwd == "/w"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "holds no items"),
        ("[1]", "item 0 of the list is no Responses item"),
        ('[{"role":"user","content":"x"},{"content":"y"}]', "item 1 of the list"),
        ('[{"role":"user"', "is not JSON"),
        ('[{"type":5}]', "item 0 of the list"),
    ],
)
def test_what_is_no_list_of_items_is_refused(tmp_path: Path, text: str, error: str) -> None:
    source = tmp_path / "items.json"
    source.write_text(text)
    with pytest.raises(RolloutCorrupt, match=error):
        adopt_items(source, tmp_path / "home", Clock(), OFF, model="gpt-5.5", cwd="/w")
    assert not (tmp_path / "home").exists()


# --- likeness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ([b"{}"], [b"{}"], "same"),
        ([b'{"a": 1}'], [b'{"a":1}'], "same"),
        ([b"{}"], [b"{}", b"{}"], "begins"),
        ([b"{}", b"{}"], [b"{}"], "differs"),
        ([b'{"a":1}'], [b'{"a":2}'], "differs"),
        ([b"torn"], [b"torn"], "same"),
        ([b"torn"], [b"other"], "differs"),
    ],
)
def test_likeness_is_of_what_lines_say(one: list[bytes], other: list[bytes], answer: str) -> None:
    assert likeness(one, other) == answer


def test_an_undo_of_what_was_taken_over_says_where_it_is(tmp_path: Path) -> None:
    _, child = placed(tmp_path / "from", i_resume_fork_parent="a", i_resume_fork_child="b")
    target, _ = exported(child, tmp_path / "out.jsonl")
    with (
        Memory.reopen(target, PROFILE, OFF, Clock()) as memory,
        pytest.raises(CompactionFailed, match="taken over from #1"),
    ):
        memory.undo()
