"""Schemas: the shapes of requests and answers in the gateway's OpenAPI document, and an example of each.

Formats of its own: `refold-sealed`, an `encrypted_content` that this gateway made for this tenant; `response-id`, the
id of a response that is stored, or was the last one of the connection.
"""

from __future__ import annotations

from typing import Any

from refold.core.compaction.shadow import SEALED_TYPES
from refold.server.incoming import ELSEWHERE, LEAST_THRESHOLD, TRIGGER

SEALED, RESPONSE_ID = "refold-sealed", "response-id"
STATUSES = ["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
# Items that the gateway knows beside messages and compactions: passed on, said in other words, or left out.
KNOWN = """function_call function_call_output reasoning custom_tool_call custom_tool_call_output local_shell_call
local_shell_call_output tool_search_call tool_search_output agent_message additional_tools""".split()  # noqa: SIM905
REFUSED = "item_reference"

QUESTION = {"model": "m", "input": "Why is the sky blue?"}
_SAID = {"type": "message", "role": "user", "content": "Make the parser faster."}
_DONE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It uses a table now."}]}
HISTORY = {"model": "m", "input": [_SAID, _DONE]}
COMPACTION = {"model": "m", "input": [_SAID, _DONE, {"type": TRIGGER}], "stream": True}
INLINE = {**HISTORY, "context_management": [{"type": "compaction", "compact_threshold": 100_000}]}
ITEMS = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
        {"type": "function_call", "name": "run", "arguments": '{"command":"ls"}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
    ],
    "tools": [
        {"type": "function", "name": "run", "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch"},
    ],
    "instructions": "Be brief.",
    "store": False,
}
_USED: dict[str, Any] = {
    "input_tokens": 500,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 520,
}
ANSWER: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_800_000_000,
    "status": "completed",
    "model": "m",
    "output": [{**_DONE, "id": "msg_1", "status": "completed"}],
    "usage": _USED,
    "error": None,
}
COMPACTED = {
    "id": "resp_2",
    "object": "response.compaction",
    "created_at": 1_800_000_000,
    "output": [
        {**_SAID, "id": "msg_1", "status": "completed", "content": [{"type": "input_text", "text": _SAID["content"]}]},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "…"},
    ],
    "usage": _USED,
}

_TEXT: dict[str, Any] = {"type": "string"}
_NAME: dict[str, Any] = {"type": "string", "minLength": 1}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_SWITCH: dict[str, Any] = {"type": ["boolean", "null"]}


def described() -> dict[str, Any]:
    """The schemas by their names."""
    return {
        "Message": _message(),
        "KnownItem": _typed({"enum": KNOWN}, "Calls, their outputs, reasoning and what brings tools."),
        "SealedItem": _sealed(),
        "OtherItem": _other(),
        "Trigger": _typed({"const": TRIGGER}, "As the last item: asks for a compaction of those before it."),
        "Tools": {"type": ["array", "null"], "items": {"type": "object"}},
        "ContextManagement": _management(),
        "ResponseRequest": _request(_triggered(), needs_model=True),
        "CompactionRequest": _request(_items(), needs_model=True),
        "InputTokensRequest": _request(_triggered(), needs_model=False),
        "OutputItem": _output_item(),
        "Usage": _usage(),
        "Response": _response(),
        "Event": _event(),
        "ServerSentEvent": _sent(),
        "Compaction": _compaction(),
        "InputTokens": _exactly(
            object={"const": "response.input_tokens"}, input_tokens={"type": "integer", "minimum": 0}
        ),
        "Deleted": _exactly(id=_NAME, object={"const": "response"}, deleted={"const": True}),
        "Models": _models(),
        "Health": _exactly(status={"const": "ok"}),
        "Error": _error(),
    }


# --- requests ----------------------------------------------------------------------------------------------


def _request(listed: dict[str, Any], *, needs_model: bool) -> dict[str, Any]:
    """A request's body: an input, or a response to go on from."""
    given: dict[str, Any] = {
        "description": "A text that the user says, or items.",
        "anyOf": [_TEXT, listed, {"type": "null"}],
    }
    nothing = {"enum": [None, False], "description": "Not kept by a gateway."}
    properties = {
        "model": _NAME if needs_model else _TEXT_OR_NULL,
        "input": given,
        "instructions": _TEXT_OR_NULL,
        "previous_response_id": {"anyOf": [{**_NAME, "format": RESPONSE_ID}, {"type": "null"}]},
        "tools": _ref("Tools"),
        "context_management": _ref("ContextManagement"),
        "stream": _SWITCH,
        "store": _SWITCH,
        **dict.fromkeys(ELSEWHERE, nothing),
    }
    goes_on = {"required": ["previous_response_id"], "properties": {"previous_response_id": _NAME}}
    begins = {"required": ["input"], "properties": {"input": {"type": ["string", "array"]}}}
    required = {"required": ["model"]} if needs_model else {}
    return {"type": "object", "properties": properties, **required, "anyOf": [begins, goes_on]}


