"""The gateway against whoever means ill: sealed items, other people's responses, web pages, and requests of any kind.

What it says of secrets as a process stands in test_secrets.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_websocket import Talk, talked

from refold.core.fragments import SUMMARY_MARK
from refold.errors import ConfigError
from refold.server import Secrets
from refold.server.callers import caller_of
from refold.server.seal import ID_BYTES, MAGIC, NONCE_BYTES, TAG_BYTES, KeyRing
from refold.server.settings import SHORTEST_TOKEN, GatewaySettings, checked, read_secrets
from refold.server.starting import welcome
from refold.testing import LoggedRequest, ResponsesServer, text_reply

Gateways = Callable[..., Any]
SecretsOf = Callable[..., Secrets]
ONE, TWO = {"authorization": "Bearer token-number-one"}, {"authorization": "Bearer fish-number-two"}
TOKENS = ("token-number-one", "fish-number-two")
KEY, OTHER = bytes(range(32)), bytes([9]) * 32
USER = {"type": "message", "role": "user", "content": "hi"}
WORK = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I do."}]}
TRIGGER = {"type": "compaction_trigger"}


def said(request: LoggedRequest) -> str:
    return request.body.decode()


def sealed(running: Any, **headers: str) -> dict[str, Any]:
    """An item that the gateway gives a tenant."""
    (item,) = running.events({"input": [USER, WORK, TRIGGER]}, headers=headers)[-1]["response"]["output"]
    return item


def summed_up(request: LoggedRequest) -> Any:
    return text_reply("THE SUMMARY" if "CONTEXT CHECKPOINT" in said(request) else "fine")


# --- sealed items ----------------------------------------------------------------------------------------------------


def with_byte(token: str, place: int) -> str:
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    raw[place] ^= 1
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def spoiled(token: str, other: KeyRing) -> Iterator[tuple[str, str]]:
    """A token with one bit changed in each of its parts, cut, lengthened, of other hands; and what was done."""
    key_id, nonce = len(MAGIC), len(MAGIC) + ID_BYTES
    text = nonce + NONCE_BYTES
    parts = {"mark": 0, "version": 2, "key id": key_id, "end of key id": nonce - 1, "nonce": nonce, "text": text}
    for name, place in {**parts, "end of text": -TAG_BYTES - 1, "tag": -TAG_BYTES, "end of tag": -1}.items():
        yield name, with_byte(token, place)
    for name, length in {"nothing": 0, "half a head": 10, "no text": text * 4 // 3, "half": len(token) // 2}.items():
        yield f"cut to {name}", token[:length]
    yield "cut by one", token[:-1]
    yield "lengthened", token + "AAAA"
    yield "padded", token + "="
    yield "another key", other.seal(b"{}", "token:toke")
    yield "another service", "gAAAAABm" + "Zm9v" * 40
    yield "no text of ours", KeyRing((KEY,)).seal(b"{}", "token:toke")
    yield "no base64", "é" * 50


def test_spoiled_item_is_refused_in_the_same_words_whatever_was_done_to_it(
    gateway: Gateways, secrets_of: SecretsOf
) -> None:
    with ResponsesServer(summed_up) as upstream:
        running = gateway(upstream, secrets=secrets_of(*TOKENS))
        item = sealed(running, **ONE)
        count, answers = len(upstream.requests), {}
        spoils = dict(spoiled(item["encrypted_content"], KeyRing((OTHER,))))
        for name, token in {**spoils, "another tenant": item["encrypted_content"], "a number": 7, "null": None}.items():
            body = {"model": "m", "input": [USER, {**item, "encrypted_content": token}, USER]}
            headers = TWO if name == "another tenant" else ONE
            for path in ("/responses", "/responses/compact", "/responses/input_tokens"):
                answer = running.post(path, body, headers=headers)
                answers[name, path] = (answer.status_code, answer.text)
            (event,) = talked(running.url, lambda talk, body=body: talk.ask(**body), **headers)
            answers[name, "websocket"] = (event["status"], json.dumps({"error": event["error"]}, separators=(",", ":")))
        assert len(upstream.requests) == count, "nothing of it went out"
    assert len({*answers.values()}) == 1, {name: text for name, (_, text) in answers.items()}
    ((status, text),) = {*answers.values()}
    assert (status, json.loads(text)["error"]["code"]) == (400, "invalid_encrypted_content")


def test_item_may_be_moved_and_repeated_by_whom_it_was_given_to(gateway: Gateways, secrets_of: SecretsOf) -> None:
    """A replay by its own tenant is no attack: the text is theirs, wherever they put it."""
    with ResponsesServer(summed_up) as upstream:
        running = gateway(upstream, secrets=secrets_of(*TOKENS))
        item = sealed(running, **ONE)
        for items in ([item, USER], [USER, item, item, USER], [{**WORK}, USER, item, WORK, USER]):
            running.events({"input": items}, headers=ONE)
            count = sum(one is item for one in items)
            assert said(upstream.requests[-1]).count(json.dumps(SUMMARY_MARK + "THE SUMMARY")[1:-1]) == count


def test_item_opens_after_a_rotation_and_not_after_its_key_is_gone(gateway: Gateways, secrets_of: SecretsOf) -> None:
    with ResponsesServer(summed_up) as upstream:
        item = sealed(gateway(upstream, secrets=secrets_of(*TOKENS)), **ONE)
        rotated = gateway(upstream, secrets=secrets_of(*TOKENS, keys=(OTHER, KEY)))
        later = sealed(rotated, **ONE)
        new = gateway(upstream, secrets=secrets_of(*TOKENS, keys=(OTHER,)))
        statuses = [
            running.post("/responses", {"model": "m", "input": [one, USER]}, headers=ONE).status_code
            for running, one in [(rotated, item), (rotated, later), (new, later), (new, item)]
        ]
    assert statuses == [200, 200, 200, 400]


# --- tenants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [TOKENS, ()], ids=["tokens", "loopback"])
def test_no_way_leads_to_another_tenants_response(gateway: Gateways, secrets_of: SecretsOf, tokens: Any) -> None:
    """HTTP and WebSocket, whatever is tried with its id; and what is refused reads as for an id that nobody has."""
    with ResponsesServer(lambda _: text_reply("THE SECRET ANSWER", response_id="resp_1")) as upstream:
        running = gateway(upstream, secrets=secrets_of(*tokens))
        running.post("/responses", {"model": "m", "input": "THE SECRET QUESTION"}, headers=ONE)
        tried = {name: attempts(running, name) for name in ("resp_1", "resp_2")}
        count = len(upstream.requests)
        assert [text.replace("resp_1", "resp_2") for text in tried["resp_1"]] == tried["resp_2"]
        assert "SECRET" not in "".join(tried["resp_1"]) and count == len(upstream.requests)
        assert running.get("/responses/resp_1", headers=ONE).json()["id"] == "resp_1"
        running.events({"input": "more", "previous_response_id": "resp_1"}, headers=ONE)
        assert "THE SECRET QUESTION" in said(upstream.requests[-1])


def attempts(running: Any, name: str) -> list[str]:
    """What a stranger is answered who knows the id of a response."""
    going_on = {"model": "m", "input": "x", "previous_response_id": name}
    bodies = [going_on, {**going_on, "stream": True}, {**going_on, "input": [TRIGGER]}]
    answers = [running.get(path, headers=TWO) for path in (f"/responses/{name}", f"/responses/{name}/input_items")]
    with httpx2.Client(trust_env=False) as http:
        answers.append(http.delete(f"{running.url}/responses/{name}", headers=TWO))
    answers += [running.post("/responses", body, headers=TWO) for body in bodies]
    answers += [running.post(f"/responses/{path}", going_on, headers=TWO) for path in ("compact", "input_tokens")]
    assert all(answer.status_code in (400, 404) for answer in answers)
    events = talked(running.url, lambda talk: talk.ask(input="x", previous_response_id=name), **TWO)
    assert events[0]["type"] == "error"
    return [*(answer.text for answer in answers), json.dumps(events)]


def test_connection_remembers_for_itself_only(gateway: Gateways) -> None:
    """Not stored, so known to one connection: neither another tenant's nor another of the same tenant knows it."""

    async def go(url: str) -> list[Any]:
        async with Talk(url, **ONE) as mine, Talk(url, **TWO) as theirs, Talk(url, **ONE) as again:
            first = (await mine.ask(input="THE SECRET", store=False))[-1]["response"]["id"]
            for one in (theirs, again):
                await one.ask(input=[USER], store=False)
            more = {"input": "more", "store": False, "previous_response_id": first}
            return [(await one.ask(**more))[-1] for one in (theirs, again, mine)]

    with ResponsesServer(lambda _: text_reply("a")) as upstream:
        *others, own = asyncio.run(asyncio.wait_for(go(gateway(upstream).url), 30))
        assert ["THE SECRET" in said(request) for request in upstream.requests] == [True, False, False, True]
    assert own["type"] == "response.completed"
    assert {event["error"]["code"] for event in others} == {"previous_response_not_found"}


