"""refold's remote methods against the gateway: the recorded scenarios of family g, with the gateway as the provider.

A real session (library) asks a real gateway (HTTP, WebSocket), whose upstream is scripted and knows no compaction. What
the session asks must be what the real program asked its provider, item by item, save what the sealed text reads; what
the upstream is told is the same with summaries in place of compactions.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from replay import DATA, Hasty, Player, load, recorded, recorded_reply, spelled

from refold.core.config import parse_config
from refold.core.fragments import SUMMARY_MARK
from refold.core.items import message, message_text, user_message
from refold.core.profile import Profile, Provider
from refold.core.records import Compacted
from refold.core.templates import template
from refold.core.thread import same_state
from refold.core.truncate import Budget
from refold.errors import RefoldError
from refold.model.responses import ResponsesModel
from refold.rollout.reader import read_lines
from refold.server.callers import NOBODY
from refold.server.gateway import Gateway
from refold.server.incoming import Asked
from refold.server.seal import KeyRing, is_ours
from refold.session.memory import read_thread
from refold.session.session import Session
from refold.testing import LoggedRequest, Reply, ResponsesServer, text_reply, usage

Gateways = Callable[..., Any]
Items = list[dict[str, Any]]
TRIGGER = {"type": "compaction_trigger"}
KEY = bytes(range(32))  # the fixture's
TOLD = {"message", "function_call", "function_call_output"}  # what a plain upstream understands

# The scenarios in which the provider did what a gateway does: every request is the recorded one.
SAME = """
g_azure g_openai_named g_remote_budget_exact_256000 g_remote_budget_one_300k g_remote_budget_over_256001
g_remote_500 g_remote_budget_three_120k g_remote_drop g_remote_mid g_remote_multi_users g_remote_rewrite
t_manual_compact_remote
""".split()  # noqa: SIM905
# An error frame ends one attempt of a stream: there is no repetition of a request to compare.
NOT_OVER_WEBSOCKET = [("g_remote_500", True)]
# What cannot happen behind a gateway: its upstream's wrong number of items, or its overflow, is a compaction all the
# same. So the session goes on where the real program's turn failed.
MENDED = ["g_remote_no_item", "g_remote_two_items", "g_remote_ctx_exceeded"]


class Front:
    """The gateway, as a session's provider; what it was asked, with the whole window where a request told less."""

    def __init__(self, running: Any, **settings: Any) -> None:
        self.running, self.settings = running, settings
        self.asked: list[Items] = []
        gateway: Gateway = running.app.state.gateway
        original = gateway.exchange

        async def noted(asked: Asked, *rest: Any, **more: Any) -> Any:
            exchange = await original(asked, *rest, **more)
            if not is_warm_up(asked):
                self.asked.append([given.item for given in exchange.window] + ([TRIGGER] if asked.compacts else []))
            return exchange

        gateway.exchange = noted  # type: ignore[method-assign]

    def provider(self, **changes: Any) -> Provider:
        given = {"id": "gateway", "name": "gateway", "base_url": self.running.url, "env_key": None}
        return Provider(**{**given, **changes, **self.settings})


def is_warm_up(asked: Asked) -> bool:
    told = (asked.value("client_metadata") or {}).get("x-codex-turn-metadata") or "{}"
    return json.loads(told).get("request_kind") == "prewarm"


def is_compaction(request: LoggedRequest) -> bool:
    """Whether the upstream is asked for a summary."""
    return message_text(request.input[-1]) == template("handoff") or "<transcript" in request.body.decode()


