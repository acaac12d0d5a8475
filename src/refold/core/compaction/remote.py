"""Remote: the provider compacts; what stays readable is what people and other agents said (spec §6, oracle §7).

A `compaction_trigger` item ends a normal request; the answer is an item that only the provider can read. Around it
stand the messages that were kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from refold.core.compaction.replacement import text_only, with_texts
from refold.core.fragments import is_image_label
from refold.core.history import Entry, entry
from refold.core.items import Item, Part, content_parts, is_agent_envelope, message_text, message_texts
from refold.core.profile import Profile
from refold.core.prompt import Prompt, prompt_from
from refold.core.tokens import estimate, measure, utf8_len
from refold.core.truncate import Budget, cut_middle, tokens_for
from refold.errors import CompactionFailed

TRIGGER: Item = {"type": "compaction_trigger"}
RETAINED_TOKENS = 64_000  # of messages around the provider's item: it cannot be read, so more stays readable
AGENT_MESSAGE_TOKENS = 10_000  # another agent's larger message is not worth keeping beside the provider's item
TRIMMED = "Output exceeded the available model context and was truncated"
NOTICE_START = "<image_resize_notice>"
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
    trigger: bool = True,
) -> Prompt:
    """The whole history with the tools in force, then the trigger (not for an endpoint that only compacts); without
    what the last `left_out` entries hold, which are outputs and notices on their images."""
    kept = list(history[: len(history) - left_out])
    for e in history[len(history) - left_out :]:
        if not is_notice(e.item):
            kept.append(entry(_without_output(e.item) or e.item, e.address, e.turn_id))
    prompt = prompt_from(kept, profile, base_instructions=base_instructions, tools=tools)
    return triggered(prompt) if trigger else prompt


def triggered(prompt: Prompt) -> Prompt:
    """The prompt with the trigger behind it."""
    asking = entry(TRIGGER, "")
    return replace(prompt, entries=(*prompt.entries, asking), tokens=prompt.tokens + asking.tokens)


def outputs_over(history: Sequence[Entry], base_instructions: str | None, usable: int | None) -> int:
    """How many of the last entries are to be left out, so that the rest fits into the usable window (tokens): outputs
    with the notices behind them, newest first, up to the first item that is neither (spec §6.1)."""
    over = 0 if usable is None else estimate((), base_instructions) + sum(e.tokens for e in history) - usable
    count = behind = spared = 0  # notices since the last output, and their tokens
    for e in reversed(history):
        if over <= 0:
            break
        if is_notice(e.item):
            behind, spared = behind + 1, spared + e.tokens
            continue
        shorter = _without_output(e.item)
        if shorter is None:
            break
        over -= e.tokens - measure(shorter).tokens + spared
        count += 1 + behind
        behind = spared = 0
    return count


def is_notice(item: Item) -> bool:
    """Whether an item only says that an image of the item before it was made smaller."""
    return item.get("role") == "developer" and message_text(item).lstrip().startswith(NOTICE_START)


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


def retained(
    sent: Sequence[Entry], budget: int = RETAINED_TOKENS, *, dropped: Collection[tuple[str, str]] = ()
) -> list[tuple[Item, str]]:
    """What stays beside the provider's item of the entries that were sent: what people and other agents said, newest
    first until the budget (tokens) is used, in order, each with its address. The one that does not fit is cut; a notice
    on its images stays with it. Where not all fit, rules come first, as beside a summary."""
    return _with_rules_first(sent, budget, dropped) or _newest(sent, budget)


def _newest(sent: Sequence[Entry], budget: int) -> list[tuple[Item, str]]:
    kept: list[tuple[Item, str]] = []
    remaining = budget
    notice: Entry | None = None
    for e in reversed(sent):
        if remaining <= 0:
            break
        if is_notice(e.item):
            notice = e
            continue
        behind, notice = notice, None
        if not stays(e):
            continue
        room = remaining - (0 if behind is None else max(1, behind.tokens))
        item, cost = e.item, _cost(e)
        if cost > room:
            item, cost, remaining = _cut(item, room), 0, 0
        if content_parts(item):
            kept += [] if behind is None else [(behind.item, behind.address)]
            kept.append((item, e.address))
        remaining = max(0, min(remaining, room) - cost)
    return kept[::-1]


def _with_rules_first(
    sent: Sequence[Entry], budget: int, dropped: Collection[tuple[str, str]]
) -> list[tuple[Item, str]]:
    """What stays where not all of it fits; nothing where it does, or where no rule is in what people typed."""
    said: list[tuple[Entry, Entry | None, int]] = []  # newest first; the notice behind it, what both cost
    notice: Entry | None = None
    for e in reversed(sent):
        behind, notice = notice, e if is_notice(e.item) else None
        if notice is None and stays(e):
            said.append((e, behind, _cost(e) + (0 if behind is None else max(1, behind.tokens))))
    if sum(cost for _, _, cost in said) <= budget:
        return []
    from refold.core.compaction.preferred import Message, cut_between, rooms  # few compactions need it

    told = [
        Message(cost, message_texts(text_only(e.item)) if e.origin == "typed" else (), e.address) for e, _, cost in said
    ]
    kept: list[tuple[Item, str]] = []
    for (e, behind, cost), message, room in zip(said, told, rooms(told, budget, dropped) or (), strict=False):
        item, beside = e.item, [] if behind is None else [(behind.item, behind.address)]
        if room.pieces and room.tokens < cost:  # its pictures are left out, with their notice
            texts = cut_between(message.texts, room.pieces, room.tokens)
            item, beside = with_texts(item, texts), []
        elif room.tokens < cost:
            item = _cut(item, room.tokens - (0 if behind is None else max(1, behind.tokens)))
        if room.tokens > 0 and content_parts(item):
            kept += [*beside, (item, e.address)]
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
    return max(1, sum(_tokens_of(part) for part in content_parts(e.item)))


def _tokens_of(part: Part) -> int:
    """What a part counts against the budget: a text, or a picture; other media do not."""
    text = part.get("text")
    if isinstance(text, str):
        return tokens_for(utf8_len(text))
    return measure({"type": "message", "content": [part]}).tokens if _is_image(part) else 0


def _is_image(part: Part) -> bool:
    return part.get("type") == "input_image"


def _cut(item: Item, tokens: int) -> Item:
    """A message that uses so many tokens: the parts before the cut whole, the text that crosses it without its middle,
    later texts dropped. Of a message with pictures the later parts stay, and a picture whole with its labels or not."""
    parts = content_parts(item)
    if any(map(_is_image, parts)):
        return {**item, "content": _last_of(parts, tokens)}
    kept: list[Part] = []
    for part in parts:
        text = part.get("text")
        if not isinstance(text, str):
            kept.append(part)
        elif tokens > 0:
            cost = _tokens_of(part)
            kept.append(part if cost <= tokens else {**part, "text": cut_middle(text, Budget("tokens", tokens))})
            tokens -= cost
    return {**item, "content": kept}


def _last_of(parts: list[Part], tokens: int) -> list[Part]:
    """The last parts that use so many tokens; nothing that stands before what did not fit whole."""
    kept: list[Part] = []
    groups = _with_labels(parts)
    while groups and tokens > 0:
        group = groups.pop()
        cost, text = sum(map(_tokens_of, group)), group[0].get("text")
        if cost > tokens:
            cut = len(group) == 1 and isinstance(text, str)
            kept[:0] = [{**group[0], "text": cut_middle(str(text), Budget("tokens", tokens))}] if cut else []
            break
        kept[:0] = group
        tokens -= cost
    return kept


def _with_labels(parts: list[Part]) -> list[list[Part]]:
    """The parts, a picture in one group with the label before it and the one behind it."""
    groups: list[list[Part]] = []
    for part in parts:
        label = is_image_label(str(part.get("text", "")))
        opened = bool(groups) and is_image_label(str(groups[-1][-1].get("text", "")))
        pictured = bool(groups) and _is_image(groups[-1][-1])
        if (_is_image(part) and opened and len(groups[-1]) == 1) or (label and pictured):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups
