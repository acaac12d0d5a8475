"""Script: what is said in a turn and what the model's side answers, the same for both programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from refold.core.items import Item, message
from refold.testing import Reply, usage

CALM = 300  # tokens that a reply reports when nothing is to be compacted
FULL = 5_000  # tokens that a reply reports when the limit below is to be reached
LIMIT = 2_000  # tokens at which compaction is due, in the turns that have one


@dataclass(frozen=True)
class Turn:
    """What the user says, the replies in order, and the limit (tokens) at which compaction is due."""

    said: str
    replies: tuple[Reply, ...]
    limit: int | None = None


def answer(name: str, tokens: int = CALM) -> Reply:
    """One assistant message; `name` makes its ids unique in a thread."""
    item: Item = {**message("assistant", [f"answer {name}"]), "id": f"msg_{name}"}
    return Reply(items=(item,), usage=usage(tokens - 10, 10), response_id=f"resp_{name}")


def calls(name: str, *commands: str, tokens: int = CALM, thought: bool = False) -> Reply:
    """One exec_command call for each command, after a reasoning item if there was a `thought`."""
    items: list[Any] = [_thought(name)] if thought else []
    for number, command in enumerate(commands):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{name}_{number}",
                "call_id": f"call_{name}_{number}",
                "name": "exec_command",
                "arguments": json.dumps({"cmd": command}),
            }
        )
    return Reply(items=tuple(items), usage=usage(tokens - 10, 10), response_id=f"resp_{name}")


def _thought(name: str) -> Item:
    summary = [{"type": "summary_text", "text": f"thinking of {name}"}]
    return {"type": "reasoning", "id": f"rs_{name}", "summary": summary, "encrypted_content": f"sealed-{name}"}
