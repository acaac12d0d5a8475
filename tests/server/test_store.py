"""Stored responses: a request may name the one that it goes on from; a tenant sees its own only."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from refold.core.fragments import SUMMARY_MARK
from refold.errors import ConfigError, RequestRefused
from refold.server import Secrets
from refold.server.store import ResponseStore, Stored, check
from refold.testing import ResponsesServer, text_reply

Gateways, SecretsOf = Callable[..., Any], Callable[..., Secrets]
ONE, TWO = {"authorization": "Bearer token-number-one"}, {"authorization": "Bearer fish-number-two"}


def say(running: Any, text: str, previous: str | None = None, **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", {})
    body = {"model": "m", "input": text, "previous_response_id": previous, **more}
    answer = running.post("/responses", body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts(request: Any) -> list[str]:
    return ["".join(part["text"] for part in item["content"]) for item in request.json["input"]]


@pytest.mark.parametrize("stream", [False, True])
def test_previous_response_brings_its_whole_conversation(gateway: Gateways, stream: bool) -> None:
    with ResponsesServer(["a", "b", "c"]) as upstream:
        running = gateway(upstream)
        if stream:
            first = running.events({"input": "1", "instructions": "BASE"})[-1]["response"]["id"]
            events = running.events({"input": "2", "previous_response_id": first})
            second = events[-1]["response"]
            assert {event["response"]["previous_response_id"] for event in events if "response" in event} == {first}
        else:
            first = say(running, "1", instructions="BASE")["id"]
            second = say(running, "2", first)
            assert second["previous_response_id"] == first
        say(running, "3", second["id"])
        last = upstream.requests[-1]
    assert texts(last) == ["1", "a", "2", "b", "3"]
    assert "instructions" not in last.json, "instructions are not carried over"
    assert "previous_response_id" not in last.json


def test_events_are_numbered_to_the_end_when_the_upstream_dies(gateway: Gateways) -> None:
    with ResponsesServer(["a", text_reply("one two three", cut_after="items")]) as upstream:
        running = gateway(upstream)
        first = say(running, "1")["id"]
        events = running.events({"input": "2", "previous_response_id": first})
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["previous_response_id"] == first
    assert [event["sequence_number"] for event in events] == [*range(len(events))]


def test_two_requests_may_go_on_from_the_same_response(gateway: Gateways) -> None:
    with ResponsesServer(["a", "b", "c"]) as upstream:
        running = gateway(upstream)
        first = say(running, "1")["id"]
        say(running, "2", first)
        say(running, "3", first)
        assert texts(upstream.requests[-1]) == ["1", "a", "3"]


def test_response_can_be_got_and_deleted(gateway: Gateways) -> None:
    with ResponsesServer(["a"]) as upstream:
        running = gateway(upstream)
        response = say(running, "1")
        assert running.get(f"/responses/{response['id']}").json() == response
        with httpx2.Client(trust_env=False) as http:
            gone = http.delete(f"{running.url}/responses/{response['id']}")
            again = http.delete(f"{running.url}/responses/{response['id']}")
        assert gone.json() == {"id": response["id"], "object": "response", "deleted": True}
        assert again.status_code == 404 and running.get(f"/responses/{response['id']}").status_code == 404
        answer = running.post("/responses", {"model": "m", "input": "2", "previous_response_id": response["id"]})
        assert answer.json()["error"]["code"] == "previous_response_not_found"


def test_response_that_was_not_to_be_stored_is_not(gateway: Gateways) -> None:
    with ResponsesServer(["a", "b"]) as upstream:
        running = gateway(upstream)
        first = say(running, "1", store=False)["id"]
        streamed = running.events({"input": "1", "store": False})[-1]["response"]["id"]
        for one in (first, streamed):
            assert running.get(f"/responses/{one}").status_code == 404


def test_failed_response_is_not_stored(gateway: Gateways) -> None:
    with ResponsesServer([text_reply("x", cut_after="items", response_id="resp_f")]) as upstream:
        running = gateway(upstream)
        running.events({"input": "1"})
        assert running.get("/responses/resp_f").status_code == 404


def test_no_bearer_sees_what_another_stored(gateway: Gateways, secrets_of: SecretsOf) -> None:
    with ResponsesServer(lambda _: text_reply("a", response_id="resp_same")) as upstream:
        running = gateway(upstream, secrets=secrets_of("token-number-one", "fish-number-two"))
        say(running, "the secret", headers=ONE)
        answers = [running.get("/responses/resp_same", headers=TWO)]
        with httpx2.Client(trust_env=False) as http:
            answers.append(http.delete(f"{running.url}/responses/resp_same", headers=TWO))
        for path in ("/responses", "/responses/compact", "/responses/input_tokens"):
            body = {"model": "m", "input": "x", "previous_response_id": "resp_same"}
            answers.append(running.post(path, body, headers=TWO))
        assert [answer.status_code for answer in answers] == [404, 404, 400, 400, 400]
        assert "the secret" not in "".join(answer.text for answer in answers)
        say(running, "another", headers=TWO)  # the same id from the upstream: each tenant has its own
        assert texts(upstream.requests[-1]) == ["another"]
        say(running, "more", "resp_same", headers=ONE)
        assert texts(upstream.requests[-1]) == ["the secret", "a", "more"]


def test_bearers_are_told_apart_without_tokens_too(gateway: Gateways) -> None:
    with ResponsesServer(lambda _: text_reply("a", response_id="resp_same")) as upstream:
        running = gateway(upstream)
        say(running, "1", headers=ONE)
        assert running.get("/responses/resp_same", headers=TWO).status_code == 404
        assert running.get("/responses/resp_same").status_code == 404
        assert running.get("/responses/resp_same", headers=ONE).status_code == 200


def test_conversation_goes_on_behind_a_compaction(gateway: Gateways) -> None:
    with ResponsesServer(["a", "THE SUMMARY", "b", "c"]) as upstream:
        running = gateway(upstream)
        first = say(running, "1")["id"]
        trigger = [{"type": "compaction_trigger"}]
        compacted = running.events({"input": trigger, "previous_response_id": first})[-1]["response"]
        second = say(running, "2", compacted["id"])["id"]
        say(running, "3", second)
        assert texts(upstream.requests[1])[:-1] == ["1", "a"]
        assert texts(upstream.requests[-1]) == ["1", SUMMARY_MARK + "THE SUMMARY", "2", "b", "3"]


def test_conversation_goes_on_behind_an_inline_compaction(gateway: Gateways) -> None:
    managed = {"context_management": [{"type": "compaction", "compact_threshold": 500}]}
    with ResponsesServer([text_reply("y" * 4_000), "THE SUMMARY", "b", "c"]) as upstream:
        running = gateway(upstream)
        first = say(running, "1")["id"]
        second = say(running, "2", first, **managed)
        assert [item["type"] for item in second["output"]] == ["compaction", "message"]
        say(running, "3", second["id"], **managed)
        assert texts(upstream.requests[2]) == ["1", SUMMARY_MARK + "THE SUMMARY", "2"]
        assert texts(upstream.requests[3]) == ["1", SUMMARY_MARK + "THE SUMMARY", "2", "b", "3"]


def test_stored_conversation_can_be_compacted_and_counted_at_the_endpoints(gateway: Gateways) -> None:
    with ResponsesServer(["a", "THE SUMMARY"]) as upstream:
        running = gateway(upstream)
        first = say(running, "1 " * 100)["id"]
        compacted = running.post("/responses/compact", {"model": "m", "previous_response_id": first}).json()
        assert [item["type"] for item in compacted["output"]] == ["message", "compaction"]
        alone = running.post("/responses/input_tokens", {"model": "m", "input": "x"}).json()["input_tokens"]
        whole = {"model": "m", "input": "x", "previous_response_id": first}
        assert running.post("/responses/input_tokens", whole).json()["input_tokens"] > alone + 40


def test_store_outlives_the_gateway(gateway: Gateways, tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "responses.sqlite")
    with ResponsesServer(["a", "b"]) as upstream:
        first = say(gateway(upstream, store=path), "1")["id"]
        say(gateway(upstream, store=path), "2", first)
        assert texts(upstream.requests[1]) == ["1", "a", "2"]
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


# --- the store itself ------------------------------------------------------------------------------------------------


def stored(response_id: str, previous: str | None = None) -> Stored:
    return Stored(
        id=response_id, previous=previous, items=b'[{"role":"user","content":"x"}]', output=b"[]", document=b"{}"
    )


def test_what_is_older_than_the_retention_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def go() -> None:
        store = ResponseStore(path, retention_days=30)
        await store.save("t", stored("old"))
        await store.close()
        store = ResponseStore(path, retention_days=0)
        with pytest.raises(RequestRefused):
            await store.document("t", "old")
        await store.close()
        store = ResponseStore(path, retention_days=30)
        with pytest.raises(RequestRefused):
            await store.document("t", "old")
        await store.close()

    asyncio.run(go())


def test_chain_with_a_missing_response_is_refused_by_the_name_that_was_asked_for() -> None:
    async def go() -> None:
        store = ResponseStore(None, retention_days=30)
        await store.save("t", stored("b", previous="a"))
        with pytest.raises(RequestRefused, match="'b' not found"):
            await store.window("t", "b")
        await store.close()

    asyncio.run(go())


def test_chain_that_goes_round_ends() -> None:
    async def go() -> None:
        store = ResponseStore(None, retention_days=30)
        await store.save("t", stored("a", previous="b"))
        await store.save("t", stored("b", previous="a"))
        with pytest.raises(RequestRefused):
            await store.window("t", "a")
        await store.close()

    asyncio.run(go())


def test_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "not.sqlite"
    path.write_text("hello " * 1000)
    with pytest.raises(ConfigError, match=r"not\.sqlite"):
        ResponseStore(str(path), retention_days=30)


def age(path: str, *names: str) -> None:
    """Make responses forty days old."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany("UPDATE responses SET created = created - 40 * 86400 WHERE id = ?", [(name,) for name in names])


