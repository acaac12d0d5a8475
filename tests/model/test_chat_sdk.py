"""The OpenAI SDK reads what a Chat Completions server said, translated, as it reads a Responses API's own stream.

A small server stands between: it translates each request, asks a ChatServer, and translates the answer back.
"""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from refold.core.chat_completions import ChatRequest, chat_request
from refold.core.chat_completions_stream import ChatDecoder, Event, response_of
from refold.testing import Reply, call_reply, text_reply, usage
from refold.testing.chat_server import ChatServer

openai = pytest.importorskip("openai")

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
PATCH = {"type": "custom", "name": "patch"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm, let me see"}]}
PATCHED = {"type": "custom_tool_call", "name": "patch", "input": "*** Begin\n*** End", "call_id": "call_p"}


@contextmanager
def translating(upstream: ChatServer) -> Iterator[str]:
    """The base URL of a Responses API that asks a Chat Completions server."""
    serial = itertools.count(1)

    class Between(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            request, number = chat_request(asked), next(serial)
            message = urllib.request.Request(
                f"{upstream.url}/chat/completions",
                data=json.dumps(request.body).encode(),
                headers={"content-type": "application/json"},
            )
            with urllib.request.urlopen(message, timeout=20) as answer:
                body = answer.read().decode()
            if asked.get("stream"):
                self.say("text/event-stream", "".join(map(sse, events_of(body, request, number))))
            else:
                self.say("application/json", json.dumps(document_of(body, request, number)))

        def say(self, kind: str, text: str) -> None:
            raw = text.encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


def events_of(body: str, request: ChatRequest, number: int) -> list[Event]:
    decoder = ChatDecoder(request, response_id=f"resp_{number}", created_at=1)
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [event for one in data for event in decoder.feed_data(one)] + decoder.end(done=False)


def document_of(body: str, request: ChatRequest, number: int) -> dict[str, Any]:
    return response_of(json.loads(body), request, response_id=f"resp_{number}", created_at=1)


def sse(event: Event) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


@contextmanager
def client(*replies: Any) -> Iterator[tuple[Any, ChatServer]]:
    with (
        ChatServer(list(replies)) as upstream,
        translating(upstream) as url,
        openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as sdk,
    ):
        yield sdk, upstream


ANSWERS = {
    "text": text_reply("Hello there", usage=usage(9, 4, cached=5)),
    "thought": Reply(items=(THOUGHT, *text_reply("so").items), usage=usage(9, 4, reasoning=2)),
    "calls": Reply(items=(*call_reply("look", {"at": 1}).items, *call_reply("look", {"at": 2}).items, PATCHED)),
    "cut": text_reply("half", incomplete="max_output_tokens"),
    "empty": Reply(usage=usage(9, 0)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_sdk_gathers_the_stream_to_the_response_that_ends_it(name: str) -> None:
    with client(ANSWERS[name]) as (sdk, _):
        with sdk.responses.stream(model="m", input="hi", tools=[TOOL, PATCH]) as stream:
            events = [*stream]
        last = events[-1].response
    assert events[0].type == "response.created"
    assert events[-1].type == ("response.incomplete" if name == "cut" else "response.completed")
    done = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in last.output] == done
    kinds = {"text": ["message"], "thought": ["reasoning", "message"], "cut": ["message"], "empty": []}
    kinds["calls"] = ["function_call", "function_call", "custom_tool_call"]
    assert [item.type for item in last.output] == kinds[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_every_event_has_the_shape_that_the_sdk_declares(name: str) -> None:
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    with client(ANSWERS[name]) as (sdk, _):
        events = [*sdk.responses.create(model="m", input="hi", tools=[TOOL, PATCH], stream=True)]
    adapter: Any = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.model_dump(mode="json", exclude_unset=True))


def test_the_sdk_reads_a_document() -> None:
    with client(ANSWERS["thought"]) as (sdk, _):
        response = sdk.responses.create(model="m", input="hi")
    assert response.output_text == "so"
    assert (response.usage.input_tokens, response.usage.output_tokens_details.reasoning_tokens) == (9, 2)


def test_what_the_sdk_gives_back_is_taken_in_the_next_request() -> None:
    with client(ANSWERS["calls"], ANSWERS["text"]) as (sdk, upstream):
        first = sdk.responses.create(model="m", input="hi", tools=[TOOL, PATCH])
        answers = [
            {"type": item.type + "_output", "call_id": item.call_id, "output": f"seen {number}"}
            for number, item in enumerate(first.output)
        ]
        again = [{"role": "user", "content": "hi"}, *first.output, *answers]
        second = sdk.responses.create(model="m", input=again, tools=[TOOL, PATCH])
    assert second.output_text == "Hello there"
    said = upstream.requests[1].json["messages"]
    assert [one["role"] for one in said] == ["user", "assistant", "tool", "tool", "tool"]
    assert [one["content"] for one in said[2:]] == ["seen 0", "seen 1", "seen 2"]
    assert json.loads(said[1]["tool_calls"][2]["function"]["arguments"]) == {"input": PATCHED["input"]}


def test_an_error_in_the_stream_reaches_the_sdk_as_a_failed_response() -> None:
    reply = Reply(body=[{"error": {"message": "engine died", "code": 500}}])
    with client(reply) as (sdk, _):
        events = [*sdk.responses.create(model="m", input="hi", stream=True)]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "engine died"