def test_tokens_of_one_name_are_one_tenant(gateway: Gateways) -> None:
    text = "ann = token-number-one\nann=token-number-two # newer\nbob=token-number-three"
    settings = GatewaySettings(upstream="http://localhost/v1")
    environ = {"REFOLD_GATEWAY_TOKENS": text, "REFOLD_GATEWAY_KEYS": base64.b64encode(KEY).decode()}
    with ResponsesServer(summed_up) as upstream:
        running = gateway(upstream, secrets=read_secrets(settings, environ))
        old, new, bob = ({"authorization": f"Bearer token-number-{number}"} for number in ("one", "two", "three"))
        item = sealed(running, **old)
        first = running.post("/responses", {"model": "m", "input": "1"}, headers=old).json()["id"]
        body = {"model": "m", "input": [item, USER], "previous_response_id": first}
        assert [running.post("/responses", body, headers=one).status_code for one in (new, bob)] == [200, 400]
        assert running.get(f"/responses/{first}", headers=bob).status_code == 404


def test_cookies_of_the_upstream_go_from_no_client_to_another(gateway: Gateways) -> None:
    cookie = {"set-cookie": "session=of-the-first; Path=/"}
    with ResponsesServer(lambda _: text_reply("THE SUMMARY", headers=cookie)) as upstream:
        running = gateway(upstream)
        for headers in (ONE, TWO):
            answer = running.post("/responses", {"model": "m", "input": "x"}, headers=headers)
            running.events({"input": [USER, WORK, TRIGGER]}, headers=headers)
            assert "set-cookie" not in answer.headers
    assert len(upstream.requests) == 4 and not any(request.header("cookie") for request in upstream.requests)


