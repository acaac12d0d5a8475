"""refold export and refold import, as real processes: what is written where, what is said, which exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from refold.testing import ResponsesServer, text_reply

ROLLOUTS = Path(__file__).parents[1] / "data" / "oracle" / "rollouts"
PICTURE = b"\x89PNG\r\n\x1a\n" + b"\0" * 30_000


@pytest.fixture
def session(machine: Any) -> Any:
    """A machine with one session of two turns in it, whose picture lies beside it."""
    with ResponsesServer([text_reply("first answer"), text_reply("second answer")]) as server:
        machine.connect(server, "[rollout]\nblobs = true\n")
        (machine.work / "p.png").write_bytes(PICTURE)
        assert machine.refold("run", "-i", "p.png", "look").status == 0
        assert machine.refold("resume", "--last", "and on").status == 0
    return machine


def rollout(machine: Any) -> Path:
    [path] = machine.home.glob("sessions/*/*/*/*.jsonl")
    return path


def test_export_writes_one_file_here_that_needs_no_other(session: Any, machine: Any) -> None:
    path = rollout(machine)
    [blob] = path.with_suffix(".blobs").iterdir()
    ended = machine.refold("export", path.stem[-36:])
    assert ended.status == 0 and ended.out.startswith(f"{path.name}  ") and not ended.err
    written = machine.work / path.name
    assert blob.read_bytes() in written.read_bytes() and blob.read_bytes() not in path.read_bytes()
    assert json.loads(written.read_bytes().split(b"\n")[0])["payload"]["history_mode"] == "paginated"
    shutil.rmtree(machine.home)
    assert "second answer" in machine.refold("show", written).out


def test_the_picture_is_sent_again_from_its_blob(session: Any, machine: Any) -> None:
    with ResponsesServer([text_reply("third")]) as server:
        machine.connect(server)
        assert machine.refold("resume", "--last", "again").status == 0
        [request] = server.requests
    parts = [part for item in request.input for part in item.get("content", []) if part["type"] == "input_image"]
    assert len(parts) == 1 and parts[0]["image_url"].startswith("data:image/png;base64,iVBOR")
    assert machine.refold("sent", rollout(machine)).status == 0


def test_export_to_standard_output_says_nothing_else(session: Any, machine: Any) -> None:
    ended = machine.refold("export", rollout(machine), "-o", "-")
    kinds = [json.loads(line)["type"] for line in ended.out.splitlines()]
    assert ended.status == 0 and kinds[0] == "session_meta" and not ended.err
    assert not list(machine.work.glob("rollout*"))


def test_export_of_the_items_is_a_json_list(session: Any, machine: Any) -> None:
    ended = machine.refold("export", rollout(machine), "--items", "-o", "items.json")
    assert ended.status == 0
    items = json.loads((machine.work / "items.json").read_text())
    texts = [part.get("text") for item in items for part in item["content"]]
    assert "and on" in texts and texts[-1] == "second answer"


def test_export_replaces_nothing_unless_forced_and_never_the_session_itself(session: Any, machine: Any) -> None:
    path = rollout(machine)
    (machine.work / "mine").write_text("mine")
    ended = machine.refold("export", path, "-o", "mine")
    assert ended.status == 1 and "mine is there already; --force replaces it" in ended.only_complaint
    assert machine.refold("export", path, "-o", "mine", "--force").status == 0
    assert (machine.work / "mine").read_text().startswith('{"timestamp"')
    before = machine.fingerprint(path)
    ended = machine.refold("export", path, "-o", path, "--force")
    assert ended.status == 2 and "is the session itself" in ended.complaint
    ended = machine.refold("export", path, "-o", machine.work)
    assert ended.status == 2 and "is a folder" in ended.complaint
    assert machine.fingerprint(path) == before


def test_export_names_what_is_missing(session: Any, machine: Any) -> None:
    path = rollout(machine)
    [blob] = path.with_suffix(".blobs").iterdir()
    blob.unlink()
    for words in (("-o", "out.jsonl"), ("--items", "-o", "out.json")):
        ended = machine.refold("export", path, *words)
        assert ended.status == 0 and ended.err.count(f"missing or damaged: blob {blob.name[:12]}") == 1
    found = machine.refold("doctor", path)
    assert f"missing or damaged: blob {blob.name[:12]}" in found.out and found.out.count("missing or damaged") == 1
    assert "a repair mends none of this" in machine.refold("doctor", path, "--fix").out
    shown = machine.refold("show", path)
    assert shown.status == 0 and f"missing or damaged: blob {blob.name[:12]}" in shown.err
    assert "is missing here" in machine.refold("context", path).out


def test_import_takes_a_session_in_and_it_goes_on(session: Any, machine: Any) -> None:
    path = rollout(machine)
    away = machine.folder / "away"
    shutil.move(machine.home / "sessions", away)
    before = {one: machine.fingerprint(one) for one in away.rglob("*") if one.is_file()}
    ended = machine.refold("import", away)
    thread_id = path.stem[-36:]
    assert ended.status == 0 and ended.out.startswith(f"{thread_id}  imported  ")
    assert {one: machine.fingerprint(one) for one in away.rglob("*") if one.is_file()} == before
    with ResponsesServer([text_reply("third")]) as server:
        machine.connect(server)
        assert machine.refold("resume", thread_id, "more").status == 0
        asked = json.dumps(server.requests[0].input)
    assert [text in asked for text in ("first answer", "second answer", "more")] == [True] * 3
    ended = machine.refold("import", away)
    assert ended.status == 0 and "is there already" in ended.out


def test_import_of_another_session_with_the_same_id_needs_a_new_one(session: Any, machine: Any) -> None:
    path = rollout(machine)
    machine.refold("export", path, "-o", "other.jsonl")
    other = machine.work / "other.jsonl"
    other.write_text(other.read_text().replace("first answer", "another answer"))
    ended = machine.refold("import", other)
    assert ended.status == 1 and "--as-new gives this one a new id" in ended.only_complaint
    ended = machine.refold("import", other, "--as-new", "--json")
    [told] = ended.events
    assert ended.status == 0 and told["what"] == "imported" and told["forked_from"] == path.stem[-36:] != told["id"]
    assert "another answer" in machine.refold("show", told["id"]).out


def test_import_goes_on_after_what_it_cannot_take(machine: Any) -> None:
    source = machine.folder / "mixed"
    source.mkdir()
    (source / "rollout-2026-02-03T04-05-06-a.jsonl").write_text("no session\n")
    good = Path(shutil.copy(ROLLOUTS / "b_tool_loop.jsonl", source / "rollout-2026-02-03T04-05-07-b.jsonl"))
    (source / "notes.txt").write_text("not looked at")
    ended = machine.refold("import", source, "--json")
    assert ended.status == 1
    assert [(one["what"], Path(one["source"]).name) for one in ended.events] == [
        ("failed", "rollout-2026-02-03T04-05-06-a.jsonl"),
        ("imported", good.name),
    ]
    assert "is not a rollout" in ended.events[0]["message"] and "is not a rollout" in ended.complaint


def test_import_takes_a_reverted_thread_once(machine: Any) -> None:
    source = machine.folder / "codex"
    source.mkdir()
    for number, name in enumerate(("t_revert_base", "t_revert_after")):
        shutil.copy(ROLLOUTS / f"{name}.jsonl", source / f"rollout-2026-02-03T04-05-0{number}-x.jsonl")
    ended = machine.refold("import", source)
    assert ended.status == 0 and len(ended.out.splitlines()) == 1
    assert "rollout-2026-02-03T04-05-00-x.jsonl is part of rollout-2026-02-03T04-05-01-x.jsonl" in ended.err


def test_import_of_a_list_of_items_begins_a_session(machine: Any) -> None:
    with ResponsesServer([text_reply("an answer")]) as server:
        machine.connect(server)
        (machine.work / "items.json").write_text(json.dumps([{"role": "user", "content": "remember the number 7"}]))
        ended = machine.refold("import", "items.json")
        assert ended.status == 0 and "imported  1 items" in ended.out
        assert machine.refold("resume", ended.out.split()[0], "which number?").status == 0
        assert "remember the number 7" in json.dumps(server.requests[0].input)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("export", "nothing"), "no session 'nothing'"),
        (("export", "/nowhere/x.jsonl"), "no such file"),
        (("import", "/nowhere"), "no such file: /nowhere"),
        (("import", "."), "there is no rollout"),
        (("import",), "Missing argument"),
    ],
)
def test_what_is_not_there_is_said(machine: Any, words: tuple[str, ...], error: str) -> None:
    ended = machine.refold(*words)
    assert ended.status == 2 and error in ended.complaint
