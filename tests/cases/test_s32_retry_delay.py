"""S32: wait as long as the server asked (checks 1 to 6)."""

from __future__ import annotations

import asyncio
import json
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from refold.core.profile import Profile, Provider
from refold.core.records import TurnEnded
from refold.errors import ModelError, ModelUnavailable
from refold.model.events import http_error, read_event
from refold.model.retry import JITTER, LONGEST_WAIT, is_worth_retrying, wait_before_retry
from refold.session import Session
from refold.session.clock import Clock
from refold.session.events import Event, Waiting
from refold.session.patience import Patience
from refold.testing import Reply, ScriptedModel, text_reply

CASE = Path(__file__).parent.parent / "data" / "cases" / "S32-retry-delay"
ROWS = json.loads((CASE / "delays.json").read_text("utf-8"))
NAMES = [row["message"][-30:] for row in ROWS]
PROVIDER = Provider(id="scripted", name="scripted", base_url="scripted://", env_key=None)
USED_UP = {"type": "error", "status_code": 429, "error": {"type": "usage_limit_reached", "resets_in_seconds": 9568}}


class Hasty(Clock):
    def jitter(self) -> float:
        return 0.01


def over_http(row: dict[str, Any], headers: dict[str, str], now: float | None = None) -> ModelError:
    status = 429 if row["code"] == "rate_limit_exceeded" else 500
    body = json.dumps({"error": {"code": row["code"], "message": row["message"]}}).encode()
    lower = {name.lower(): value for name, value in headers.items()}
    return http_error(status, lower, body, provider=PROVIDER, now=now)


def in_an_event(row: dict[str, Any]) -> ModelError:
    error = {"code": row["code"], "message": row["message"]}
    with pytest.raises(ModelError) as raised:
        read_event({"type": "response.failed", "response": {"id": "resp_1", "error": error}})
    return raised.value


def start(model: ScriptedModel, folder: Path, clock: Clock | None = None) -> Session:
    return Session.start(model=model, cwd=folder, home=folder / "home", clock=clock or Hasty())


def scripted(*replies: Reply, **settings: Any) -> ScriptedModel:
    provider = Provider(id="scripted", name="scripted", base_url="scripted://", env_key=None, **settings)
    return ScriptedModel([*replies], profile=Profile(slug="m"), provider=provider)


def heard(model: ScriptedModel, folder: Path, clock: Clock | None = None) -> tuple[list[Event], ModelError | None]:
    """The events of one turn, and the error that it ended in."""

    async def go() -> tuple[list[Event], ModelError | None]:
        events: list[Event] = []
        async with asyncio.timeout(10), start(model, folder, clock) as session:
            try:
                async for event in session.send("go"):
                    events.append(event)
            except ModelError as error:
                return events, error
        return events, None

    return asyncio.run(go())


def waits(events: list[Event]) -> list[Waiting]:
    return [event for event in events if isinstance(event, Waiting)]


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in ROWS if row["delay_s"] != "capped"], ids=str)
def test_the_parsed_delay_is_that_of_the_file(row: dict[str, Any]) -> None:
    errors = [over_http(row, row["headers"]), *([] if row["headers"] else [in_an_event(row)])]
    for error in errors:
        assert isinstance(error, ModelUnavailable)
        assert is_worth_retrying(error)
        if row["delay_s"] is None:
            assert error.retry_after is None
        else:
            assert wait_before_retry(error, 1) == pytest.approx(row["delay_s"], abs=0.001)


def test_a_header_wins_over_the_text_as_seconds_or_as_a_date() -> None:
    row = {"code": "rate_limit_exceeded", "message": "Please try again in 3s."}
    now = 1_800_000_000.0
    date = formatdate(now + 40, usegmt=True)
    for headers, seconds in (({"Retry-After": "9"}, 9.0), ({"Retry-After": date}, 40.0), ({}, 3.0)):
        error = over_http(row, headers, now)
        assert isinstance(error, ModelUnavailable)
        assert error.retry_after == pytest.approx(seconds, abs=0.001)


