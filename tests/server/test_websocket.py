"""The WebSocket: requests that only say what is new, over one connection, as refold's own client speaks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto import events as ws

from refold.core.fragments import SUMMARY_MARK
from refold.core.profile import Profile, Provider
from refold.core.truncate import Budget
from refold.model.responses import ResponsesModel
from refold.model.scripted import Reply
from refold.server import Secrets
from refold.session.session import Session
from refold.testing import ResponsesServer, text_reply, usage

Gateways, SecretsOf = Callable[..., Any], Callable[..., Secrets]
USER = {"type": "message", "role": "user", "content": "1"}


class Talk:
    """A client of a WebSocket that knows nothing of refold's."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url, self.headers = httpx2.URL(url), headers

    async def __aenter__(self) -> Talk:
        self.reader, self.writer = await asyncio.open_connection(self.url.host, self.url.port)
        self.connection = WSConnection(ConnectionType.CLIENT)
        extra = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        host = f"{self.url.host}:{self.url.port}"
        self.write(ws.Request(host=host, target=f"{self.url.path}/responses", extra_headers=extra))
        self.heard: list[Any] = []
        self.first = await self.event()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.writer.close()

    def write(self, event: ws.Event) -> None:
        self.writer.write(self.connection.send(event))

    async def event(self) -> Any:
        while not self.heard:
            self.connection.receive_data(await asyncio.wait_for(self.reader.read(65536), 10) or None)
            self.heard += self.connection.events()
        return self.heard.pop(0)

    async def message(self) -> dict[str, Any]:
        text = ""
        while True:
            event = await self.event()
            assert isinstance(event, ws.TextMessage), event
            text += event.data
            if event.message_finished:
                return json.loads(text)

    async def ask(self, **body: Any) -> list[dict[str, Any]]:
        """The events of one answer."""
        self.write(ws.TextMessage(json.dumps({"type": "response.create", "model": "m", **body})))
        events = [await self.message()]
        while events[-1]["type"] not in ("response.completed", "response.failed", "error"):
            events.append(await self.message())
        return events


def texts(request: Any) -> list[str]:
    given = request.json["input"]
    items = [{"content": given}] if isinstance(given, str) else given
    said = [item.get("content") or item["type"] for item in items]
    return [one if isinstance(one, str) else "".join(part["text"] for part in one) for one in said]


def talked(url: str, talk: Callable[[Talk], Any], **headers: str) -> Any:
    async def go() -> Any:
        async with Talk(url, **headers) as one:
            return await talk(one)

    return asyncio.run(asyncio.wait_for(go(), 30))


def test_answer_is_one_event_a_frame(gateway: Gateways) -> None:
    with ResponsesServer(["hello"]) as upstream:
        events = talked(gateway(upstream).url, lambda talk: talk.ask(input=[USER], store=False))
        assert upstream.requests[0].json == {"model": "m", "input": [USER], "store": False, "stream": True}
    assert (
        events[0]["type"] == "response.created" and events[-1]["response"]["output"][0]["content"][0]["text"] == "hello"
    )
    assert [event["sequence_number"] for event in events] == [*range(len(events))]


def test_request_goes_on_from_the_response_before_it_though_nothing_is_stored(gateway: Gateways) -> None:
    async def talk(one: Talk) -> list[Any]:
        warm = (await one.ask(input=[USER], store=False, generate=False))[-1]["response"]
        first = (await one.ask(input="2", store=False, previous_response_id=warm["id"]))[-1]["response"]
        second = (await one.ask(input="3", store=False, previous_response_id=first["id"]))[-1]["response"]
        stale = await one.ask(input="4", store=False, previous_response_id=first["id"])
        fresh = await one.ask(input="5", store=False)
        return [warm, second, stale[-1], fresh[-1]]

    with ResponsesServer(["a", "b", "c"]) as upstream:
        running = gateway(upstream)
        warm, second, stale, fresh = talked(running.url, talk)
        assert [texts(request) for request in upstream.requests] == [["1", "2"], ["1", "2", "a", "3"], ["5"]]
        assert running.get(f"/responses/{warm['id']}").status_code == 404
    assert (warm["output"], second["status"]) == ([], "completed")
    assert (stale["type"], stale["status"]) == ("error", 400)
    assert stale["error"]["code"] == "previous_response_not_found" and fresh["type"] == "response.completed"


def test_stored_response_can_be_gone_on_from_over_another_connection(gateway: Gateways) -> None:
    with ResponsesServer(["a", "b"]) as upstream:
        running = gateway(upstream)
        first = talked(running.url, lambda talk: talk.ask(input=[USER]))[-1]["response"]["id"]
        talked(running.url, lambda talk: talk.ask(input="2", previous_response_id=first))
        assert texts(upstream.requests[1]) == ["1", "a", "2"]


