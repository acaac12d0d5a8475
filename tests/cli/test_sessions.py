"""`refold sessions`: the list, for people and programs, and the search; `--last` and names wherever an ID is taken."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from refold.testing import ResponsesServer

DATA = Path(__file__).parents[1] / "data"
ONE = "0190aaaa-0000-7000-8000-000000000001"
TWO = "0190bbbb-0000-7000-8000-000000000002"
OLD = "0190cccc-0000-7000-8000-000000000003"
STYLES = re.compile(r"\x1b\[[\d;]*m")
ERASED = "\r\x1b[K"


def said(text: str, role: str = "user") -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    content = [{"type": kind, "text": text}]
    return {"type": "response_item", "payload": {"type": "message", "role": role, "content": content}}


def put(
    home: Path, thread_id: str, day: int, *lines: dict[str, Any], cwd: str = "/srv/a", archived: bool = False
) -> Path:
    folder = home / ("archived_sessions" if archived else f"sessions/2026/02/{day:02}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rollout-2026-02-{day:02}T04-00-00-{thread_id}.jsonl"
    payload = {"id": thread_id, "timestamp": f"2026-02-{day:02}T04:00:00.000Z", "cwd": cwd}
    rows = [{"type": "session_meta", "payload": payload}, *lines]
    path.write_text("".join(json.dumps({"timestamp": "2026-02-03T04:00:00.000Z", **row}) + "\n" for row in rows))
    return path


def called(name: str) -> dict[str, Any]:
    return {"type": "refold", "payload": {"kind": "named", "name": name}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three sessions, the oldest of them archived."""
    home = tmp_path / "home"
    counted = {"info": {"total_token_usage": {"total_tokens": 12_345}, "last_token_usage": {}}}
    used = {"type": "event_msg", "payload": {"type": "token_count", **counted}}
    compacted = {"type": "compacted", "payload": {"message": "so far", "replacement_history": []}}
    put(
        home,
        ONE,
        5,
        said("Fix the totals"),
        said("It was the rounding", "assistant"),
        used,
        compacted,
        called("billing"),
    )
    put(home, TWO, 6, said("Read the rounding rules\n  twice"), cwd=str(tmp_path))
    put(home, OLD, 4, said("Long ago, rounding was easy"), archived=True)
    return home


def ids(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]


# --- the list ---------------------------------------------------------------------------------------------------------


def test_list_tells_ids_times_numbers_names_and_first_words(here, home):
    ended = here("sessions")
    assert (ended.status, ended.err) == (0, "")
    two, one = ended.out.splitlines()
    assert two.startswith(f"{TWO}  2026-02-06 ") and two.endswith("  Read the rounding rules twice")
    assert one.startswith(f"{ONE}  2026-02-05 ") and one.endswith("  billing · Fix the totals")
    assert "  12.3k  1 ×  " in one and re.search(r"  \d+ B  ", one)


def test_list_has_the_archived_ones_only_when_asked(here, home):
    assert ids(here("sessions").out) == [TWO, ONE]
    archived = here("sessions", "--archived").out
    assert ids(archived) == [OLD] and "(archived) Long ago" in archived
    shutil.rmtree(home / "sessions")
    ended = here("sessions")
    assert (ended.status, ended.out) == (0, "")
    assert ended.err == "no session (--archived lists those that are put away)\n"


