"""Chat Completions: a Responses request as the body of `POST /chat/completions`, and what of it such a server lacks.

The way back is chat_completions_answer.py (a document) and chat_completions_stream.py (chunks).
Rule 1: what the Responses API alone has is left out and told; a key that neither API is known for is sent as it is.
Rule 2: what would change the question without a word (a history kept by the server) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core.chat_completions_messages import messages_of
from refold.core.chat_completions_settings import ChatSettings
from refold.core.chat_completions_tools import ToolSet, chosen, tool_set
from refold.core.items import Item, user_message
from refold.core.jsonio import is_list, is_object
from refold.errors import ModelRefused

# Keys of a Responses request that have no counterpart, or one that most servers refuse.
RESPONSES_ONLY = frozenset(
    """background client_metadata context_management conversation include max_tool_calls metadata moderation
    previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier
    service_tier store stream_options top_logprobs truncation user""".split()  # noqa: SIM905 (as in the API's reference)
)
TRANSLATED = frozenset(
    """input instructions max_output_tokens model parallel_tool_calls reasoning stream text tool_choice
    tools""".split()  # noqa: SIM905
)
# What stands for items that the caller does not send: without them the question is another one.
HELD_BY_THE_SERVER = ("previous_response_id", "conversation", "prompt", "background")
SILENT = frozenset({"include", "store", "client_metadata", "metadata"})  # losing them changes no answer: not told
MODALITIES = ("text", "image")


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, and what is needed to read the answer: the meaning of each tool's name, and what was asked."""

    body: dict[str, Any]
    tools: ToolSet
    settings: ChatSettings
    asked: dict[str, Any]  # the Responses request without its input
    left_out: tuple[str, ...] = ()  # one line for each thing that the server is not told


def chat_request(
    asked: dict[str, Any], settings: ChatSettings | None = None, *, modalities: Sequence[str] = MODALITIES
) -> ChatRequest:
    """The Chat Completions request for a Responses request. `modalities`: what the model takes ("text", "image",
    "audio"); the others become a short text.

    Raises ModelRefused (status 400) for a request that refers to what a server holds.
    """
    _refuse_what_is_held(asked)
    settings = settings or ChatSettings()
    items = _items(asked.get("input"))
    tools, choice = chosen(asked.get("tool_choice"), tool_set(_tools(asked, items)))
    instructions = asked.get("instructions")
    said = messages_of(
        items,
        tools,
        settings,
        instructions=instructions if isinstance(instructions, str) else "",
        modalities=modalities,
    )
    body = {
        "model": asked.get("model"),
        "messages": said.messages,
        **_stream(asked, settings),
        **_tool_keys(asked, tools, choice),
        **_told(asked, settings),
        **{key: value for key, value in asked.items() if _is_kept(key, settings) and value is not None},
    }
    lost = [*_lost_verbosity(asked, settings)]
    lost += [f"key {key!r}: only the Responses API has it" for key in asked if _is_lost(key, asked[key], settings)]
    return ChatRequest(
        body={key: value for key, value in body.items() if key not in settings.leave_out},
        tools=tools,
        settings=settings,
        asked={key: value for key, value in asked.items() if key != "input"},
        left_out=(*lost, *tools.left_out, *said.left_out),
    )


def _refuse_what_is_held(asked: dict[str, Any]) -> None:
    for key in HELD_BY_THE_SERVER:
        if asked.get(key):
            text = f"{key} cannot be sent to a Chat Completions server, which holds nothing: send the whole input"
            raise ModelRefused(text, status=400, code="unsupported_parameter")


def _is_kept(key: str, settings: ChatSettings) -> bool:
    return key not in TRANSLATED and (key not in RESPONSES_ONLY or key in settings.keep)


def _is_lost(key: str, value: Any, settings: ChatSettings) -> bool:
    return key in RESPONSES_ONLY and key not in SILENT and key not in settings.keep and value not in (None, False)


def _items(given: Any) -> list[Item]:
    """The input as items: a text is what the user says, an object with a role alone a message."""
    if isinstance(given, str):
        return [user_message(given)]
    items = [item for item in given if is_object(item)] if is_list(given) else []
    return [{"type": "message", **item} if "type" not in item and "role" in item else item for item in items]


def _tools(asked: dict[str, Any], items: Sequence[Item]) -> list[Any]:
    """All tools on offer: the request's own, and those that items bring (a lite model's, and what a search found)."""
    lists = [asked.get("tools")]
    lists += [item.get("tools") for item in items if item.get("type") in ("additional_tools", "tool_search_output")]
    return [tool for tools in lists if is_list(tools) for tool in tools]


# --- keys ----------------------------------------------------------------------------------------------------


def _stream(asked: dict[str, Any], settings: ChatSettings) -> dict[str, Any]:
    if not asked.get("stream"):
        return {}
    return {"stream": True, **({"stream_options": {"include_usage": True}} if settings.stream_usage else {})}


def _tool_keys(asked: dict[str, Any], tools: ToolSet, choice: Any) -> dict[str, Any]:
    """Servers refuse a choice where there is nothing to choose."""
    if not tools.functions:
        return {}
    parallel = asked.get("parallel_tool_calls")
    return {
        "tools": list(tools.functions),
        **({} if choice is None else {"tool_choice": choice}),
        **({"parallel_tool_calls": parallel} if isinstance(parallel, bool) else {}),
    }


def _told(asked: dict[str, Any], settings: ChatSettings) -> dict[str, Any]:
    """Effort, length and form of the answer, in the other API's words."""
    told: dict[str, Any] = {}
    reasoning, text, most = asked.get("reasoning"), asked.get("text"), asked.get("max_output_tokens")
    if is_object(reasoning) and reasoning.get("effort"):
        told["reasoning_effort"] = reasoning["effort"]
    if most is not None:
        told[settings.max_tokens_as] = most
    if is_object(text):
        if text.get("verbosity") and "verbosity" in settings.keep:
            told["verbosity"] = text["verbosity"]
        form = _response_format(text.get("format"))
        if form is not None:
            told["response_format"] = form
    return told


def _lost_verbosity(asked: dict[str, Any], settings: ChatSettings) -> list[str]:
    text = asked.get("text")
    lost = is_object(text) and text.get("verbosity") and "verbosity" not in settings.keep
    return ["key 'text.verbosity': `keep` sends it"] if lost else []


def _response_format(form: Any) -> dict[str, Any] | None:
    match form:
        case {"type": "json_schema"}:
            schema = {
                key: form[key] for key in ("name", "description", "schema", "strict") if form.get(key) is not None
            }
            return {"type": "json_schema", "json_schema": {"name": "answer", **schema}}
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case _:
            return None
