"""S16: a window that is unknown, zero or tiny gives no absurd limit, and an overflow is met by one compaction."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.items import message
from refold.core.profile import Profile, parse_catalog
from refold.core.records import Compacted, ItemRecorded
from refold.core.usage import Usage
from refold.errors import ConfigError
from refold.rollout import read_lines
from refold.session import Memory, Session
from refold.testing import Reply, ScriptedModel
from refold.views.context import context

CASE = Path(__file__).parent.parent / "data" / "cases" / "S16-unknown-context-window"
MODELS: list[dict[str, Any]] = json.loads((CASE / "models.json").read_text(encoding="utf-8"))
TOO_LONG = Reply(fail={"code": "context_length_exceeded", "message": "too long"})


def profile_of(model: dict[str, Any]) -> Profile:
    entry = {**model, "slug": model["name"]}
    return parse_catalog({"models": [entry]}, "models.json")[model["name"]]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_limit_gauge_and_decision_are_those_expected(model: dict[str, Any]) -> None:
    profile, expected = profile_of(model), model["expect"]
    memory = Memory.open(model=profile)
    memory.add(
        [message("user", ["hi"]), message("assistant", ["ho"])],
        usage=Usage(input_tokens=19_000, output_tokens=1_000, total_tokens=20_000),
    )
    assert profile.compact_limit == expected["limit"]
    assert profile.percent_left(20_000) == expected["percent_left"]
    assert (memory.due("pre_turn") is not None) is expected["compact_at_20000"]


def test_with_an_unknown_window_an_overflow_starts_one_compaction_and_one_retry(tmp_path: Path) -> None:
    model = ScriptedModel([TOO_LONG, "The summary.", "The answer."], profile=Profile(slug="m", context_window=None))

    async def play() -> tuple[str | None, Path | None]:
        async with Session.start(model=model, cwd=tmp_path, home=tmp_path / "home") as session:
            result = await session.send("Go on.")
            return result.text, session.path

    text, path = asyncio.run(play())
    assert text == "The answer."
    assert len(model.requests) == 3
    assert path is not None
    records = [line.record for line in read_lines(path)]
    assert sum(isinstance(record, Compacted) for record in records) == 1
    said = [record.item for record in records if isinstance(record, ItemRecorded) and record.item["type"] == "message"]
    assert sum("Go on." in str(item["content"]) for item in said) == 1


def test_an_explicit_limit_is_never_above_nine_tenths_of_a_known_window() -> None:
    config = parse_config({"model_auto_compact_token_limit": 99_000}, "config.toml")
    assert config.profile(Profile(slug="m", context_window=100_000)).compact_limit == 90_000
    assert config.profile(Profile(slug="m", context_window=None)).compact_limit == 99_000


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_zero_or_below_is_refused_when_it_is_read(limit: int) -> None:
    with pytest.raises(ConfigError, match=f"model_auto_compact_token_limit: must be above 0, not {limit}"):
        parse_config({"model_auto_compact_token_limit": limit}, "config.toml")


def test_a_look_at_the_context_says_that_the_window_is_unknown_and_counts() -> None:
    memory = Memory.open(model=Profile(slug="m", context_window=None))
    memory.add(message("assistant", ["ho"]), usage=Usage(input_tokens=19_000, output_tokens=1_000, total_tokens=20_000))
    seen = context(memory.thread, memory.profile)
    assert (seen.context_window, seen.limit, seen.percent_left, seen.used) == (None, None, None, 20_000)