def test_list_of_this_folder(here, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ids(here("sessions", "--here").out) == [TWO]
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    put(home, OLD, 7, said("through the link"), cwd=str(tmp_path / "link"))
    assert ids(here("sessions", "--here").out) == [OLD, TWO]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert here("sessions", "--here").err.startswith(f"no session works in {tmp_path}/empty")


def test_list_is_as_long_as_asked(here, home):
    assert ids(here("sessions", "--limit", 1).out) == [TWO]
    assert ids(here("sessions", "--limit", 0).out) == [TWO, ONE]
    assert here("sessions", "--limit", -1).status == 2


def test_list_for_programs_says_all(here, home):
    two, one = here("sessions", "--json").events
    assert one.keys() == {
        *(
            "id",
            "path",
            "title",
            "created",
            "modified",
            "cwd",
            "branch",
            "name",
            "named_at",
            "first_text",
            "forked_from",
        ),
        *("model", "tokens", "compactions", "turns", "size", "own", "archived", "problem"),
    }
    assert Path(one["path"]).is_file()
    assert (one["title"], one["name"], one["first_text"]) == ("billing", "billing", "Fix the totals")
    assert (one["tokens"], one["compactions"], one["turns"], one["archived"]) == (12_345, 1, 1, False)
    assert two["title"] == "Read the rounding rules twice"


def test_list_without_an_index_is_shorter_but_there(here, home):
    (home / "index.sqlite").mkdir()
    ended = here("sessions")
    assert (ended.status, ended.err) == (0, "")
    assert ids(ended.out) == [TWO, ONE] and "  –  –  " in ended.out


def test_control_characters_do_not_reach_the_terminal(here, home):
    put(home, OLD, 7, said("a \x1b[2J b \u202e c rounding"), called("n\x1b]0;x\x07ame"), cwd="/\x1b[3J")
    for words in ([], ["--search", "rounding"]):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", here("sessions", *words).out)


# --- the search -------------------------------------------------------------------------------------------------------


def test_search_shows_where_the_words_stand(here, home):
    ended = here("sessions", "--search", "ROUNDING")
    assert (ended.status, ended.err) == (0, "")
    assert ids(ended.out) == [TWO, ONE]
    assert f"    {TWO}:2 user  Read the rounding rules twice" in ended.out.splitlines()
    assert f"    {ONE}:3 assistant  It was the rounding" in ended.out.splitlines()
    address = f"{ONE}:3"
    assert "It was the rounding" in here("show", address).out
    assert ids(here("sessions", "--search", "rounding", "--archived").out) == [OLD]
    assert ids(here("sessions", "--search", "rounding", "--limit", 1).out) == [TWO]
    assert ids(here("sessions", "--search", "billing").out) == [ONE]


def test_search_counts_what_it_does_not_show(here, home):
    put(home, OLD, 7, *[said(f"many words {count}") for count in range(9)])
    out = here("sessions", "--search", "many").out
    assert out.count("many words") == 1 + 3 and out.splitlines()[-1] == "    and 6 more"
    [found] = here("sessions", "--search", "many", "--json").events
    assert found["count"] == len(found["hits"]) == 9
    assert found["hits"][1] == {"address": f"{OLD}:3", "kind": "user", "snippet": "many words 1"}


def test_search_for_nothing_and_without_a_result(here, home):
    assert "there is no word to look for" in here("sessions", "--search", "  ").only_complaint
    ended = here("sessions", "--search", "platypus")
    assert (ended.status, ended.out, ended.err) == (0, "", "nothing found for 'platypus'\n")


def test_search_without_an_index_says_that_it_takes_longer(here, home):
    (home / "index.sqlite").mkdir()
    ended = here("sessions", "--search", "rounding")
    assert ids(ended.out) == [TWO, ONE]
    assert ended.err == "refold: the files themselves are read, which takes longer: there can be no index now\n"


# --- terminals --------------------------------------------------------------------------------------------------------


def on_a_terminal(machine, *words: Any, columns: int = 100, **environ: str) -> str:
    """What a command prints where a person looks."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    command = machine.command(*words)
    options = {"env": machine.environ | environ, "cwd": machine.work}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **options) as process:
        os.close(theirs)
        printed = b""
        try:
            while piece := os.read(ours, 65_536):
                printed += piece
        except OSError:  # Linux tells the end of a terminal so
            pass
        process.wait()
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def test_terminal_gets_heads_short_ids_and_rows_that_fit(machine, home):
    put(home, OLD, 7, said("語" * 200))
    printed = on_a_terminal(machine, "sessions", columns=90)
    assert "\x1b[" in printed
    head, *rows = STYLES.sub("", printed).splitlines()
    assert head.split() == ["ID", "BEGUN", "USED", "TOKENS", "COMPACTED", "SIZE"]
    assert [row.split()[0] for row in rows] == ["0190cccc", "0190bbbb", "0190aaaa"]
    assert all("s ago" in row or "min ago" in row for row in rows)
    assert len(rows[0]) < 90 and rows[0].endswith("語…")
    assert "\x1b" not in on_a_terminal(machine, "sessions", NO_COLOR="1")


def test_short_ids_mean_one_session(machine, home):
    put(home, ONE[:-1] + "9", 7, said("its neighbour"))
    rows = STYLES.sub("", on_a_terminal(machine, "sessions")).splitlines()[1:]
    for row in rows:
        assert machine.refold("show", row.split()[0]).status == 0


def test_terminal_gets_the_newest_of_many(machine, home):
    for number in range(60):
        put(home, f"{number:08}-0000-7000-8000-000000000000", 7, said("x"))
    lines = on_a_terminal(machine, "sessions", NO_COLOR="1").splitlines()
    assert len(lines) == 1 + 50 + 1 and lines[-1] == "12 more: --limit 0 shows all"
    assert len(on_a_terminal(machine, "sessions", "--limit", 0, NO_COLOR="1").splitlines()) == 1 + 62
    assert len(machine.refold("sessions").out.splitlines()) == 62


def test_first_index_shows_how_far_it_is_and_leaves_no_trace(machine, home):
    lines = [said(f"line {count}") for count in range(40)]
    folder = put(home, OLD, 7, *lines).parent
    data = next(folder.glob(f"*{OLD}*")).read_bytes()
    for number in range(2_500):
        name = f"rollout-2026-02-07T04-00-00-{number:08}-0000-7000-8000-000000000000.jsonl"
        (folder / name).write_bytes(data)
    printed = on_a_terminal(machine, "sessions", "--limit", 1, NO_COLOR="1")
    assert re.search(r"\r\x1b\[Kreading sessions █*░* [\d,]+ of 2,504 files, [\d.]+ MB", printed)
    assert printed.rpartition(ERASED)[2].startswith("ID ")
    assert "reading" not in on_a_terminal(machine, "sessions", "--limit", 1, NO_COLOR="1")
    for index in home.glob("index.sqlite*"):
        index.unlink()
    piped = machine.refold("sessions", "--limit", 1)
    assert piped.err == "" and "reading" not in piped.out


# --- wherever an ID is taken ------------------------------------------------------------------------------------------


READING = [["show"], ["context"], ["sent"], ["rules"]]


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_last_and_names_mean_a_session(here, home, words):
    os.utime(next(home.rglob(f"*{TWO}*")), (1, 1))
    by_id = here(*words, ONE)
    assert by_id.status == 0
    assert (here(*words, "billing").out, here(*words, "BILLING").out) == (by_id.out, by_id.out)
    assert (
        here(*words, "--last").out
        == here(*words, home / f"sessions/2026/02/05/rollout-2026-02-05T04-00-00-{ONE}.jsonl").out
    )
    assert "give no ID or PATH beside it" in here(*words, "--last", ONE).only_complaint
    missing = here(*words).only_complaint
    assert "Missing argument 'ID|PATH'" in missing and "or --last" in missing


def test_last_and_names_go_with_commands_that_write(machine):
    with ResponsesServer(["first answer", "second answer", "a summary", "third answer", "fourth answer"]) as server:
        machine.connect(server)
        assert machine.refold("run", "hello").status == 0
        path = machine.rollout
        with path.open("ab") as file:
            row = {"timestamp": "2026-02-03T04:00:00.000Z", "ordinal": 900, **called("my work")}
            file.write(json.dumps(row).encode() + b"\n")
        assert machine.refold("resume", "my work", "and on").out == "second answer\n"
        hello = next(row["ordinal"] for row in machine.records(path) if "'text': 'hello'" in str(row["payload"]))
        assert machine.refold("pin", "--last", hello).out.startswith("pinned ")
        assert machine.refold("unpin", "--last", hello).status == 0
        assert "Missing argument 'ADDRESS|N'" in machine.refold("pin", "--last").complaint
        assert machine.refold("compact", "--last").status == 0
        assert machine.refold("undo", "--last").status == 0
        assert machine.refold("fork", "--last", "aside").out == "third answer\n"
        assert machine.refold("fork", "MY WORK", "aside").out == "fourth answer\n"
    assert len(machine.rollouts()) == 3


def test_last_is_no_archived_session_while_there_is_another(here, home):
    os.utime(next(home.rglob(f"*{OLD}*")), (4_000_000_000, 4_000_000_000))
    assert OLD not in here("show", "--last").out
    shutil.rmtree(home / "sessions")
    assert OLD in here("show", "--last").out
