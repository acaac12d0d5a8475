"""No key and no token stands in what the gateway says: the real command, as a process, through every kind of error."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from test_serve import environ, ready, served
from test_websocket import talked

from refold.core.templates import template
from refold.model.scripted import Reply
from refold.server import Secrets
from refold.testing import LoggedRequest, ResponsesServer, text_reply

Gateways = Callable[..., Any]
SecretsOf = Callable[..., Secrets]
UPSTREAM_KEY = 'sk-up/SECRET-"quoted"-0123456789abcdef'
TOKENS = {"ann": "token-of-ann-0123456789", "bob": "token-of-bob-9876543210"}
ANN = {"authorization": f"Bearer {TOKENS['ann']}"}
KEY = bytes(range(100, 132))
ITEMS = [
    {"type": "message", "role": "user", "content": "hi"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I do."}]},
]
TRIGGER = {"type": "compaction_trigger"}


def error(status: int, message: str = f"Incorrect API key provided: {UPSTREAM_KEY}", **fields: Any) -> Reply:
    return Reply(status=status, body={"error": {"message": message, "seen": [UPSTREAM_KEY], **fields}})


# Ways in which an upstream repeats what it was sent.
ECHOES = {
    **{f"status {status}": error(status) for status in (400, 401, 403, 404, 409, 422, 429, 500, 503)},
    "overflow": error(400, code="context_length_exceeded"),
    "as vllm": Reply(status=400, body={"message": UPSTREAM_KEY, "type": "x"}),
    "no message": Reply(status=404, body={"detail": {"headers": {"authorization": f"Bearer {UPSTREAM_KEY}"}}}),
    "a text": Reply(status=500, body={"error": UPSTREAM_KEY}),
    "in the cut": error(404, "x" * 480 + UPSTREAM_KEY),
    "redirect": Reply(status=302, headers={"location": f"http://localhost/?key={UPSTREAM_KEY}"}),
    "header": text_reply("fine", headers={"x-request-id": f"for {UPSTREAM_KEY}", "openai-version": "1"}),
    "failed event": Reply(fail={"code": "invalid_prompt", "message": f"no: {UPSTREAM_KEY}"}),
    "overflow event": Reply(fail={"code": "context_length_exceeded", "message": f"no: {UPSTREAM_KEY}"}),
    "document": Reply(body={"id": "resp_1", "status": "completed", "output": [], "debug": {"key": UPSTREAM_KEY}}),
}


def echoed(request: LoggedRequest) -> Reply:
    """What the request's last message but one names; the rest is answered plainly."""
    text = request.body.decode()
    reply = next((reply for name, reply in ECHOES.items() if f"echo {name}!" in text), text_reply("fine"))
    return reply if template("handoff")[:40] not in text or "echo" in text else text_reply("THE SUMMARY")


def requests(echo: str) -> Iterator[tuple[str, dict[str, Any]]]:
    items = [{"type": "message", "role": "user", "content": f"echo {echo}!"}, *ITEMS]
    for stream in (False, True):
        yield "/responses", {"model": "m", "stream": stream, "input": [*items, ITEMS[0]]}
        yield "/responses", {"model": "m", "stream": stream, "input": [*items, TRIGGER]}
    yield "/responses/compact", {"model": "m", "input": items}


def broken() -> Iterator[tuple[str, str, Any, dict[str, str]]]:
    """Requests that are wrong in themselves."""
    yield "POST", "/v1/responses", "{", ANN
    yield "POST", "/v1/responses", "{}", ANN
    yield "POST", "/v1/responses", '{"model":"m","input":"x","conversation":"c"}', ANN
    yield "POST", "/v1/responses", "x", {**ANN, "content-encoding": "gzip"}
    yield "POST", "/v1/responses", "x" * (2 << 20), ANN
    sealed = {"type": "compaction", "encrypted_content": TOKENS["bob"]}
    yield "POST", "/v1/responses", json.dumps({"model": "m", "input": [sealed]}), ANN
    previous = {"model": "m", "input": "x", "previous_response_id": "resp_none"}
    yield "POST", "/v1/responses", json.dumps(previous), ANN
    yield "POST", "/v1/responses", "{}", {"authorization": f"Bearer {TOKENS['ann']}x"}
    yield "POST", "/v1/responses", "{}", {"authorization": f"Basic {TOKENS['ann']}"}
    yield "POST", "/v1/nowhere", "{}", ANN
    yield "PUT", "/v1/responses", "{}", ANN
    yield "GET", "/v1/responses/resp_none", None, ANN
    yield "DELETE", "/v1/responses/resp_none", None, ANN
    yield "GET", "/v1/models?x=y", None, ANN
    for path in ("/metrics", "/openapi.json", "/healthz"):
        yield "GET", path, None, ANN


def needles() -> dict[str, bytes]:
    """Every secret in the spellings that it could be shown in."""
    named = {"upstream key": UPSTREAM_KEY, **TOKENS}
    found = {name: text.encode()[:12] for name, text in named.items()}  # also where it was cut
    found |= {f"{name}, end": text.encode()[-12:] for name, text in named.items()}
    standard, safe = base64.b64encode(KEY), base64.urlsafe_b64encode(KEY)
    return {**found, "key": standard[:20], "key, safe": safe[:20], "key, hex": KEY.hex().encode()[:20], "raw": KEY[:8]}


