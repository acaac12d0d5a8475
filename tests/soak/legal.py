"""Legal: what a provider would refuse in a request; written beside the library, not with its own passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from refold.core.items import HISTORY_TYPES, OPENAI_ONLY_KEYS, OUTPUT_TYPE_OF, OUTPUT_TYPES, PASSTHROUGH, Item
from refold.core.profile import Provider


def faults(raw: bytes, provider: Provider) -> list[str]:
    """What a provider would refuse in a request's body; empty when it is legal."""
    try:
        body = msgspec.json.decode(raw)  # strict: UTF-8, no half of a surrogate pair, no NaN
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return [f"the body is not strict JSON: {error}"]
    items: list[Item] = body["input"]
    ids = [item["id"] for item in items if "id" in item]
    found = [] if len(ids) == len(set(ids)) else ["two items with one id"]
    return found + [fault for item in items for fault in _item_faults(item, provider)] + _pairing_faults(items)


def _item_faults(item: Item, provider: Provider) -> Iterator[str]:
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in HISTORY_TYPES:
        yield "an item of a type that no provider knows"
        return
    if item.get("role") == "system":
        yield "a system message"
    if item.get("role") == "developer" and provider.developer_role != "developer":
        yield "a role that this provider does not know"
    if "id" in item and not provider.send_item_ids:
        yield "an id for a provider that takes none"
    if "id" in item and not _has_two_halves(item["id"]):
        yield "an id that is not of the form x_y"
    if kind == "function_call" and not isinstance(item.get("arguments"), str):
        yield "a function_call whose arguments are no text"
    elif kind == "function_call" and provider.repair_call_arguments and not _is_object_text(item["arguments"]):
        yield "arguments that are no object, for a provider that reads them"
    if kind == "custom_tool_call" and not isinstance(item.get("input"), str):
        yield "a custom_tool_call whose input is no text"
    if kind == "message" and not _is_body(item.get("content")):
        yield "a message that is neither text nor parts"
    if kind in ("function_call_output", "custom_tool_call_output") and not _is_body(item.get("output")):
        yield "an output that is neither text nor parts"
    about = item.get(PASSTHROUGH)
    if provider.is_openai:
        if isinstance(about, dict) and "content_item_metadata" in about:
            yield "provenance that only the log needs"
    elif any(key in item for key in OPENAI_ONLY_KEYS):
        yield "a key that only OpenAI takes"


def _has_two_halves(value: Any) -> bool:
    return isinstance(value, str) and "_" in value[1:-1] and all(value.partition("_")[::2])


def _is_object_text(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _is_body(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, dict) for part in value))


def _pairing_faults(items: list[Item]) -> list[str]:
    found: list[str] = []
    due: dict[str, str] = {}  # call id → the type of its output
    answers: dict[str, int] = {}
    by_server: set[str] = set()
    for item in items:
        kind, call_id = str(item.get("type")), item.get("call_id")
        if kind in OUTPUT_TYPE_OF and isinstance(call_id, str) and call_id:
            if call_id in due:
                found.append("two calls with one call id")
            due[call_id] = OUTPUT_TYPE_OF[kind]
        elif kind == "tool_search_output" and (item.get("execution") == "server" or call_id is None):
            by_server.add(str(call_id))  # needs no call, but may answer one
        elif kind in OUTPUT_TYPES:
            if not isinstance(call_id, str) or due.get(call_id) != kind:
                found.append("an output without a call of its kind before it")
            else:
                answers[call_id] = answers.get(call_id, 0) + 1
    found += ["a call with more than one output" for count in answers.values() if count > 1]
    found += ["a call without an output" for call_id in due if call_id not in answers and call_id not in by_server]
    return found
