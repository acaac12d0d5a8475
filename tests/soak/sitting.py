"""Sitting: one random session through record → prompt → request → record, with everything that must hold of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))
from legal import faults
from odd_items import Draw

from refold.core.config import Config
from refold.core.items import PASSTHROUGH, Item
from refold.core.jsonio import dump, load, without_lone_surrogates
from refold.core.profile import Profile, Provider
from refold.core.prompt import Prompt, prompt_from
from refold.core.records import ItemRecorded, LineKept, TurnEnded, TurnStarted
from refold.core.thread import Thread, same_state
from refold.core.tokens import estimate
from refold.core.truncate import Budget
from refold.core.wire import Identity, Wire
from refold.model.scripted import ScriptedModel
from refold.session.clock import Clock
from refold.session.memory import Memory, read_thread
from refold.testing import text_reply, usage
from refold.views.shown import shown_text

OPENAI, OTHER = Provider(), Provider(id="other", name="Other", base_url="http://127.0.0.1:1", env_key=None)
LOCAL = Provider(
    id="local",
    name="Local",
    base_instructions_as="instructions",
    developer_role="user",
    send_item_ids=False,
    repair_call_arguments=True,
)
PROFILES = (
    Profile(slug="small", context_window=50_000, truncation=Budget("tokens", 50)),
    Profile(slug="blind", input_modalities=("text",), truncation=Budget("bytes", 300)),
    Profile(slug="hears", input_modalities=("text", "image", "audio")),
    Profile(slug="lite", lite=True),
)
BASES = ("Be terse.", None, "half \ud83d")
TOOLS = ({"type": "function", "name": "look", "parameters": {}},)
IDENTITY = Identity(thread_id="soak")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
GIVEN = ("id", PASSTHROUGH)  # what recording adds to an item, or changes

Step = tuple[str, Any]  # what is done, and with what


def steps_of(draw: Draw) -> list[Step]:
    """A session: mostly items that are recorded, in the ways that there are; in the end it is resumed."""
    steps: list[Step] = []
    for _ in range(5 + draw.below(35)):
        match draw.below(30):
            case 0:
                steps.append(("turn begins", None))
            case 1:
                steps.append(("turn ends", None))
            case 2:
                steps.append(("compact", draw.text() + "summary"))
            case 3:
                steps.append(("echo", 1 + draw.below(4)))
            case 4:
                steps.append(("usage", draw.one_of((draw.value(), {"input_tokens": draw.below(10_000)}))))
            case 5 | 6:
                steps.append(("resume", None))
            case 7 | 8:
                steps.append(("foreign line", draw.line()))
            case 9 | 10:
                steps.append(("record", draw.item()))
            case 11 | 12:
                steps.append(("record as it is", draw.item()))
            case _:
                steps.append(("add", draw.item()))
    return [*steps, ("resume", None)]


class Counting(Clock):
    """A clock whose ids count, so that a session is the same every time."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = 0

    def uuid(self) -> str:
        self._ids += 1
        return f"0190aaaa-0000-7000-8000-{self._ids:012x}"


