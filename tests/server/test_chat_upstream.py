"""Upstreams that have Chat Completions only: the same answers, the same compactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.core.fragments import SUMMARY_MARK
from refold.model.scripted import Reply
from refold.testing import call_reply, text_reply
from refold.testing.chat_server import ChatServer

Gateways = Callable[..., Any]
HISTORY = [{"role": "user", "content": "Make it faster."}, {"role": "assistant", "content": "I will."}]


def said(request: Any) -> list[str]:
    return [message["content"] for message in request.json["messages"]]


def test_answer_is_a_responses_stream_and_a_document(gateway: Gateways) -> None:
    with ChatServer(["hello", "there", "gone"]) as upstream:
        running = gateway(upstream, upstream_api="chat")
        events = running.events({"input": "hi"})
        first = events[-1]["response"]
        document = running.post(
            "/responses", {"model": "m", "input": "more", "previous_response_id": first["id"]}
        ).json()
        assert said(upstream.requests[1]) == ["hi", "hello", "more"]
        unkept = running.events({"input": "hi", "store": False})[-1]["response"]
    assert (first["store"], document["store"], unkept["store"]) == (True, True, False)
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    assert first["output"][0]["content"][0]["text"] == "hello"
    assert document["output"][0]["content"][0]["text"] == "there" and document["previous_response_id"] == first["id"]


def test_role_of_developers_is_the_one_that_is_set(gateway: Gateways) -> None:
    said = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    with ChatServer(lambda _: "hello") as upstream:
        for settings in ({}, {"developer_role": "user"}):
            gateway(upstream, upstream_api="chat", **settings).events({"input": said})
        roles = [[message["role"] for message in request.json["messages"]] for request in upstream.requests]
    assert roles == [["system", "user"], ["user", "user"]]


def test_compaction_and_what_it_is_told_as(gateway: Gateways) -> None:
    with ChatServer(["THE SUMMARY", "on"]) as upstream:
        running = gateway(upstream, upstream_api="chat")
        events = running.events({"input": [*HISTORY, {"type": "compaction_trigger"}]})
        item = events[-1]["response"]["output"][0]
        running.events({"input": [HISTORY[0], item, {"role": "user", "content": "On."}]})
        assert said(upstream.requests[1]) == ["Make it faster.", SUMMARY_MARK + "THE SUMMARY", "On."]


def test_custom_call_comes_back_as_one(gateway: Gateways) -> None:
    tool = {"type": "custom", "name": "apply_patch"}
    with ChatServer([call_reply("apply_patch", {"input": "*** Begin"}, "c1")]) as upstream:
        events = gateway(upstream, upstream_api="chat").events({"input": "hi", "tools": [tool]})
    item = events[-1]["response"]["output"][0]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin")


def test_faults_are_those_of_a_responses_upstream(gateway: Gateways) -> None:
    overflow = Reply(status=400, body={"error": {"message": "maximum context length is 4096 tokens"}})
    broken = text_reply("one two three", cut_after="partial_item")
    with ChatServer([overflow, overflow, broken]) as upstream:
        running = gateway(upstream, upstream_api="chat")
        answer = running.post("/responses", {"model": "m", "input": "hi"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        events = running.events({"input": "hi"})
        assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
        assert running.events({"input": "hi"})[-1]["type"] == "response.failed"
