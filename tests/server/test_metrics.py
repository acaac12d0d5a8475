"""What the gateway tells of itself: Prometheus' text, and a description of its routes that its answers keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx2
import jsonschema

from refold.server.metrics import BUCKETS, Metrics
from refold.server.openapi import description
from refold.testing import ResponsesServer, text_reply

Gateways = Callable[..., Any]
LINE = re.compile(r'[a-z_]+(\{([a-z]+="(\\.|[^"\\])*",?)*\})? -?[0-9.e+]+')


def test_text_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.add("refold_gateway_requests_total", route='a"b\\c\nd', status="200")
    for seconds in (0.001, 0.02, 1_000):
        metrics.took(seconds, route="responses")
    lines = metrics.text().splitlines()
    assert all(line.startswith("# ") or LINE.fullmatch(line) for line in lines)
    assert r'refold_gateway_requests_total{route="a\"b\\c\nd",status="200"} 1' in lines
    counts = [line for line in lines if "_bucket" in line]
    assert (
        len(counts) == len(BUCKETS) + 1 and counts[-1] == 'refold_gateway_seconds_bucket{route="responses",le="+Inf"} 3'
    )
    assert 'refold_gateway_seconds_count{route="responses"} 3' in lines


def test_requests_events_and_times_are_counted_and_nothing_of_a_request_is_told(gateway: Gateways) -> None:
    with ResponsesServer(lambda _: text_reply("the walrus")) as upstream:
        running = gateway(upstream)
        events = running.events({"input": "the carpenter"})
        running.post("/responses", b"nothing")
        running.eventually('refold_gateway_requests_total{route="responses",status="400"}', 1)
        assert running.metric("refold_gateway_events_total") == len(events)
        assert running.metric('refold_gateway_seconds_count{route="responses"}') == 2
        assert running.metric("refold_gateway_running") == 0
        text = httpx2.get(f"{running.root}/metrics", trust_env=False).text
    assert "carpenter" not in text and "walrus" not in text


def test_answers_keep_to_the_description(gateway: Gateways) -> None:
    paths, schemas = description()["paths"], description()["components"]
    item = {"role": "user", "content": "hi"}

    def keeps(answer: httpx2.Response, path: str, method: str = "post") -> None:
        told = paths[path][method]["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**told, "components": schemas})

    with ResponsesServer(lambda _: text_reply("hi")) as upstream:
        running = gateway(upstream)
        for body in ({"model": "m", "input": [item]}, {"model": "m"}, b"[]"):
            for path in ("/responses", "/responses/compact", "/responses/input_tokens"):
                keeps(running.post(path, body), f"/v1{path}")
        keeps(running.get("/responses/resp_none"), "/v1/responses/{response_id}", "get")
        keeps(running.get("/models"), "/v1/models", "get")
        for path in ("/healthz", "/openapi.json"):
            keeps(httpx2.get(running.root + path, trust_env=False), path, "get")
        assert httpx2.get(f"{running.root}/openapi.json", trust_env=False).json() == description()
