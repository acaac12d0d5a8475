"""Compaction as a service: by a trigger, at the endpoint, inside an answer; by a model, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.core.fragments import SUMMARY_MARK
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted
from refold.core.templates import template
from refold.core.truncate import Budget
from refold.model.responses import ResponsesModel
from refold.model.scripted import Reply
from refold.rollout.reader import read_lines
from refold.server import Secrets
from refold.session.session import Session
from refold.testing import ResponsesServer, call_reply, text_reply, usage

Gateways, SecretsOf = Callable[..., Any], Callable[..., Secrets]
TRIGGER = {"type": "compaction_trigger"}
SYSTEM = {"type": "message", "role": "developer", "content": "Be brief."}
USER = {"type": "message", "role": "user", "content": "Make the parser faster."}
WORK = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I will use a table."}]},
    {"type": "function_call", "name": "run", "arguments": "{}", "call_id": "c1"},
    {"type": "function_call_output", "call_id": "c1", "output": "42 tests passed"},
]
HISTORY = [SYSTEM, USER, *WORK]


def told(request: Any) -> list[str]:
    """What the items of a request say, a word each."""
    return [_word(item) for item in request.json["input"]]


def _word(item: dict[str, Any]) -> str:
    content = item.get("content")
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])
    if text.startswith(SUMMARY_MARK):
        return "summary: " + text.removeprefix(SUMMARY_MARK)
    return text if item.get("type", "message") == "message" else item["type"]


def item_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    (item,) = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert item["type"] == "compaction"
    return item


# --- by a trigger ----------------------------------------------------------------------------------------------------


def test_trigger_streams_exactly_one_item_that_is_told_as_its_summary(gateway: Gateways) -> None:
    with ResponsesServer([text_reply("THE SUMMARY", usage=usage(500, 20)), "on"]) as upstream:
        running = gateway(upstream)
        events = running.events({"input": [*HISTORY, TRIGGER], "tools": [], "instructions": "BASE"})
        item = item_of(events)
        answer = running.post("/responses", {"model": "m", "input": [USER, item, {"role": "user", "content": "On."}]})
        asked, after = upstream.requests
    names = [event["type"] for event in events]
    assert names[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert names[-2:] == ["response.output_item.done", "response.completed"]
    assert set(names[3:-2]) == {"response.compaction.compacting"}
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    response = events[-1]["response"]
    assert (response["status"], response["output"], response["usage"]["input_tokens"]) == ("completed", [item], 500)
    assert told(asked)[-1] == template("handoff") and told(asked)[:2] == ["Be brief.", "Make the parser faster."]
    assert asked.json["instructions"] == "BASE" and "tools" not in asked.json and asked.json["store"] is False
    assert told(after) == ["Make the parser faster.", "summary: THE SUMMARY", "On."]
    assert answer.status_code == 200 and "THE SUMMARY" not in item["encrypted_content"]


def test_trigger_without_a_stream_gives_a_document(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY"]) as upstream:
        response = gateway(upstream).post("/responses", {"model": "m", "input": [*HISTORY, TRIGGER]}).json()
    assert [item["type"] for item in response["output"]] == ["compaction"] and response["object"] == "response"


def test_items_that_an_item_stands_for_are_not_told_twice(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY", "on", "on"]) as upstream:
        running = gateway(upstream)
        item = item_of(running.events({"input": [*HISTORY, TRIGGER]}))
        reordered = [dict(reversed(one.items())) for one in HISTORY]  # a client may write keys in another order
        running.post("/responses", {"model": "m", "input": [*reordered, item]})
        changed = [*HISTORY[:-1], {**HISTORY[-1], "output": "43 tests passed"}]
        running.post("/responses", {"model": "m", "input": [*changed, item]})
        _, kept, whole = upstream.requests
    assert told(kept) == ["Be brief.", "Make the parser faster.", "summary: THE SUMMARY"]
    assert told(whole)[2:] == ["I will use a table.", "function_call", "function_call_output", "summary: THE SUMMARY"]


def test_older_compaction_is_part_of_the_next_one(gateway: Gateways) -> None:
    with ResponsesServer(["FIRST", "SECOND"]) as upstream:
        running = gateway(upstream)
        first = item_of(running.events({"input": [*HISTORY, TRIGGER]}))
        item_of(running.events({"input": [USER, first, *WORK, TRIGGER]}))
        assert "summary: FIRST" in told(upstream.requests[1])


def test_empty_input_can_be_compacted(gateway: Gateways) -> None:
    with ResponsesServer([]) as upstream:
        assert item_of(gateway(upstream).events({"input": [TRIGGER]}))


# --- by what ---------------------------------------------------------------------------------------------------------


def test_outline_needs_no_model_and_no_upstream(gateway: Gateways) -> None:
    running = gateway("http://127.0.0.1:9/v1", compaction="outline")
    events = running.events({"input": [*HISTORY, TRIGGER]})
    with ResponsesServer(["on"]) as upstream:
        gateway(upstream).post("/responses", {"model": "m", "input": [item_of(events)]})
        (summary,) = told(upstream.requests[0])
    assert "Make the parser faster." in summary and "I will use a table." in summary
    assert events[-1]["response"]["usage"]["output_tokens"] > 0
    assert running.metric('refold_gateway_compactions_total{method="outline",way="asked"}') == 1


def test_flattened_sends_one_text(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY"]) as upstream:
        item_of(
            gateway(upstream, compaction="flattened").events({"input": [*HISTORY, TRIGGER], "instructions": "BASE"})
        )
        (request,) = upstream.requests
    assert [item["role"] for item in request.json["input"]] == ["user", "user"]
    assert "[output of run]\n42 tests passed" in told(request)[0]
    assert request.json["instructions"] == template("flattened")


def test_model_that_calls_a_tool_is_asked_once_more_with_one_text(gateway: Gateways) -> None:
    with ResponsesServer([call_reply("run", {}), "THE SUMMARY"]) as upstream:
        running = gateway(upstream)
        events = running.events({"input": [*HISTORY, TRIGGER]})
        assert "42 tests passed" in told(upstream.requests[1])[0]
    assert events[-1]["response"]["usage"]["input_tokens"] == 200
    assert running.metric('refold_gateway_compactions_total{method="flattened",way="asked"}') == 1


@pytest.mark.parametrize(
    "reply",
    [
        text_reply("I'm sorry, but I can't help with that."),
        Reply(status=400, body={"error": {"message": "no such thing"}}),
        Reply(incomplete="max_output_tokens"),
        Reply(status=400, body={"error": {"code": "context_length_exceeded", "message": "too long"}}),
    ],
    ids=["refusal", "bad request", "incomplete", "overflow"],
)
def test_outline_takes_the_place_of_a_summary_that_does_not_come(gateway: Gateways, reply: Reply) -> None:
    with ResponsesServer(lambda _: reply) as upstream:
        running = gateway(upstream)
        assert item_of(running.events({"input": [*HISTORY, TRIGGER]}))
        assert running.metric('refold_gateway_compactions_total{method="outline",way="asked"}') == 1
        strict = gateway(upstream, outline_when_it_fails=False)
        answer = strict.post("/responses", {"model": "m", "stream": True, "input": [*HISTORY, TRIGGER]})
    was_refused = "no such thing" in str(reply.body)  # before anything was said, and with a status of its own
    assert answer.status_code == (400 if was_refused else 200)
    assert ("event: response.failed" in answer.text) is not was_refused


def test_upstream_that_breaks_off_fails_the_compaction(gateway: Gateways) -> None:
    with ResponsesServer(lambda _: text_reply("half a", cut_after="partial_item")) as upstream:
        running = gateway(upstream)
        events = running.events({"input": [*HISTORY, TRIGGER]})
        assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert running.post("/responses/compact", {"model": "m", "input": HISTORY}).status_code == 502


def test_request_for_a_summary_that_does_not_fit_is_made_smaller(gateway: Gateways) -> None:
    def answer(request: Any) -> Reply:
        if len(request.body) > 20_000:
            text = "This model's maximum context length is 4000 tokens."
            return Reply(status=400, body={"error": {"message": text}})
        return text_reply("THE SUMMARY")

    long = [
        {"role": "user" if number % 2 else "assistant", "content": f"{number} " + "x" * 2_000} for number in range(40)
    ]
    with ResponsesServer(answer) as upstream:
        running = gateway(upstream)
        assert item_of(running.events({"input": [*long, TRIGGER]}))
        assert told(upstream.requests[-1])[-2].startswith("39 ")
    assert running.metric('refold_gateway_compactions_total{method="model",way="asked"}') == 1


# --- at the endpoint -------------------------------------------------------------------------------------------------


def test_endpoint_returns_what_people_said_and_one_item(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY", "on"]) as upstream:
        running = gateway(upstream)
        answer = running.post("/responses/compact", {"model": "m", "input": HISTORY, "instructions": "BASE"}).json()
        running.post("/responses", {"model": "m", "input": [*answer["output"], {"role": "user", "content": "On."}]})
        after = told(upstream.requests[1])
    assert answer["object"] == "response.compaction" and answer["usage"]["total_tokens"] == 110
    *said, item = answer["output"]
    assert item["type"] == "compaction" and [one["role"] for one in said] == ["developer", "user"]
    assert said[1]["content"] == [{"type": "input_text", "text": "Make the parser faster."}] and said[1]["id"]
    assert after == ["Be brief.", "Make the parser faster.", "summary: THE SUMMARY", "On."]


def test_endpoint_refuses_a_trigger_and_takes_an_empty_input(gateway: Gateways) -> None:
    with ResponsesServer([]) as upstream:
        running = gateway(upstream)
        assert running.post("/responses/compact", {"model": "m", "input": [*HISTORY, TRIGGER]}).status_code == 400
        output = running.post("/responses/compact", {"model": "m", "input": []}).json()["output"]
        assert [item["type"] for item in output] == ["compaction"]


# --- seals over HTTP -------------------------------------------------------------------------------------------------


def test_item_that_this_gateway_did_not_make_for_this_caller_is_refused(
    gateway: Gateways, secrets_of: SecretsOf
) -> None:
    with ResponsesServer(lambda _: text_reply("THE SUMMARY")) as upstream:
        running = gateway(upstream, secrets=secrets_of("token-number-one", "fish-number-two"))
        other = gateway(upstream, secrets=secrets_of("token-number-one", keys=(bytes(32),)))
        mine = {"authorization": "Bearer token-number-one"}
        item = item_of(running.events({"input": [*HISTORY, TRIGGER]}, headers=mine))
        asked = len(upstream.requests)
        token = item["encrypted_content"]

        def ask(where: Any, content: Any, headers: dict[str, str]) -> tuple[int, str | None]:
            body = {"model": "m", "stream": True, "input": [{**item, "encrypted_content": content}]}
            answer = where.post("/responses", body, headers=headers)
            return answer.status_code, None if answer.status_code == 200 else answer.json()["error"]["code"]

        refused = (400, "invalid_encrypted_content")
        assert ask(running, token, {"authorization": "Bearer fish-number-two"}) == refused  # replayed by another
        assert ask(other, token, mine) == refused  # another gateway's key
        assert ask(running, token[:-8], mine) == refused
        assert ask(running, token[:40] + ("A" if token[40] != "A" else "B") + token[41:], mine) == refused
        assert ask(running, "gAAAAABoXYZ", mine) == refused  # another provider's
        assert ask(running, None, mine) == refused
        assert len(upstream.requests) == asked
        assert ask(running, token, mine)[0] == 200


def test_item_of_another_provider_passes_where_the_upstream_takes_it(gateway: Gateways) -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAABoXYZ", "id": "cmp_1"}
    with ResponsesServer(["on"]) as upstream:
        running = gateway(upstream, accepts=("compaction",))
        assert running.post("/responses", {"model": "m", "input": [foreign]}).status_code == 200
        assert upstream.requests[0].input == [foreign]


# --- inside an answer ------------------------------------------------------------------------------------------------

LONG = [SYSTEM, USER, *WORK, {"type": "message", "role": "assistant", "content": "y" * 8_000}]
QUESTION = {"type": "message", "role": "user", "content": "And now?"}
MANAGED = {"context_management": [{"type": "compaction", "compact_threshold": 1_500}]}


def test_input_above_the_threshold_is_compacted_before_it_is_answered(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY", text_reply("ANSWER", usage=usage(70, 5)), "next"]) as upstream:
        running = gateway(upstream)
        events = running.events({"input": [*LONG, QUESTION], **MANAGED})
        names = [event["type"] for event in events]
        response = events[-1]["response"]
        item, answer = response["output"]
        running.post("/responses", {"model": "m", "input": [*LONG, QUESTION, item, answer, QUESTION], **MANAGED})
        _, asked, after = upstream.requests
    assert (item["type"], answer["type"], response["usage"]["input_tokens"]) == ("compaction", "message", 70)
    assert names.count("response.created") == 1 and names[-1] == "response.completed"
    assert "response.compaction.compacting" in names
    assert names.index("response.output_item.done") < names.index("response.output_text.delta")
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert {event["output_index"] for event in events if "output_text" in event["type"]} == {1}
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert told(asked) == ["Be brief.", "Make the parser faster.", "summary: THE SUMMARY", "And now?"]
    assert "context_management" not in asked.json
    assert told(after) == [
        "Be brief.",
        "Make the parser faster.",
        "summary: THE SUMMARY",
        "And now?",
        "ANSWER",
        "And now?",
    ]


def test_input_above_the_threshold_is_compacted_in_a_document_too(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY", "ANSWER"]) as upstream:
        body = {"model": "m", "input": [*LONG, QUESTION], **MANAGED}
        response = gateway(upstream).post("/responses", body).json()
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]


def test_large_output_of_a_tool_is_compacted_with_what_it_answers(gateway: Gateways) -> None:
    large = {**WORK[-1], "output": "y" * 8_000}
    with ResponsesServer(["THE SUMMARY", "ANSWER"]) as upstream:
        gateway(upstream).events({"input": [SYSTEM, USER, *WORK[:-1], large], **MANAGED})
        assert told(upstream.requests[1]) == ["Be brief.", "Make the parser faster.", "summary: THE SUMMARY"]


def test_input_below_the_threshold_is_only_answered(gateway: Gateways) -> None:
    with ResponsesServer(["ANSWER", "ANSWER"]) as upstream:
        running = gateway(upstream)
        assert [item["type"] for item in running.events({"input": HISTORY, **MANAGED})[-1]["response"]["output"]] == [
            "message"
        ]
        large = {"type": "message", "role": "user", "content": "y" * 8_000}
        running.events({"input": [large], **MANAGED})  # nothing but the question: nothing to compact
        assert len(upstream.requests) == 2 and "context_management" not in upstream.requests[0].json


def test_what_was_just_compacted_is_not_compacted_again(gateway: Gateways) -> None:
    large = {"type": "message", "role": "user", "content": "y" * 8_000}
    with ResponsesServer(["THE SUMMARY", "ANSWER"]) as upstream:
        running = gateway(upstream)
        item = item_of(running.events({"input": [*HISTORY, TRIGGER]}))
        output = running.events({"input": [SYSTEM, large, item, QUESTION], **MANAGED})[-1]["response"]["output"]
    assert [one["type"] for one in output] == ["message"]


def test_upstream_that_dies_after_an_inline_compaction_fails_with_the_item(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY", text_reply("x", cut_after=3)]) as upstream:
        events = gateway(upstream).events({"input": [*LONG, QUESTION], **MANAGED})
    assert events[-1]["type"] == "response.failed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["compaction"]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]


def test_refusal_after_an_inline_compaction_is_a_failed_event(gateway: Gateways) -> None:
    with ResponsesServer(["THE SUMMARY", Reply(status=500, body={"error": {"message": "oops"}})]) as upstream:
        events = gateway(upstream).events({"input": [*LONG, QUESTION], **MANAGED})
    assert (events[-1]["type"], events[-1]["response"]["error"]["message"]) == ("response.failed", "oops")


# --- refold's own remote methods -------------------------------------------------------------------------------------

PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000), comp_hash="1")


def played(url: str, way: str, home: Path, *, websocket: bool = False) -> Session:
    provider = Provider(
        id="g",
        name="g",
        base_url=url,
        env_key=None,
        compaction=way,
        supports_websockets=websocket,  # type: ignore[arg-type]
    )

    async def go() -> Session:
        answering = ResponsesModel(PROFILE, provider)
        async with Session.start(model=answering, cwd=home, home=home / "home", instructions="BASE") as session:
            for text in ("first", "second", "third"):
                await session.send(text)
        return session

    return asyncio.run(go())


@pytest.mark.parametrize("way", ["remote", "endpoint"])
@pytest.mark.parametrize("method", ["model", "outline"])
def test_session_compacts_through_the_gateway_and_goes_on(
    gateway: Gateways, tmp_path: Path, way: str, method: str
) -> None:
    script = [text_reply("one", usage=usage(95_000, 10)), "SUMMARY OF IT", "two", "three"]
    if method == "outline":
        del script[1]
    with ResponsesServer(script) as upstream:
        session = played(gateway(upstream, compaction=method).url, way, tmp_path)
        after = told(upstream.requests[-1])
    assert session.path is not None
    lines = [line.record for line in read_lines(session.path)]
    (checkpoint,) = [record for record in lines if isinstance(record, Compacted)]
    assert checkpoint.facts["method"] == way
    assert [item["type"] for item in checkpoint.history or () if item["type"] != "message"] == ["compaction"]
    summary = next(text for text in after if text.startswith("summary: "))
    assert ("SUMMARY OF IT" in summary) if method == "model" else ("first" in summary)
    assert after[-3:] == ["second", "two", "third"] and "first" in after


def test_upstream_that_falls_silent_while_it_compacts_is_a_gateway_timeout(gateway: Gateways) -> None:
    with ResponsesServer(lambda _: text_reply("x", stall=30.0)) as upstream:
        answer = gateway(upstream, idle_seconds=0.3).post("/responses/compact", {"model": "m", "input": "hi"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
