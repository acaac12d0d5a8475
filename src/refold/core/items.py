"""Responses items: what they look like, questions about them, and how to make them (spec §3.1, §8.3).

An item *is* its JSON object. Rule 1: nobody mutates an item; a changed item is a new dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

import msgspec

from refold.core.jsonio import dump, is_list, is_object, load

Item: TypeAlias = dict[str, Any]  # one JSON object of the Responses protocol; the JSON border
Part: TypeAlias = dict[str, Any]  # one content part of an item
Role: TypeAlias = Literal["user", "developer", "assistant", "system"]


class TextPart(TypedDict):
    type: Literal["input_text", "output_text"]
    text: str


class Message(TypedDict):
    type: Literal["message"]
    role: Role
    content: list[Part]
    id: NotRequired[str]
    phase: NotRequired[str]


class FunctionCall(TypedDict):
    type: Literal["function_call"]
    name: str
    arguments: str  # JSON text
    call_id: str
    id: NotRequired[str]
    namespace: NotRequired[str]


class FunctionCallOutput(TypedDict):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Part]
    id: NotRequired[str]


class Compaction(TypedDict):
    type: Literal["compaction"]
    encrypted_content: str
    id: NotRequired[str]


class AgentEnvelope(msgspec.Struct):
    """One agent's message to another, as it stands in an assistant message and in `inter_agent_communication`."""

    author: str
    recipient: str
    content: str
    trigger_turn: bool
    encrypted_content: str | None = None


_envelope = msgspec.json.Decoder(AgentEnvelope).decode

# The key under which the real program keeps turn id and kinds inside a stored item. Never sent, save to OpenAI.
PASSTHROUGH = "internal_chat_message_metadata_passthrough"

OPENAI_ONLY_KEYS = frozenset({PASSTHROUGH, "encrypted_function_args"})  # other providers answer 400 to them (spec §3.6)

# call type -> type of the output that answers it
OUTPUT_TYPE_OF: dict[str, str] = {
    "function_call": "function_call_output",
    "local_shell_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "tool_search_call": "tool_search_output",
}
OUTPUT_TYPES = frozenset(OUTPUT_TYPE_OF.values())

# item type -> the key of its body: a text, or a list of parts
BODY_KEYS: dict[str, str] = {
    "message": "content",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
}

# call type -> the key of what it asks for, a text
ASKED_KEYS: dict[str, str] = {"function_call": "arguments", "custom_tool_call": "input"}

# What enters history; everything else is kept in the log only (spec §3.1).
HISTORY_TYPES = frozenset(
    {
        "message",
        "agent_message",
        "additional_tools",
        "function_call",
        "function_call_output",
        "tool_search_call",
        "tool_search_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "reasoning",
        "web_search_call",
        "image_generation_call",
        "compaction",
        "compaction_summary",
        "context_compaction",
    }
)

# What the model itself wrote: the server's usage counts it, so the local tail starts after it (spec §1.5).
MODEL_TYPES = frozenset(
    {
        "reasoning",
        "function_call",
        "tool_search_call",
        "web_search_call",
        "image_generation_call",
        "custom_tool_call",
        "local_shell_call",
        "compaction",
        "compaction_summary",
        "context_compaction",
    }
)

ID_PREFIX: dict[str, str] = {
    "message": "msg",
    "agent_message": "amsg",
    "reasoning": "rs",
    "local_shell_call": "lsh",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "web_search_call": "ws",
    "image_generation_call": "ig",
    "compaction": "cmp",
    "compaction_summary": "cmp",
    "context_compaction": "cmp",
    "additional_tools": "at",
}


# --- questions ---------------------------------------------------------------------------------------


def enters_history(item: Item) -> bool:
    """Whether a recorded item becomes part of the history (spec §3.1)."""
    kind = item.get("type")
    return isinstance(kind, str) and kind in HISTORY_TYPES and item.get("role") != "system"


def is_model_generated(item: Item) -> bool:
    """Whether the model wrote this item, so that the server's usage already counts it (spec §1.5)."""
    kind = item.get("type")
    return (isinstance(kind, str) and kind in MODEL_TYPES) or (kind == "message" and item.get("role") == "assistant")


def is_call(item: Item) -> bool:
    """Whether this item asks for an output (a call whose id is null, empty or no text asks for none)."""
    call_id = item.get("call_id")
    kind = item.get("type")
    return isinstance(kind, str) and kind in OUTPUT_TYPE_OF and isinstance(call_id, str) and bool(call_id)


def is_output(item: Item) -> bool:
    kind = item.get("type")
    return isinstance(kind, str) and kind in OUTPUT_TYPES


def is_agent_envelope(item: Item) -> bool:
    """Whether an assistant message is what another agent said, in the form from before `agent_message`: its one text
    is a JSON object that names author, recipient, content and whether a turn begins (spec §3.4)."""
    match item:
        case {"type": "message", "role": "assistant", "content": [{"text": str(text)}]} if '"trigger_turn"' in text:
            try:
                _envelope(text)
            except ValueError:  # msgspec's errors, and a text that does not encode
                return False
            return True
        case _:
            return False


def answers(output: Item, call: Item) -> bool:
    """Whether `output` is the kind of item that answers `call`, for the same call id."""
    return output.get("type") == OUTPUT_TYPE_OF.get(call.get("type", "")) and output.get("call_id") == call.get(
        "call_id"
    )


def content_parts(item: Item) -> list[Part]:
    """The list parts of a message's content or of a list-form output; a bare string counts as one text part."""
    body = item.get("content") if "content" in item else item.get("output")
    if isinstance(body, str):
        return [{"type": "input_text", "text": body}]
    return [part for part in body if is_object(part)] if is_list(body) else []