class Behind:
    """The upstream's script: the recorded replies; in place of a recorded compaction item, a text that becomes one."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        exchanges = [exchange for run in scenario["runs"] for exchange in run["exchanges"]]
        self.turns: list[Reply] = []
        self.compactions: list[Reply] = []
        for number, exchange in enumerate(exchanges):
            replies = self.turns if exchange["request_kind"] == "turn" else self.compactions
            replies.append(in_texts(recorded_reply(exchange, exchanges[number + 1 :])))

    def __call__(self, request: LoggedRequest) -> Reply:
        replies = self.compactions if is_compaction(request) else self.turns
        return replies.pop(0) if replies else text_reply("the end")


def in_texts(reply: Reply) -> Reply:
    """What an upstream says that knows no compaction."""
    items = tuple(
        message("assistant", [f"SUMMARY {item.get('id')}"]) if item["type"] == "compaction" else item
        for item in reply.items
    )
    return msgspec.structs.replace(reply, items=items)


def played(scenario: dict[str, Any], running: Any, folder: Path, **settings: Any) -> list[Items]:
    """What sessions ask the gateway in a scenario."""
    (folder / "scenario").mkdir()
    front = Front(running, **settings)
    player = Player(scenario, front, folder)  # type: ignore[arg-type]
    asyncio.run(asyncio.wait_for(player.play(), 60))
    return front.asked


def one_spelling(requests: Sequence[Items]) -> list[Any]:
    """Requests as `recorded` spells them; sealed texts by the order in which they appear."""
    names: dict[str, str] = {}
    tokens: dict[str, str] = {}
    told: list[Any] = []
    for items in requests:
        told.append([])
        for item in items:
            one = spelled(item, names)
            if item.get("type") == "compaction":
                one["encrypted_content"] = tokens.setdefault(item["encrypted_content"], f"SEALED {len(tokens)}")
            told[-1].append(one)
    return told


def unsealed(items: Items) -> Items:
    """What a plain upstream is told of a request."""
    told: Items = []
    for item in items:
        if item.get("type") == "compaction":
            told.append(user_message(SUMMARY_MARK + opened_text(item)))
        elif item.get("type") != "reasoning":  # encrypted by a provider that this one is not
            told.append(item)
    return told


def opened_text(item: dict[str, Any]) -> str:
    return json.loads(KeyRing((KEY,)).open(item["encrypted_content"], NOBODY))["text"]


def sealed_alike(requests: list[Any]) -> list[Any]:
    """The recorded requests with each sealed text by the order in which it appears."""
    tokens: dict[str, str] = {}
    for items in requests:
        for item in items:
            if item.get("type") == "compaction":
                item["encrypted_content"] = tokens.setdefault(item["encrypted_content"], f"SEALED {len(tokens)}")
    return requests


# --- recorded scenarios ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sockets"),
    [(name, sockets) for name in SAME for sockets in (False, True) if (name, sockets) not in NOT_OVER_WEBSOCKET],
)
def test_session_asks_the_gateway_what_the_real_program_asks_its_provider(
    gateway: Gateways, name: str, sockets: bool, tmp_path: Path
) -> None:
    scenario = load(name)
    with ResponsesServer(Behind(scenario)) as upstream:
        asked = played(scenario, gateway(upstream), tmp_path, supports_websockets=sockets)
    for number, (mine, real) in enumerate(zip(one_spelling(asked), sealed_alike(recorded(scenario)), strict=True)):
        assert mine == real, f"request {number} of {name}"
    told_the_same(upstream, asked)
    sealed_checkpoints(tmp_path / "home", "remote")


@pytest.mark.parametrize("name", MENDED)
def test_what_fails_the_real_programs_turn_is_a_compaction_behind_a_gateway(
    gateway: Gateways, name: str, tmp_path: Path
) -> None:
    scenario = load(name)
    with ResponsesServer(Behind(scenario)) as upstream:
        asked = played(scenario, gateway(upstream), tmp_path)
    same = len([one for one in asked if not has_item(one)])
    assert one_spelling(asked)[:same] == recorded(scenario)[:same]
    assert [kind_of(items) for items in asked[same - 1 :]] == ["compaction", "turn", "turn"]
    assert [message_text(items[-1]) for items in asked[same:]] == ["user message 2", "user message 3"]
    told_the_same(upstream, asked)
    sealed_checkpoints(tmp_path / "home", "remote")


@pytest.mark.parametrize("name", [name for name in SAME if name != "g_remote_rewrite"])
def test_scenarios_go_on_with_the_compact_endpoint_too(gateway: Gateways, name: str, tmp_path: Path) -> None:
    scenario = load(name)
    with ResponsesServer(Behind(scenario)) as upstream:
        asked = played(scenario, gateway(upstream), tmp_path, compaction="endpoint")
    told_the_same(upstream, asked)
    sealed_checkpoints(tmp_path / "home", "endpoint")


def test_every_scenario_of_the_family_is_accounted_for() -> None:
    assert {path.stem for path in DATA.glob("g_*.json")} == {*SAME, *MENDED} - {"t_manual_compact_remote"}


def has_item(items: Items) -> bool:
    return any(item.get("type") == "compaction" for item in items)


def kind_of(items: Items) -> str:
    return "compaction" if items[-1] == TRIGGER else "turn"


def told_the_same(upstream: ResponsesServer, asked: list[Items]) -> None:
    """The upstream was told each turn as it was asked, with summaries in place of compactions, and nothing else."""
    turns = [unsealed(items) for items in asked if items[-1] != TRIGGER]
    told = [request.input for request in upstream.requests if not is_compaction(request)]
    assert [list(map(plain, items)) for items in told] == [list(map(plain, items)) for items in turns]
    assert {item["type"] for request in upstream.requests for item in request.input} <= TOLD
    assert not any(request.json.get("tools") for request in upstream.requests if is_compaction(request))


def plain(item: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in item.items() if key not in ("id", "internal_chat_message_metadata_passthrough")
    }


def sealed_checkpoints(home: Path, method: str) -> list[str]:
    """The texts that a home's checkpoints have sealed; each has one item, and only the gateway reads it."""
    texts: list[str] = []
    for path in sorted(home.rglob("*.jsonl")):
        for record in (line.record for line in read_lines(path)):
            if isinstance(record, Compacted):
                (item,) = [one for one in record.history or () if one["type"] == "compaction"]
                assert record.facts["method"] == method and is_ours(item["encrypted_content"])
                texts.append(opened_text(item))
                assert texts[-1] not in path.read_text(encoding="utf-8")
    assert texts, "no checkpoint was written"
    return texts