def kept(path: str) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("SELECT id FROM responses ORDER BY id")]


def test_young_response_keeps_the_old_ones_that_it_goes_on_from(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def go() -> None:
        store = ResponseStore(path, retention_days=30)
        for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a"), ("alone", None)):
            await store.save("t", stored(name, previous))
        await store.save("u", stored("b", "a"))  # another tenant's young one keeps nothing of this one's
        await store.close()
        age(path, "a", "b", "other", "alone")
        store = ResponseStore(path, retention_days=30)
        assert kept(path) == ["a", "b", "c"]
        assert len(await store.window("t", "c")) == 3
        for old in ("a", "b"):
            with pytest.raises(RequestRefused):
                await store.document("t", old)
            with pytest.raises(RequestRefused, match=f"'{old}' not found"):
                await store.window("t", old)
        await store.close()
        age(path, "c")
        await ResponseStore(path, retention_days=30).close()
        assert kept(path) == []

    asyncio.run(go())


@pytest.mark.parametrize("way", ["swept", "deleted"])
def test_what_is_deleted_can_be_read_in_no_file(tmp_path: Path, way: str) -> None:
    path = str(tmp_path / "s")
    secret = Stored(id="a", previous=None, items=b'["THE WALRUS"]', output=b"[]", document=b'{"x":"THE WALRUS"}')

    async def go() -> None:
        store = ResponseStore(path, retention_days=30)
        await store.save("t", secret)
        await store.save("t", stored("b"))
        assert b"WALRUS" in b"".join(file.read_bytes() for file in tmp_path.iterdir())
        if way == "deleted":
            await store.delete("t", "a")
        else:
            age(path, "a")
            await store.close()
            store = ResponseStore(path, retention_days=30)
        assert kept(path) == ["b"]
        assert b"WALRUS" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
        await store.close()

    asyncio.run(go())


def test_retention_of_nothing_writes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def go() -> None:
        store = ResponseStore(path, retention_days=0)
        for number in range(5):
            await store.save("t", stored(f"r{number}"))
        assert kept(path) == []
        await store.close()

    asyncio.run(go())


def test_check_of_a_file_deletes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def go() -> None:
        store = ResponseStore(path, retention_days=365)
        await store.save("t", stored("a"))
        await store.close()
        age(path, "a")
        check(path)
        assert kept(path) == ["a"]

    asyncio.run(go())
