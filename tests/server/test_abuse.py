"""Requests of any kind: huge, deep, slow, compressed, with strange headers and ids: answered or refused, no fault."""

from __future__ import annotations

import socket
import sqlite3
import stat
import sys
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from wsproto import events as ws

sys.path.insert(0, str(Path(__file__).parent))
from test_security import asked
from test_websocket import Talk, talked

from refold.server.store import LONGEST_ID
from refold.testing import ResponsesServer, text_reply

Gateways = Callable[..., Any]
USER = {"type": "message", "role": "user", "content": "hi"}

# --- what requests may hold ------------------------------------------------------------------------------------------

HUGE = b"[" * 100_000 + b"]" * 100_000
DEEP = b'{"a":' * 700 + b"1" + b"}" * 700
VALUES = [HUGE, DEEP, b"1" * 5_000, b"1e999999", b'"\\ud800"', b'"' + b"x" * 100_000 + b'"']
KEYS = [b"metadata", b"tools", b"tool_choice", b"include", b"reasoning", b"instructions", b"text", b"model", b"input"]


@pytest.mark.parametrize("key", KEYS, ids=bytes.decode)
def test_no_value_is_a_fault_of_the_gateway(gateway: Gateways, key: bytes) -> None:
    keys = {b"model": b'"m"', b"input": b'[{"role":"user","content":"x"},{"type":"compaction_trigger"}]'}
    with ResponsesServer(lambda _: text_reply("THE SUMMARY")) as upstream:
        url = gateway(upstream).url
        with httpx2.Client(trust_env=False, timeout=20) as http:
            for value, more in product(VALUES, [{}, {b"stream": b"true"}, {b"input": b'"x"'}]):
                fields = {**keys, **more, key: value}
                body = b"{" + b",".join(b'"%b":%b' % pair for pair in fields.items()) + b"}"
                for path in ("", "/compact", "/input_tokens"):
                    answer = http.post(f"{url}/responses{path}", content=body)
                    assert answer.status_code in (200, 400), (value[:10], more, path, answer.text)


def test_item_of_another_shape_cannot_write_a_header(gateway: Gateways) -> None:
    """`x-refold-left-out` repeats a type that the client chose."""
    kinds = ["x\r\nset-cookie: a=b", "x\ny: z", "\x00\x7f", "é\u2028", "y" * 5_000]
    body = {"model": "m", "input": [*({"type": kind} for kind in kinds), USER]}
    with ResponsesServer(["a"]) as upstream:
        answer = gateway(upstream).post("/responses", body)
    told = answer.headers["x-refold-left-out"]
    assert answer.status_code == 200 and "set-cookie" not in answer.headers and "y" not in answer.headers
    assert told.isascii() and told.isprintable() and len(told) <= 500


@pytest.mark.parametrize("value", [b"\xe9", b"\xff\xfe", b"a\tb", b"x" * 50_000])
def test_strange_header_is_no_fault(gateway: Gateways, value: bytes) -> None:
    for name in (b"user-agent", b"x-codex-turn-metadata", b"authorization: Bearer a\r\nsession-id"):
        with ResponsesServer(["a"]) as upstream:
            body = b'{"model":"m","input":"x"}'
            head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n%b: %b\r\n" % (name, value)
            answer = asked(gateway(upstream).url, head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        assert answer.split()[1] == "200" and "\x00" not in answer


def test_bearer_that_no_header_can_have_is_not_passed_on(gateway: Gateways) -> None:
    with ResponsesServer(["a"]) as upstream:
        request = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer \xe9\xe9\r\n"
        answer = asked(gateway(upstream).url, request + b"content-length: 2\r\n\r\n{}")
        assert answer.split()[1] == "401" and not upstream.requests


def test_compressed_bodies_and_frames_are_refused(gateway: Gateways) -> None:
    """Nothing grows: bodies are answered 415 (zstd: test_codex_requests.py), frames end their connection."""
    bomb = zlib.compress(b" " * 50_000_000)

    async def frame(talk: Talk) -> Any:
        assert isinstance(talk.first, ws.AcceptConnection) and not talk.first.extensions
        head = b"\xc1\xfe" + len(bomb).to_bytes(2, "big")  # the only frame of a text, compressed, masked
        talk.writer.write(head + bytes(4) + bomb)
        return await talk.event()

    with ResponsesServer([]) as upstream:
        running = gateway(upstream)
        for encoding in ("gzip", "deflate", "br", "zstd, gzip", "identity, gzip"):
            assert running.post("/responses", bomb, headers={"content-encoding": encoding}).status_code == 415
        told = talked(running.url, frame, **{"sec-websocket-extensions": "permessage-deflate"})
        assert isinstance(told, ws.CloseConnection)


def test_body_on_its_way_counts_as_a_request(gateway: Gateways) -> None:
    """Who sends slowly takes room from their own share, not from everybody's."""
    with ResponsesServer(["a"]) as upstream:
        running = gateway(upstream, max_requests_per_tenant=1)
        where = urlsplit(running.url)
        with socket.create_connection((where.hostname, where.port), timeout=10) as slow:
            slow.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
            mine = 0
            with httpx2.Client(trust_env=False) as http:
                for _ in range(200):
                    mine = http.post(f"{running.url}/responses", json={}).status_code
                    if mine == 429:
                        break
                theirs = http.post(
                    f"{running.url}/responses",
                    json={"model": "m", "input": "x"},
                    headers={"authorization": "Bearer other"},
                )
        assert (mine, theirs.status_code) == (429, 200)
        running.eventually("refold_gateway_running", 0)


# --- ids and files ---------------------------------------------------------------------------------------------------

IDS = [
    "' OR '1'='1",
    "x'; DROP TABLE responses; --",
    "%",
    "../../etc/passwd",
    "..%2f..%2fkeys",
    "resp_1\x00",
    "resp_1/",
    "é" * 1_000,
    "a" * 20_000,
]


@pytest.mark.parametrize("name", IDS, ids=range(len(IDS)))
def test_id_is_a_name_and_nothing_else(gateway: Gateways, tmp_path: Path, name: str) -> None:
    path = tmp_path / "responses.sqlite"
    with ResponsesServer(lambda _: text_reply("a", response_id="resp_1")) as upstream:
        running = gateway(upstream, store=str(path))
        running.post("/responses", {"model": "m", "input": "x"})
        url = f"{running.url}/responses/{quote(name, safe='%')}"
        with httpx2.Client(trust_env=False) as http:
            answers = [http.get(url), http.delete(url)]
        answers.append(running.post("/responses", {"model": "m", "input": "x", "previous_response_id": name}))
        assert [answer.status_code for answer in answers] == [404, 404, 400]
        assert all(
            len(answer.json()["error"]["message"]) < LONGEST_ID * 8 or "not here" in answer.text for answer in answers
        )
        assert running.get("/responses/resp_1").status_code == 200
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT id FROM responses").fetchall() == [("resp_1",)]
    database.close()


def test_files_of_the_store_are_their_owners(gateway: Gateways, tmp_path: Path) -> None:
    with ResponsesServer(["a"]) as upstream:
        running = gateway(upstream, store=str(tmp_path / "inner" / "responses.sqlite"))
        running.post("/responses", {"model": "m", "input": "x"})
        modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "inner").iterdir()}
    assert {"responses.sqlite", "responses.sqlite-wal"} <= {*modes} and {*modes.values()} == {0o600}
    assert stat.S_IMODE((tmp_path / "inner").stat().st_mode) == 0o700
