"""Openapi: what the gateway's routes take and answer, for programs: an OpenAPI 3.1 document.

It describes what the gateway itself reads and writes; every other key of the Responses API passes, both ways.
Rule 1: a request that breaks a schema is refused, and one that keeps to it is not, save for what no schema can say.
"""

from __future__ import annotations

from typing import Any

from refold import __version__
from refold.server import openapi_schemas as schemas

JSON = "application/json"
_UNSEALED = "What is sealed must be this tenant's: else 400 `invalid_encrypted_content`."
_SUMMARY = "A last item `compaction_trigger` asks for a compaction; anywhere else it is refused."
_STREAMED = "With `stream`: server-sent events, the data of each an `Event`, until one ends the response \
(`response.completed`, `response.incomplete`, `response.failed`). Over a WebSocket at the same path, each \
frame is one event, and a request is a frame of `type` `response.create`."
_PASSED_ON = {"4XX": "What the upstream refused, as it said it.", "5XX": "What the upstream failed at, as it said it."}
_REFUSALS = {
    "400": "A request that cannot be; `param` names what is wrong.",
    "401": "No bearer token, or none that is known.",
    "403": "A web page asks, where no token is needed.",
    "404": "No stored response of this tenant has this id.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "415": "The body is compressed otherwise than with zstd.",
    "429": "More requests at once than one tenant may have.",
    "500": "A fault of the gateway's own.",
    "502": "The upstream cannot be reached, broke off, or refused the gateway's key.",
    "503": "More requests at once than the gateway answers.",
    "504": "The upstream did not answer in time.",
}
_WAITS = ("429", "503")
_ALWAYS = ("400", "401", "403", "429", "500", "503")
_WITH_BODY = (*_ALWAYS, "408", "413", "415")
_OF_UPSTREAM = ("502", "504", "4XX", "5XX")


def description(*, needs_token: bool = False) -> dict[str, Any]:
    """The document. `needs_token`: whether nobody is answered without a bearer token."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "refold's gateway",
            "version": __version__,
            "summary": "The Responses API with compaction, in front of a provider that has none.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "responses", "description": "What models answer, and what takes a history's place."},
            {"name": "running", "description": "For whoever runs the gateway."},
        ],
        "paths": {
            "/v1/responses": {"post": _create()},
            "/v1/responses/compact": {"post": _compact()},
            "/v1/responses/input_tokens": {"post": _input_tokens()},
            "/v1/responses/{response_id}": {"parameters": [_by_id()], "get": _stored(), "delete": _deleted()},
            "/v1/models": {"get": _models()},
            "/metrics": {"get": _metrics()},
            "/healthz": {"get": _open("health", "Whether it runs", _named("Health"))},
            "/openapi.json": {"get": _open("openapi", "This document", {"type": "object", "required": ["openapi"]})},
        },
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the gateway; where it has none, the key that the upstream is sent.",
                }
            },
            "headers": {
                "LeftOut": {
                    "description": "What the upstream was not told, since it does not take it.",
                    "schema": {"type": "string"},
                },
                "RetryAfter": {
                    "description": "Seconds after which it may be tried again.",
                    "schema": {"type": "integer", "minimum": 1},
                },
            },
            "schemas": schemas.described(),
        },
        "security": [{"bearer": []}] if needs_token else [{"bearer": []}, {}],
    }


# --- operations --------------------------------------------------------------------------------------------


def _create() -> dict[str, Any]:
    answer = {
        "description": f"The response, or its events. {_STREAMED}",
        "headers": {"x-refold-left-out": {"$ref": "#/components/headers/LeftOut"}},
        "content": {
            JSON: {"schema": _named("Response"), "examples": {"answer": {"value": schemas.ANSWER}}},
            "text/event-stream": {"schema": _named("ServerSentEvent")},  # one of them, as is the custom in 3.1
        },
        "links": {
            "get": _link("get_response", "A stored response is there under its id."),
            "delete": _link("delete_response", "A stored response can be taken away."),
        },
    }
    text = f"{_SUMMARY} {_UNSEALED} With `context_management`, a long input is compacted before it is answered."
    return {
        **_operation("create_response", "Answer an input", text, {"200": answer}, (*_WITH_BODY, *_OF_UPSTREAM)),
        "requestBody": _body(
            "ResponseRequest",
            answer=schemas.QUESTION,
            compaction=schemas.COMPACTION,
            inline=schemas.INLINE,
            items=schemas.ITEMS,
        ),
    }


def _compact() -> dict[str, Any]:
    text = f"What people said, instructions, and one `compaction` item for the rest. {_UNSEALED}"
    answer = _answer(_named("Compaction"), schemas.COMPACTED)
    refusals = (*_WITH_BODY, *_OF_UPSTREAM)
    return {
        **_operation("compact_response", "Compact an input", text, {"200": answer}, refusals),
        "requestBody": _body("CompactionRequest", history=schemas.HISTORY),
    }


def _input_tokens() -> dict[str, Any]:
    text = "Counted in OpenAI's vocabulary where the gateway has it, else estimated."
    answer = _answer(_named("InputTokens"), {"object": "response.input_tokens", "input_tokens": 11})
    return {
        **_operation("count_input_tokens", "Count an input's tokens", text, {"200": answer}, _WITH_BODY),
        "requestBody": _body("InputTokensRequest", text={"model": "m", "input": "How are you?"}),
    }


def _stored() -> dict[str, Any]:
    text = "Only as a document: events are not kept."
    told = _operation("get_response", "A stored response", text, {"200": _answer(_named("Response"))}, _with("404"))
    streamed = {
        "name": "stream",
        "in": "query",
        "description": "There is no other way than false.",
        "schema": {"enum": ["false", "0", ""]},
    }
    return {**told, "parameters": [streamed]}


def _deleted() -> dict[str, Any]:
    answer = _answer(_named("Deleted"), {"id": "resp_1", "object": "response", "deleted": True})
    text = "It is gone for whoever would go on from it, too."
    return _operation("delete_response", "Delete a stored response", text, {"200": answer}, _with("404"))


def _models() -> dict[str, Any]:
    text = "The upstream's list, and the names that the gateway maps to others. Its query is passed on."
    listed = {"id": "qwen", "object": "model", "created": 0, "owned_by": "refold"}
    answer = _answer(_named("Models"), {"object": "list", "data": [listed]})
    return _operation("list_models", "Models", text, {"200": answer}, (*_ALWAYS, *_OF_UPSTREAM))


def _metrics() -> dict[str, Any]:
    answer = {
        "description": "Prometheus' text format.",
        "content": {"text/plain": {"schema": {"type": "string", "pattern": "^(#|refold_)"}}},
    }
    told = _operation("metrics", "Counts and times", "Of the worker that answers.", {"200": answer}, _ALWAYS)
    return {**told, "tags": ["running"]}


def _open(name: str, summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    """An operation that anybody may ask for."""
    told = _operation(name, summary, "Open to all.", {"200": _answer(schema)}, ("500",))
    return {**told, "tags": ["running"], "security": []}


# --- parts -------------------------------------------------------------------------------------------------


def _operation(
    name: str, summary: str, text: str, answers: dict[str, Any], refusals: tuple[str, ...]
) -> dict[str, Any]:
    refused = {status: _refusal(status) for status in sorted(refusals)}
    told = {"operationId": name, "summary": summary, "description": text, "tags": ["responses"]}
    return {**told, "responses": {**answers, **refused}}


def _with(*more: str) -> tuple[str, ...]:
    return (*_ALWAYS, *more)


def _refusal(status: str) -> dict[str, Any]:
    waits = {"retry-after": {"$ref": "#/components/headers/RetryAfter"}}
    return {
        "description": _REFUSALS.get(status) or _PASSED_ON[status],
        **({"headers": waits} if status in _WAITS else {}),
        "content": {JSON: {"schema": _named("Error")}},
    }


def _named(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(schema: dict[str, Any], example: Any = None) -> dict[str, Any]:
    more = {} if example is None else {"example": example}
    return {"description": "The answer.", "content": {JSON: {"schema": schema, **more}}}


def _body(name: str, **examples: Any) -> dict[str, Any]:
    shown = {key: {"value": value} for key, value in examples.items()}
    return {"required": True, "content": {JSON: {"schema": _named(name), "examples": shown}}}


def _by_id() -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "format": schemas.RESPONSE_ID}
    return {"name": "response_id", "in": "path", "required": True, "schema": schema}


def _link(operation: str, text: str) -> dict[str, Any]:
    parameters = {"response_id": "$response.body#/id"}
    return {"operationId": operation, "parameters": parameters, "description": text}
