"""Openapi: what the gateway's routes take and answer, for programs: an OpenAPI 3.1 document.

It describes what the gateway itself reads; every other key of the Responses API passes.
"""

from __future__ import annotations

from typing import Any

from refold import __version__

JSON = "application/json"
_REFUSALS = ("400", "401", "408", "413", "415", "429", "500", "502", "503", "504")
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_NAMED = {"type": "string", "minLength": 1}
_ITEM: dict[str, Any] = {"type": "object", "description": "An item of the Responses API."}
_GIVEN: dict[str, Any] = {  # a message need not say that it is one
    **_ITEM,
    "properties": {"type": _NAMED, "role": _TEXT_OR_NULL},
    "anyOf": [
        {"required": ["role"], "properties": {"role": {"type": "string"}}},
        {"required": ["type"], "properties": {"type": {"not": {"enum": ["message", "item_reference"]}}}},
    ],
}
_INPUT: dict[str, Any] = {
    "description": "A text that the user says, or items. A last item `compaction_trigger` asks for a compaction.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": _GIVEN}, {"type": "null"}],
}
_USAGE: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in ("input_tokens", "output_tokens", "total_tokens")},
    "required": ["input_tokens", "output_tokens", "total_tokens"],
}
_COMMON: dict[str, Any] = {
    "input": _INPUT,
    "instructions": _TEXT_OR_NULL,
    "previous_response_id": _TEXT_OR_NULL,
    "tools": {"type": ["array", "null"], "items": {"type": "object"}},
}
_WITH_INPUT = [{"required": ["input"]}, {"required": ["previous_response_id"]}]
_MANAGEMENT: dict[str, Any] = {
    "type": ["array", "null"],
    "items": {
        "type": "object",
        "properties": {
            "type": {"const": "compaction"},
            "compact_threshold": {"type": ["integer", "null"], "minimum": 1, "description": "tokens"},
        },
        "required": ["type"],
    },
}


def description() -> dict[str, Any]:
    """The document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "refold's gateway", "version": __version__},
        "paths": {
            "/v1/responses": {"post": _responses()},
            "/v1/responses/compact": {"post": _compact()},
            "/v1/responses/input_tokens": {"post": _input_tokens()},
            "/v1/responses/{response_id}": {"get": _stored(), "delete": _deleted(), "parameters": [_by_id()]},
            "/v1/models": {"get": _operation("models", {"200": _answer({"type": "object"})})},
            "/metrics": {"get": _operation("metrics", {"200": {"description": "Prometheus text", "content": _text()}})},
            "/healthz": {"get": _operation("health", {"200": _answer(_object({"status": {"const": "ok"}}))}, ())},
            "/openapi.json": {"get": _operation("openapi", {"200": _answer({"type": "object"})}, ())},
        },
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _error()},
        },
        "security": [{"bearer": []}, {}],
    }


def _responses() -> dict[str, Any]:
    more = {
        "model": _NAMED,
        "stream": {"type": ["boolean", "null"]},
        "store": {"type": ["boolean", "null"]},
        "context_management": _MANAGEMENT,
    }
    asked = {"type": "object", "properties": {**_COMMON, **more}, "required": ["model"], "anyOf": _WITH_INPUT}
    response = {
        "type": "object",
        "properties": {"output": {"type": "array", "items": _ITEM}},
        "required": ["output"],
    }
    content = {JSON: {"schema": response}, "text/event-stream": {"schema": {"type": "string"}}}
    answers = {"200": {"description": "The response, or its events.", "content": content}}
    return {**_operation("create_response", answers), "requestBody": _body(asked)}


def _compact() -> dict[str, Any]:
    asked = {
        "type": "object",
        "properties": {**_COMMON, "model": _NAMED},
        "required": ["model"],
        "anyOf": _WITH_INPUT,
    }
    told = {
        "id": {"type": "string"},
        "object": {"const": "response.compaction"},
        "created_at": {"type": "integer", "description": "seconds since 1970"},
        "output": {"type": "array", "items": _ITEM, "minItems": 1},
        "usage": _USAGE,
    }
    return {**_operation("compact_response", {"200": _answer(_object(told))}), "requestBody": _body(asked)}


def _input_tokens() -> dict[str, Any]:
    asked = {"type": "object", "properties": {**_COMMON, "model": _TEXT_OR_NULL}, "anyOf": _WITH_INPUT}
    told = {"object": {"const": "response.input_tokens"}, "input_tokens": {"type": "integer", "minimum": 0}}
    return {**_operation("count_input_tokens", {"200": _answer(_object(told))}), "requestBody": _body(asked)}


def _stored() -> dict[str, Any]:
    return _operation("get_response", {"200": _answer({"type": "object"})}, (*_REFUSALS, "404"))


def _deleted() -> dict[str, Any]:
    told = {"id": {"type": "string"}, "object": {"const": "response"}, "deleted": {"const": True}}
    return _operation("delete_response", {"200": _answer(_object(told))}, (*_REFUSALS, "404"))


# --- parts -------------------------------------------------------------------------------------------------


def _operation(name: str, answers: dict[str, Any], refusals: tuple[str, ...] = _REFUSALS) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    refused = {status: {"description": "Refused.", "content": {JSON: error}} for status in refusals}
    more = {} if refusals else {"security": []}
    return {"operationId": name, "responses": {**answers, **refused}, **more}


def _answer(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "The answer.", "content": {JSON: {"schema": schema}}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _by_id() -> dict[str, Any]:
    return {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _text() -> dict[str, Any]:
    return {"text/plain": {"schema": {"type": "string"}}}


def _error() -> dict[str, Any]:
    told = {
        "message": {"type": "string"},
        "type": {"type": ["string", "null"]},
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "integer", "null"]},
    }
    return _object({"error": {"type": "object", "properties": told, "required": ["message"]}})
