"""Remote: the provider compacts; what stays readable is what people and other agents said (spec §6, oracle §7).

A `compaction_trigger` item ends a normal request; the answer is an item that only the provider can read. Around it
stand the messages that were kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from refold.core.history import Entry, entry
from refold.core.items import Item, content_parts, is_agent_envelope, message_text
from refold.core.profile import Profile
from refold.core.prompt import Prompt, prompt_from
from refold.core.tokens import estimate, measure, utf8_len
from refold.core.truncate import Budget, cut_middle, tokens_for
from refold.errors import CompactionFailed

TRIGGER: Item = {"type": "compaction_trigger"}
RETAINED_TOKENS = 64_000  # of messages around the provider's item: it cannot be read, so more stays readable
AGENT_MESSAGE_TOKENS = 10_000  # another agent's larger message is not worth keeping beside the provider's item
TRIMMED = "Output exceeded the available model context and was truncated"
_FINAL_ANSWER = "Message Type: FINAL_ANSWER\n"
_PROGRESS = ("Message Type: MESSAGE\n", "Message Type: CHANNEL_POST\n")


# --- asking --------------------------------------------------------------------------------------------------


def request(
    history: Sequence[Entry],
    profile: Profile,
    *,
    base_instructions: str | None,
    tools: Sequence[dict[str, Any]],
    left_out: int = 0,
) -> Prompt:
    """The whole history with the tools in force, then the trigger; without the text of the last `left_out` outputs."""
    kept = list(history)
    for index in range(len(kept) - left_out, len(kept)):
        e = kept[index]
        kept[index] = entry(_without_output(e.item) or e.item, e.address, e.turn_id)
    prompt = prompt_from(kept, profile, base_instructions=base_instructions, tools=tools)
    trigger = entry(TRIGGER, "")
    return Prompt(
        entries=(*prompt.entries, trigger),
        tokens=prompt.tokens + trigger.tokens,
        base_instructions=base_instructions,
        tools=prompt.tools,
        parallel_tool_calls=prompt.parallel_tool_calls,
    )


def outputs_over(history: Sequence[Entry], base_instructions: str | None, usable: int | None) -> int:
    """Of how many of the last tool outputs the text has to be left out, so that the rest fits into the usable window
    (tokens): newest first, up to the first item that is no output (spec §6.1)."""
    over = 0 if usable is None else estimate((e.sizes for e in history), base_instructions) - usable
    count = 0
    for e in reversed(history):
        shorter = _without_output(e.item)
        if over <= 0 or shorter is None:
            break
        over -= e.tokens - measure(shorter).tokens
        count += 1
    return count


def _without_output(item: Item) -> Item | None:
    match item.get("type"):
        case "function_call_output" | "custom_tool_call_output":
            return {**item, "output": TRIMMED}
        case "tool_search_output":
            return {**item, "tools": []}
        case _:
            return None


# --- settling ------------------------------------------------------------------------------------------------


def settle(output: Sequence[Item]) -> Item:
    """The one compaction item of a reply. Raises CompactionFailed for none or several (case S06)."""
    found = [item for item in output if item.get("type") in ("compaction", "compaction_summary")]
    if len(found) != 1:
        raise CompactionFailed(
            f"the provider answered the compaction trigger with {len(found)} compaction items in {len(output)} output "
            "items; expected 1"
        )
    return found[0]


def retained(sent: Sequence[Entry], budget: int = RETAINED_TOKENS) -> list[tuple[Item, str]]:
    """What stays beside the provider's item of the entries that were sent: what people and other agents said, newest
    first until the budget (tokens) is used, in order, each with its address. The one that does not fit is cut."""
    kept: list[tuple[Item, str]] = []
    remaining = budget
    for e in reversed(sent):
        if remaining <= 0:
            break
        if not stays(e):
            continue
        item, cost = e.item, _cost(e)
        if cost > remaining:
            item = _cut(item, remaining)
            cost = remaining
        remaining -= cost
        kept.append((item, e.address))
    return kept[::-1]


def stays(e: Entry) -> bool:
    """Whether an entry is kept beside a provider's item: what was typed, hooks, summaries, what other agents said."""
    item = e.item
    if item.get("type") == "agent_message":
        return not _is_report(item) and e.tokens <= AGENT_MESSAGE_TOKENS
    if item.get("type") != "message" or is_agent_envelope(item):
        return False
    return item.get("role") == "user" and e.origin in ("typed", "summary", "hook")


def _is_report(item: Item) -> bool:
    """Whether another agent's message only reports: its final answer, or progress of one that works for us."""
    text = message_text({**item, "type": "message"})
    author, recipient = str(item.get("author")), str(item.get("recipient"))
    return text.startswith(_FINAL_ANSWER) or (author.startswith(f"{recipient}/") and text.startswith(_PROGRESS))


def _cost(e: Entry) -> int:
    if e.item.get("type") == "agent_message":
        return e.tokens
    return max(1, sum(tokens_for(utf8_len(text)) for text in _texts(e.item)))


def _texts(item: Item) -> Iterator[str]:
    for part in content_parts(item):
        if isinstance(part.get("text"), str):
            yield part["text"]


def _cut(item: Item, tokens: int) -> Item:
    """A message whose texts use so many tokens: the parts before the cut whole, the one that crosses it without its
    middle, later texts dropped; media stay."""
    parts: list[dict[str, Any]] = []
    for part in content_parts(item):
        text = part.get("text")
        if not isinstance(text, str):
            parts.append(part)
        elif tokens > 0:
            cost = tokens_for(utf8_len(text))
            parts.append(part if cost <= tokens else {**part, "text": cut_middle(text, Budget("tokens", tokens))})
            tokens -= cost
    return {**item, "content": parts}
