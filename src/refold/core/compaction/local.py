"""Local summary: the history and the handoff text go out, a summary comes back (spec §5, oracle §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from refold.core.compaction.replacement import LEFT_OUT
from refold.core.history import Entry, drop_oldest, entry, last_assistant_text
from refold.core.items import BODY_KEYS, OUTPUT_TYPE_OF, Item, user_message
from refold.core.jsonio import is_list, is_object
from refold.core.pairing import MEDIA, for_prompt
from refold.core.profile import Profile
from refold.core.prompt import Prompt, prompt_from
from refold.core.templates import template
from refold.core.truncate import well_formed
from refold.errors import CompactionFailed


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """How a summary is asked for; what the log holds of it is enough to make the request again."""

    handoff: str | None = None  # None: the protocol's own text
    dropped: int = 0  # oldest entries that are left out, a call always with its output
    without_media: bool = False  # a short text in place of each image and sound
    budget: int | None = None  # tokens of the transcript, flattened; None: the items as they are

    @property
    def as_it_is(self) -> bool:
        """Whether the whole history is told, item by item."""
        return not self.dropped and not self.without_media and self.budget is None


# --- asking ----------------------------------------------------------------------------------------------------------


def prompt_of(
    history: Sequence[Entry],
    profile: Profile,
    asking: Asking,
    *,
    base_instructions: str | None,
    tools: Sequence[dict[str, Any]] = (),
) -> tuple[Prompt, int]:
    """The request for a summary of a history, and how many of its entries are left out. No tools go with a
    transcript: whoever is given one should write, not act."""
    entries = told(history, profile, asking)
    if asking.budget is None:
        prompt = request(entries, profile, base_instructions=base_instructions, handoff=asking.handoff, tools=tools)
        return prompt, asking.dropped
    from refold.core.compaction import flattened  # few sessions ever need it

    return flattened.request(entries, asking.budget, handoff=asking.handoff)


def request(
    history: Sequence[Entry],
    profile: Profile,
    *,
    base_instructions: str | None,
    handoff: str | None,
    tools: Sequence[dict[str, Any]] = (),
) -> Prompt:
    """The whole history, then the handoff text as a user message without an id. With the tools of the samplings before
    it, it begins as they did, and a provider's cache of them is used; without (the protocol's way) it is not."""
    return closed(prompt_from(history, profile, base_instructions=base_instructions, tools=tools), handoff)


def closed(prompt: Prompt, handoff: str | None) -> Prompt:
    """The prompt with the handoff text behind it."""
    asking = entry(user_message(handoff or template("handoff")), "")
    return msgspec.structs.replace(prompt, entries=(*prompt.entries, asking), tokens=prompt.tokens + asking.tokens)


def told(history: Sequence[Entry], profile: Profile, asking: Asking) -> list[Entry]:
    """The entries of a history that a request tells."""
    if not asking.dropped and not asking.without_media:
        return list(history)  # the prompt repairs it
    entries = without_oldest(for_prompt(history, profile.input_modalities), asking.dropped)
    return [without_media(e) for e in entries] if asking.without_media else entries


def without_oldest(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Without `count` of the oldest entries, a call always with its output: so one more may be gone."""
    left = list(entries)
    while left and len(entries) - len(left) < count:
        left = drop_oldest(left)
    return left


def count_for(entries: Sequence[Entry], tokens: int) -> int:
    """How many of the oldest entries hold so many tokens (estimated), each call with its output; at least one of them,
    at most all."""
    halves: dict[tuple[str, Any], list[int]] = {}
    for index, e in enumerate(entries):
        halves.setdefault(_pair_of(e.item, index), []).append(index)
    gone: set[int] = set()
    held = 0
    for index, e in enumerate(entries):
        if gone and held >= tokens:
            break
        if index not in gone:
            together = halves[_pair_of(e.item, index)]
            gone.update(together)
            held += sum(entries[place].tokens for place in together)
    return len(gone)


def _pair_of(item: Item, index: int) -> tuple[str, Any]:
    """What a call and its output have in common; an item of another kind has it alone."""
    kind = str(item.get("type"))
    kind = OUTPUT_TYPE_OF.get(kind, kind)
    call_id = item.get("call_id")
    return (kind, call_id) if kind in OUTPUT_TYPE_OF.values() and isinstance(call_id, str) else ("", index)


def holds_media(e: Entry) -> bool:
    """Whether an entry holds an image or a sound."""
    return without_media(e) is not e


def without_media(e: Entry) -> Entry:
    """The entry with a short text in place of each image and sound; the same entry if it holds none."""
    item = e.item
    if item.get("type") == "image_generation_call" and item.get("result"):
        return entry({**item, "result": ""}, e.address, e.turn_id)
    key = BODY_KEYS.get(str(item.get("type")))
    body = item.get(key) if key else None
    if key is None or not is_list(body) or not any(_is_medium(part) for part in body):
        return e
    return entry({**item, key: [_in_words(part) for part in body]}, e.address, e.turn_id)


def _is_medium(part: Any) -> bool:
    return is_object(part) and part.get("type") in MEDIA


def _in_words(part: Any) -> Any:
    if not _is_medium(part):
        return part
    return {"type": "input_text", "text": LEFT_OUT.format(part["type"].removeprefix("input_"))}


# --- settling --------------------------------------------------------------------------------------------------------


def settle(output: Sequence[Item]) -> str:
    """The summary that a reply holds: its last assistant message (whether it is one: accepting.py).

    Raises CompactionFailed when the reply holds no text: an older answer must not pass for a summary.
    """
    summary = well_formed(last_assistant_text(output))
    if not summary:
        kinds = ", ".join(str(item.get("type")) for item in output) or "nothing"
        raise CompactionFailed(f"the model answered the request for a summary with {kinds} instead of a text")
    return summary
