"""Probe: what an examination finds of providers that behave in one way or another, each a real server on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from refold.core.profile import Profile, Provider
from refold.model.probe import Examination, listed, window_of
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply, usage

PROFILE = Profile(slug="m", known=False)
NO_WEBSOCKET = Reply(status=426, body={"error": {"message": "no upgrade here"}})
ASKED = ["developer", "system", "instructions"]
OPTIONAL = ["include", "prompt_cache_key", "client_metadata"]

Script = Callable[[LoggedRequest], Reply]


def good(request: LoggedRequest) -> Reply:
    """A provider that takes everything, and a model that does what it is asked."""
    if request.json.get("tools") and not any(item["type"] == "function_call_output" for item in request.input):
        return call_reply("note", {"word": "yes"})
    return text_reply("Birch." if b"birch" in request.body else "OK")


def refuses(what: Callable[[LoggedRequest], Any], why: str, status: int = 400) -> Script:
    """Good, but for requests that have this."""
    refusal = Reply(status=status, body={"error": {"message": why}})
    return lambda request: refusal if what(request) else good(request)


def has_role(*roles: str) -> Callable[[LoggedRequest], bool]:
    return lambda request: any(item.get("role") in roles for item in request.input)


def has_id(request: LoggedRequest) -> bool:
    return any("id" in item for item in request.input)


class Seen:
    """An examination that is over: its findings by name, and the server's side of it."""

    def __init__(self, examination: Examination, findings: list[Any], requests: list[LoggedRequest]) -> None:
        self.examination, self.requests = examination, requests
        self.verdicts = {finding.name: finding.verdict for finding in findings}
        self.details = {finding.name: finding.detail for finding in findings}
        assert len(self.verdicts) == len(findings)
        assert not [text for text in self.details.values() if "\n" in text]
        assert examination.requests == len(requests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.examination, name)

    @property
    def turns(self) -> list[LoggedRequest]:
        """The requests that were spelled as a session spells them."""
        return [request for request in self.requests if request.header("originator") == "refold"]


def carry_out(examination: Examination) -> list[Any]:
    async def go() -> list[Any]:
        async with asyncio.timeout(30):
            return [finding async for finding in examination.run()]

    return asyncio.run(go())


def examine(script: Any, *, handshake: Reply = NO_WEBSOCKET, profile: Profile = PROFILE, **more: Any) -> Seen:
    options = {key: more.pop(key) for key in ("api_key", "seconds", "overflow") if key in more}
    with ResponsesServer(script, handshakes=lambda _: handshake) as server:
        examination = Examination(profile, server.provider(**more), **options)
        findings = carry_out(examination)
        return Seen(examination, findings, [request for request in server.requests if request.method == "POST"])


# --- a provider that takes everything ------------------------------------------------------------------------


def test_good_provider_needs_seven_small_requests_and_no_settings():
    seen = examine(good)
    no = {name for name, verdict in seen.verdicts.items() if verdict != "ok"}
    assert no == {"websocket", "cached", "context window"}
    assert seen.works and seen.fitting == {} and seen.window is None
    assert len(seen.requests) == 7 and max(len(request.body) for request in seen.requests) < 3_000
    assert (seen.usage.input_tokens, seen.usage.output_tokens, seen.uncounted) == (700, 70, 0)
    assert "426" in seen.details["websocket"] and "no upgrade here" in seen.details["websocket"]
    assert all(seen.details[name] == "and read" for name in ASKED)
    assert all(request.json["store"] is False for request in seen.requests)


def test_turn_is_the_one_that_a_session_sends():
    seen = examine(good)
    first, second = seen.turns
    assert set(OPTIONAL) <= set(first.json) and first.json["parallel_tool_calls"] is True
    assert [item["role"] for item in first.input] == ["developer", "user"]
    assert all(item["id"].startswith("msg_") for item in first.input)
    call, output = second.input[2:]
    assert (call["type"], call["id"]) == ("function_call", "fc_5_0")
    assert output["call_id"] == call["call_id"]


def test_cached_tokens_are_told():
    def script(request: LoggedRequest) -> Reply:
        reply = good(request)
        return text_reply("done", usage=usage(100, 5, cached=64)) if b"function_call_output" in request.body else reply

    seen = examine(script)
    assert (seen.verdicts["cached"], seen.details["cached"]) == ("ok", "64 tokens")


