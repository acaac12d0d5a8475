"""ScriptedModel plays a script like a provider, without a network."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from refold.core.profile import Profile, Provider
from refold.core.wire import Request
from refold.errors import (
    BadModelStream,
    ConfigError,
    ContextWindowExceeded,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    ResponseIncomplete,
)
from refold.model import Completed, ItemDone, ModelEvent, ResponsesModel
from refold.model.events import CLOSED_EARLY, HIGH_DEMAND, IDLE_TIMEOUT
from refold.model.scripted import NO_REPLY_LEFT, ScriptedModel
from refold.testing import Reply, ResponsesServer, call_reply, read_script, text_reply, usage

REQUEST = Request(head=b'{"model":"m","input":[', parts=(b'{"n":1}', b'{"n":2}'), tail=b"]}", items=2)


async def _ask(model: Any) -> list[ModelEvent]:
    return [event async for event in model.sample(REQUEST)]


def ask(model: ScriptedModel) -> list[ModelEvent]:
    return asyncio.run(_ask(model))


def test_replies_are_played_in_order_and_every_request_is_kept():
    model = ScriptedModel([text_reply("one"), call_reply("run", {"cmd": "é"}, "call_x"), "three"])
    items = [event.item for _ in range(3) for event in ask(model) if isinstance(event, ItemDone)]
    assert items == [
        {"type": "message", "id": "msg_1_0", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]},
        {"type": "function_call", "id": "fc_2_0", "name": "run", "arguments": '{"cmd": "é"}', "call_id": "call_x"},
        {
            "type": "message",
            "id": "msg_3_0",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "three"}],
        },
    ]
    assert model.requests == [{"model": "m", "input": [{"n": 1}, {"n": 2}]}] * 3


def test_usage_and_end_turn_reach_the_completion():
    told = usage(100, 20, cached=50, reasoning=5, total=5000)
    model = ScriptedModel([Reply(usage=told, end_turn=False, response_id="resp_x")])
    assert ask(model)[-1] == Completed("resp_x", told, False)


def test_a_callable_answers_from_the_request():
    model = ScriptedModel(lambda body: f"{len(body['input'])} items")
    (done,) = [event for event in ask(model) if isinstance(event, ItemDone)]
    assert done.item["content"][0]["text"] == "2 items"
    mixed = ScriptedModel(["first", lambda body: Reply(end_turn=True)])
    ask(mixed)
    assert ask(mixed)[-1] == Completed("resp_2", None, True)


def test_a_script_that_has_ended_says_so():
    model = ScriptedModel(["only"])
    ask(model)
    with pytest.raises(ModelRefused, match="the script has 1 replies; this is request 2") as raised:
        ask(model)
    assert raised.value.code == NO_REPLY_LEFT


def test_profile_and_provider_are_the_given_ones_or_plain_ones():
    profile, provider = Profile(slug="m"), Provider(name="p")
    model = ScriptedModel([], profile=profile, provider=provider)
    assert (model.profile, model.provider) == (profile, provider)
    assert ScriptedModel([]).profile.slug == "scripted"


FAILURES: list[tuple[Reply, type[ModelError], str]] = [
    (Reply(fail={"code": "context_length_exceeded", "message": "too long"}), ContextWindowExceeded, "too long"),
    (Reply(fail={}), ModelUnavailable, "response.failed"),
    (Reply(incomplete="max_output_tokens"), ResponseIncomplete, "max_output_tokens"),
    (Reply(error={"code": "server_error", "message": "boom"}), ModelUnavailable, "boom"),
    (Reply(status=500, body={"error": {"message": "boom"}}), ModelUnavailable, HIGH_DEMAND),
    (Reply(status=429, body={}, headers={"Retry-After": "3"}), ModelUnavailable, "429 Too Many Requests"),
    (Reply(status=400, body={"error": {"code": "bad", "message": "no"}}), ModelRefused, "no"),
    (text_reply("x", cut_after="request"), ModelUnavailable, "closed the connection"),
    (text_reply("x", cut_after="partial_item"), BadModelStream, CLOSED_EARLY),
    (text_reply("x", cut_after="items"), BadModelStream, CLOSED_EARLY),
    (text_reply("x", cut_after=1), BadModelStream, CLOSED_EARLY),
    (text_reply("x", stall=9), BadModelStream, IDLE_TIMEOUT),
    (text_reply("x", delay=9), BadModelStream, IDLE_TIMEOUT),
]


@pytest.mark.parametrize(("reply", "kind", "text"), FAILURES, ids=[row[2][:20] for row in FAILURES])
def test_a_scripted_failure_is_the_same_error_as_over_http(reply: Reply, kind: type[ModelError], text: str):
    async def both() -> list[ModelError]:
        errors: list[ModelError] = []
        with ResponsesServer([reply]) as server:
            provider = server.provider(stream_idle_timeout_ms=100)
            real = ResponsesModel(Profile(slug="m"), provider)
            for model in (ScriptedModel([reply], provider=provider), real):
                with pytest.raises(ModelError) as raised:
                    await _ask(model)
                errors.append(raised.value)
            await real.close()
        return errors

    scripted, over_http = asyncio.run(both())
    assert type(scripted) is type(over_http) is kind
    assert text in str(scripted)
    if reply.cut_after != "request":
        assert str(scripted) == str(over_http)
    for fact in ("retry_after", "status", "request_level", "retryable", "code", "limit", "usage"):
        assert getattr(scripted, fact, None) == getattr(over_http, fact, None), fact


def test_a_scripted_success_has_the_same_events_as_over_http():
    reasoning = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "thinking hard"}],
        "encrypted_content": "E",
    }
    custom = {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c"}
    reply = Reply(items=(reasoning, custom, {"type": "compaction", "encrypted_content": "E"}), usage=usage(1, 2))

    async def both() -> list[list[ModelEvent]]:
        with ResponsesServer([reply]) as server:
            real = ResponsesModel(Profile(slug="m"), server.provider())
            answers = [await _ask(ScriptedModel([reply])), await _ask(real)]
            await real.close()
        return answers

    scripted, over_http = asyncio.run(both())
    assert scripted == over_http
    assert [event.item["type"] for event in scripted if isinstance(event, ItemDone)] == [
        "reasoning",
        "custom_tool_call",
        "compaction",
    ]


def test_delays_are_kept():
    started = time.monotonic()
    ask(ScriptedModel([text_reply("x", delay=0.03, stall=0.03)]))
    assert time.monotonic() - started >= 0.06


# --- scripts as JSON ----------------------------------------------------------------------------------------

SHAPES: list[tuple[Any, Reply]] = [
    (None, Reply()),
    (
        {"items": [{"type": "x"}], "usage": {"input": 100, "output": 10}},
        Reply(items=({"type": "x"},), usage=usage(100, 10)),
    ),
    (
        {"items": [], "usage": {"input": 100, "cached": 20, "output": 30, "reasoning": 12}},
        Reply(usage=usage(100, 30, cached=20, reasoning=12)),
    ),
    ({"usage": {"input": 100, "output": 10, "total": 5000}}, Reply(usage=usage(100, 10, total=5000))),
    ({"usage": {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}}, Reply(usage=usage(5, 1))),
    ({"fail": {"code": "c", "message": "m"}}, Reply(fail={"code": "c", "message": "m"})),
    ({"status": 500, "body": {"error": {}}}, Reply(status=500, body={"error": {}})),
    ({"status": 429, "headers": {"Retry-After": "1"}}, Reply(status=429, headers={"Retry-After": "1"})),
    ({"drop": "mid"}, Reply(cut_after="partial_item")),
    ({"drop": "no_completed", "items": []}, Reply(cut_after="items")),
    ({"close": True}, Reply(cut_after="items")),
    ({"cut_after": 2}, Reply(cut_after=2)),
    ({"items": [], "incomplete": "max_output_tokens"}, Reply(incomplete="max_output_tokens")),
    ({"error": {"type": "error", "status": 400}}, Reply(error={"type": "error", "status": 400})),
    ({"delay": 20, "marker": {"path": "/x"}, "items": []}, Reply(delay=20)),
]


@pytest.mark.parametrize(("step", "reply"), SHAPES, ids=[str(step)[:40] for step, _ in SHAPES])
def test_a_step_of_a_recorded_scenario_is_a_reply(step: Any, reply: Reply):
    assert Reply.from_json(step) == reply


def test_a_script_is_a_list_or_a_document_with_steps_or_runs():
    step = {"incomplete": "x"}
    runs = [{"exchanges": [{"response": step}, {"path": "/"}]}, {"exchanges": [{"response": step}]}]
    expected = Reply(incomplete="x")
    assert read_script([step]) == read_script({"steps": [step]}) == [expected]
    assert read_script({"scenario": "a", "runs": runs}) == [expected, Reply(), expected]


@pytest.mark.parametrize(
    ("step", "complaint"),
    [({"itms": []}, "itms"), ({"status": "x"}, "status"), ({"drop": "later"}, "later"), ([], "an object")],
)
def test_a_step_that_is_not_understood_is_named(step: Any, complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        read_script([step])


def test_a_script_of_no_known_shape_is_refused():
    with pytest.raises(ConfigError, match="must be a list of replies"):
        read_script({"replies": []})
