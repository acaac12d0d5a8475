"""The Agents SDK as a client of the gateway: its own session compacts, by its own threshold, a model that cannot.

The upstream's model is scripted: it calls a tool when it is asked to measure, answers questions from what it is told,
and sums up what it is given. So a reading that stands in the last request went through every summary in between.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from refold.core.fragments import SUMMARY_MARK
from refold.core.items import message_text
from refold.core.templates import template
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply

Gateways = Callable[..., Any]
PERIOD = 4  # turns: each adds a call, an output and an answer, and the SDK compacts at 10 such items
TURNS = 22  # five compactions, each of what the one before left, and two turns
THRESHOLD = 2_500  # tokens, for compactions inside an answer
PLAIN = {"message", "function_call", "function_call_output"}  # what the upstream knows
BULK = "x" * 2_000  # of an answer of the tool: what a compaction is for
READING = re.compile(r"reading-\d+=\d+")


@pytest.fixture(scope="module")
def agents() -> Any:
    """The SDK, imported by whoever runs these tests only: that takes seconds."""
    sdk = pytest.importorskip("agents")
    sdk.set_tracing_disabled(True)  # it would send what happens to its makers
    return sdk


def is_compaction(request: LoggedRequest) -> bool:
    return message_text(request.input[-1]) == template("handoff")


def readings(text: str) -> list[str]:
    """The readings in a text, each once, in their order."""
    return [*dict.fromkeys(READING.findall(text))]


def people_said(request: LoggedRequest) -> list[str]:
    """What was to be measured, in the words of whoever asked."""
    said = [message_text(item) for item in request.input if item.get("role") == "user"]
    return [text for text in said if text.startswith("Measure ")]


def upstream_model(request: LoggedRequest) -> Reply:
    """What the model says: a summary, a call, or an answer."""
    said = request.body.decode()
    if is_compaction(request):
        return text_reply(f"Measured until now: {', '.join(readings(said))}. Nothing else is open.")
    last = request.input[-1]
    if last.get("type") == "function_call_output":
        return text_reply("Done.")
    if found := re.search(r"Measure (\d+)", message_text(last)):
        return call_reply("measure", {"number": int(found[1])})
    return text_reply("I know " + " ".join(readings(said)))


class Desk:
    """One conversation: an agent with a tool, its session, and what the SDK asked the gateway."""

    def __init__(self, agents: Any, client: Any, *, store: bool | None, wire: str, **settings: Any) -> None:
        from agents.memory import OpenAIResponsesCompactionSession

        self.measured: list[str] = []
        self.compactions: list[dict[str, Any]] = []

        def measure(number: int) -> str:
            """Measure one thing."""
            self.measured.append(f"reading-{number}={number * number + 7}")
            return f"{self.measured[-1]} {BULK}"

        kind = agents.OpenAIResponsesWSModel if wire == "websocket" else agents.OpenAIResponsesModel
        self.model = kind(model="gpt-5.5", openai_client=client)
        self.agent = agents.Agent(
            name="a",
            instructions="You measure.",
            model=self.model,
            tools=[agents.function_tool(measure)],
            model_settings=agents.ModelSettings(store=store),
        )
        self.under = agents.SQLiteSession("s")
        self.session = OpenAIResponsesCompactionSession("s", self.under, client=client, model="gpt-5.5", **settings)
        self.runner, self.config = agents.Runner, agents.RunConfig(tracing_disabled=True)
        self.wire = wire

    async def say(self, text: str) -> str:
        options = {"session": self.session, "run_config": self.config}
        if self.wire == "plain":
            return (await self.runner.run(self.agent, text, **options)).final_output
        run = self.runner.run_streamed(self.agent, text, **options)
        async for _ in run.stream_events():
            pass
        return run.final_output

    async def kinds(self) -> list[str]:
        return [item.get("type") or "message" for item in await self.session.get_items()]


@asynccontextmanager
async def desk(agents: Any, url: str, **settings: Any) -> AsyncIterator[Desk]:
    """A desk whose compactions are noted as they are asked for."""
    import openai

    asked: list[dict[str, Any]] = []

    async def note(request: httpx2.Request) -> None:
        if request.url.path.endswith("/compact"):
            asked.append(msgspec.json.decode(request.content))

    http = openai.DefaultAsyncHttpx2Client(event_hooks={"request": [note]}, trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=url, api_key="sk-test-0123456789", max_retries=0, http_client=http
    ) as client:
        one = Desk(agents, client, **settings)
        one.compactions = asked
        try:
            yield one
        finally:
            one.under.close()
            await one.model.close()


WAYS = {
    "as it comes": ("plain", None, {}, "previous_response_id"),
    "not stored": ("stream", False, {}, "input"),  # so the session sends what it has
    "by its items": ("plain", None, {"compaction_mode": "input"}, "input"),
    "by an id": ("stream", True, {"compaction_mode": "previous_response_id"}, "previous_response_id"),
    "websocket": ("websocket", None, {}, "previous_response_id"),
}


@pytest.mark.parametrize("way", WAYS)
def test_long_conversation_is_compacted_by_the_sdks_session(agents: Any, gateway: Gateways, way: str) -> None:
    wire, store, settings, names = WAYS[way]

    async def go(url: str) -> tuple[Desk, list[list[str]], str]:
        async with desk(agents, url, wire=wire, store=store, **settings) as one:
            kinds = []
            for number in range(TURNS):
                assert await one.say(f"Measure {number}, please.") == "Done."
                kinds.append(await one.kinds())
            return one, kinds, await one.say("What do you know?")

    with ResponsesServer(upstream_model) as upstream:
        running = gateway(upstream)
        one, kinds, known = asyncio.run(asyncio.wait_for(go(running.url), 60))
        requests = [*upstream.requests]
        answered = running.metric('refold_gateway_requests_total{route="compact",status="200"}')
        over_websocket = running.metric('refold_gateway_requests_total{route="websocket",status="200"}')
    compactions = [number for number, request in enumerate(requests) if is_compaction(request)]
    assert len(compactions) == len(one.compactions) == answered == TURNS // PERIOD
    assert all(names in asked and len(asked) == 2 for asked in one.compactions)  # beside the model's name
    assert over_websocket == (2 * TURNS + 1 if wire == "websocket" else 0)

    for turn, items in enumerate(kinds, 1):
        assert items.count("compaction") == min(1, turn // PERIOD)
        since = turn % PERIOD
        assert len(items) == (turn - since) + min(1, turn // PERIOD) + 4 * since  # what people said stays

    for before, after in ((requests[number - 1], requests[number + 1]) for number in compactions):
        assert len(after.body) < len(before.body) / 2
        summaries = [text for text in map(message_text, after.input) if text.startswith(SUMMARY_MARK)]
        assert len(summaries) == 1 and readings(summaries[0]) == readings(before.body.decode())
    assert {item.get("type", "message") for request in requests for item in request.input} == PLAIN
    assert people_said(requests[-1]) == [f"Measure {number}, please." for number in range(TURNS)]
    assert readings(known) == one.measured and len(one.measured) == TURNS


def test_compaction_that_is_refused_leaves_the_sessions_items(agents: Any, gateway: Gateways) -> None:
    import openai

    def busy(request: LoggedRequest) -> Reply:
        if is_compaction(request) and is_busy:
            return Reply(status=429, body={"error": {"message": "slow down"}}, headers={"retry-after": "1"})
        return upstream_model(request)

    async def go(url: str) -> list[str]:
        async with desk(agents, url, wire="plain", store=None) as one:
            for number in range(3):
                await one.say(f"Measure {number}, please.")
            before = await one.session.get_items()
            with pytest.raises(openai.RateLimitError):
                await one.session.run_compaction({"force": True})
            assert await one.session.get_items() == before
            is_busy.clear()
            await one.session.run_compaction({"force": True})
            return await one.kinds()

    is_busy = [True]
    with ResponsesServer(busy) as upstream:
        kinds = asyncio.run(asyncio.wait_for(go(gateway(upstream).url), 60))
    assert kinds == ["message"] * 3 + ["compaction"]


@pytest.mark.parametrize("chained", [False, True], ids=["session", "previous_response_id"])
def test_agent_whose_settings_ask_for_compaction_inside_answers(agents: Any, gateway: Gateways, chained: bool) -> None:
    """Without the session class: `context_management` of the model's settings, answered inside the response."""

    async def go(url: str) -> tuple[list[str], str]:
        async with desk(agents, url, wire="plain", store=None) as one:
            managed = [{"type": "compaction", "compact_threshold": THRESHOLD}]
            one.agent.model_settings = agents.ModelSettings(context_management=managed)
            options: dict[str, Any] = {"auto_previous_response_id": True} if chained else {"session": one.under}
            known = ""
            for text in [*(f"Measure {number}, please." for number in range(TURNS)), "What do you know?"]:
                result = await one.runner.run(one.agent, text, run_config=one.config, **options)
                known = result.final_output
                if chained:
                    options["previous_response_id"] = result.last_response_id
            return one.measured, known

    with ResponsesServer(upstream_model) as upstream:
        running = gateway(upstream)
        measured, known = asyncio.run(asyncio.wait_for(go(running.url), 60))
        requests = [*upstream.requests]
        inside = running.metric('refold_gateway_compactions_total{method="model",way="inline"}')
    compactions = [request for request in requests if is_compaction(request)]
    assert len(compactions) == inside > 2
    assert max(len(request.body) for request in requests if not is_compaction(request)) < 4 * THRESHOLD + 3_000
    assert people_said(requests[-1]) == [f"Measure {number}, please." for number in range(TURNS)]
    assert readings(known) == measured and len(measured) == TURNS