class Sitting:
    """A session that is played, in this process or on disk. Mutable: it holds the memory and counts what it did."""

    def __init__(self, number: int, home: Path) -> None:
        self.items = self.requests = 0
        self._profile = PROFILES[number // 2 % len(PROFILES)]
        self._clock = Counting()
        self._expected: list[Item] = []  # what the log must hold, in this order
        base = BASES[number // 6 % len(BASES)]
        place = home if number % 2 else None
        self.memory = Memory.new(place, self._profile, Config(), self._clock, cwd="", instructions=base)
        self._wires = self._new_wires()

    def close(self) -> None:
        self.memory.close()

    def play(self, steps: Iterable[Step]) -> None:
        for what, given in steps:
            self._act(what, given)
            self._ask()

    def _act(self, what: str, given: Any) -> None:
        memory = self.memory
        match what:
            case "add":
                item = given if "type" in given or "role" in given else {"role": "user", **given}
                memory.add(item)
                self._expect(item if "type" in item else {"type": "message", **item})
            case "record":
                memory.record(memory.item(given))
                self._expect(given)
            case "record as it is":
                memory.record(ItemRecorded(given))
                self._expect(given)
            case "echo":  # a host records again what it was given to send
                for item in memory.prompt().input[-given:]:
                    memory.add(item)
                    self._expect(item)
            case "usage":
                memory.add([], usage=given)
            case "turn begins":
                memory.record(TurnStarted(self._clock.uuid()))
            case "turn ends":
                memory.record(TurnEnded(turn_id=memory.thread.open_turn, outcome="completed"))
            case "compact":
                self._compact(given)
            case "foreign line":
                self._write_foreign(given)
            case "resume":
                self._resume()

    def _expect(self, item: Item) -> None:
        self.items += 1
        shown_text(item)
        if item.get("type") not in OUTPUTS:  # an output may be cut
            self._expected.append(without_lone_surrogates(_bare(item)))

    def _ask(self) -> None:
        """The requests of now for each provider; a host is given what the plainest of them is sent."""
        prompt = self.memory.prompt(TOOLS)
        for wire in self._wires:
            request = wire.request(prompt, IDENTITY)
            raw = request.body()
            self.requests += 1
            _assert_legal(raw, wire.provider)
            items = msgspec.json.decode(raw)["input"]
            assert (len(items), len(raw)) == (request.items, request.size), "a request counts itself wrong"
            if wire.provider is OTHER and not self._profile.lite:
                sent = items[len(items) - len(prompt.entries) :]
                assert load(dump(prompt.input))[0] == sent, "a host is given something else to send"
        counted = estimate(prompt.entries, prompt.base_instructions)
        assert prompt.tokens == counted, "a prompt's tokens are not those of its entries"
        assert self.memory.tokens >= 0, "a context below nothing"

    def _compact(self, summary: str) -> None:
        model = ScriptedModel(
            lambda _: text_reply(summary, usage=usage(100, 10)), profile=self._profile, provider=OTHER
        )
        asyncio.run(self.memory.make_room(model, force=True))
        for body in model.requests:
            _assert_legal(msgspec.json.encode(body), OTHER)

    def _resume(self) -> None:
        """The log folds to what is live, asks the same next, and holds every item."""
        memory, live = self.memory, self.memory.thread
        if not any(True for _ in self._log()):
            return
        requests = self._afresh(memory.prompt(TOOLS))
        thread = read_thread(memory.path) if memory.path else Thread.replay(self._log())
        assert same_state(thread, live), "the log folds to something else than what is live"
        base = thread.base_instructions
        afresh = prompt_from(thread.history, self._profile, base_instructions=base, tools=TOOLS)
        assert self._afresh(afresh) == requests, "a resumed session asks something else"
        self._assert_all_is_kept()
        if memory.path is not None:
            self._reopen(memory.path)
            assert same_state(self.memory.thread, live), "reopened, it is something else"
            assert self._afresh(self.memory.prompt(TOOLS)) == requests, "reopened, it asks something else"

    def _write_foreign(self, item: bytes) -> None:
        """Another program writes a line between two sittings."""
        path = self.memory.path
        if path is not None and path.exists():
            self.memory.close()
            head = b'{"timestamp":"","ordinal":%d,"type":"response_item","payload":' % self.memory.thread.next_ordinal
            with path.open("ab") as file:
                file.write(head + item + b"}\n")
            self._reopen(path)

    def _reopen(self, path: Path) -> None:
        self.memory.close()
        self.memory = Memory.reopen(path, self._profile, Config(), self._clock)
        self._wires = self._new_wires()

    def _log(self) -> Iterator[Any]:
        path = self.memory.path
        return iter(()) if path is not None and not path.exists() else self.memory.store.lines()

    def _assert_all_is_kept(self) -> None:
        records = (line.record for line in self._log())
        held = iter(
            [_bare(one.item if isinstance(one, ItemRecorded) else one.payload) for one in records if _is_item(one)]
        )
        for item in self._expected:
            assert any(found == item for found in held), "a recorded item is not in the log as it was"

    def _new_wires(self) -> list[Wire]:
        return [Wire(provider, self._profile) for provider in (OPENAI, OTHER, LOCAL)]

    def _afresh(self, prompt: Prompt) -> list[bytes]:
        """The bytes of the requests by wires that remember nothing."""
        return [wire.request(prompt, IDENTITY).body() for wire in self._new_wires()]


def _bare(item: Item) -> Item:
    return {key: value for key, value in item.items() if key not in GIVEN}


def _is_item(record: Any) -> bool:
    return isinstance(record, ItemRecorded) or (isinstance(record, LineKept) and record.type == "response_item")


def _assert_legal(raw: bytes, provider: Provider) -> None:
    found = faults(raw, provider)
    assert not found, f"a request holds {found[0]}"
