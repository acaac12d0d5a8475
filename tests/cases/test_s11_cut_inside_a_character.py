"""S11: a byte budget that ends inside a character leaves that character out whole."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal

import pytest

from refold.core.truncate import Budget, cut_middle, exec_output, tokens_for
from refold.tools.collector import Collector

CASE = Path(__file__).parent.parent / "data" / "cases" / "S11-cut-inside-a-character"
POLICY = Budget("bytes", 30_000)
MARKER = re.compile("…([0-9]+) (?:chars|tokens) truncated…")
MIXED = "aé漢😀" * 12
FILES = ("head_inside.txt", "tail_inside.txt")


def text_of(name: str) -> str:
    return (CASE / name).read_bytes().decode()


def ends(cut: str) -> tuple[str, int, str]:
    """Head, the marker's number, tail."""
    head, number, tail = MARKER.split(cut)
    return head, int(number), tail


@pytest.mark.parametrize(
    ("name", "head", "removed", "tail", "size", "digest"),
    [
        (
            "head_inside.txt",
            "a" * 14_999,
            25_010,
            "b" * 15_000,
            30_026,
            "fbd91ceb06b03a95e6c5b9d423b929dc764f6f87c6fb6abb1812c30210fe04c0",
        ),
        (
            "tail_inside.txt",
            "a" * 15_000,
            25_001,
            "漢" * 4_999 + "z",
            30_025,
            "00aa0216ffae75691dfcd2729a9795c00d21853180116894b7e2c1a426a7012f",
        ),
    ],
)
def test_the_character_on_the_edge_is_left_out(
    name: str, head: str, removed: int, tail: str, size: int, digest: str
) -> None:
    cut = cut_middle(text_of(name), POLICY)
    assert cut == f"{head}…{removed} chars truncated…{tail}"
    assert (len(cut.encode()), hashlib.sha256(cut.encode()).hexdigest()) == (size, digest)


@pytest.mark.parametrize("name", FILES)
def test_the_marker_counts_removed_characters_or_tokens_over_the_budget(name: str) -> None:
    text = text_of(name)
    head, number, tail = ends(cut_middle(text, POLICY))
    assert number == len(text) - len(head) - len(tail)
    by_tokens = ends(cut_middle(text, Budget("tokens", 7_500)))
    assert by_tokens == (head, tokens_for(len(text.encode()) - 30_000), tail)


@pytest.mark.parametrize("name", FILES)
def test_both_ends_are_the_inputs_own_with_no_broken_character(name: str) -> None:
    text = text_of(name)
    head, _, tail = ends(cut_middle(text, POLICY))
    assert "\ufffd" not in head + tail
    assert text.startswith(head)
    assert text.endswith(tail)


@pytest.mark.parametrize("name", FILES)
def test_a_command_that_prints_it_gives_the_same_cut(name: str) -> None:
    collector = Collector()
    raw = (CASE / name).read_bytes()
    for start in range(0, len(raw), 1_000):  # chunks end inside characters, too
        collector.feed(raw[start : start + 1_000])
    output = exec_output(collector.captured(), POLICY, chunk_id="0a1b2c", wall_seconds=0, exit_code=0)
    assert output.endswith("\n\n" + cut_middle(text_of(name), POLICY))
    assert "\ufffd" not in output


@pytest.mark.parametrize("mode", ["bytes", "tokens"])
def test_every_budget_from_0_to_200_keeps_whole_characters_within_it(mode: Literal["bytes", "tokens"]) -> None:
    assert len(MIXED.encode()) == 120
    for limit in range(201):
        budget = Budget(mode, limit)
        cut = cut_middle(MIXED, budget)
        if budget.bytes >= 120:
            assert cut == MIXED
            continue
        head, _, tail = ends(cut)
        assert MIXED.startswith(head)
        assert MIXED.endswith(tail)
        kept = len(head.encode()) + len(tail.encode())
        assert budget.bytes - 6 <= kept <= budget.bytes  # each end may miss 3 bytes of a character of 4