# --- who asks --------------------------------------------------------------------------------------------------------

STRANGE_HOSTS = ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "2130706433", "", "[::1", "[]"]
STRANGE_ORIGINS = ["https://evil.example", "http://localhost.evil.example", "null", "file://", "", "http://[", "a:b@c"]


@pytest.mark.parametrize(
    "headers", [*({"host": one} for one in STRANGE_HOSTS), *({"origin": one} for one in STRANGE_ORIGINS)], ids=str
)
def test_web_page_is_refused_over_http_and_websocket(gateway: Gateways, headers: dict[str, str]) -> None:
    """A name that was bound to loopback anew (DNS rebinding), or an origin from elsewhere."""
    told = {"host": "127.0.0.1", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    with ResponsesServer(["a"]) as upstream:
        running = gateway(upstream)
        answers = [
            asked(running.url, f"POST /v1/responses HTTP/1.1\r\n{lines}content-length: 2\r\n\r\n{{}}"),
            asked(running.url, f"GET /v1/responses/resp_1 HTTP/1.1\r\n{lines}\r\n"),
            asked(
                running.url, f"GET /v1/responses HTTP/1.1\r\n{lines}{upgrade}sec-websocket-key: {'A' * 22}==\r\n\r\n"
            ),
        ]
        assert not upstream.requests
    assert [(answer.split()[1], "not_loopback" in answer) for answer in answers] == [("403", True)] * 3


def asked(url: str, request: str | bytes) -> str:
    """What a raw request is answered, until the gateway says no more."""
    where, data = urlsplit(url), request.encode("latin-1") if isinstance(request, str) else request
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.sendall(data.replace(b"\r\n", b"\r\nconnection: close\r\n", 1) if b"upgrade" not in data else data)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
            if b"upgrade" in data and b"}}" in answer:
                break
    return answer.decode("latin-1")


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Basic dG9rZW4=", "Bearer token-number-on", "token-number-one"]
)
def test_who_has_no_token_gets_nothing_but_health_and_the_description(
    gateway: Gateways, secrets_of: SecretsOf, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    with ResponsesServer(["a"]) as upstream:
        running = gateway(upstream, secrets=secrets_of("token-number-one"))
        with httpx2.Client(trust_env=False, headers=headers) as http:
            open_to_all = [http.get(running.root + path).status_code for path in ("/healthz", "/openapi.json")]
            others = [http.get(running.root + path) for path in ("/metrics", "/v1/models", "/v1/responses/resp_1")]
            others += [http.delete(f"{running.url}/responses/resp_1")]
            others += [
                http.post(running.url + path, content=b"{}")
                for path in ("/responses", "/responses/compact", "/responses/input_tokens")
            ]
            slash = http.post(f"{running.url}/responses/", headers={"host": "evil.example"})
        assert not upstream.requests
    assert open_to_all == [200, 200] and {answer.status_code for answer in others} == {401}
    assert (slash.status_code, slash.headers.get("location")) == (404, None), "nobody is sent elsewhere"


def told_tokens(text: str) -> Secrets:
    environ = {"REFOLD_GATEWAY_KEYS": base64.b64encode(KEY).decode(), "REFOLD_GATEWAY_TOKENS": text}
    return read_secrets(GatewaySettings(upstream="http://localhost/v1"), environ)


def test_token_is_looked_up_by_its_digest_and_goes_nowhere() -> None:
    """How long a look-up of SHA-256 takes tells nothing of a token that is nearly right."""
    secrets = told_tokens("x" * SHORTEST_TOKEN)
    assert {*secrets.tenants} == {sha256(b"x" * SHORTEST_TOKEN).digest()}
    assert caller_of({"authorization": f"bearer  {'x' * SHORTEST_TOKEN} "}, secrets).authorization is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a" * (SHORTEST_TOKEN - 1), "shorter"),
        ("ann=" + "a" * (SHORTEST_TOKEN - 1), "shorter"),
        ("a token with spaces in it", "character"),
        ("tökens-that-nobody-can-send", "character"),
        ("\udcff-of-a-strange-environment", "character"),
        ("ann=the-very-same-token,bob=the-very-same-token", "another name"),
    ],
)
def test_token_that_cannot_be_one_is_named_by_its_line_and_not_shown(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2 .*{why}") as caught:
        told_tokens(f"a-token-that-is-right\n{text}")
    assert text.rpartition("=")[2] not in str(caught.value)


def test_password_in_the_upstreams_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="--key-env") as caught:
        checked(GatewaySettings(upstream="http://ann:the-password@localhost/v1"))
    assert "the-password" not in str(caught.value)


