"""Hooks of schemathesis for test_schema.py: values for what only a running gateway can know, by two formats of its own.

The environment says where the gateway is, which token it takes and what it sealed: GATEWAY, TOKEN, SEALED (JSON).
"""

from __future__ import annotations

import json
import os
from typing import Any

import httpx2
import schemathesis
from hypothesis import strategies as st

TRIGGER = "compaction_trigger"


def stored() -> str:
    """The id of a new response."""
    headers = {"authorization": f"Bearer {os.environ['TOKEN']}"}
    asked = {"model": "m", "input": "hi"}
    answer = httpx2.post(f"{os.environ['GATEWAY']}/v1/responses", json=asked, headers=headers, trust_env=False)
    return answer.json().get("id", "resp_none")


KEPT = stored()  # what requests go on from
schemathesis.openapi.format("response-id", st.just(KEPT))
schemathesis.openapi.format("refold-sealed", st.sampled_from(json.loads(os.environ["SEALED"])))


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """A trigger as the last item, where alone it may stand: no schema can say that."""
    items = body.get("input") if isinstance(body, dict) else None
    if not isinstance(items, list):
        return body
    triggers = [item for item in items if isinstance(item, dict) and item.get("type") == TRIGGER]
    return {**body, "input": [item for item in items if item not in triggers] + triggers[:1]}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Whatever is deleted, it is not what other requests go on from."""
    if case.method.upper() == "DELETE" and case.path_parameters.get("response_id") == KEPT:
        case.path_parameters["response_id"] = stored()