def test_websocket_that_is_accepted_is_a_setting():
    seen = examine(good, handshake=Reply())
    assert seen.verdicts["websocket"] == "ok"
    assert seen.fitting == {"supports_websockets": True}


def test_settings_that_are_set_but_do_not_fit_are_named():
    seen = examine(good, supports_websockets=True, developer_role="user", send_item_ids=False)
    assert seen.fitting == {"supports_websockets": False, "developer_role": "developer", "send_item_ids": True}


def test_extra_keys_and_left_out_ones_are_respected():
    seen = examine(good, extra_body={"provider": {"only": ["x"]}}, leave_out=("store", "include"))
    assert all(request.json["provider"] == {"only": ["x"]} for request in seen.requests)
    assert not [request for request in seen.requests if {"store", "include"} & set(request.json)]
    assert "include" not in seen.verdicts
    assert seen.fitting == {"leave_out": ("store", "include")}


# --- roles ----------------------------------------------------------------------------------------------------


def test_refused_developer_role_becomes_system():
    seen = examine(refuses(has_role("developer"), "Unexpected message role: developer"))
    assert [seen.verdicts[name] for name in ASKED] == ["no", "ok", "ok"]
    assert seen.details["developer"] == "400 Bad Request: Unexpected message role: developer"
    assert seen.works and seen.fitting == {"developer_role": "system"}
    assert seen.turns[0].input[0]["role"] == "system"


def test_system_role_that_may_only_stand_first_is_no_way_out():
    def late(request: LoggedRequest) -> bool:
        roles = [item.get("role") for item in request.input]
        return "developer" in roles or "system" in roles[1:]

    seen = examine(refuses(late, "System message must be at the beginning."))
    assert seen.works
    assert seen.fitting == {"developer_role": "user", "base_instructions_as": "instructions"}
    assert seen.turns[0].json["instructions"]


def test_without_any_of_them_everything_is_said_as_a_user():
    no = refuses(lambda request: has_role("developer", "system")(request) or "instructions" in request.json, "no")
    seen = examine(no)
    assert [seen.verdicts[name] for name in ASKED] == ["no", "no", "no"]
    assert seen.works and seen.fitting == {"developer_role": "user"}


def test_developer_message_that_nobody_reads_becomes_system():
    deaf = has_role("developer")
    seen = examine(lambda request: text_reply("Which word?") if deaf(request) else good(request))
    assert seen.verdicts["developer"] == "ok" and "does not show" in seen.details["developer"]
    assert seen.fitting == {"developer_role": "system"}


def test_base_instructions_go_where_they_are_read():
    heard = "instructions"
    seen = examine(lambda request: good(request) if heard in request.json else text_reply("Which word?"))
    assert seen.fitting == {"base_instructions_as": "instructions"}


def test_model_that_does_not_follow_changes_nothing():
    seen = examine(lambda _: text_reply("%#!"))
    assert seen.works and seen.fitting == {}


# --- what is refused in a turn -----------------------------------------------------------------------------------


def test_refused_ids_are_left_out():
    seen = examine(refuses(has_id, "Unknown parameter: 'input[0].id'"))
    assert seen.verdicts["item ids"] == "no" and "input[0].id" in seen.details["item ids"]
    assert all(seen.verdicts[name] == "ok" for name in (*OPTIONAL, "tools", "parallel calls", "turn", "call output"))
    assert seen.works and seen.fitting == {"send_item_ids": False}
    assert not [item for item in seen.turns[-1].input if "id" in item]
    assert len(seen.requests) == 14


@pytest.mark.parametrize("key", OPTIONAL)
def test_refused_key_is_left_out(key: str):
    seen = examine(refuses(lambda request: key in request.json, f"Unsupported parameter: {key}"))
    assert seen.verdicts[key] == "no" and key in seen.details[key]
    assert seen.works and seen.fitting == {"leave_out": (key,)}
    assert key not in seen.turns[-1].json


def test_refused_tools_leave_a_turn_without_them():
    seen = examine(refuses(lambda request: request.json.get("tools"), "this model does not support tools"))
    assert (seen.verdicts["tools"], seen.verdicts["parallel calls"], seen.verdicts["turn"]) == ("no", "no", "ok")
    assert seen.details["tools"] == "400 Bad Request: this model does not support tools"
    assert seen.works and "call output" not in seen.verdicts


