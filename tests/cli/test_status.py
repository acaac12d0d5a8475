"""What goes on now, in words: steps folded from events, and one line that fits a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from refold.cli.status import cut_to, laid_out, width_of
from refold.cli.steps import Step, Steps, lasted
from refold.cli.style import money, small_gauge
from refold.core.items import function_call_output
from refold.core.records import ItemRecorded, TurnEnded, TurnStarted
from refold.session.events import (
    CompactionEnded,
    CompactionStarted,
    PreviewDropped,
    SamplingStarted,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    Waiting,
)


class Time:
    """A clock that is set. Mutable: the seconds."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def call(cmd: str, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "name": "exec_command", "call_id": call_id, "arguments": f'{{"cmd": "{cmd}"}}'}


def sampling(tokens: int = 10, kind: Any = "turn") -> SamplingStarted:
    return SamplingStarted(kind, 1, tokens, 100)


def shown(steps: Steps) -> str | None:
    step = steps.current()
    return step.text if step else None


def test_steps_follow_a_turn() -> None:
    time = Time()
    steps = Steps(time)
    assert shown(steps) is None
    steps.note(TurnStarted("t", 0, None))
    steps.note(sampling(50))
    time.seconds += 12
    assert (shown(steps), steps.tokens) == ("sampling 1 · 12 s", 50)
    steps.note(ItemRecorded(call("pytest -q")))
    steps.note(PreviewDropped())
    steps.note(ToolStarted(call("pytest -q")))
    time.seconds += 41
    assert shown(steps) == "▸ pytest -q · 41 s"
    steps.note(ToolProgress(call("pytest -q"), "collecting\n3 passed\n\n"))
    assert shown(steps) == "▸ pytest -q · 41 s · 3 passed"
    steps.note(ToolProgress(call("pytest -q"), "\n"))
    assert shown(steps) == "▸ pytest -q · 41 s · 3 passed", "an empty line is no news"
    steps.note(ToolEnded(call("pytest -q"), "", True, {}))
    assert shown(steps) is None
    steps.note(sampling())
    assert shown(steps) == "sampling 2 · 0 s"
    steps.note(TurnEnded(turn_id="t", outcome="completed", started_at=0, completed_at=1, duration_ms=1))
    assert shown(steps) is None


def test_a_sampling_that_is_asked_again_is_the_same_one() -> None:
    time = Time()
    steps = Steps(time)
    steps.note(sampling())
    steps.note(PreviewDropped())
    steps.note(Waiting(2, 5, 6.5, "the stream\nbroke"))
    assert shown(steps) == "⟳ trying again in 7 s (2 of 5): the stream broke"
    time.seconds += 6
    assert shown(steps) == "⟳ trying again in 1 s (2 of 5): the stream broke"
    time.seconds += 6
    assert shown(steps) == "⟳ trying again in 0 s (2 of 5): the stream broke"
    steps.note(sampling())
    assert shown(steps) == "sampling 1 · 0 s"


def test_a_compaction_goes_before_the_sampling_that_waits_for_it() -> None:
    time = Time()
    steps = Steps(time)
    steps.note(sampling(900))
    steps.note(CompactionStarted("context_limit", "mid_turn", 900, 800))
    steps.note(sampling(910, "compaction"))
    time.seconds += 8
    assert (shown(steps), steps.tokens) == ("⇣ compacting · 8 s", 900)
    steps.note(Waiting(1, 5, 2, "busy"))
    assert str(shown(steps)).startswith("⟳ trying again in 2 s")
    steps.note(sampling(910, "compaction"))
    steps.note(CompactionEnded(True, 900, 300, 800))
    assert steps.tokens == 300
    steps.note(sampling(310))
    assert shown(steps) == "sampling 2 · 0 s", "what was asked again was the compaction"


def test_of_several_calls_the_one_that_runs_longest_is_shown() -> None:
    steps = Steps(Time())
    for number in (1, 2, 3):
        steps.note(ToolStarted(call(f"job {number}", f"c{number}")))
    assert shown(steps) == "▸ job 1 (+2) · 0 s"
    steps.note(ItemRecorded(function_call_output("c1", "settled")))
    assert shown(steps) == "▸ job 2 (+1) · 0 s"


def test_a_log_is_told_of_a_long_command_every_half_minute() -> None:
    time = Time()
    steps = Steps(time)
    steps.note(ToolStarted(call("make")))
    steps.note(ToolStarted(call("true", "c2")))
    steps.note(ToolEnded(call("true", "c2"), "", True, {}))
    told: list[str] = []
    for second in range(1, 76):
        time.seconds += 1
        if second == 40:
            steps.note(ToolProgress(call("make"), "cc -o x"))
        told += steps.overdue()
    assert told == ["▸ make · 30 s", "▸ make · 1 min 00 s · cc -o x"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.9, "0 s"), (41.2, "41 s"), (60, "1 min 00 s"), (125, "2 min 05 s"), (3_720, "1 h 02 min"), (-1, "0 s")],
)
def test_how_long_is_told_in_whole_seconds(seconds: float, words: str) -> None:
    assert lasted(seconds) == words


STEP = Step("▸ " + "pytest -q " * 5, " · 41 s", " · " + "collected 字 items " * 9)


@pytest.mark.parametrize("columns", [*range(1, 30), 60, 61, 80, 132, 400])
def test_a_line_always_fits_and_leaves_the_last_column_free(columns: int) -> None:
    line = laid_out(STEP, "░░░░┃ 31%", columns)
    assert width_of(line) < columns or line == ""
    if columns > 15:
        assert " · 41 s" in line, "the time is never cut off"
    if columns >= 60:
        assert line.endswith("░░░░┃ 31%")
        assert "collected" in line


def test_a_gauge_needs_room_beside_the_step() -> None:
    assert laid_out(Step("sampling 1", " · 2 s"), "31%", 60) == "sampling 1 · 2 s" + " " * 40 + "31%"
    assert laid_out(Step("sampling 1", " · 2 s"), "31%", 40) == "sampling 1 · 2 s"
    assert laid_out(Step("sampling 1", " · 2 s"), "", 60) == "sampling 1 · 2 s"


@pytest.mark.parametrize(
    ("text", "columns", "cut"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("字字", 4, "字字"),
        ("字字字", 4, "字…"),
        ("e\u0301e\u0301e", 3, "e\u0301e\u0301e"),
    ],
)
def test_a_cut_counts_columns(text: str, columns: int, cut: str) -> None:
    assert cut_to(text, columns) == cut
    assert width_of(cut) <= columns


def test_a_small_gauge_marks_where_compaction_is_due() -> None:
    assert small_gauge(31_000, 100_000, 90_000) == "███░░░░░░┃ 31%"
    assert small_gauge(1_234, None, None) == "1,234 tokens"


def test_money_is_told_to_what_matters() -> None:
    assert [money(amount) for amount in (1234.567, 0.01234, 0.00004, 0)] == ["1,234.57", "0.0123", "0.000040", "0.00"]
