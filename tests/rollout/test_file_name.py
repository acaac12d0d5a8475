"""File name: what the name of a rollout says, and which ids can stand in one."""

from __future__ import annotations

import pytest

from refold.rollout.file_name import can_be_named_by, day_in, id_in

ID = "019c2000-0000-7000-8000-000000000012"


@pytest.mark.parametrize("end", [".jsonl", ".jsonl.zst"])
def test_a_name_says_the_day_and_the_id(end: str) -> None:
    name = f"rollout-2026-02-03T04-05-06-{ID}{end}"
    assert (id_in(name), day_in(name)) == (ID, ("2026", "02", "03"))


@pytest.mark.parametrize(
    "name", ["saved.jsonl", f"rollout-{ID}.jsonl", f"rollout-2026-02-03T04-05-06-{ID}.jsonl.damaged"]
)
def test_another_name_says_nothing(name: str) -> None:
    assert (id_in(name), day_in(name)) == (None, ())


@pytest.mark.parametrize("thread_id", [ID, "T", "child", "ünï code", ".."])
def test_an_id_that_is_a_word_can_name_a_file(thread_id: str) -> None:
    assert can_be_named_by(thread_id)


@pytest.mark.parametrize("thread_id", ["", "a/b", "../a", "a\nb", "a\0b", "\ud800", "x" * 200, "ü" * 100])
def test_an_id_that_leads_elsewhere_or_is_no_word_cannot(thread_id: str) -> None:
    assert not can_be_named_by(thread_id)
