"""Account: what a checkpoint tells the real program beside the history: what it cost, and how to go on (spec §8.3).

The shapes are those of recorded checkpoints, key for key; what cannot be known in full is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from refold.core.records import JSON

if TYPE_CHECKING:
    from refold.core.thread import Thread

AGENTS_VERSION = "v1"  # of the real program's agents; the one that its recorded checkpoints name


def account(thread: Thread, response_id: str | None, phase: str | None) -> JSON:
    """The keys for a checkpoint that `response_id` gave, in this phase of the open turn; none outside of a turn."""
    turn_id = thread.open_turn
    if turn_id is None:
        return {}
    return {
        "latest_token_usage_record": _usage(thread, turn_id, response_id),
        "resume_metadata": _resume(thread, turn_id, phase),
    }


def _usage(thread: Thread, turn_id: str, response_id: str | None) -> JSON | None:
    """What the response cost, its turn and its thread so far, in tokens; null where the provider did not say."""
    made = thread.attempted
    if response_id is None or made is None or made.response_id != response_id or made.usage is None:
        return None
    return {
        "thread_id": thread.id,
        "turn_id": turn_id,
        "session_id": thread.id,
        "root_turn_id": turn_id,
        "response_id": response_id,
        "usage": msgspec.to_builtins(made.usage),
        "turn_token_usage": msgspec.to_builtins(thread.total_usage - thread.used_before_turn),
        "thread_token_usage": msgspec.to_builtins(thread.total_usage),
    }


def _resume(thread: Thread, turn_id: str, phase: str | None) -> JSON:
    """Which turn began last, and the settings of the last one that sampled; a compaction by hand belongs to that."""
    settings = thread.settings or {}
    model, before = settings.get("model"), settings.get("turn_id")
    by_hand = phase == "standalone_turn" and isinstance(before, str)
    attributed = before if by_hand else turn_id
    previous = {"model": model, "comp_hash": settings.get("comp_hash"), "realtime_active": False}
    return {
        "dynamic_tools": {"thread_id": thread.id, "tools": []},
        "multi_agent_version": AGENTS_VERSION,
        "last_started_turn_id": turn_id,
        "turn_attribution": {
            "turn_id": attributed,
            "turn_trigger": None,
            "parent_turn_id": None,
            "initiating_agent_path": None,
            "root_turn_id": attributed,
        },
        "previous_turn_settings": previous if isinstance(model, str) else None,
    }