def test_refused_parallel_calls_leave_tools():
    seen = examine(refuses(lambda request: request.json.get("parallel_tool_calls"), "one at a time"))
    assert (seen.verdicts["tools"], seen.verdicts["parallel calls"], seen.verdicts["turn"]) == ("ok", "no", "ok")


def test_turn_that_is_refused_for_no_part_of_it_does_not_work():
    seen = examine(refuses(lambda request: request.header("originator"), "not you"))
    assert not seen.works
    assert (seen.verdicts["turn"], seen.details["turn"]) == ("no", "400 Bad Request: not you")
    assert {seen.verdicts[name] for name in ("item ids", *OPTIONAL, "tools")} <= {"ok", "no"}


def test_ignored_tools_are_told():
    seen = examine(lambda request: text_reply("Birch. I would rather talk."))
    assert seen.verdicts["tools"] == "no" and "I would rather talk" in seen.details["tools"]
    assert seen.works


def test_bad_arguments_are_told():
    def script(request: LoggedRequest) -> Reply:
        return call_reply("note", "{word") if request.json.get("tools") else good(request)

    seen = examine(script)
    assert seen.verdicts["tools"] == "no" and "bad arguments" in seen.details["tools"]


def test_refused_call_output_is_told():
    seen = examine(refuses(lambda request: b"function_call_output" in request.body, "Cannot determine type of 'item'"))
    assert seen.verdicts["call output"] == "no" and "Cannot determine" in seen.details["call output"]


def test_refused_image_is_told_and_breaks_nothing():
    seen = examine(refuses(lambda request: b"input_image" in request.body, "image input is not supported", 500))
    assert (seen.verdicts["images"], seen.details["images"]) == ("no", "image input is not supported")
    assert seen.works


def test_untold_usage():
    seen = examine(lambda request: text_reply("birch", usage=None))
    assert seen.verdicts["usage"] == "no"
    assert seen.uncounted == len(seen.requests) and seen.usage.total_tokens == 0


# --- nothing works -----------------------------------------------------------------------------------------------


def test_document_instead_of_a_stream():
    seen = examine(lambda _: text_reply("OK", headers={"content-type": "application/json"}))
    assert seen.verdicts == {"reachable": "ok", "key": "ok", "streaming": "no", "context window": "unknown"}
    assert "application/json" in seen.details["streaming"] and not seen.works


def test_broken_stream():
    seen = examine(lambda _: text_reply("OK", cut_after="partial_item"))
    assert (seen.verdicts["reachable"], seen.verdicts["streaming"], seen.works) == ("ok", "no", False)


def test_refused_key():
    refusal = Reply(status=401, body={"error": {"message": "Incorrect API key provided: sk-secret"}})
    seen = examine([refusal], env_key="THE_KEY", api_key="sk-secret")
    assert seen.verdicts == {"reachable": "ok", "key": "no"}
    assert "THE_KEY" in seen.details["key"] and "sk-secret" not in seen.details["key"]
    assert not seen.works


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    provider = Provider(id="x", name="x", base_url=f"http://127.0.0.1:{port}/v1", env_key=None)
    examination = Examination(PROFILE, provider)
    [finding] = carry_out(examination)
    assert (finding.name, finding.verdict) == ("reachable", "no") and "refused" in finding.detail
    assert not examination.works


@pytest.mark.parametrize(("status", "verdict"), [(404, "no"), (400, "no"), (429, "unknown"), (503, "unknown")])
def test_plain_turn_that_fails(status: int, verdict: str):
    seen = examine([Reply(status=status, body={"error": {"message": "model m: not now"}})])
    assert (seen.verdicts["reachable"], seen.verdicts["key"], seen.verdicts["turn"]) == ("ok", "unknown", verdict)
    assert "model m: not now" in seen.details["turn"] and not seen.works


# --- time ----------------------------------------------------------------------------------------------------------


def test_silence_is_unknown_and_bounded():
    seen = examine(lambda _: text_reply("OK", delay=20), seconds=0.1)
    assert seen.verdicts == {"reachable": "unknown"} and not seen.works