def test_whoever_asks_for_more_than_the_maximum_is_not_waited_for(tmp_path: Path) -> None:
    [row] = [row for row in ROWS if row["delay_s"] == "capped"]
    model = scripted(Reply(fail={"code": row["code"], "message": row["message"]}), text_reply("never"))
    began = time.monotonic()
    events, error = heard(model, tmp_path)
    assert time.monotonic() - began < 2
    assert isinstance(error, ModelUnavailable)
    assert error.retry_after == 999_999_999
    assert (len(model.requests), waits(events)) == (1, [])


def test_just_the_maximum_is_waited_for() -> None:
    for seconds, waited in ((LONGEST_WAIT, True), (LONGEST_WAIT + 1, False)):
        waiting = Patience(PROVIDER, Hasty()).wait(ModelUnavailable("later", retry_after=seconds))
        assert (waiting is not None) is waited
        assert waiting is None or waiting.seconds == seconds, "what was asked for is taken exactly, without jitter"


def test_the_ordinary_backoff_doubles_with_a_tenth_of_jitter_and_ends() -> None:
    assert JITTER == (0.9, 1.1)
    clock = Clock()
    for _ in range(50):
        patience = Patience(PROVIDER, clock)
        found = [patience.wait(ModelUnavailable("later")) for _ in range(PROVIDER.stream_max_retries + 1)]
        assert found.pop() is None, "the number of attempts is limited"
        for number, waiting in enumerate(found):
            assert waiting is not None
            assert waiting.seconds == pytest.approx(0.2 * 2**number, rel=0.1)


# --- a quota that is used up ------------------------------------------------------------------------------------------


def test_a_used_up_usage_limit_is_not_retried_and_carries_its_reset(tmp_path: Path) -> None:
    fields = {key: value for key, value in USED_UP.items() if key != "type"}
    model = scripted(Reply(error=fields), text_reply("never"))
    events, error = heard(model, tmp_path)
    assert isinstance(error, ModelUnavailable)
    assert (error.retry_after, error.retryable) == (9_568, False)
    assert "9,568 s" in str(error)
    assert (len(model.requests), waits(events)) == (1, [])


# --- while one waits --------------------------------------------------------------------------------------------------


def test_a_wait_can_be_cancelled_and_ends_at_once(tmp_path: Path) -> None:
    limited = Reply(status=429, headers={"Retry-After": "60"}, body={})
    model = scripted(limited, text_reply("after"))

    async def go() -> None:
        async with asyncio.timeout(10), start(model, tmp_path) as session:
            turn, cancelled = session.send("go"), 0.0
            async for event in turn:
                if isinstance(event, Waiting):
                    assert event.seconds == 60
                    await asyncio.sleep(0.02)  # it waits
                    assert session.interrupt()
                    cancelled = time.monotonic()
                elif isinstance(event, TurnEnded):
                    assert event.outcome == "interrupted"
                    assert time.monotonic() - cancelled < 0.1
            assert (await turn).outcome == "interrupted"
            assert (await session.send("go on")).text == "after"

    asyncio.run(go())


def test_attempts_and_waits_are_told(tmp_path: Path) -> None:
    limited = Reply(status=429, headers={"Retry-After-Ms": "12"}, body={})
    model = scripted(Reply(status=503, body={}), limited, Reply(cut_after="items"), text_reply("done"))
    events, error = heard(model, tmp_path)
    assert error is None
    told = [(event.level, event.attempt, event.of, round(event.seconds, 6)) for event in waits(events)]
    assert told == [
        ("request", 1, PROVIDER.request_max_retries, 0.002),
        ("stream", 1, PROVIDER.stream_max_retries, 0.012),
        ("stream", 2, PROVIDER.stream_max_retries, 0.004),
    ]
    assert all(event.reason for event in waits(events))


def test_the_maximum_is_a_setting_of_the_provider() -> None:
    patience = Patience(Provider(longest_wait_ms=2_000), Clock())
    assert patience.wait(ModelUnavailable("busy", retry_after=1.9)) is not None
    assert patience.wait(ModelUnavailable("busy", retry_after=2.1)) is None
