"""The gateway's OpenAPI document: valid, whole, and kept, whatever is asked: schemathesis asks, with fixed seeds.

It runs as a program of its own: its plugin for pytest would cost every run of the tests half a second.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import msgspec
import pytest
from starlette.routing import Route

from refold.model.scripted import Reply
from refold.model.sse import SseDecoder
from refold.server import GatewaySettings, Secrets, new_app
from refold.server.endpoint import Endpoint
from refold.server.openapi import description
from refold.server.windows import Sealed, seal
from refold.testing import LoggedRequest, ResponsesServer, call_reply, text_reply

Gateways = Callable[..., Any]
SecretsOf = Callable[..., Secrets]
TOKEN = "token-number-one"
JSON = "application/json"
EXAMPLES = 15  # of each operation in each phase: some hundreds of requests a run; more were asked by hand
# A response may be asked not to be stored, and the links from it to the stored one lead nowhere then.
UNSURE = "ensure_resource_availability"
# An upstream that fails: its faults and refusals are told, whatever the request was.
FAULTY = f"{UNSURE},not_a_server_error,positive_data_acceptance"


def sealed(secrets: Secrets) -> list[str]:
    """What the gateway could have sealed for its tenant."""
    (tenant,) = secrets.tenants.values()
    texts = [("THE SUMMARY", 1, True), ("é", 0, False), ("", 2, False)]
    made = [
        Sealed(text=text, method="outline", model="m", at=0, count=count, sha256="", is_inline=is_inline)
        for text, count, is_inline in texts
    ]
    return [seal(one, secrets.keys, tenant) for one in made]


def asked_by_schemathesis(
    running: Any, secrets: Secrets, folder: Path, *, seed: int, phases: str, without: str
) -> None:
    """Let it ask; it reports where the gateway breaks what its document says."""
    hooks = {"SCHEMATHESIS_HOOKS": "schema_hooks", "PYTHONPATH": str(Path(__file__).parent)}
    told = {"GATEWAY": running.root, "TOKEN": TOKEN, "SEALED": json.dumps(sealed(secrets)), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{running.root}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--exclude-checks", without, "--no-color"]
    command += ["--seed", str(seed), "--max-examples", str(EXAMPLES), "--phases", phases]
    command += ["--generation-database", "none"]
    ended = subprocess.run(
        command,
        env={**os.environ, **hooks, **told},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-8_000:] + ended.stderr[-2_000:]


def willing(request: LoggedRequest) -> Reply:
    """An upstream that answers, or calls the first tool that it is offered."""
    tools = [tool for tool in request.json.get("tools") or [] if isinstance(tool.get("name"), str)]
    if tools and len(request.body) % 2:
        return call_reply(tools[0]["name"], {"input": "x"}, "c1")
    return text_reply("Hello.")


FAULTS = [
    text_reply("x"),
    Reply(status=400, body={"error": {"message": "maximum context length is 4096 tokens"}}),
    Reply(status=429, body={"error": {"message": "slow down"}}, headers={"retry-after": "0"}),
    Reply(status=503, body={"detail": "no"}),
    Reply(status=404, body="no"),
    Reply(status=402, body={"message": 7}),
    Reply(status=302, headers={"location": "/elsewhere"}),
    text_reply("x", cut_after=2),
    text_reply("x", cut_after="request"),
    text_reply("x", cut_after="partial_item"),
    Reply(fail={"code": "x", "message": "y"}),
    Reply(fail={}),
    Reply(incomplete="max_output_tokens"),
    Reply(error={"message": "e", "code": None}),
    call_reply("x", "{bad"),
]


def failing(request: LoggedRequest) -> Reply:
    """An upstream that fails in one way or another, the same for the same request."""
    return FAULTS[sha256(request.body).digest()[0] % len(FAULTS)]


def answered(running: Any) -> Counter[str]:
    """How many requests of the routes of the API ended with each status."""
    lines = running.app.state.gateway.metrics.text().splitlines()
    found = [re.fullmatch(r'refold_gateway_requests_total{route="\w+",status="(\d+)"} (\d+)', line) for line in lines]
    counts: Counter[str] = Counter()
    for one in filter(None, found):
        counts[one[1]] += int(one[2])
    return counts


@pytest.mark.parametrize(
    ("settings", "seed", "phases"),
    [
        ({}, 1, "examples,coverage,fuzzing,stateful"),
        ({"compaction": "outline", "unknown_items": "pass", "accepts": ("custom",)}, 2, "examples,fuzzing,stateful"),
    ],
    ids=["plain", "outline"],
)
def test_what_keeps_to_the_schema_is_answered_and_what_breaks_it_is_refused(
    gateway: Gateways, secrets_of: SecretsOf, tmp_path: Path, settings: dict[str, Any], seed: int, phases: str
) -> None:
    pytest.importorskip("schemathesis")
    secrets = secrets_of(TOKEN)
    with ResponsesServer(willing, log=False) as upstream:
        running = gateway(upstream, secrets=secrets, **settings)
        asked_by_schemathesis(running, secrets, tmp_path, seed=seed, phases=phases, without=UNSURE)
        counts = answered(running)
    assert counts["200"] > EXAMPLES and counts["400"] > EXAMPLES and counts["401"]
    assert not counts["500"]


def test_faults_of_an_upstream_are_told_as_the_schema_says(
    gateway: Gateways, secrets_of: SecretsOf, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis")
    secrets = secrets_of(TOKEN)
    with ResponsesServer(failing, log=False) as upstream:
        running = gateway(upstream, secrets=secrets)
        asked_by_schemathesis(running, secrets, tmp_path, seed=3, phases="examples,fuzzing", without=FAULTY)
        counts = answered(running)
    assert all(counts[status] for status in ("200", "400", "502")) and counts["402"] + counts["429"] + counts["503"]
    assert not counts["500"]  # no upstream of these says it, so it would be the gateway's own fault


# --- the document ----------------------------------------------------------------------------------------------------


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": description()["components"]}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in description()["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield path, method, operation


def test_document_is_openapi() -> None:
    pytest.importorskip("schemathesis").openapi.from_dict(description()).validate()
    schemas = description()["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    named = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description()))
    assert {*named} == {*schemas}


def test_document_knows_every_route_and_method(secrets_of: SecretsOf) -> None:
    app = new_app(GatewaySettings(upstream="http://127.0.0.1:1/v1"), secrets_of())
    routes = [route for route in app.routes if isinstance(route, Route) and isinstance(route.endpoint, Endpoint)]
    here = {(route.path, method.lower()) for route in routes for method in route.methods or () if method != "HEAD"}
    assert here == {(path, method) for path, method, _ in operations()}


def test_examples_are_what_the_schemas_describe() -> None:
    count = 0
    for _, _, operation in operations():
        parts = [operation.get("requestBody", {}), *operation["responses"].values()]
        for told in (part["content"][JSON] for part in parts if JSON in part.get("content", {})):
            examples = [one["value"] for one in told.get("examples", {}).values()]
            for example in [*examples, *([told["example"]] if "example" in told else [])]:
                jsonschema.Draft202012Validator(resolved(told["schema"])).validate(example)
                count += 1
    assert count > 10


def test_token_is_asked_for_where_the_gateway_has_any(gateway: Gateways, secrets_of: SecretsOf) -> None:
    with ResponsesServer([]) as upstream:
        closed = gateway(upstream, secrets=secrets_of(TOKEN))
        documents = [
            httpx2.get(f"{one.root}/openapi.json", trust_env=False).json() for one in (gateway(upstream), closed)
        ]
    assert [document["security"] for document in documents] == [[{"bearer": []}, {}], [{"bearer": []}]]


@pytest.mark.parametrize("tail", [[], [{"type": "compaction_trigger"}]])
def test_events_are_what_the_document_says(gateway: Gateways, tail: list[Any]) -> None:
    sent, event = ({"$ref": f"#/components/schemas/{name}"} for name in ("ServerSentEvent", "Event"))
    with ResponsesServer(willing, log=False) as upstream:
        body = {"model": "m", "stream": True, "input": [{"role": "user", "content": "hi"}, *tail]}
        answer = gateway(upstream).post("/responses", body)
    events = SseDecoder().feed(answer.content)
    assert len(events) > 4
    for name, data in events:
        jsonschema.validate({"event": name, "data": data}, resolved(sent))
        jsonschema.validate(msgspec.json.decode(data), resolved(event))


@pytest.mark.parametrize("path", ["/responses/compact", "/responses/input_tokens"])
def test_names_of_routes_are_no_ids_of_responses(gateway: Gateways, path: str) -> None:
    with ResponsesServer([]) as upstream:
        answer = gateway(upstream).get(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


HI = {"model": "m", "input": "hi"}
MANAGED = {"type": "compaction", "compact_threshold": 1e9}
REFERENCE = {"type": "item_reference", "id": "msg_1"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/responses", {**HI, "context_management": [MANAGED]}, None),  # a whole number, however it is written
        ("/responses", {**HI, "context_management": [{**MANAGED, "compact_threshold": 1.5}]}, "compact_threshold"),
        ("/responses", {**HI, "previous_response_id": ""}, "previous_response_id"),
        ("/responses", {"model": "m", "previous_response_id": None}, "input"),
        ("/responses/compact", {"model": "m", "input": None}, "input"),
        ("/responses/compact", {"model": "m", "input": [REFERENCE]}, "input[0]"),
        ("/responses/input_tokens", {"input": [REFERENCE]}, "input[0]"),
    ],
)
def test_what_schemathesis_found(gateway: Gateways, path: str, body: dict[str, Any], param: str | None) -> None:
    with ResponsesServer(willing, log=False) as upstream:
        answer = gateway(upstream, compaction="outline").post(path, body)
    assert answer.status_code == (200 if param is None else 400)
    assert param is None or answer.json()["error"]["param"].endswith(param)


@pytest.mark.parametrize("store", [True, False])
def test_upstream_that_answers_with_no_response_is_told_of(gateway: Gateways, store: bool) -> None:
    with ResponsesServer([Reply(body=[1])]) as upstream:
        answer = gateway(upstream).post("/responses", {**HI, "store": store})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreadable")