def test_slow_probe_is_unknown_and_changes_no_setting():
    slow = has_role("developer", "system")
    late = text_reply("birch", delay=20)
    seen = examine(lambda request: late if slow(request) else good(request), seconds=0.2, developer_role="user")
    assert (seen.verdicts["developer"], seen.verdicts["system"]) == ("unknown", "unknown")
    assert seen.settings["developer_role"] == "user"


def test_answer_that_has_begun_is_taken_even_if_it_does_not_end_in_time():
    seen = examine(lambda request: text_reply("birch " * 9, stall=20), seconds=0.1)
    assert seen.verdicts["streaming"] == "ok" and "cut short" in seen.details["streaming"]
    assert (seen.verdicts["usage"], seen.verdicts["tools"], seen.verdicts["turn"]) == ("unknown", "unknown", "ok")


def test_incomplete_answer_is_an_answer():
    seen = examine(lambda _: text_reply("birch", incomplete="max_output_tokens"))
    assert seen.works and seen.verdicts["turn"] == "ok"
    assert seen.usage.output_tokens == 10 * len(seen.requests)


# --- the context window ------------------------------------------------------------------------------------------


def test_window_that_is_known_or_set_is_told():
    seen = examine(good, profile=Profile(slug="m", context_window=32_000))
    assert seen.verdicts["context window"] == "ok" and "32,000" in seen.details["context window"]
    assert seen.window is None  # the provider did not tell it


def test_overflow_tells_the_window():
    words = "request (10000 tokens) exceeds the available context size (2048 tokens), try increasing it"
    too_large = refuses(lambda request: len(request.body) > 10_000, words)
    seen = examine(too_large, overflow=True, profile=Profile(slug="m", context_window=4_000))
    assert (seen.verdicts["overflow"], seen.window) == ("ok", 2_048)


def test_overflow_that_is_taken_is_told():
    seen = examine(good, overflow=True, profile=Profile(slug="m", context_window=4_000))
    assert seen.verdicts["overflow"] == "no" and "100 tokens counted" in seen.details["overflow"]


def test_overflow_that_is_not_recognised_is_told():
    too_large = refuses(lambda request: len(request.body) > 10_000, "no")
    seen = examine(too_large, overflow=True, profile=Profile(slug="m", context_window=4_000))
    assert seen.verdicts["overflow"] == "no" and "not told as an overflow" in seen.details["overflow"]


@pytest.mark.parametrize(
    ("facts", "window"),
    [
        ({"id": "m", "meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, (2048, "meta.n_ctx")),
        ({"id": "m", "meta": {"n_ctx_train": 8192}}, (8192, "meta.n_ctx_train")),
        ({"id": "m", "max_model_len": 40_960}, (40_960, "max_model_len")),
        ({"context_length": 200_000, "top_provider": {"context_length": 128_000}}, (128_000,)),
        ({"context_length": 200_000, "top_provider": {"context_length": None}}, (200_000,)),
        ({"id": "m", "meta": None, "context_length": "8k"}, (None,)),
        ({"max_model_len": True}, (None,)),
    ],
)
def test_window_in_a_list_of_models(facts: dict[str, Any], window: tuple[Any, ...]):
    assert window_of(facts)[: len(window)] == window


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"data": [{"id": "a"}, {"id": "m", "x": 1}]}, ({"id": "m", "x": 1}, 2)),
        ({"data": [{"id": "file.gguf"}]}, ({"id": "file.gguf"}, 1)),
        ({"data": [{"id": "a"}, {"id": "b", "aliases": ["m"]}]}, ({"id": "b", "aliases": ["m"]}, 2)),
        ({"data": [{"id": "a", "aliases": 3}, {"id": "b"}]}, (None, 2)),
        ([{"id": "m"}], ({"id": "m"}, 1)),
        ({"models": [{"name": "m"}]}, ({"name": "m"}, 1)),
        ({"data": "m"}, (None, 0)),
        (None, (None, 0)),
    ],
)
def test_entry_in_a_list_of_models(document: Any, found: Any):
    assert listed(document, "m") == found


def test_silent_handshake_is_unknown_and_changes_no_setting():
    seen = examine(good, handshake=Reply(status=403, delay=20), seconds=0.5, supports_websockets=True)
    assert seen.verdicts["websocket"] == "unknown"
    assert seen.fitting == {"supports_websockets": True}
