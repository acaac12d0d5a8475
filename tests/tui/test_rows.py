"""What is drawn and kept, without a terminal: the toolbar, rows, marks, lists, the last turns, what was said."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta

import pytest

from refold.core.history import entry
from refold.core.items import message
from refold.rollout.catalogue import Summary
from refold.tui.board import Board, Running, bar, live_rows, short, toolbar
from refold.tui.cells import cells, fitted, wrapped
from refold.tui.choice import fitting, newest_first, row
from refold.tui.history import LONGEST_FILE, MOST_ENTRIES, SaidBefore
from refold.tui.marks import Marks
from refold.tui.past import MOST_LINES, past


def text(fragments) -> str:
    return "".join(piece for _, piece in fragments)


def board(**fields) -> Board:
    made = Board()
    for name, value in {"model": "m-1", "used": 13_600, "window": 272_000, "limit": 244_800, **fields}.items():
        setattr(made, name, value)
    return made


# --- the toolbar -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "idle"}, "idle · "),
        ({"state": "working", "since": 88.0}, "working 12 s · "),
        ({"state": "waiting", "until": 103.2}, "waiting to try again in 3 s · "),
        ({"state": "waiting", "until": 90.0}, "waiting to try again in 0 s · "),
        ({"state": "compacting", "since": 96.0}, "compacting 4 s · "),
        ({"state": "idle", "hint": "again leaves"}, "idle · again leaves · "),
    ],
)
def test_toolbar_says_what_goes_on(fields, words):
    assert text(toolbar(board(**fields), 100.0, 100)).startswith(words)


def test_toolbar_of_a_narrow_terminal_keeps_what_matters():
    full = board(state="idle", total=34_120)
    assert text(toolbar(full, 0, 100)) == "idle · ░░░░░░░░░┃ 13.6k/272k (5%) · m-1 · 34.1k tokens used"
    for width in range(1, 100):
        assert cells(text(toolbar(full, 0, width))) < max(2, width)
    assert text(toolbar(full, 0, 45)) == "idle · ░░░░░░░░░┃ 13.6k/272k (5%) · m-1"
    assert text(toolbar(full, 0, 20)) == "idle"


def test_gauge_tells_where_compaction_is_due_and_when_it_is():
    assert bar(136, 272, 245) == "█████░░░░┃"
    assert bar(900, 272, None) == "█" * 10
    looks = [toolbar(board(state="idle", used=used), 0, 100)[2][0] for used in (10, 200_000, 250_000)]
    assert looks == ["green", "yellow", "red"]


@pytest.mark.parametrize(
    ("tokens", "told"), [(0, "0"), (950, "950"), (12_400, "12.4k"), (272_000, "272k"), (1_250_000, "1.2M")]
)
def test_tokens_are_told_shortly(tokens, told):
    assert short(tokens) == told


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_above_the_input_line_are_bounded_and_the_newest_win():
    full = board(
        thought="first thought\n**second thought**\n",
        tail="word " * 100,
        running={"c": Running("make", 90.0, "\n".join(f"line {number}" for number in range(50)))},
        queued={"m": "a steer\nin two lines"},
    )
    rows = [text(one) for one in live_rows(full, 100.0, 40, 50)]
    assert rows[0] == "∴ second thought"
    assert rows[-6:] == [
        "    line 46",
        "    line 47",
        "    line 48",
        "    line 49",
        "  … 10 s",
        "⋯ queued: a steer in two lines",
    ]
    assert all(cells(one) <= 40 for one in rows)
    assert [text(one) for one in live_rows(full, 100.0, 40, 3)] == rows[-3:]
    assert live_rows(full, 100.0, 40, 0) == []


@pytest.mark.parametrize("line", ["plain words", "宽字符在终端里占两列", "e\u0301" * 30, "\tx" * 9, ""])
@pytest.mark.parametrize("width", [2, 7, 20])
def test_wrapped_rows_fit_and_lose_nothing(line, width):
    rows = wrapped(line, width)
    assert "".join(rows) == line.expandtabs()
    assert all(cells(one) <= width for one in rows)
    assert cells(fitted(line, width)) <= width


def test_marks_lose_no_character():
    marks = Marks()
    lines = ["# Head", "a `b` **c** d", "```py", "# not a head", "~~~", "```", "**x** `"]
    rows = [marks.row(line) for line in lines]
    assert [text(one) for one in rows] == lines
    assert rows[0] == [("bold", "# Head")]
    assert rows[1] == [("", "a "), ("cyan", "`b`"), ("", " "), ("bold", "**c**"), ("", " d")]
    assert [one[0][0] for one in rows[2:6]] == ["dim", "cyan", "dim", "dim"] or rows[3] == [("cyan", "# not a head")]
    assert rows[6][0] == ("bold", "**x**")


# --- sessions to choose from -----------------------------------------------------------------------------------------

BEGAN = datetime(2026, 2, 3, 5, tzinfo=UTC)


def summary(number: int, **fields) -> Summary:
    when = BEGAN + timedelta(hours=number)
    given = {"cwd": "/srv/project", "first_text": f"task {number}", **fields}
    return Summary(id=f"0193-{number}", file=f"/s/{number}", created=BEGAN, modified=when, **given)


def test_sessions_are_listed_by_when_they_were_written_and_filtered_by_every_word():
    found = [summary(1), summary(3, first_text="Fix the build"), summary(2, cwd="/srv/other")]
    assert [one.id for one in newest_first(found)] == ["0193-3", "0193-2", "0193-1"]
    assert [one.id for one in fitting(found, "BUILD fix")] == ["0193-3"]
    assert [one.id for one in fitting(found, "other")] == ["0193-2"]
    assert fitting(found, "") == found and fitting(found, "0193-1 nothing") == []


def test_row_of_a_session_holds_time_folder_and_first_words_and_no_escape():
    one = summary(1, cwd="/a/very/long/path/that/goes/on/project", first_text="do\x1b[2J it\nnow")
    assert row(one, 100, UTC) == "2026-02-03 06:00  …th/that/goes/on/project  do[2J it now"
    assert cells(row(one, 30, UTC)) <= 30
    assert row(summary(1, first_text="", problem="no session_meta line"), 100, UTC).endswith("[no session_meta line]")


# --- the last turns --------------------------------------------------------------------------------------------------


def test_last_turns_are_shown_shortened():
    items = [
        one
        for number in range(9)
        for one in (message("user", [f"ask {number}"]), message("assistant", [f"yes {number}"]))
    ]
    items += [message("user", ["long\n" * 50])]
    shown = [line for line, _ in past([entry(item, "t:1") for item in items])]
    assert shown[0] == "… 14 items before"
    assert shown[1:5] == ["› ask 7", "yes 7", "› ask 8", "yes 8"]
    assert "  … 38 lines" in shown and len(shown) <= MOST_LINES + 1
    assert past([]) == []


# --- what was said before --------------------------------------------------------------------------------------------


def test_what_was_said_is_kept_whole_and_private(tmp_path):
    file = tmp_path / "home" / "chat_history"
    kept = SaidBefore(file)
    assert kept.entries() == []
    for said in ("one\ntwo", "ünï\u2028code", "half \udc80"):
        kept.add(said)
    assert SaidBefore(file).entries() == ["one\ntwo", "ünï\u2028code", "half \udc80"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(b"not json\n[1]\n" + file.read_bytes() + b'"cut')
    file.chmod(0o644)
    assert len(SaidBefore(file).entries()) == 3
    kept.add("more")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_history_that_grew_too_long_is_cut_to_its_newest(tmp_path):
    file = tmp_path / "chat_history"
    kept = SaidBefore(file)
    for number in range(1_200):
        kept.add(f"{number} " + "x" * 1_000)
    assert file.stat().st_size > LONGEST_FILE
    assert len(kept.entries()) == MOST_ENTRIES
    assert file.stat().st_size < LONGEST_FILE
    assert kept.entries()[-1].startswith("1199 ")
    assert [one.name for one in tmp_path.iterdir()] == ["chat_history"]


def test_history_that_cannot_be_written_costs_nothing_else(tmp_path):
    (tmp_path / "chat_history").mkdir()
    kept = SaidBefore(tmp_path / "chat_history")
    kept.add("x")
    assert kept.entries() == []