def test_compaction_stays_incremental(gateway: Gateways) -> None:
    async def talk(one: Talk) -> dict[str, Any]:
        first = (await one.ask(input=[USER], store=False))[-1]["response"]["id"]
        trigger = [{"type": "compaction_trigger"}]
        item = (await one.ask(input=trigger, store=False, previous_response_id=first))[-1]["response"]["output"][0]
        await one.ask(input=[USER, item, {"role": "user", "content": "2"}], store=False)
        return item

    with ResponsesServer(["a", "THE SUMMARY", "b"]) as upstream:
        item = talked(gateway(upstream).url, talk)
        assert texts(upstream.requests[1])[:2] == ["1", "a"]
        assert texts(upstream.requests[2]) == ["1", SUMMARY_MARK + "THE SUMMARY", "2"]
    assert item["type"] == "compaction"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("nothing", None),
        ("[]", None),
        ("{}", "type"),
        ('{"type":"response.cancel"}', "type"),
        ('{"type":"response.create"}', "model"),
    ],
)
def test_frame_that_cannot_be_answered_is_refused_and_the_connection_stays(
    gateway: Gateways, text: str, param: str | None
) -> None:
    async def talk(one: Talk) -> list[Any]:
        one.write(ws.TextMessage(text))
        return [await one.message(), (await one.ask(input=[USER]))[-1]]

    with ResponsesServer(["a"]) as upstream:
        refused, answered = talked(gateway(upstream).url, talk)
    assert (refused["type"], refused["status"], refused["error"]["param"]) == ("error", 400, param)
    assert answered["type"] == "response.completed"


def test_refusal_of_the_upstream_is_an_error_frame_with_its_status(gateway: Gateways) -> None:
    reply = Reply(
        status=429, body={"error": {"message": "slow", "code": "rate_limit_exceeded"}}, headers={"retry-after": "3"}
    )
    with ResponsesServer([reply]) as upstream:
        (event,) = talked(gateway(upstream).url, lambda talk: talk.ask(input=[USER]))
    assert (event["status"], event["error"]["code"], event["headers"]) == (
        429,
        "rate_limit_exceeded",
        {"retry-after": "3"},
    )


def test_upstream_that_dies_gives_a_failed_event(gateway: Gateways) -> None:
    with ResponsesServer([text_reply("x", cut_after="partial_item")]) as upstream:
        assert talked(gateway(upstream).url, lambda talk: talk.ask(input=[USER]))[-1]["type"] == "response.failed"


def test_events_carry_the_name_that_their_request_had(gateway: Gateways) -> None:
    with ResponsesServer(["a"]) as upstream:
        events = talked(gateway(upstream).url, lambda talk: talk.ask(input=[USER], stream_id="lane"))
        assert "stream_id" not in upstream.requests[0].json
    assert {event["stream_id"] for event in events} == {"lane"}


def test_handshake_without_a_token_is_refused(gateway: Gateways, secrets_of: SecretsOf) -> None:
    async def first(one: Talk) -> Any:
        return one.first

    with ResponsesServer(["a"]) as upstream:
        url = gateway(upstream, secrets=secrets_of("token-number-one")).url
        assert talked(url, first).status_code == 401
        assert talked(url, first, origin="https://evil.example").status_code == 401
        accepted = talked(url, first, authorization="Bearer token-number-one")
        assert isinstance(accepted, ws.AcceptConnection)
        page = talked(gateway(upstream).url, first, origin="https://evil.example")
        assert page.status_code == 403


def test_client_that_leaves_ends_the_upstreams_work(gateway: Gateways) -> None:
    async def talk(one: Talk) -> None:
        one.write(ws.TextMessage(json.dumps({"type": "response.create", "model": "m", "input": [USER]})))
        assert (await one.message())["type"] == "response.created"

    with ResponsesServer([text_reply("one two three", pace=0.05, stall=20.0)]) as upstream:
        running = gateway(upstream)
        talked(running.url, talk)
        running.eventually("refold_gateway_running", 0)
        for _ in range(100):
            if upstream.abandoned:
                break
            asyncio.run(asyncio.sleep(0.02))
        assert len(upstream.abandoned) == 1


def test_session_talks_and_compacts_over_the_websocket(gateway: Gateways, tmp_path: Path) -> None:
    script = [text_reply("one", usage=usage(95_000, 10)), "SUMMARY OF IT", "two", "three"]

    async def go(url: str) -> list[Any]:
        provider = Provider(id="g", name="g", base_url=url, env_key=None, compaction="remote", supports_websockets=True)
        profile = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000), comp_hash="1")
        answering = ResponsesModel(profile, provider)
        heard = []
        async with Session.start(model=answering, cwd=tmp_path, home=tmp_path / "home", instructions="BASE") as session:
            for text in ("first", "second", "third"):
                heard += [event async for event in session.send(text)]
        return heard

    with ResponsesServer(script) as upstream:
        running = gateway(upstream)
        heard = asyncio.run(go(running.url))
        after = texts(upstream.requests[-1])
        assert (
            running.metric('refold_gateway_requests_total{route="websocket",status="200"}') == 5
        )  # one is the warm-up
        assert running.metric('refold_gateway_requests_total{route="responses",status="200"}') == 0
    assert not [event for event in heard if type(event).__name__ == "Notice"]
    assert SUMMARY_MARK + "SUMMARY OF IT" in after and after[-3:] == ["second", "two", "third"]