def test_no_secret_is_said_by_the_process_whatever_happens(tmp_path: Path) -> None:
    keys, tokens = tmp_path / "keys", tmp_path / "tokens"
    keys.write_bytes(base64.b64encode(KEY))
    tokens.write_text("\n".join(f"{name}={token}" for name, token in TOKENS.items()))
    files = ["--keys", str(keys), "--tokens", str(tokens), "--key-env", "UP_KEY"]
    more = ["--port", "0", "--log-requests", "--max-body", "1"]
    heard: list[bytes] = []
    with ResponsesServer(echoed) as upstream:
        with served(tmp_path, "--upstream", upstream.url, *files, *more, UP_KEY=UPSTREAM_KEY) as (process, url, said):
            ready(url)
            root = url.removesuffix("/v1")
            with httpx2.Client(trust_env=False, timeout=20) as http:
                for method, path, body, headers in broken():
                    heard.append(answered(http.request(method, root + path, content=body, headers=headers)))
                for echo in ECHOES:
                    for path, asked in requests(echo):
                        heard.append(answered(http.post(f"{root}/v1{path}", json=asked, headers=ANN)))
                heard.append(answered(http.get(f"{root}/metrics", headers=ANN)))
            for echo in ECHOES:
                _, asked = next(requests(echo))
                events = talked(f"{root}/v1", lambda talk, asked=asked: talk.ask(**asked), **ANN)
                heard.append(json.dumps(events).encode())
            process_of = Path(f"/proc/{process.pid}")
            if process_of.exists():
                heard.append((process_of / "cmdline").read_bytes())
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
        sent = [f"{name}: {value}" for request in upstream.requests for name, value in request.headers]
    heard += [said.encode(), out.encode(), err.encode()]
    assert b"x-request-id" not in b"".join(heard).replace(b"x-request-id: req_", b""), "the header that repeats the key"
    assert sent.count(f"authorization: Bearer {UPSTREAM_KEY}") == len(upstream.requests) > 5 * len(ECHOES)
    assert not any(token in line for line in sent for token in TOKENS.values())
    for name, needle in needles().items():
        for text in heard:
            assert needle not in text, f"{name}: {text[max(0, text.find(needle) - 200) :][:400]!r}"
    assert err.count("POST responses") > 40 and "echo" not in err and "Traceback" not in err


def answered(answer: httpx2.Response) -> bytes:
    """Everything that an answer says."""
    head = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
    return f"{answer.status_code}\n{head}\n".encode() + answer.content


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_bearer_that_is_passed_on_is_hidden_too(gateway: Gateways, scheme: str) -> None:
    """Where the gateway has no key of its own the upstream may repeat the client's in what it says of an error. An
    answer is the client's own affair: its key may be a word."""
    mine = {"authorization": f"{scheme} {UPSTREAM_KEY}"}
    with ResponsesServer(echoed) as upstream:
        running = gateway(upstream)
        with httpx2.Client(trust_env=False, timeout=20, headers=mine) as http:
            for path, body in (request for echo in ECHOES for request in requests(echo)):
                text = answered(http.post(running.url + path, json=body))
                if b'"debug"' not in text:
                    assert b"SECRET" not in text, (path, body, text)
        assert {request.header("authorization") for request in upstream.requests} == {mine["authorization"]}


def test_address_of_the_upstream_is_its_operators_affair(gateway: Gateways, secrets_of: SecretsOf) -> None:
    with ResponsesServer(echoed) as upstream:
        running = gateway(upstream, secrets=secrets_of("token-number-one"), outline_when_it_fails=False)
        where = [f":{upstream.port}", "127.0.0.1", "localhost"]
        with httpx2.Client(trust_env=False, timeout=20, headers={"authorization": "Bearer token-number-one"}) as http:
            for path, body in (request for echo in ECHOES for request in requests(echo)):
                text = http.post(running.url + path, json=body).text
                assert not [one for one in where if one in text], (path, body, text)
    gone = gateway("http://127.0.0.1:9/v1")  # nobody listens there
    for path, body in requests("nothing"):
        assert ":9" not in gone.post(path, body).text


@pytest.mark.parametrize("broken", ["keys", "tokens", "store", "key_env"])
def test_what_keeps_it_from_starting_is_said_without_a_secret(tmp_path: Path, broken: str) -> None:
    """One line, no traceback, and nothing of what the files hold."""
    secret = "the-secret-that-was-mistyped"
    texts = {"keys": secret, "tokens": f"ann={secret},bob=short", "store": "no database " * 400}
    for name, text in texts.items():
        (tmp_path / name).write_text(text if name == broken else {"keys": base64.b64encode(KEY).decode()}.get(name, ""))
    options = [word for name in ("keys", "tokens", "store") for word in (f"--{name}", str(tmp_path / name))]
    command = [sys.executable, "-m", "refold", "serve", "--upstream", "http://127.0.0.1:9/v1", "--port", "0", *options]
    key = secret + "\n\x01" if broken == "key_env" else secret
    ended = subprocess.run(
        [*command, "--key-env", "UP_KEY"], capture_output=True, text=True, env=environ(tmp_path, UP_KEY=key), timeout=30
    )
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr, ended.stderr
    assert "mistyped" not in ended.stderr + ended.stdout
