"""Flattened: a history as one text, for models that answer the items themselves with the next tool call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from refold.core.compaction.replacement import LEFT_OUT
from refold.core.history import Entry, entry
from refold.core.items import Item, content_parts, spelled, user_message
from refold.core.jsonio import dump, is_list, is_object
from refold.core.prompt import Prompt
from refold.core.templates import template
from refold.core.tokens import utf8_len
from refold.core.truncate import Budget, cut_middle, tokens_for

MESSAGE_TOKENS = 10_000  # of what somebody said: almost always all of it
OUTPUT_TOKENS = 2_000  # of a tool's output: its beginning and end tell how it went
CALL_TOKENS = 1_000  # of a call's arguments, which may hold whole files
LEAST_TOKENS = 16  # a cut that leaves less than this says nothing
ALSO_SAID = {"input_image": "image", "input_audio": "audio", "encrypted_content": "encrypted text"}
UNREADABLE = "(an earlier part of the session, which only its provider can read)"


class Transcript(msgspec.Struct, frozen=True):
    """A readable text of entries, and how many of the oldest had no room in it."""

    text: str
    left_out: int


def request(history: Sequence[Entry], budget: int, *, handoff: str | None) -> tuple[Prompt, int]:
    """The newest summary as it is, the transcript of the rest, the handoff text; and how many entries were left out.

    `budget`: tokens of summary and transcript. Instructions of its own take the place of the base instructions, which
    ask for work to be done. What was injected is not told: it will be told anew.
    """
    summaries = [e for e in history if e.origin == "summary"][-1:]
    rest = [e for e in history if e.origin not in ("summary", "injected")]
    written = transcript(rest, max(LEAST_TOKENS, budget - sum(e.tokens for e in summaries)))
    texts = [text for text in (written.text, handoff or template("handoff")) if text]
    entries = (*summaries, *(entry(user_message(text), "") for text in texts))
    base = template("flattened")
    tokens = tokens_for(utf8_len(base)) + sum(e.tokens for e in entries)
    return Prompt(entries=entries, tokens=tokens, base_instructions=base), written.left_out


def transcript(history: Sequence[Entry], budget: int) -> Transcript:
    """Who said, called and got what, one paragraph each in order, within so many tokens: the newest are kept."""
    names = {
        e.item["call_id"]: _called(e.item) for e in history if isinstance(e.item.get("call_id"), str) and _is_call(e)
    }
    kept: list[str] = []
    room, left_out = budget, 0
    for index in range(len(history) - 1, -1, -1):
        said = paragraph(history[index].item, names)
        if not said:
            continue
        cost = tokens_for(utf8_len(said) + 2)  # the empty line between two
        if cost > room and not kept:  # the newest is worth telling in part
            said, cost = cut_middle(said, Budget("tokens", max(LEAST_TOKENS, room))), room
        if cost > room:
            left_out = sum(1 for e in history[: index + 1] if paragraph(e.item, names))
            break
        kept.append(said)
        room -= cost
    head = [f"({left_out} earlier items left out)"] if left_out else []
    return Transcript("\n\n".join([*head, *reversed(kept)]), left_out)


def paragraph(item: Item, names: dict[str, str]) -> str:
    """An item as a person would write it down, with who said it; "" for what holds nothing to read.

    `names`: call id → the tool that was called.
    """
    item = spelled(item)
    kind = str(item.get("type"))
    match kind:
        case "message":
            return _told(_speaker(item), _words(item), MESSAGE_TOKENS)
        case "agent_message":
            return _told(f"agent {item.get('author')}", _words(item), MESSAGE_TOKENS)
        case "reasoning":
            return _told("assistant, thinking", "\n".join(_summary(item)), CALL_TOKENS)
        case "compaction" | "compaction_summary" | "context_compaction":
            return UNREADABLE
        case "image_generation_call":
            return _told(
                "assistant draws", f"{item.get('revised_prompt') or ''}\n{LEFT_OUT.format('image')}", CALL_TOKENS
            )
        case _ if kind.endswith("_output"):
            call_id = item.get("call_id")
            name = names.get(call_id, "a tool") if isinstance(call_id, str) else "a tool"
            return _told(f"output of {name}", _words(item) or "(empty)", OUTPUT_TOKENS)
        case "function_call" | "custom_tool_call":
            asked = item["arguments" if kind == "function_call" else "input"]
            return _told(f"assistant calls {_called(item)}", asked or "(nothing)", CALL_TOKENS)
        case _:  # a search, a call of an older kind, what this version does not know
            rest = {key: value for key, value in item.items() if key not in ("type", "id", "call_id", "status")}
            return _told(f"assistant, {kind}", dump(rest).decode(), CALL_TOKENS)


def _told(who: str, what: str, tokens: int) -> str:
    what = what.strip()
    return f"[{who}]\n{cut_middle(what, Budget('tokens', tokens))}" if what else ""


def _speaker(item: Item) -> str:
    role = str(item.get("role"))
    return role if role in ("user", "assistant") else f"{role} message"


def _words(item: Item) -> str:
    """The texts of a body, one to a line, with a short word for each medium."""
    if item.get("type") == "tool_search_output":
        return dump(item.get("tools")).decode()
    return "\n".join(_part_words(content_parts(item)))


def _part_words(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        text = part.get("text")
        if isinstance(text, str):
            yield text
        elif part.get("type") == "refusal":
            yield str(part.get("refusal"))
        else:
            kind = str(part.get("type"))
            yield LEFT_OUT.format(ALSO_SAID.get(kind, kind))


def _summary(item: Item) -> Iterator[str]:
    parts = item.get("summary")
    for part in parts if is_list(parts) else ():
        if is_object(part) and isinstance(part.get("text"), str):
            yield part["text"]


def _called(item: Item) -> str:
    name = item.get("name")
    return name if isinstance(name, str) and name else str(item.get("type")).removesuffix("_call")


def _is_call(e: Entry) -> bool:
    return str(e.item.get("type")).endswith("_call")
