"""Local summary: the history and the handoff text go out, a summary comes back (spec §5, oracle §4)."""

from __future__ import annotations

from collections.abc import Sequence

from refold.core.history import Entry, entry, last_assistant_text
from refold.core.items import Item, user_message
from refold.core.profile import Profile
from refold.core.prompt import Prompt, prompt_from
from refold.core.templates import template
from refold.core.truncate import well_formed
from refold.errors import CompactionFailed


def request(
    history: Sequence[Entry], profile: Profile, *, base_instructions: str | None, handoff: str | None
) -> Prompt:
    """The whole history, then the handoff text as a user message without an id; no tools."""
    text = handoff or template("handoff")
    asking = entry(user_message(text), "")
    prompt = prompt_from(history, profile, base_instructions=base_instructions)
    tokens = prompt.tokens + asking.tokens
    return Prompt(entries=(*prompt.entries, asking), tokens=tokens, base_instructions=base_instructions)


def settle(output: Sequence[Item]) -> str:
    """The summary that a reply holds: its last assistant message.

    Raises CompactionFailed when the reply holds no text: an older answer must not pass for a summary.
    """
    summary = well_formed(last_assistant_text(output))
    if not summary:
        kinds = ", ".join(str(item.get("type")) for item in output) or "nothing"
        raise CompactionFailed(f"the model answered the request for a summary with {kinds} instead of a text")
    return summary