# --- a session that lives --------------------------------------------------------------------------------------------

WAYS = pytest.mark.parametrize(
    ("way", "sockets"),
    [("remote", False), ("remote", True), ("endpoint", False)],
    ids=["http", "websocket", "endpoint"],
)
PROFILE = Profile(slug="m", context_window=100_000, truncation=Budget("tokens", 10_000), comp_hash="1")
FULL = usage(95_000, 10)


class Living:
    """Sessions in one home, which ask a gateway and compact there."""

    def __init__(self, folder: Path, url: str, way: str = "remote", *, sockets: bool = False, **settings: Any) -> None:
        given: dict[str, Any] = {"compaction": way, "supports_websockets": sockets, **settings}
        self.provider = Provider(id="g", name="g", base_url=url, env_key=None, **given)
        self.common: dict[str, Any] = {
            "home": folder / "home",
            "cwd": folder,
            "clock": Hasty(),
            "config": parse_config({"compaction": {"fallback": False}}, "test"),
        }

    def start(self) -> Session:
        return Session.start(model=ResponsesModel(PROFILE, self.provider), instructions="BASE", **self.common)

    def resume(self, session: Session) -> Session:
        return Session.resume(session.id, model=ResponsesModel(PROFILE, self.provider), **self.common)


def lived(story: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(story(), 30))


@WAYS
def test_second_compaction_carries_on_the_first_and_resumed_is_as_live(
    gateway: Gateways, way: str, sockets: bool, tmp_path: Path
) -> None:
    script = [text_reply("one", usage=FULL), "THE FIRST SUMMARY", "two", "THE SECOND SUMMARY", "three"]

    async def story() -> None:
        async with living.start() as session:
            await session.send("first")
            await session.send("second")  # compacts before it
            await session.compact()
        assert session.path is not None
        async with living.resume(session) as resumed:
            assert same_state(resumed.memory.thread, session.memory.thread)
            assert same_state(read_thread(session.path), session.memory.thread)
            await resumed.send("third")

    with ResponsesServer(script) as upstream:
        living = Living(tmp_path, gateway(upstream).url, way, sockets=sockets)
        lived(story)
        summaries = [said for said in map(all_texts, upstream.requests) if template("handoff") in said]
        last = all_texts(upstream.requests[-1])
    texts = sealed_checkpoints(tmp_path / "home", way)
    assert texts == ["THE FIRST SUMMARY", "THE SECOND SUMMARY"]
    assert [SUMMARY_MARK + texts[0] in said for said in summaries] == [False, True]
    assert SUMMARY_MARK + texts[1] in last and SUMMARY_MARK + texts[0] not in last
    assert [text for text in last if text in ("first", "second", "third", "one", "two")] == ["first", "second", "third"]


