"""Builders: scripted replies in one call each, for tests, examples and benchmarks."""

from __future__ import annotations

import json
from typing import Any

from refold.core.items import Item, message
from refold.core.usage import Usage
from refold.model.scripted import PLAIN_USAGE, Reply, read_script

__all__ = ["Reply", "call_reply", "read_script", "text_reply", "usage"]


def usage(input: int, output: int, cached: int = 0, reasoning: int = 0, total: int | None = None) -> Usage:
    """Usage as a provider tells it: `cached` is part of `input`, `reasoning` of `output`; total is input + output."""
    return Usage(
        input_tokens=input,
        cached_input_tokens=cached,
        output_tokens=output,
        reasoning_output_tokens=reasoning,
        total_tokens=input + output if total is None else total,
    )


def text_reply(*texts: str, usage: Usage | None = PLAIN_USAGE, **fields: Any) -> Reply:
    """A reply of one assistant message per text; `fields` are the other fields of Reply."""
    return Reply(items=tuple(message("assistant", [text]) for text in texts), usage=usage, **fields)


def call_reply(
    name: str,
    args: dict[str, Any] | str,
    call_id: str | None = None,
    *,
    usage: Usage | None = PLAIN_USAGE,
    **fields: Any,
) -> Reply:
    """A reply of one function call; `args` as a string is sent as it is, valid JSON or not."""
    arguments = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    call: Item = {"type": "function_call", "name": name, "arguments": arguments}
    if call_id is not None:
        call["call_id"] = call_id
    return Reply(items=(call,), usage=usage, **fields)
