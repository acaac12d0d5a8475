"""Shown: an item in words that a person reads."""

from __future__ import annotations

import re

from refold.core.items import Item, content_parts, message_text
from refold.core.jsonio import dump

# A log must not move the cursor, set the title or hide what it says: C0, DEL, C1, and what turns the text's direction.
CONTROL = dict.fromkeys(
    code
    for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if code not in (9, 10)
)


# What a terminal acts on: colours and cursor movements, titles and the like up to their end on the same line, the rest.
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[P\]X^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b[0-OQ-WYZ`-~\\]"
)


def shown_text(item: Item) -> str:
    """The readable body of an item: its text, its call, its output; media as a short note."""
    match item.get("type"):
        case "message" | "agent_message":
            text = message_text(item)
            media = [str(part.get("type")) for part in content_parts(item) if "text" not in part]
        case "function_call":
            text, media = f"{item.get('name')} {_plain(item.get('arguments'))}", []
        case "custom_tool_call":
            text, media = f"{item.get('name')} {_plain(item.get('input'))}", []
        case "function_call_output" | "custom_tool_call_output":
            text = message_text(item)
            media = [str(part.get("type")) for part in content_parts(item) if "text" not in part]
        case "image_generation_call":
            text, media = str(item.get("revised_prompt") or ""), ["image"] if item.get("result") else []
        case "reasoning":
            text, media = _reasoning(item), []
        case "compaction" | "compaction_summary" | "context_compaction":
            text, media = f"[encrypted, {len(str(item.get('encrypted_content') or '')):,} characters]", []
        case _:
            text, media = dump({key: value for key, value in item.items() if key not in ("type", "id")}).decode(), []
    notes = "".join(f"\n[{kind}]" for kind in media)
    return clean(text + notes)


def clean(text: str) -> str:
    """Without control characters, save tab and newline."""
    return text.translate(CONTROL)


def as_seen(text: str) -> str:
    """What a terminal would have shown of a command's output: no colours, and of a line that began anew the last."""
    if "\x1b" in text or "\x9b" in text:
        text = ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return clean(text)


def one_line(text: str, chars: int | None = None) -> str:
    """Without control characters and line ends; the first `chars` characters of it."""
    head = text if chars is None else text[: 4 * chars]  # white space goes, so more is looked at than is kept
    return " ".join(clean(head).split())[:chars]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else dump(value).decode()


def _reasoning(item: Item) -> str:
    summary = item.get("summary")
    texts = (
        [str(part.get("text", "")) for part in summary if isinstance(part, dict)] if isinstance(summary, list) else []
    )
    return "\n".join(text for text in texts if text) or "[not shown by the model]"
