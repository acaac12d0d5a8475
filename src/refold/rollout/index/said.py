"""Said: the text of a line that a search looks through: what people and models wrote, commands, and their outputs."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from refold.core.fragments import SUMMARY_MARK, origin_of, typed_parts
from refold.core.items import Item, message_text
from refold.core.jsonio import dump, is_list, is_object
from refold.core.lines import decode
from refold.core.records import Compacted, ItemRecorded, Named
from refold.rollout.index.whole import Whole

MESSAGE_CHARS = 20_000  # of one record: what people and models write is nearly never longer
OUTPUT_CHARS = 4_000  # the same of a tool's output: logs would be most of an index

# How a line begins that holds no such text: mirrors, accounts, snapshots, our own lines save a name.
_PASSED = re.compile(
    rb'\{"timestamp":"[^"]*",(?:"ordinal":\d{1,18},)?"type":"(?:(?:world_state|token_usage_record|retained_context'
    rb'|session_meta|turn_context)"|event_msg","payload":\{"type":"(?!thread_name_updated")'
    rb'|refold","payload":\{"kind":"(?!named"))'
)


class Said(msgspec.Struct, frozen=True, gc=False):
    """One record's text, and where it stands."""

    ordinal: int
    kind: str  # user, assistant, agent, reasoning, call, output, summary or name
    body: str


def said(raw: bytes, number: int, whole: Whole) -> Said | None:
    """The text of one line; None where it holds none."""
    if _PASSED.match(raw) is not None:
        return None
    line = decode(whole.line(raw), number)
    if line is None:
        return None
    match line.record:
        case ItemRecorded(item=item):
            kind, body = _of_item(item)
        case Compacted(message=message):
            kind, body = "summary", message.removeprefix(SUMMARY_MARK)
        case Named(name=name):
            kind, body = "name", name
        case _:
            return None
    return Said(line.ordinal, kind, _limited(body, kind)) if body.strip() else None


def _of_item(item: Item) -> tuple[str, str]:
    match item.get("type"):
        case "message":
            return _of_message(item)
        case "agent_message":
            return "agent", message_text(item)
        case "reasoning":
            return "reasoning", "\n".join(_texts(item.get("summary")))
        case "function_call":
            return "call", f"{item.get('name')} {_command(item.get('arguments'))}"
        case "custom_tool_call":
            return "call", f"{item.get('name')} {_plain(item.get('input'))}"
        case "local_shell_call" | "web_search_call":
            action = item.get("action")
            return "call", " ".join(map(_plain, action.values())) if is_object(action) else ""
        case "function_call_output" | "custom_tool_call_output":
            return "output", message_text(item)
        case _:
            return "", ""


def _of_message(item: Item) -> tuple[str, str]:
    match origin_of(item):
        case "typed":
            return "user", "".join(typed_parts(item)[0])
        case "model":
            return "assistant", message_text(item)
        case "summary":
            return "summary", message_text(item).removeprefix(SUMMARY_MARK)
        case _:
            return "", ""  # what was injected is told again and again


def _command(arguments: Any) -> str:
    """What a call asks for: its command where it has one."""
    if not isinstance(arguments, str):
        return _plain(arguments)
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return arguments
    command = (value.get("cmd") or value.get("command")) if is_object(value) else None
    return _plain(command) if command else arguments


def _plain(value: Any) -> str:
    if is_list(value):
        return " ".join(map(_plain, value))
    return value if isinstance(value, str) else dump(value).decode()


def _texts(parts: Any) -> list[str]:
    return [str(part.get("text") or "") for part in parts if is_object(part)] if is_list(parts) else []


def _limited(text: str, kind: str) -> str:
    """The beginning of a text that is too long; of an output its end, too, where errors stand."""
    text = text.replace("\0", " ")
    if kind != "output":
        return text[:MESSAGE_CHARS]
    if len(text) <= OUTPUT_CHARS:
        return text
    tail = OUTPUT_CHARS // 4
    return f"{text[: OUTPUT_CHARS - tail]}\n…\n{text[-tail:]}"
