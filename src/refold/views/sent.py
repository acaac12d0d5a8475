"""Sent: every request of a session, made again from its log; its hash says whether it is the one that went out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from refold.core.compaction import local, remote
from refold.core.jsonio import JSON, is_list, is_object
from refold.core.prompt import Projection, Prompt
from refold.core.records import Known, Line, RequestSent
from refold.core.thread import Thread
from refold.core.wire import Identity, Request, Wire, wire_for
from refold.errors import RolloutCorrupt
from refold.views.shown import one_line


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its number from 1, the address of its line, what was recorded, and what it is when made again."""

    number: int
    address: str
    turn_id: str | None
    model: str
    recorded: RequestSent
    request: Request

    @property
    def is_same(self) -> bool:
        """Whether it is byte for byte what went out."""
        return self.request.sha256 == self.recorded.sha256


def sent(lines: Iterable[Line]) -> Iterator[Sent]:
    """Each request, in order. A log is folded as it was written, so a later rollback changes no earlier request.

    Raises RolloutCorrupt when a request refers to something that the log does not hold.
    """
    maker = Maker()
    for line in lines:
        match line.record:
            case Known(hash=digest, value=value):
                maker.known[digest] = value
            case RequestSent():
                yield maker.made(line.record, line.ordinal)
            case _:
                pass
        maker.thread.apply(line.record, line.ordinal)


class Maker:
    """Mutable: the thread as it was, what is known so far, and a wire and a projection for each way of spelling."""

    def __init__(self) -> None:
        self.thread = Thread()
        self.known: dict[str, Any] = {}
        self._ways: dict[str, tuple[Wire, Projection]] = {}

    def made(self, recorded: RequestSent, ordinal: int) -> Sent:
        thread = self.thread
        wire, projection = self._way(recorded.spelling)
        prompt = self._prompt(recorded, wire, projection)
        identity = Identity(
            thread_id=thread.id,
            turn_id=thread.open_turn,
            window_number=thread.window.number,
            request_kind=recorded.kind,
        )
        return Sent(
            number=thread.sent + 1,
            address=f"{thread.id}:{ordinal}",
            turn_id=thread.open_turn,
            model=wire.profile.slug,
            recorded=recorded,
            request=(wire.compact_request if recorded.method == "endpoint" else wire.request)(prompt, identity),
        )

    def _prompt(self, recorded: RequestSent, wire: Wire, projection: Projection) -> Prompt:
        thread, base = self.thread, self.thread.base_instructions
        read = thread.history[: recorded.entries] if recorded.entries else thread.history
        if recorded.kind == "compaction" and recorded.method in ("remote", "endpoint"):
            return remote.request(
                read,
                wire.profile,
                base_instructions=base,
                tools=self._tools(recorded),
                left_out=recorded.dropped,
                trigger=recorded.method == "remote",
            )
        if recorded.kind == "compaction":
            asking = local.Asking(
                handoff=None if recorded.handoff is None else str(self._of(recorded.handoff)),
                dropped=recorded.dropped,
                without_media=recorded.without_media,
                budget=recorded.budget or None,
            )
            tools = self._tools(recorded)
            prompt, _ = local.prompt_of(read, wire.profile, asking, base_instructions=base, tools=tools)
            return prompt
        schema = None if recorded.output_schema is None else self._of(recorded.output_schema)
        tools = self._tools(recorded)
        return projection.prompt(thread.history, base_instructions=base, tools=tools, output_schema=schema)

    def _way(self, spelling: str) -> tuple[Wire, Projection]:
        way = self._ways.get(spelling)
        if way is None:
            try:
                wire = wire_for(self._of(spelling))
            except (msgspec.ValidationError, AttributeError, TypeError) as error:
                what = f"how requests were spelled ({one_line(spelling)})"
                raise RolloutCorrupt(f"{what} cannot be read: {error}") from None
            way = self._ways[spelling] = wire, Projection(wire.profile)
        return way

    def _tools(self, recorded: RequestSent) -> list[JSON]:
        tools = self._of(recorded.tools)
        if not is_list(tools) or not all(map(is_object, tools)):
            raise RolloutCorrupt(f"the tools of a request ({one_line(recorded.tools)}) are no list of schemas")
        return tools

    def _of(self, digest: str) -> Any:
        if digest not in self.known:
            raise RolloutCorrupt(f"a request refers to {one_line(digest)}, which is not in this log")
        return self.known[digest]


def common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes two bodies begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
