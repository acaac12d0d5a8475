"""Exchange: one request that a gateway answers: what was asked, in which window, and what became of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from refold.core.chat_completions_answer import Response, response_shell
from refold.core.items import Item
from refold.core.jsonio import dump, is_list, is_object
from refold.core.usage import Usage, usage_to_api
from refold.server.callers import Caller
from refold.server.incoming import Asked, Given
from refold.server.store import Stored, list_of, stored_output

FINISHED = frozenset({"completed", "incomplete"})  # what can be gone on from


class Exchange:
    """Mutable: `headers`, `held`, `kept` and `left_out` are known when the answer has begun, or ended.

    `window`: all items, those of the response before first; `told`: the same with summaries in place of compactions.
    `is_chained`: the response before is in the store. `inline`: how many of the window's items are compacted first.
    """

    def __init__(
        self,
        asked: Asked,
        caller: Caller,
        sent: Mapping[str, str],
        *,
        window: Sequence[Given],
        told: Sequence[Given],
        is_chained: bool,
        inline: int = 0,
    ) -> None:
        self.asked, self.caller, self.sent = asked, caller, sent
        self.window, self.told = tuple(window), tuple(told)
        self.is_chained, self.inline = is_chained, inline
        self.response_id = new_id("resp")
        self.created_at = int(time.time())
        self.headers: dict[str, str] = {}
        self.left_out: tuple[str, ...] = ()
        self.kept: list[Given] | None = None  # what stays readable of items that are compacted; found once
        self.held: tuple[str, tuple[Given, ...]] | None = None  # the response's id, and the window after it

    def shell(self) -> Response:
        """The response object of an answer that the gateway itself gives."""
        told = response_shell(self.asked.told(), self.response_id, self.created_at)
        return {**told, "previous_response_id": self.asked.previous, "store": self.asked.store}

    def keep(
        self, response: dict[str, Any], output: Sequence[Item], *, window: Sequence[Given] | None
    ) -> Stored | None:
        """Hold what can be gone on from; what is to be stored of it, where that was not declined.

        `window`: where a compaction began a new one.
        """
        response_id = response.get("id")
        if response.get("status") not in FINISHED or not isinstance(response_id, str) or not response_id:
            return None
        made = tuple(map(Given.of, output))
        self.held = (response_id, (*(self.window if window is None else window), *made))
        if not self.asked.store:
            return None
        is_window = window is not None or not self.is_chained
        whole = self.window if window is None else window
        return Stored(
            id=response_id,
            previous=None if is_window else self.asked.previous,
            items=list_of(whole if is_window else self.asked.items),
            output=stored_output(list(output)),
            document=dump(response),
            is_window=is_window,
        )


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def output_of(response: dict[str, Any]) -> list[Item]:
    """The output items of a response object."""
    output = response.get("output")
    return [item for item in output if is_object(item)] if is_list(output) else []


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage as a response object tells it."""
    return usage_to_api(usage) or {}