def message_texts(item: Item) -> list[str]:
    """The text of each text part, in order."""
    return [part["text"] for part in content_parts(item) if isinstance(part.get("text"), str)]


def message_text(item: Item) -> str:
    """All text parts joined with no separator (spec §5.3)."""
    return "".join(message_texts(item))


# --- constructors --------------------------------------------------------------------------------------


def message(role: Role, texts: Sequence[str], *, id: str | None = None) -> Item:
    """A message of one text part per text; `output_text` parts for the assistant."""
    kind = "output_text" if role == "assistant" else "input_text"
    item: Item = {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}
    return item if id is None else {"type": "message", "id": id, **{k: v for k, v in item.items() if k != "type"}}


def user_message(text: str, *, id: str | None = None) -> Item:
    return message("user", [text], id=id)


def agent_message(told: AgentEnvelope) -> Item:
    """The item that an `inter_agent_communication` line stands for: the text, or its heading and what is encrypted."""
    parts: list[Part] = [{"type": "input_text", "text": told.content}]
    if told.encrypted_content is not None:
        kind = "NEW_TASK" if told.trigger_turn else "MESSAGE"
        head = f"Message Type: {kind}\nTask name: {told.recipient}\nSender: {told.author}\nPayload:\n"
        encrypted = {"type": "encrypted_content", "encrypted_content": told.encrypted_content}
        parts = [{"type": "input_text", "text": head}, encrypted]
    return {"type": "agent_message", "author": told.author, "recipient": told.recipient, "content": parts}


def function_call_output(call_id: str, output: str | list[Part], *, id: str | None = None) -> Item:
    head: Item = {"type": "function_call_output"}
    if id is not None:
        head["id"] = id
    return {**head, "call_id": call_id, "output": output}


def output_for(call: Item, output: str | list[Part], *, id: str | None = None) -> Item:
    """The output item of the right type for `call`."""
    kind = OUTPUT_TYPE_OF[call["type"]]
    if kind == "tool_search_output":
        body: Item = {"call_id": call["call_id"], "status": "completed", "execution": "client", "tools": []}
    else:
        body = {"call_id": call["call_id"], "output": output}
    return {"type": kind, **({} if id is None else {"id": id}), **body}


def with_id(item: Item, new_id: str) -> Item:
    """The item with an id right after its type, unless it has one."""
    if item.get("id"):
        return item
    return {"type": item.get("type"), "id": new_id, **{k: v for k, v in item.items() if k not in ("type", "id")}}


# --- spelling ------------------------------------------------------------------------------------------


def spelled(item: Item, *, with_metadata: bool = False) -> Item:
    """An item as a provider may be sent it: without what only the log needs, without an id that it would refuse.

    Arguments that are no text become their JSON text, as do outputs and parts of a shape that no provider takes.
    `with_metadata` keeps what OpenAI alone takes, less provenance.
    """
    changed: Item = {}
    kind = item.get("type")
    if isinstance(kind, str):
        asked, key = ASKED_KEYS.get(kind), BODY_KEYS.get(kind)
        if asked is not None and not isinstance(item.get(asked), str):
            changed[asked] = dump(item[asked]).decode() if asked in item else ""
        if key is not None and not _is_body(body := item.get(key)):
            changed[key] = [as_part(part, item) for part in body] if is_list(body) else as_text(body)
    about = item.get(PASSTHROUGH)
    if with_metadata and is_object(about) and "content_item_metadata" in about:
        changed[PASSTHROUGH] = {key: value for key, value in about.items() if key != "content_item_metadata"}
    private = not with_metadata and not OPENAI_ONLY_KEYS.isdisjoint(item)
    unnamed = "id" in item and not _is_sendable_id(item["id"])
    if not (changed or private or unnamed):
        return item
    sent = {**item, **changed}
    for key in OPENAI_ONLY_KEYS if private else ():
        sent.pop(key, None)
    if unnamed:
        del sent["id"]
    return sent


def without_detail(item: Item) -> Item:
    """The item without the `detail` of its images."""
    key = BODY_KEYS.get(str(item.get("type")))
    body = item.get(key) if key else None
    if key is None or not is_list(body) or not any("detail" in part for part in body):
        return item
    return {**item, key: [{name: value for name, value in part.items() if name != "detail"} for part in body]}


def argument_fault(call: Item) -> str | None:
    """What is wrong with a function call's arguments, which should be the JSON text of an object; None: nothing."""
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return "arguments are not a text"
    if not arguments.strip():
        return "arguments are empty"
    try:
        value = msgspec.json.decode(arguments)  # strictly, as a server may
    except (msgspec.DecodeError, RecursionError) as error:
        return f"arguments are not JSON: {_why(arguments) or error}"
    return None if is_object(value) else "arguments are not a JSON object"


def _why(text: str) -> str:
    """Where a text stops being JSON, in words; "" where a forgiving reader would take it."""
    try:
        load(text.encode("utf-8", "replace"))
    except ValueError as error:
        return str(error)
    return ""


def _is_body(body: Any) -> bool:
    """Whether this is what a message or an output may hold: a text, or a list of objects."""
    return isinstance(body, str) or (is_list(body) and all(map(is_object, body)))


def as_text(value: Any) -> str:
    """A text as it is; of anything else its JSON text, of null none."""
    if isinstance(value, str):
        return value
    return "" if value is None else dump(value).decode()


def as_part(part: Any, item: Item) -> Part:
    """A part as it is; of anything else in a list of parts, a text part."""
    if is_object(part):
        return part
    return {"type": "output_text" if item.get("role") == "assistant" else "input_text", "text": as_text(part)}


def _is_sendable_id(value: Any) -> bool:
    """Providers accept ids of the form `x_y`, both halves not empty."""
    if not isinstance(value, str):
        return False
    return 0 < value.find("_") < len(value) - 1
