"""Back: the upstream's answer as the client asked for it: calls of the tools that it knows, numbered anew.

Rule 1: an answer in which nothing is to be changed is not read at all (`is_needed`).
Rule 2: of a custom tool's input the client hears when it is whole: what comes in pieces is a function's JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refold.core.chat_completions_tools import Called, call_item
from refold.core.items import ID_PREFIX, Item
from refold.core.jsonio import is_list, is_object
from refold.server.blocks import Event, event_of

WITH_RESPONSE = frozenset(
    f"response.{word}" for word in ["created", "queued", "in_progress", "completed", "done", "failed", "incomplete"]
)
ARGUMENTS = "response.function_call_arguments."


class Back:
    """One answer's way back. Mutable: it counts events, and knows which calls are told as others.

    `called`: what a function's name stands for. `response`: keys that every response object of it has. `before`: items
    that the client was told already, which come first.
    """

    def __init__(
        self,
        called: Mapping[str, Called],
        response: Mapping[str, Any] | None = None,
        before: tuple[Item, ...] = (),
        number: int = 0,
    ) -> None:
        self._called = called
        self._response = dict(response or {})
        self._before = before
        self._number = number
        self._others: dict[Any, Called] = {}  # output index → what the call there is

    @property
    def is_needed(self) -> bool:
        return bool(self._called or self._response or self._before)

    @property
    def number(self) -> int:
        """The number of the next event."""
        return self._number

    def events(self, event: Event) -> Iterator[Event]:
        """What the client is told for an event of the upstream."""
        if not self._called and not self._before and event.type not in WITH_RESPONSE:
            self._number += 1 if event.data else 0  # a comment has no number
            yield event
            return
        message = event.message()
        if not message:
            yield event
            return
        for told in self._told(message):
            if "output_index" in told and self._before:
                told = {**told, "output_index": told["output_index"] + len(self._before)}
            yield event_of({**told, "sequence_number": self._number})
            self._number += 1

    def document(self, response: dict[str, Any]) -> dict[str, Any]:
        """A response object, as the client is told it."""
        output = response.get("output")
        items = [self.item(item) for item in output if is_object(item)] if is_list(output) else []
        usage = response.get("usage")
        return {**response, **self._response, "output": [*self._before, *items], "usage": usage}

    def item(self, item: Item) -> Item:
        """An output item, as what was asked for."""
        called = self._called.get(str(item.get("name"))) if item.get("type") == "function_call" else None
        if called is None:
            return item
        if called.kind == "function_call":
            return {**item, "name": called.name, **({"namespace": called.namespace} if called.namespace else {})}
        arguments, status = item.get("arguments"), str(item.get("status") or "completed")
        text = arguments if isinstance(arguments, str) else ""
        return call_item(called, _renamed(str(item.get("id")), called), str(item.get("call_id")), text, status)

    def _told(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        kind, item, response = str(message.get("type")), message.get("item"), message.get("response")
        if is_object(item):
            called = self._called.get(str(item.get("name"))) if item.get("type") == "function_call" else None
            if called is not None and called.kind != "function_call":
                self._others[message.get("output_index")] = called
            yield {**message, "item": self.item(item)}
        elif is_object(response):
            yield {**message, "response": self.document(response)}
        elif kind.startswith(ARGUMENTS) and (called := self._others.get(message.get("output_index"))) is not None:
            yield from self._input(message, called, whole=kind.endswith(".done"))
        else:
            yield message

    def _input(self, message: dict[str, Any], called: Called, *, whole: bool) -> Iterator[dict[str, Any]]:
        """The input of a custom tool, when it is whole; of the others only their item tells."""
        if called.kind != "custom_tool_call" or not whole:
            return
        text = str(message.get("arguments") or "")
        item = call_item(called, _renamed(str(message.get("item_id")), called), "", text, "completed")
        at = {"item_id": item["id"], "output_index": message.get("output_index")}
        if item["input"]:
            yield {"type": "response.custom_tool_call_input.delta", **at, "delta": item["input"]}
        yield {"type": "response.custom_tool_call_input.done", **at, "input": item["input"]}


def _renamed(item_id: str, called: Called) -> str:
    """An id with the beginning that its kind has."""
    head, found, rest = item_id.partition("_")
    return f"{ID_PREFIX[called.kind]}_{rest}" if found and head == "fc" else item_id
