"""ChatSettings: how a Chat Completions server wants a Responses request spelled, and what is made of its reasoning."""

from __future__ import annotations

from typing import Literal

import msgspec


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[model_providers.NAME.chat]`; the defaults are what most servers and chat templates take."""

    developer_role: Literal["system", "developer", "user"] = "system"  # of instructions, system and developer messages
    system_place: Literal["front", "anywhere"] = "front"  # front: one message first; what comes later is the user's
    alternate: bool = False  # neighbours of one role become one message, for templates that ask for turns
    reasoning_as: Literal["none", "reasoning_content", "reasoning"] = "none"  # the key that sends past reasoning back
    reasoning_to: Literal["summary", "content"] = (
        "summary"  # which part of a reasoning item holds what the model thought
    )
    output_images: Literal["user", "tool", "none"] = (
        "user"  # a tool's images: in a user message after it, or in its own
    )
    max_tokens_as: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_usage: bool = True  # ask for usage with `stream_options`
    repair_call_arguments: bool = True  # arguments that are no JSON object are sent as {}: templates parse them
    keep: tuple[str, ...] = ()  # keys that only the Responses API has and this server takes all the same
    leave_out: tuple[str, ...] = ()  # keys of the Chat Completions body that this server does not take
