"""S12: one line of any length is cut inside, with the whole budget used, in one pass and without a copy of it."""

from __future__ import annotations

import hashlib
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from refold.core.truncate import Budget, cut_middle, exec_output, format_cut
from refold.tools.collector import Collector

CASE = Path(__file__).parent.parent / "data" / "cases" / "S12-one-very-long-line"
POLICY = Budget("tokens", 1_000)
LINE = (CASE / "minified.txt").read_bytes().decode()
HUGE_BYTES = 50_000_000
HEADER = "Warning: truncated output (original token count: 15000)\nTotal output lines: 1\n\n"


def test_head_marker_and_tail() -> None:
    cut = cut_middle(LINE, POLICY)
    assert cut == LINE[:2_000] + "…14000 tokens truncated…" + LINE[-2_000:]
    assert len(cut.encode()) == 4_028
    assert hashlib.sha256(cut.encode()).hexdigest() == (
        "0bf911ba7d73d7f4bc4e037a2f7861844c5374a93f475d74d11b4402103326bf"
    )


def test_a_header_says_one_line_and_the_original_size() -> None:
    assert format_cut(LINE, POLICY) == HEADER + cut_middle(LINE, POLICY)
    collector = Collector()
    collector.feed(LINE.encode())
    output = exec_output(collector.captured(), POLICY, chunk_id="0a1b2c", wall_seconds=0, exit_code=0)
    assert "\nOriginal token count: 15000\nOutput:\n" + HEADER in output


def test_the_whole_budget_is_used() -> None:
    head, tail = cut_middle(LINE, POLICY).split("…14000 tokens truncated…")
    assert len(head + tail) == POLICY.bytes == 4_000


def steps(call: Callable[[], object]) -> int:
    """Lines of Python that a call runs. Unlike its time, they are the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def huge(unit: str) -> str:
    return unit * (HUGE_BYTES // len(unit.encode()))


# The most that a step does is to encode 64 KB or to count newlines once; a walk over characters would be millions.
@pytest.mark.parametrize("cut", [cut_middle, format_cut])
@pytest.mark.parametrize("unit", ["x", "é", "漢", "aé漢😀"])
def test_a_line_of_50_mb_takes_few_steps(unit: str, cut: Callable[[str, Budget], str]) -> None:
    text = huge(unit)
    assert steps(lambda: cut(text, POLICY)) < 10_000


@pytest.mark.parametrize("cut", [cut_middle, format_cut])
@pytest.mark.parametrize("unit", ["x", "é", "漢", "aé漢😀"])
def test_a_line_of_50_mb_is_not_copied(unit: str, cut: Callable[[str, Budget], str]) -> None:
    text = huge(unit)
    tracemalloc.start()
    try:
        assert len(cut(text, POLICY)) < 4_200
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # the case allows three times the input: 150,000,000
