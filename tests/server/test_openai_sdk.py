"""The OpenAI SDK as a client of the gateway: it knows nothing of refold, and reads every answer with its own types."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pydantic
import pytest

from refold.core.fragments import SUMMARY_MARK
from refold.core.templates import template
from refold.model.scripted import Reply
from refold.server import Secrets
from refold.testing import ResponsesServer, call_reply, text_reply

openai = pytest.importorskip("openai")
Gateways = Callable[..., Any]
SecretsOf = Callable[..., Secrets]
Sdk = Callable[..., Any]
TRIGGER: Any = {"type": "compaction_trigger"}
HISTORY: list[Any] = [
    {"role": "user", "content": "Make the parser faster."},
    {"role": "assistant", "content": "I will use a table. " + "y" * 8_000},
]


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    clients: list[Any] = []

    def start(url: str, key: str = "sk-test-0123456789", **options: Any) -> Any:
        clients.append(openai.OpenAI(base_url=url, api_key=key, **{"max_retries": 0, "timeout": 20, **options}))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def texts(request: Any) -> list[str]:
    """What the items of a request say; the types of those that are no messages."""
    given = request.json["input"]
    items = [{"content": given}] if isinstance(given, str) else given
    contents = [item.get("content") or item["type"] for item in items]
    return [one if isinstance(one, str) else "".join(part["text"] for part in one) for one in contents]


def given_back(output: list[Any]) -> list[Any]:
    """Output items as a client puts them into its next input."""
    return [item.model_dump(exclude_unset=True, warnings=False) for item in output]


def test_create_with_and_without_a_stream(gateway: Gateways, sdk: Sdk) -> None:
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


def test_stream_helper_reads_custom_calls(gateway: Gateways, sdk: Sdk) -> None:
    tool: Any = {"type": "custom", "name": "apply_patch"}
    with ResponsesServer([call_reply("apply_patch", {"input": "*** Begin"}, "c1")]) as upstream:
        client = sdk(gateway(upstream).url)
        with client.responses.stream(model="m", input="hi", tools=[tool]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
    assert "response.custom_tool_call_input.done" in kinds
    assert (final.output[0].type, final.output[0].input) == ("custom_tool_call", "*** Begin")


def test_compact_and_go_on(gateway: Gateways, sdk: Sdk) -> None:
    with ResponsesServer(["THE SUMMARY", "on"]) as upstream:
        client = sdk(gateway(upstream).url)
        compacted = client.responses.compact(model="m", input=HISTORY)
        assert (compacted.object, compacted.usage.total_tokens) == ("response.compaction", 110)
        assert [item.type for item in compacted.output] == ["message", "compaction"]
        onward = given_back(compacted.output)
        client.responses.create(model="m", input=[*onward, {"role": "user", "content": "On."}])
        assert texts(upstream.requests[1]) == ["Make the parser faster.", SUMMARY_MARK + "THE SUMMARY", "On."]


def test_inline_compaction_is_read_and_gone_on_from(gateway: Gateways, sdk: Sdk) -> None:
    managed: Any = [{"type": "compaction", "compact_threshold": 1_500}]
    with ResponsesServer(["THE SUMMARY", "ANSWER", "on"]) as upstream:
        client = sdk(gateway(upstream).url)
        asked = [*HISTORY, {"role": "user", "content": "And now?"}]
        events = [*client.responses.create(model="m", input=asked, context_management=managed, stream=True)]
        response = events[-1].response
        assert [item.type for item in response.output] == ["compaction", "message"]
        assert "ResponseCompactionCompactingEvent" in {type(event).__name__ for event in events}
        onward = given_back(response.output)
        client.responses.create(model="m", input=[*asked, *onward, {"role": "user", "content": "On."}])
        assert texts(upstream.requests[2])[:3] == ["Make the parser faster.", SUMMARY_MARK + "THE SUMMARY", "And now?"]


def test_input_tokens_and_models(gateway: Gateways, sdk: Sdk) -> None:
    with ResponsesServer([]) as upstream:
        client = sdk(gateway(upstream, model_map={"gpt-5.5": "qwen"}).url)
        assert 2 <= client.responses.input_tokens.count(model="m", input="hello world").input_tokens <= 20
        assert [model.id for model in client.models.list()] == ["gpt-5.5"]


def test_errors_are_the_sdks_own(gateway: Gateways, sdk: Sdk) -> None:
    overflow = Reply(status=400, body={"error": {"message": "maximum context length is 4096 tokens"}})
    busy = Reply(status=429, body={"error": {"message": "slow down"}}, headers={"retry-after": "7"})
    with ResponsesServer([overflow, busy, text_reply("x", cut_after=3)]) as upstream:
        client = sdk(gateway(upstream).url)
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="m", input="hi")
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.RateLimitError, match="slow down") as limited:
            client.responses.create(model="m", input="hi")
        assert limited.value.response.headers["retry-after"] == "7"
        assert [*client.responses.create(model="m", input="hi", stream=True)][-1].type == "response.failed"
        foreign: Any = [{"type": "compaction", "encrypted_content": "gAAAAABo"}]
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="m", input=foreign)
        assert caught.value.code == "invalid_encrypted_content"


def test_connect_talks_over_a_websocket(gateway: Gateways, sdk: Sdk) -> None:
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


# --- tools and structured output -------------------------------------------------------------------------------------


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


WEATHER = Weather(city="Oslo", degrees=-3)


def test_structured_output_is_parsed(gateway: Gateways, sdk: Sdk) -> None:
    said = WEATHER.model_dump_json()
    with ResponsesServer([said, said]) as upstream:
        client = sdk(gateway(upstream).url)
        assert client.responses.parse(model="m", input="How is it?", text_format=Weather).output_parsed == WEATHER
        with client.responses.stream(model="m", input="How is it?", text_format=Weather) as stream:
            assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == said
            assert stream.get_final_response().output_parsed == WEATHER
        asked = upstream.requests[0].json["text"]["format"]
    assert (asked["type"], asked["name"], [*asked["schema"]["properties"]]) == (
        "json_schema",
        "Weather",
        ["city", "degrees"],
    )


def test_function_call_and_its_output(gateway: Gateways, sdk: Sdk) -> None:
    function: Any = openai.pydantic_function_tool(Weather, name="tell")["function"]
    tools: Any = [{"type": "function", **function}]
    with ResponsesServer([call_reply("tell", WEATHER.model_dump(), "c1"), "Cold."]) as upstream:
        client = sdk(gateway(upstream).url)
        response = client.responses.parse(model="m", input="How is it?", tools=tools)
        (call,) = response.output
        assert (call.type, call.name, call.call_id) == ("function_call", "tell", "c1")
        assert Weather.model_validate_json(call.arguments) == WEATHER
        output: Any = {"type": "function_call_output", "call_id": "c1", "output": "told"}
        answer = client.responses.create(model="m", input=[output], previous_response_id=response.id, tools=tools)
        assert answer.output_text == "Cold."
        first, second = upstream.requests
    assert first.json["tools"] == second.json["tools"] == tools
    assert texts(second) == ["How is it?", "function_call", "function_call_output"]


@pytest.mark.parametrize("chained", [False, True])
def test_custom_call_goes_to_the_upstream_and_back(gateway: Gateways, sdk: Sdk, chained: bool) -> None:
    tools: Any = [{"type": "custom", "name": "apply_patch"}]
    question: Any = {"role": "user", "content": "Mend it."}
    with ResponsesServer([call_reply("apply_patch", {"input": "*** Begin"}, "c1"), "Mended."]) as upstream:
        client = sdk(gateway(upstream).url)
        response = client.responses.create(model="m", input=[question], tools=tools)
        (call,) = response.output
        assert (call.type, call.name, call.input, call.call_id) == (
            "custom_tool_call",
            "apply_patch",
            "*** Begin",
            "c1",
        )
        assert response.tools[0].type == "custom"
        output: Any = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
        onward: Any = {"previous_response_id": response.id, "input": [output]}
        if not chained:
            onward = {"input": [question, *given_back(response.output), output]}
        assert client.responses.create(model="m", tools=tools, **onward).output_text == "Mended."
        told = upstream.requests[1].input
    assert [item.get("type", "message") for item in told] == ["message", "function_call", "function_call_output"]
    assert told[1]["arguments"] == '{"input":"*** Begin"}' and told[2]["output"] == "ok"


# --- going on from ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["endpoint", "trigger", "inline"])
def test_chain_goes_on_behind_a_compaction(gateway: Gateways, sdk: Sdk, way: str) -> None:
    managed: Any = [{"type": "compaction", "compact_threshold": 1_500}]
    long = "I will use a table. " + "y" * 8_000
    with ResponsesServer([long, "THE SUMMARY", "second", "third"]) as upstream:
        client = sdk(gateway(upstream).url)
        first = client.responses.create(model="m", input="1")
        if way == "endpoint":
            output = client.responses.compact(model="m", previous_response_id=first.id).output
            window = [*given_back(output), {"role": "user", "content": "2"}]
            second = client.responses.create(model="m", input=window)
        elif way == "trigger":
            item = client.responses.create(model="m", input=[TRIGGER], previous_response_id=first.id)
            assert [one.type for one in item.output] == ["compaction"]
            second = client.responses.create(model="m", input="2", previous_response_id=item.id)
        else:
            more = {"previous_response_id": first.id, "context_management": managed}
            second = client.responses.create(model="m", input="2", **more)
            assert [one.type for one in second.output] == ["compaction", "message"]
        third = client.responses.create(model="m", input="3", previous_response_id=second.id)
        assert (second.output_text, third.output_text) == ("second", "third")
        _, compacting, after, last = map(texts, upstream.requests)
    assert compacting == ["1", long, template("handoff")]
    summary = SUMMARY_MARK + "THE SUMMARY"
    assert after == (["1", summary, "2"])
    assert sorted(last) == sorted(["1", summary, "2", "second", "3"]) and last[-2:] == ["second", "3"]


def test_previous_response_that_is_not_there(gateway: Gateways, sdk: Sdk) -> None:
    with ResponsesServer(["a"]) as upstream:
        client = sdk(gateway(upstream).url)
        unstored = client.responses.create(model="m", input="1", store=False).id
        for name in (unstored, "resp_unknown"):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model="m", input="2", previous_response_id=name)
            assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
            with pytest.raises(openai.NotFoundError):
                client.responses.delete(name)
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.retrieve("resp_unknown", stream=True)
        assert caught.value.param == "stream"


# --- errors ----------------------------------------------------------------------------------------------------------


def test_tokens_and_keys_that_are_not_taken(gateway: Gateways, sdk: Sdk, secrets_of: SecretsOf) -> None:
    refused = Reply(status=401, body={"error": {"message": "no such key", "code": "invalid_api_key"}})
    with ResponsesServer([refused, refused, "hello"]) as upstream:
        passed = sdk(gateway(upstream).url)
        with pytest.raises(openai.AuthenticationError, match="no such key"):  # the upstream's, of the client's own key
            passed.responses.create(model="m", input="hi")
        closed = gateway(upstream, secrets=secrets_of("token-number-one", upstream_key="k" * 20)).url
        with pytest.raises(openai.AuthenticationError) as caught:
            sdk(closed).responses.create(model="m", input="hi")
        assert caught.value.code == "invalid_api_key"
        known = sdk(closed, "token-number-one")
        with pytest.raises(openai.InternalServerError) as failed:  # the gateway's key: no client can mend that
            known.responses.create(model="m", input="hi")
        assert (failed.value.status_code, failed.value.code) == (502, "upstream_refused_key")
        assert known.responses.create(model="m", input="hi").output_text == "hello"


def test_upstream_that_is_not_there(gateway: Gateways, sdk: Sdk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    client = sdk(gateway(url).url)
    calls = [
        lambda: client.responses.create(model="m", input="hi"),
        lambda: client.responses.create(model="m", input="hi", stream=True),
        lambda: client.responses.compact(model="m", input=HISTORY),
        lambda: client.models.list(),
    ]
    for call in calls:
        with pytest.raises(openai.APIStatusError) as caught:
            call()
        assert (caught.value.status_code, caught.value.code) == (502, "upstream_unreachable"), call
    assert client.responses.input_tokens.count(model="m", input="hi").input_tokens > 0


def test_what_was_left_out_is_told_in_a_header(gateway: Gateways, sdk: Sdk) -> None:
    tools: Any = [{"type": "web_search"}]
    with ResponsesServer(["a"]) as upstream:
        raw = sdk(gateway(upstream).url).responses.with_raw_response.create(model="m", input="hi", tools=tools)
        assert "web_search" in raw.headers["x-refold-left-out"] and raw.parse().output_text == "a"
        assert not upstream.requests[0].json.get("tools")


# --- the documents of the gateway's own ------------------------------------------------------------------------------


def test_own_events_and_documents_are_what_the_sdks_types_say(gateway: Gateways) -> None:
    """The SDK forgives what is missing or wrong; its types, asked to check, do not."""
    types = openai.types.responses
    event, response = pydantic.TypeAdapter(types.ResponseStreamEvent), pydantic.TypeAdapter(types.Response)
    asked = {"input": [*HISTORY, TRIGGER], "metadata": {"a": "b"}, "tools": [{"type": "custom", "name": "x"}]}
    with ResponsesServer(["S", "S", "S", text_reply("S", cut_after="partial_item")]) as upstream:
        running = gateway(upstream)
        kinds = [event.validate_python(one).type for one in running.events(asked)]
        assert "response.compaction.compacting" in kinds and kinds[-1] == "response.completed"
        assert (
            response.validate_python(running.post("/responses", {"model": "m", **asked}).json()).status == "completed"
        )
        compacted = running.post("/responses/compact", {"model": "m", "input": HISTORY}).json()
        compacted["output"] = compacted["output"][-1:]  # what people said: of a type that the SDK has for answers only
        assert types.CompactedResponse.model_validate(compacted).output[0].type == "compaction"
        failed = [event.validate_python(one) for one in running.events({"input": [*HISTORY, TRIGGER]})]
        assert failed[-1].type == "response.failed" and failed[-1].response.error.code == "server_error"


# --- the async client ------------------------------------------------------------------------------------------------


def test_async_client_does_the_same(gateway: Gateways) -> None:
    async def go(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0, timeout=20) as client:
            response = await client.responses.create(model="m", input="1")
            stream = await client.responses.create(model="m", input="2", previous_response_id=response.id, stream=True)
            events = [event async for event in stream]
            assert events[-1].type == "response.completed" and events[-1].response.output_text == "b"
            compacted = await client.responses.compact(model="m", previous_response_id=events[-1].response.id)
            assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
            window = [*given_back(compacted.output), {"role": "user", "content": "3"}]
            counted = await client.responses.input_tokens.count(model="m", input=window)
            assert counted.input_tokens > 3
            async with client.responses.stream(model="m", input=window) as helper:
                final = await helper.get_final_response()
            assert final.output_text == "c"
            async with client.responses.connect() as connection:
                await connection.response.create(model="m", input="4", previous_response_id=final.id)
                told = []
                async for event in connection:
                    told.append(event.type)
                    if event.type == "response.completed":
                        break
                await connection.response.create(model="m", input="5", previous_response_id="resp_unknown")
                assert (await connection.recv()).type == "error"
            assert told[0] == "response.created"
            assert (await client.responses.retrieve(final.id)).output_text == "c"
            await client.responses.delete(final.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(final.id)
            assert [model.id async for model in client.models.list()] == ["gpt-5.5"]

    with ResponsesServer(["a", "b", "THE SUMMARY", "c", "d"]) as upstream:
        asyncio.run(asyncio.wait_for(go(gateway(upstream, model_map={"gpt-5.5": "qwen"}).url), 30))
        assert texts(upstream.requests[4]) == ["1", "2", SUMMARY_MARK + "THE SUMMARY", "3", "c", "4"]