def _items() -> dict[str, Any]:
    kinds = [_ref(name) for name in ("Message", "KnownItem", "SealedItem", "OtherItem")]
    return {"type": "array", "items": {"anyOf": kinds}}


def _triggered() -> dict[str, Any]:
    items = _items()["items"]["anyOf"]
    return {"type": "array", "items": {"anyOf": [*items, _ref("Trigger")]}}


def _message() -> dict[str, Any]:
    return {
        "description": "What somebody says; it need not say that it is a message.",
        "type": "object",
        "properties": {"type": {"enum": ["message", None]}, "role": _TEXT},
        "required": ["role"],
    }


def _typed(kind: dict[str, Any], about: str, **more: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": kind, "role": _TEXT_OR_NULL, **more}
    return {"description": about, "type": "object", "properties": properties, "required": ["type", *more]}


def _sealed() -> dict[str, Any]:
    about = "What takes a history's place. The model is told it as a summary."
    content = {"type": "string", "format": SEALED}
    return _typed({"enum": sorted(SEALED_TYPES)}, about, encrypted_content=content)


def _other() -> dict[str, Any]:
    about = "Any other item: left out, passed on or refused, as the gateway is set."
    known = ["message", *KNOWN, *sorted(SEALED_TYPES), TRIGGER, REFUSED]
    return _typed({**_NAME, "not": {"enum": known}}, about)


def _management() -> dict[str, Any]:
    threshold = {"type": ["integer", "null"], "minimum": LEAST_THRESHOLD, "description": "tokens"}
    entry = {
        "type": "object",
        "properties": {"type": {"const": "compaction"}, "compact_threshold": threshold},
        "required": ["type"],
    }
    return {"type": ["array", "null"], "items": entry}


# --- answers -----------------------------------------------------------------------------------------------


def _output_item() -> dict[str, Any]:
    sealed = {
        "if": {"properties": {"type": {"const": "compaction"}}},
        "then": {"properties": {"id": _NAME, "encrypted_content": _NAME}, "required": ["id", "encrypted_content"]},
    }
    return {"type": "object", "properties": {"type": _NAME}, "required": ["type"], **sealed}


def _usage() -> dict[str, Any]:
    count = {"type": "integer", "minimum": 0}
    return {
        "type": "object",
        "properties": dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), count),
        "required": ["input_tokens", "output_tokens", "total_tokens"],
    }


def _response() -> dict[str, Any]:
    return {
        "description": "As the upstream made it, so far as it keeps to the API; its other keys pass.",
        "type": "object",
        "properties": {
            "id": _NAME,
            "object": {"const": "response"},
            "created_at": {"type": "number", "description": "seconds since 1970"},
            "status": {"enum": STATUSES},
            "output": {"type": "array", "items": _ref("OutputItem")},
            "usage": {"anyOf": [_ref("Usage"), {"type": "null"}]},
            "previous_response_id": _TEXT_OR_NULL,
            "error": {"type": ["object", "null"]},
        },
        "required": ["id", "object", "status", "output"],
    }


def _event() -> dict[str, Any]:
    return {
        "description": "What happens to a response. Those that begin and end it hold it.",
        "type": "object",
        "properties": {
            "type": _NAME,
            "sequence_number": {"type": "integer", "minimum": 0},
            "response": _ref("Response"),
        },
        "required": ["type"],
    }


def _sent() -> dict[str, Any]:
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref("Event")}
    return {"type": "object", "properties": {"event": _NAME, "data": data}, "required": ["event", "data"]}


def _compaction() -> dict[str, Any]:
    sealed = {"type": "object", "properties": {"type": {"const": "compaction"}}, "required": ["type"]}
    output = {
        "description": "Messages, then one item for what they do not say.",
        "type": "array",
        "items": _ref("OutputItem"),
        "contains": sealed,
    }
    return _exactly(
        id=_NAME,
        object={"const": "response.compaction"},
        created_at={"type": "integer", "description": "seconds since 1970"},
        output=output,
        usage=_ref("Usage"),
    )


def _models() -> dict[str, Any]:
    model = {"type": "object", "properties": {"id": _NAME}, "required": ["id"]}
    return {
        "type": "object",
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": model}},
        "required": ["data"],
    }


def _error() -> dict[str, Any]:
    told = {"message": _TEXT, "type": _TEXT_OR_NULL, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL}
    return _exactly(error={"type": "object", "properties": told, "required": [*told]})


def _exactly(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object of the gateway's own: with these keys, and no others."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
