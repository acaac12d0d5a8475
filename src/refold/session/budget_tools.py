"""Budget: what a session does for its token budget: two tools for the model, what it is told, when a window is over.

Imported only where `features.token_budget` is enabled (spec §4.5, oracle §13, docs/token-budget.md).
"""

from __future__ import annotations

from refold.core.compaction.due import Due, due
from refold.core.compaction.rollover import (
    GRANTED,
    TOO_SOON,
    has_news,
    is_asked_for,
    is_measured,
    tokens_left,
    was_told,
)
from refold.core.fragments import KIND_BUDGET_FALLBACK, KIND_BUDGET_REMINDER, stored_message
from refold.core.records import ItemRecorded, Phase
from refold.core.templates import template
from refold.session.memory import Memory
from refold.session.scope import Scope
from refold.tools import Tool, Toolbox
from refold.tools.functions import tool


def offer(scope: Scope) -> None:
    """Put the two tools into the toolbox, each unless the host gave one of that name."""
    missing = [one for one in budget_tools(scope.memory) if one.name not in scope.toolbox]
    if missing:
        scope.toolbox = Toolbox([*scope.toolbox.values(), *missing])


def budget_tools(memory: Memory) -> tuple[Tool, Tool]:
    """`new_context` and `get_context_remaining`; neither takes an argument."""

    @tool
    async def new_context() -> str:
        """Leave this context window and go on in a new one. It begins with the user's messages and an outline of the
        work so far; tool outputs and your own messages are not in it. Write down first what must not be lost."""
        return GRANTED if has_news(memory.thread.history) else TOO_SOON

    @tool
    async def get_context_remaining() -> str:
        """How many tokens are left in this context window before a new one begins by itself."""
        scope = memory.config.model_auto_compact_token_limit_scope
        left = tokens_left(memory.thread, memory.profile, scope, sampling=True)
        if left is None:
            return "It is not known how many tokens this context window holds."
        return f"About {left} of {memory.profile.compact_limit} tokens are left in this context window."

    return new_context, get_context_remaining


def due_in_budget(memory: Memory, phase: Phase, pending: int = 0) -> Due | None:
    """Whether a new window must begin now: the limit with its buffer is reached, or the model asked for one.

    `pending`: tokens of what is about to be said.
    """
    config, thread = memory.config, memory.thread
    buffer = config.features.token_budget.buffer
    scope = config.model_auto_compact_token_limit_scope
    found = due(thread, memory.profile, phase, scope, pending=pending, buffer=buffer)
    if found is None and is_asked_for(thread.history):
        found = Due("context_limit", phase, memory.tokens, memory.profile.compact_limit or 0)
    return None if found is not None and memory.waits(found, pending=pending) else found


def remind(scope: Scope) -> None:
    """Tell the model, once in a window, that little is left; and at the limit, where it may go beyond it, the fallback
    prompt. Nothing is told before this window's use is known."""
    memory, budget = scope.memory, scope.memory.config.features.token_budget
    thread = memory.thread
    left = tokens_left(thread, memory.profile, memory.config.model_auto_compact_token_limit_scope)
    if left is None or not is_measured(thread):
        return
    threshold = budget.reminder_threshold_tokens
    if threshold is not None and left <= threshold and not was_told(thread.history, KIND_BUDGET_REMINDER):
        text = budget.reminder_message_template or template("budget_reminder").strip()
        _tell(memory, KIND_BUDGET_REMINDER, text.replace("{n_remaining}", str(left)))
    prompt = budget.auto_compact_fallback_prompt
    if not prompt or left or was_told(thread.history, KIND_BUDGET_FALLBACK):
        return
    if due_in_budget(memory, "mid_turn") is None:  # else there is no room for an answer to it
        _tell(memory, KIND_BUDGET_FALLBACK, prompt)


def _tell(memory: Memory, kind: str, text: str) -> None:
    turn_id = memory.thread.open_turn
    item = stored_message("developer", [(kind, text)], id=memory.clock.item_id("msg"), turn_id=turn_id)
    memory.record(ItemRecorded(item))