def all_texts(request: LoggedRequest) -> list[str]:
    return [message_text(item) for item in request.input if item["type"] == "message"]


@WAYS
def test_compaction_that_fails_leaves_the_history_and_comes_when_the_upstream_is_back(
    gateway: Gateways, way: str, sockets: bool, tmp_path: Path
) -> None:
    async def story() -> None:
        async with living.start() as session:
            await session.send("first")
            before, attempts = [entry.item for entry in session.memory.thread.history], len(upstream.requests)
            upstream_is_there.clear()
            with pytest.raises(RefoldError):
                await session.compact()
            assert [entry.item for entry in session.memory.thread.history] == before
            assert len(upstream.requests) > attempts and not has_item(before)
            assert session.path is not None and same_state(read_thread(session.path), session.memory.thread)
            upstream_is_there.append(True)
            await session.compact()
            assert has_item([entry.item for entry in session.memory.thread.history])

    upstream_is_there = [True]
    gone = Reply(status=503, body={"error": {"message": "we are closed"}})
    said = {True: text_reply("THE SUMMARY"), False: text_reply("hello")}
    with ResponsesServer(lambda one: said[is_compaction(one)] if upstream_is_there else gone) as upstream:
        url = gateway(upstream).url
        living = Living(tmp_path, url, way, sockets=sockets, request_max_retries=0, stream_max_retries=1)
        lived(story)
    assert sealed_checkpoints(tmp_path / "home", way) == ["THE SUMMARY"]


@pytest.mark.parametrize("keeps", [True, False], ids=["rotated", "gone"])
def test_session_goes_on_when_the_key_was_rotated_and_when_it_is_gone(
    gateway: Gateways, keeps: bool, tmp_path: Path, secrets_of: Callable[..., Any]
) -> None:
    """After a rotation the old item still opens. Without the key refold's own outline takes its place, once."""

    async def story() -> Session:
        async with Living(tmp_path, gateway(upstream).url).start() as session:
            await session.send("first")
            await session.compact()
        keys = (bytes([9]) * 32, KEY) if keeps else (bytes([9]) * 32,)
        later = Living(tmp_path, gateway(upstream, secrets=secrets_of(keys=keys)).url)
        async with later.resume(session) as resumed:
            await resumed.send("second")
        async with later.resume(session) as again:
            await again.send("third")
        return session

    with ResponsesServer(["one", "THE SUMMARY", "two", "three"]) as upstream:
        session = lived(story)
        told = all_texts(upstream.requests[-1])
    assert session.path is not None
    checkpoints = [line.record for line in read_lines(session.path) if isinstance(line.record, Compacted)]
    assert [one.facts["method"] for one in checkpoints] == (["remote"] if keeps else ["remote", "shadow"])
    assert len(upstream.requests) == 4 and (SUMMARY_MARK + "THE SUMMARY" in told) is keeps
    assert len([text for text in told if text.startswith(SUMMARY_MARK)]) == 1 and told[-1] == "third"


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (
            Reply(status=429, body={"error": {"message": "slow"}}, headers={"retry-after": "7"}),
            429,
            "rate_limit_exceeded",
        ),
        (Reply(status=500, body={"error": {"message": "oops"}}), 500, "server_error"),
        (Reply(cut_after="request"), 502, "upstream_closed"),
    ],
)
def test_upstream_that_does_not_begin_fails_the_compaction_with_its_status(
    gateway: Gateways, reply: Reply, status: int, code: str
) -> None:
    history = [user_message("hi"), message("assistant", ["hello"])]
    with ResponsesServer(lambda _: reply) as upstream:
        running = gateway(upstream)
        streamed = running.post("/responses", {"model": "m", "stream": True, "input": [*history, TRIGGER]})
        whole = running.post("/responses/compact", {"model": "m", "input": history})
    for answer in (streamed, whole):
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers.get("retry-after") == reply.headers.get("retry-after")
