"""Odd items: random, mutated and recorded ones, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from refold.core.items import (
    HISTORY_TYPES,
    ID_PREFIX,
    OPENAI_ONLY_KEYS,
    OUTPUT_TYPE_OF,
    OUTPUT_TYPES,
    PASSTHROUGH,
    Item,
)
from refold.core.jsonio import dump, load

DATA = Path(__file__).parent.parent / "data"
LARGEST_REAL = 20_000  # bytes of a recorded item that is used

WORDS = (
    "", "look", "é漢😀", "half \ud83d and \ude00", "\ud83d\ude80", "\x00", "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "a\r\nb\u2028c", "{not json", '{"cmd": ["ls"]}', "<environment_context>", "# AGENTS.md instructions", "\ufeff",
    "…9 tokens truncated…", "data:image/png;base64,AAAA", "aborted", "x" * 700, "漢" * 300, "\u202e\u2066", "\\ud83d",
)  # fmt: skip
CALL_IDS = (
    "c1",
    "c2",
    "c3",
    "c1",
    "c2",
    "call_\ud83d",
    "call_\ude00",
    "",
    " ",
    "\x00",
    None,
    5,
    ["c1"],
    {"c": 1},
    True,
)
ITEM_IDS = ("fc_1", "msg_1", "msg_1", "x", "_x", "x_", "_", "", None, 7, [], "rs_é\ud83d", "a_b_c", "\x00_\x00")
TYPES = sorted(HISTORY_TYPES)
CALLS = [kind for kind in TYPES if "call" in kind]
ODD_TYPES = ("compaction_trigger", "of_tomorrow", "ghost_snapshot", "MESSAGE", "message ", "", None, 5, [], {})
PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "input_image": "image_url",
    "input_audio": "audio_url",
    "encrypted_content": "encrypted_content",
    "of_tomorrow": "what",
}
KEYS = (
    "type", "id", "role", "content", "call_id", "name", "namespace", "arguments", "input", "output", "status",
    "execution", "tools", "summary", "encrypted_content", "result", "phase", "action", PASSTHROUGH, *OPENAI_ONLY_KEYS,
    "of_tomorrow", "half \ud83d", "",
)  # fmt: skip
BROKEN_BYTES = (b"\xff", b"\xe6\xb5", b"\x00", b"", b"}", b'"', b"\n")


@cache
def real_items() -> tuple[bytes, ...]:
    """Every item of moderate size in the recorded files, as JSON."""
    found: dict[bytes, None] = {}
    for path in sorted([*DATA.rglob("*.json"), *DATA.rglob("*.jsonl")]):
        raw = path.read_bytes()
        for text in raw.splitlines() if path.suffix == ".jsonl" else [raw]:
            try:
                value = load(text)[0]
            except ValueError:
                continue  # a damaged line is its own case
            found.update((item, None) for item in map(dump, _items_in(value)) if len(item) <= LARGEST_REAL)
    return tuple(found)


def _items_in(value: Any) -> Iterator[Item]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str) and value["type"] in HISTORY_TYPES:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _items_in(part)


class Draw:
    """Random values, all from one generator. Mutable: it is where the generator stands."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.one_of = self._random.choice
        self.below = self._random.randrange

    def once_in(self, times: int) -> bool:
        return self.below(times) == 0

    # --- values ----------------------------------------------------------------------------------------------

    def text(self) -> str:
        """A text; now and then a huge one."""
        if self.once_in(400):
            return self.one_of(("x", "é漢\n", "\ud83d", '"')) * (10_000 + self.below(200_000))
        return "".join(self.one_of(WORDS) for _ in range(self.one_of((1, 1, 1, 2, 4))))

    def value(self, depth: int = 3) -> Any:
        """Any JSON value."""
        match self.below(10 if depth else 7):
            case 0 | 1 | 2:
                return self.text()
            case 3:
                return self.one_of((0, -1, 7, 1.5, 10**30, 2**63, 1e300))
            case 4:
                return self.one_of((True, False))
            case 5 | 6:
                return None
            case 7:
                return [self.value(depth - 1) for _ in range(self.below(4))]
            case 8:
                return self.nested()
            case _:
                return {self.one_of(KEYS): self.value(depth - 1) for _ in range(self.below(4))}

    def nested(self) -> Any:
        value: Any = self.text()
        for _ in range(self.one_of((3, 30, 100))):
            value = [value] if self.once_in(2) else {"deep": value}
        return value

    def part(self) -> Any:
        if self.once_in(8):
            return self.value(2)
        kind = self.one_of(list(PARTS))
        return {"type": kind, PARTS[kind]: self.value(1) if self.once_in(12) else self.text()}

    def body(self) -> Any:
        """What stands in `content` or `output`: a text or parts."""
        return self.text() if self.once_in(3) else [self.part() for _ in range(self.below(4))]

    def or_odd(self, value: Any) -> Any:
        """The value, or now and then any other one."""
        return self.value() if self.once_in(6) else value

    # --- items -----------------------------------------------------------------------------------------------

    def item(self) -> Item:
        """An item as it should be, one that was recorded, or one of them with a few things changed."""
        item: Item = load(self.one_of(real_items()))[0] if self.once_in(5) else self.fair_item()
        for _ in range(self.one_of((0, 0, 0, 1, 1, 2, 4))):
            item = self.mutated(item)
        return item

    def fair_item(self) -> Item:
        """An item with the fields of its kind; what stands in them may be odd, and call ids repeat."""
        kind = self.one_of((*TYPES, *CALLS, *CALLS, "message", "message"))
        item: Item = {"type": self.one_of(ODD_TYPES) if self.once_in(25) else kind}
        if self.once_in(3):
            item["id"] = self.one_of(ITEM_IDS) if self.once_in(3) else f"{ID_PREFIX[kind]}_{self.below(20)}"
        if kind in OUTPUT_TYPE_OF or kind in OUTPUT_TYPES:
            item["call_id"] = self.one_of(CALL_IDS) if self.once_in(2) else f"c{self.below(12)}"
        match kind:
            case "message" | "agent_message":
                item["role"] = self.one_of(("user", "user", "assistant", "developer", "system"))
                item["content"] = self.or_odd(self.body())
            case "function_call" | "tool_search_call":
                item |= {"name": "look", "arguments": self.or_odd(self.text())}
            case "custom_tool_call":
                item |= {"name": "edit", "input": self.or_odd(self.text())}
            case "function_call_output" | "custom_tool_call_output":
                item["output"] = self.or_odd(self.body())
            case "tool_search_output":
                item |= {"execution": self.one_of(("server", "client")), "status": "completed", "tools": []}
            case "reasoning":
                item |= {"summary": [{"type": "summary_text", "text": self.text()}], "encrypted_content": self.text()}
            case "image_generation_call":
                item |= {"result": self.text(), "revised_prompt": self.text()}
            case _:
                item |= {"encrypted_content": self.or_odd(self.text()), "action": self.value(2)}
        return item

    def mutated(self, item: Item) -> Item:
        """The item with one thing changed."""
        changed = dict(item)
        key = self.one_of(list(item)) if item else "type"
        match self.below(9):
            case 0:
                changed.pop(key, None)
            case 1:
                changed[key] = None
            case 2:
                changed[key] = self.value()
            case 3:
                changed[self.one_of(KEYS)] = self.value()
            case 4:
                changed[key] = [changed.get(key)] * 2
            case 5:
                changed["content"] = self.body()  # also where no content belongs
            case 6:
                changed[PASSTHROUGH] = {"turn_id": self.value(1), "content_item_kinds": self.value(2)}
            case 7:
                changed["id"] = self.one_of(ITEM_IDS)
            case _:
                changed["call_id"] = self.one_of(CALL_IDS)
        return changed

    def line(self) -> bytes:
        """An item's JSON text as another program may have written it: keys twice, escaped halves, broken bytes."""
        raw = json.dumps(self.item(), ensure_ascii=self.once_in(2)).encode("utf-8", "surrogatepass")
        if self.once_in(3) and raw != b"{}":
            raw = raw[:-1] + b',"call_id":"c1","output":null,"call_id":"c2"}'
        if self.once_in(4):
            place = self.below(len(raw))
            raw = raw[:place] + self.one_of(BROKEN_BYTES) + raw[place + 1 :]
        return raw
