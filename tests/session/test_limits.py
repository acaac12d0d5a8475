"""Limits: what is used up ends a turn with a typed error; the log is whole and the session goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.limits import Limits, Price
from refold.core.thread import same_state
from refold.core.usage import Usage
from refold.errors import BudgetExhausted, ConfigError
from refold.session import Session
from refold.session.memory import read_thread
from refold.testing import Reply, ScriptedModel, call_reply, text_reply, usage
from refold.tools.functions import tool

ENDLESS = [call_reply("look", {}, usage=usage(900, 100))] * 20


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def sleep() -> str:
    """Sleep."""
    await asyncio.sleep(60)
    return "woken"


def stopped(folder: Path, settings: dict[str, Any], script: list[Any]) -> tuple[BudgetExhausted, int]:
    """The error that ends the first turn, and how many requests it made; the next turn works."""
    model = ScriptedModel([*script])

    async def play() -> tuple[BudgetExhausted, int]:
        config = parse_config(settings, "test")
        home = folder / "home"
        async with Session.start(model=model, tools=[look, sleep], cwd=folder, home=home, config=config) as session:
            with pytest.raises(BudgetExhausted) as caught:
                await session.send("go on for ever")
            made = len(model.requests)
            assert session.path is not None
            thread = read_thread(session.path)
            assert same_state(thread, session.memory.thread)
            assert thread.open_turn is None
            outputs = [e for e in thread.history if e.item["type"] == "function_call_output"]
            calls = [e for e in thread.history if e.item["type"] == "function_call"]
            assert len(outputs) == len(calls), "every call is answered"
            return caught.value, made

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("limits", "what", "requests"),
    [
        ({"turn_steps": 3}, "steps of this turn", 3),
        ({"turn_tokens": 2_500}, "tokens of this turn", 3),
        ({"session_tokens": 2_000}, "tokens of this session", 2),
    ],
)
def test_a_turn_ends_before_the_request_that_would_be_too_much(
    tmp_path: Path, limits: dict[str, Any], what: str, requests: int
) -> None:
    error, made = stopped(tmp_path, {"limits": limits}, ENDLESS)
    assert (error.what, made) == (what, requests)
    assert error.used >= error.limit
    assert what in str(error)


def test_money_counts_where_the_price_is_known(tmp_path: Path) -> None:
    price = {"input": 1_000.0, "output": 2_000.0}  # 0.9 + 0.2 for a request
    error, made = stopped(tmp_path, {"limits": {"turn_cost": 2.0}, "model_price": price}, ENDLESS)
    assert (error.what, made) == ("cost of this turn", 2)
    assert error.used == pytest.approx(2.2)


def test_a_turn_that_takes_too_long_is_stopped_in_its_tool(tmp_path: Path) -> None:
    error, made = stopped(tmp_path, {"limits": {"turn_seconds": 0.2}}, [call_reply("sleep", {})])
    assert (error.what, made) == ("seconds of this turn", 1)


def test_the_session_goes_on_after_a_turn_that_was_stopped(tmp_path: Path) -> None:
    model = ScriptedModel([call_reply("look", {}), call_reply("look", {}), text_reply("enough")])

    async def play() -> str | None:
        config = parse_config({"limits": {"turn_steps": 2}}, "test")
        async with Session.start(
            model=model, tools=[look], cwd=tmp_path, home=tmp_path / "h", config=config
        ) as session:
            with pytest.raises(BudgetExhausted):
                await session.send("one")
            return (await session.send("two")).text

    assert asyncio.run(play()) == "enough"


def test_cached_tokens_have_a_price_of_their_own() -> None:
    price = Price(input=10, output=30, cached_input=1)
    assert price.of(Usage(input_tokens=1_000_000, cached_input_tokens=400_000, output_tokens=100_000)) == pytest.approx(
        6 + 0.4 + 3
    )
    assert Price(input=10, output=0).of(Usage(input_tokens=500_000, cached_input_tokens=500_000)) == 5


def test_a_wrong_limit_is_named() -> None:
    with pytest.raises(ConfigError, match="limits"):
        parse_config({"limits": {"turn_steps": "many"}}, "config.toml")
    assert parse_config({}, "config.toml").limits == Limits()


def test_a_server_error_is_not_taken_for_the_limit(tmp_path: Path) -> None:
    model = ScriptedModel([Reply(status=400, body={"error": {"message": "no"}})])

    async def play() -> None:
        config = parse_config({"limits": {"turn_seconds": 30.0}}, "test")
        async with Session.start(model=model, cwd=tmp_path, home=tmp_path / "h", config=config) as session:
            with pytest.raises(Exception, match="no") as caught:
                await session.send("hi")
            assert not isinstance(caught.value, BudgetExhausted)

    asyncio.run(play())
