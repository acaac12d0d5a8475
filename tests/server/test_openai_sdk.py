"""The OpenAI SDK as a client of the gateway: it knows nothing of refold, and reads every answer with its own types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from refold.core.fragments import SUMMARY_MARK
from refold.model.scripted import Reply
from refold.testing import ResponsesServer, call_reply, text_reply

openai = pytest.importorskip("openai")
Gateways = Callable[..., Any]
HISTORY: list[Any] = [
    {"role": "user", "content": "Make the parser faster."},
    {"role": "assistant", "content": "I will use a table. " + "y" * 8_000},
]


@pytest.fixture
def sdk() -> Iterator[Callable[[str], Any]]:
    clients: list[Any] = []

    def start(url: str) -> Any:
        clients.append(openai.OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0, timeout=20))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def texts(request: Any) -> list[str]:
    contents = [item["content"] for item in request.json["input"]]
    return [one if isinstance(one, str) else "".join(part["text"] for part in one) for one in contents]


def test_create_with_and_without_a_stream(gateway: Gateways, sdk: Callable[[str], Any]) -> None:
    with ResponsesServer(["hello", "there"]) as upstream:
        client = sdk(gateway(upstream).url)
        response = client.responses.create(model="m", input="hi")
        assert response.output_text == "hello"
        events = [*client.responses.create(model="m", input="hi", previous_response_id=response.id, stream=True)]
        assert events[-1].type == "response.completed" and events[-1].response.output_text == "there"
        assert texts(upstream.requests[1]) == ["hi", "hello", "hi"]
        assert client.responses.retrieve(response.id).output_text == "hello"
        client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)


def test_stream_helper_reads_custom_calls(gateway: Gateways, sdk: Callable[[str], Any]) -> None:
    tool: Any = {"type": "custom", "name": "apply_patch"}
    with ResponsesServer([call_reply("apply_patch", {"input": "*** Begin"}, "c1")]) as upstream:
        client = sdk(gateway(upstream).url)
        with client.responses.stream(model="m", input="hi", tools=[tool]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
    assert "response.custom_tool_call_input.done" in kinds
    assert (final.output[0].type, final.output[0].input) == ("custom_tool_call", "*** Begin")


def test_compact_and_go_on(gateway: Gateways, sdk: Callable[[str], Any]) -> None:
    with ResponsesServer(["THE SUMMARY", "on"]) as upstream:
        client = sdk(gateway(upstream).url)
        compacted = client.responses.compact(model="m", input=HISTORY)
        assert (compacted.object, compacted.usage.total_tokens) == ("response.compaction", 110)
        assert [item.type for item in compacted.output] == ["message", "compaction"]
        onward = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
        client.responses.create(model="m", input=[*onward, {"role": "user", "content": "On."}])
        assert texts(upstream.requests[1]) == ["Make the parser faster.", SUMMARY_MARK + "THE SUMMARY", "On."]


def test_inline_compaction_is_read_and_gone_on_from(gateway: Gateways, sdk: Callable[[str], Any]) -> None:
    managed: Any = [{"type": "compaction", "compact_threshold": 1_500}]
    with ResponsesServer(["THE SUMMARY", "ANSWER", "on"]) as upstream:
        client = sdk(gateway(upstream).url)
        asked = [*HISTORY, {"role": "user", "content": "And now?"}]
        events = [*client.responses.create(model="m", input=asked, context_management=managed, stream=True)]
        response = events[-1].response
        assert [item.type for item in response.output] == ["compaction", "message"]
        assert "ResponseCompactionCompactingEvent" in {type(event).__name__ for event in events}
        onward = [item.model_dump(exclude_none=True, warnings=False) for item in response.output]
        client.responses.create(model="m", input=[*asked, *onward, {"role": "user", "content": "On."}])
        assert texts(upstream.requests[2])[:3] == ["Make the parser faster.", "And now?", SUMMARY_MARK + "THE SUMMARY"]


def test_input_tokens_and_models(gateway: Gateways, sdk: Callable[[str], Any]) -> None:
    with ResponsesServer([]) as upstream:
        client = sdk(gateway(upstream, model_map={"gpt-5.5": "qwen"}).url)
        assert 2 <= client.responses.input_tokens.count(model="m", input="hello world").input_tokens <= 20
        assert [model.id for model in client.models.list()] == ["gpt-5.5"]


def test_errors_are_the_sdks_own(gateway: Gateways, sdk: Callable[[str], Any]) -> None:
    overflow = Reply(status=400, body={"error": {"message": "maximum context length is 4096 tokens"}})
    busy = Reply(status=429, body={"error": {"message": "slow down"}})
    with ResponsesServer([overflow, busy, text_reply("x", cut_after=3)]) as upstream:
        client = sdk(gateway(upstream).url)
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="m", input="hi")
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.RateLimitError):
            client.responses.create(model="m", input="hi")
        assert [*client.responses.create(model="m", input="hi", stream=True)][-1].type == "response.failed"
        foreign: Any = [{"type": "compaction", "encrypted_content": "gAAAAABo"}]
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="m", input=foreign)
        assert caught.value.code == "invalid_encrypted_content"


def test_connect_talks_over_a_websocket(gateway: Gateways, sdk: Callable[[str], Any]) -> None:
    pytest.importorskip("websockets")
    with ResponsesServer(["a", "b"]) as upstream:
        client = sdk(gateway(upstream).url)
        previous: str | None = None
        with client.responses.connect() as connection:
            for text in ("1", "2"):
                more = {} if previous is None else {"previous_response_id": previous}
                connection.response.create(model="m", input=text, store=False, **more)
                for event in connection:
                    if event.type == "response.completed":
                        previous = event.response.id
                        break
        assert texts(upstream.requests[1]) == ["1", "a", "2"]
