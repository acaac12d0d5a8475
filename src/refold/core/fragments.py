"""Fragments: the tags around injected context, and how context is told from what a person typed (spec §7.2, §7.4).

Rule 1: an item that says where it came from is believed.
Rule 2: only an item that does not say is recognised by its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from refold.core.items import PASSTHROUGH, Item, Part, Role, content_parts, message_texts
from refold.core.jsonio import is_list, is_object
from refold.core.templates import template

Origin: TypeAlias = Literal["typed", "injected", "summary", "hook", "model", "tool"]

SUMMARY_MARK = template("summary_prefix") + "\n"  # how a summary of any generation since 2025-11 begins

AGENTS_MD_HEAD = "# AGENTS.md instructions"
PREFIX_SAVED = "Approved command prefix saved:"
NO_LONGER_APPLY = "The previously provided AGENTS.md instructions no longer apply."
REPLACES = "These AGENTS.md instructions replace all previously provided AGENTS.md instructions.\n\n"

# Kinds under which a stored item names its parts (the real program's own words).
KIND_TYPED = "user.text"
KIND_IMAGE = "user.image"
KIND_AUDIO = "user.audio"
KIND_SUMMARY = "compaction.summary"
KIND_PERMISSIONS = "permissions.instructions"
KIND_PREFIX_SAVED = "permissions.approved_command_prefix"
KIND_MODEL_SWITCH = "model_switch.instructions"
KIND_SERVERS = "refold.mcp_instructions"
KIND_DEVELOPER = "generic.developer_instructions"
KIND_AGENTS_MD = "agents_md.instructions"
KIND_ENVIRONMENT = "environments.environment_context"
KIND_TURN_ABORTED = "generic.turn_aborted"
KIND_CONTEXT_WINDOW = "context_window.context_window"
KIND_WINDOW_GUIDANCE = "context_window_guidance.context_window_guidance"
KIND_BUDGET_REMINDER = "token_budget.reminder"
KIND_BUDGET_FALLBACK = "token_budget.fallback_prompt"

USER_CONTEXT_STARTS = tuple(
    start.lower()
    for start in (
        AGENTS_MD_HEAD,
        "<environment_context>",
        "<external_",
        "<skill>",
        "<user_shell_command>",
        "<turn_aborted>",
        "<subagent_notification>",
        "<codex_internal_context",
        "<goal_context>",
        "<recommended_plugins>",
        "<user_instructions>",
        "<hook_prompt",
        "Warning: The maximum number of unified exec processes you can keep open is",
        "Warning: apply_patch was requested via ",
        "Warning: Your account was flagged for potentially high-risk cyber activity",
    )
)
LONGEST_START = max(map(len, USER_CONTEXT_STARTS))

DEVELOPER_CONTEXT_STARTS = (
    "<permissions instructions>",
    PREFIX_SAVED,
    "<model_switch>",
    "<apps_instructions>",
    "<collaboration_mode>",
    "<multi_agent_mode>",
    "<environments_instructions>",
    "<git_attribution>",
    "<plugins_instructions>",
    "<realtime_conversation>",
    "<skills_instructions>",
    "<tools>",
    "<personality_spec>",
    "<token_budget>",
    "<context_window>",
    "<context_window_guidance>",
    "<rollout_budget>",
    "<mcp_instructions>",
)


_IMAGE_LABEL = re.compile(r'<image(?: name=\[Image #\d+\](?: path="(.*)")?)?>|</image>')


def image_label(number: int, path: str | None) -> str:
    """What stands before an image in a message; `</image>` stands behind it."""
    return f"<image name=[Image #{number}]" + (f' path="{path}">' if path is not None else ">")


def typed_parts(item: Item) -> tuple[list[str], list[str]]:
    """The texts that a user typed in a message, without the labels around its images; and the paths in those labels."""
    texts = message_texts(item)
    if not any(part.get("type") == "input_image" for part in content_parts(item)):
        return texts, []
    labels = [_IMAGE_LABEL.fullmatch(text) for text in texts]
    typed = [text for text, label in zip(texts, labels, strict=True) if label is None]
    return typed, [label[1] for label in labels if label is not None and label[1] is not None]


def is_image_label(text: str) -> bool:
    return _IMAGE_LABEL.fullmatch(text) is not None


def tagged(tag: str, body: str) -> str:
    """`<tag>` + body + `</tag>`, with nothing added between them."""
    return f"<{tag}>{body}</{tag}>"


def stored_message(role: Role, parts: Sequence[tuple[str, str | Part]], *, id: str, turn_id: str | None) -> Item:
    """A message of (kind, text or part) as it is stored: it says itself where each part came from."""
    about: dict[str, Any] = {} if turn_id is None else {"turn_id": turn_id}
    return {
        "type": "message",
        "id": id,
        "role": role,
        "content": [{"type": "input_text", "text": part} if isinstance(part, str) else part for _, part in parts],
        PASSTHROUGH: {**about, "content_item_kinds": [kind for kind, _ in parts]},
    }


def stored_kinds(item: Item) -> list[Any]:
    """The kinds under which a stored item names its parts; none where it does not say."""
    about = item.get(PASSTHROUGH)
    kinds = about.get("content_item_kinds") if is_object(about) else None
    return kinds if is_list(kinds) else []


def turn_of(item: Item) -> str | None:
    """The turn that an item says it belongs to."""
    about = item.get(PASSTHROUGH)
    turn = about.get("turn_id") if is_object(about) else None
    return turn if isinstance(turn, str) else None


def in_turn(item: Item, turn_id: str | None) -> Item:
    """The item, saying which turn it belongs to, unless it says so already."""
    if turn_id is None or turn_of(item) is not None:
        return item
    about = item.get(PASSTHROUGH)
    return {**item, PASSTHROUGH: {**(about if is_object(about) else {}), "turn_id": turn_id}}


def looks_like_context(text: str) -> bool:
    """Whether a text part of a user message begins like injected context."""
    head = text[: LONGEST_START + 64].lstrip()[:LONGEST_START].lower()
    return head.startswith(USER_CONTEXT_STARTS)


def looks_like_developer_context(text: str) -> bool:
    return text.lstrip().startswith(DEVELOPER_CONTEXT_STARTS)


def origin_of(item: Item) -> Origin:
    """Where an item came from: what it says itself, else what its type, role and text show."""
    kind = item.get("type")
    if kind != "message":
        return "tool" if isinstance(kind, str) and kind.endswith("_output") else "model"
    role = item.get("role")
    if role == "assistant":
        return "model"
    if role != "user":
        return "injected"
    return _stated_origin(item.get(PASSTHROUGH)) or _read_origin(item)


def _stated_origin(passthrough: Any) -> Origin | None:
    kinds = passthrough.get("content_item_kinds") if is_object(passthrough) else None
    if not is_list(kinds) or not kinds or "unknown" in kinds:
        return None
    if KIND_SUMMARY in kinds:
        return "summary"
    if any(str(kind).startswith("user.") for kind in kinds):
        return "typed"
    return "hook" if any("hook" in str(kind) for kind in kinds) else "injected"


def _read_origin(item: Item) -> Origin:
    texts = message_texts(item)
    if texts and texts[0].startswith(SUMMARY_MARK):
        return "summary"
    if any(looks_like_context(text) for text in texts):
        return "hook" if all(text.lstrip().lower().startswith("<hook_prompt") for text in texts) else "injected"
    return "typed"
