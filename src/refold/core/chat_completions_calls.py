"""Calls: which call of a Chat Completions answer a piece of one belongs to.

Servers differ: pieces in turns, pieces without index or id, names repeated in every piece, every call at index 0, calls
that come whole.
Rule 1: a piece goes to the call of its index, else of its id, else to the last one.
Rule 2: only a piece with a name can begin another call where one is known: with another id or name, or with more
arguments when those of the known call are whole.
"""

from __future__ import annotations

from typing import Any

import msgspec

from refold.core.chat_completions_tools import Called
from refold.core.jsonio import dump, is_object


class OpenCall:
    """A call that is being asked for. Mutable: it grows with each piece; it is announced when its name is known."""

    def __init__(self) -> None:
        self.given_id = ""  # the server's
        self.name = ""
        self.pieces: list[str] = []
        self.index: int | None = None  # among the items, once it is announced; with these:
        self.item_id = ""
        self.call_id = ""
        self.called = Called("function_call", "")

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are a whole object: nothing can be added to one."""
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return False
        try:
            return is_object(msgspec.json.decode(self.arguments))
        except (msgspec.DecodeError, RecursionError):
            return False


class Calls:
    """The calls of one answer, in the order in which they began. Mutable."""

    def __init__(self) -> None:
        self._all: list[OpenCall] = []
        self._at: dict[int, OpenCall] = {}
        self._ids: set[str] = set()  # that are given to the client

    @property
    def announced(self) -> list[OpenCall]:
        """The calls whose name is known, by their index; one that never had a name is none."""
        return sorted((call for call in self._all if call.index is not None), key=lambda call: call.index or 0)

    def take(self, piece: dict[str, Any]) -> tuple[OpenCall, str]:
        """The call that this piece of `tool_calls` belongs to, and the arguments that it adds."""
        function = piece.get("function")
        function = function if is_object(function) else {}
        index, given, name = piece.get("index"), _text(piece.get("id")), _text(function.get("name"))
        arguments = _text(function.get("arguments"))
        call = self._known(index, given)
        if call is None or _begins_another(call, given, name, arguments):
            call = OpenCall()
            self._all.append(call)
            if isinstance(index, int):
                self._at[index] = call
        call.given_id = call.given_id or given
        call.name = call.name or name
        if arguments:
            call.pieces.append(arguments)
        return call, arguments

    def free_id(self, call: OpenCall, made: str) -> str:
        """The server's id for the call, or `made` where it gave none, or one that another call has."""
        chosen = call.given_id if call.given_id and call.given_id not in self._ids else made
        self._ids.add(chosen)
        return chosen

    def _known(self, index: Any, given: str) -> OpenCall | None:
        if isinstance(index, int):
            return self._at.get(index)
        if given:
            found = next((call for call in reversed(self._all) if call.given_id == given), None)
            if found is not None:
                return found
        return self._all[-1] if self._all else None


def _begins_another(call: OpenCall, given: str, name: str, arguments: str) -> bool:
    if not name or not call.name:
        return False
    if given and call.given_id and given != call.given_id:
        return True
    if name != call.name and not (given and given == call.given_id):
        return True
    return bool(arguments.strip()) and call.is_whole


def _text(value: Any) -> str:
    """A text; an object, as some servers give arguments, as its JSON text."""
    if isinstance(value, str):
        return value
    return dump(value).decode() if is_object(value) else ""