def test_keys_in_a_file_that_others_may_read_are_warned_of(tmp_path: Path) -> None:
    """A link is followed: whoever mounts secrets gives links to files that everybody may read."""
    (tmp_path / "real").write_text(base64.b64encode(KEY).decode())
    (tmp_path / "keys").symlink_to("real")
    (tmp_path / "tokens").write_text("token-number-one")
    files: dict[str, Any] = {"keys_file": str(tmp_path / "keys"), "tokens_file": str(tmp_path / "tokens")}
    settings = GatewaySettings(upstream="http://localhost/v1", store=str(tmp_path / "not yet"), **files)
    secrets = read_secrets(settings, {})
    for mode, count in ((0o644, 2), (0o640, 2), (0o600, 0), (0o400, 0)):
        for name in ("real", "tokens"):
            (tmp_path / name).chmod(mode)
        said = welcome(settings, "http://localhost:1", secrets)
        assert said.count("can be read by others") == count and "token-number-one" not in said


def test_no_form_of_a_secret_shows_it() -> None:
    secrets = msgspec.structs.replace(told_tokens("ann=token-number-one"), upstream_key="sk-upstream-secret")
    caller = caller_of({"authorization": "Bearer token-number-one"}, secrets)
    for one in (secrets, secrets.keys, caller):
        shown = f"{one!r} {one} {[one]} {one!a}"
        assert not any(word in shown for word in ("token-number", "sk-upstream", repr(KEY)[2:20]))
