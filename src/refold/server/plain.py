"""Plain: a request as a plain Responses upstream takes it: messages and functions; the rest is said with those.

`accepts` names what an upstream takes as it is: "custom", "local_shell", "tool_search", "namespace" (tools and their
calls), "encrypted_reasoning", "agent_message", "metadata" (the keys that only OpenAI takes), the type of any other item
or tool, or "all".
Rule 1: an item and a key that the upstream takes keep their bytes.
Rule 2: a call comes back as what it was asked for (back.py): `called` tells what a function's name stands for.
Rule 3: what cannot be said is left out and told, or refused, as the settings say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from refold.core.chat_completions_tools import Called, ToolSet, arguments_of, flat_name, tool_set
from refold.core.items import Item, as_text, message_text, spelled, user_message
from refold.core.jsonio import dump, is_list, is_object
from refold.errors import RequestRefused
from refold.server.incoming import Asked, Given
from refold.server.settings import GatewaySettings

PLAIN_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
NAME_OF = {  # what `accepts` calls an item or a tool
    "custom_tool_call": "custom",
    "custom_tool_call_output": "custom",
    "local_shell_call": "local_shell",
    "local_shell_call_output": "local_shell",
    "tool_search_call": "tool_search",
    "tool_search_output": "tool_search",
    "compaction_summary": "compaction",
    "context_compaction": "compaction",
}
# What Chat Completions has words for, or what brings tools.
CHAT_ITEMS = PLAIN_ITEMS | {"agent_message", "additional_tools"} | {name for name in NAME_OF if "compact" not in name}
REASONING = "reasoning.encrypted_content"  # in `include`
NOT_UPSTREAM = ("context_management", "previous_response_id")  # keys that the gateway itself answers for
MESSAGE = b'"message"'


class Spelled(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a plain upstream: keys, items, what converted functions' names stand for, and what was left out."""

    keys: dict[str, bytes]
    items: tuple[bytes, ...]
    called: dict[str, Called] = {}
    left_out: tuple[str, ...] = ()


def spelled_for(asked: Asked, items: Sequence[Given], settings: GatewaySettings) -> Spelled:
    """The request for this upstream. Raises RequestRefused where unknown items are to be refused."""
    keys = {key: raw for key, raw in asked.keys.items() if key not in (*NOT_UPSTREAM, *settings.leave_out)}
    model = settings.model_for(asked.model)
    if model != asked.model:
        keys["model"] = dump(model)
    if settings.upstream_api == "chat" and settings.unknown_items == "refuse":
        for number, given in enumerate(items):
            if given.item.get("type") not in CHAT_ITEMS:
                raise _refused(str(given.item.get("type")), number)
    if settings.takes_all or settings.upstream_api == "chat":  # the other translation knows, and tells, all of it
        return Spelled(keys=keys, items=tuple(_in_role(given, settings.developer_role) for given in items))
    plain = _Plain(settings)
    called = plain.tools(keys, asked, items)
    said = tuple(raw for number, given in enumerate(items) for raw in plain.item(given, number))
    return Spelled(keys=keys, items=said, called=called, left_out=tuple(plain.left_out))


class _Plain:
    """One request's translation. Mutable: it notes what it leaves out."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.left_out: dict[str, None] = {}
        self._tools = ToolSet()

    def accepts(self, kind: str) -> bool:
        return NAME_OF.get(kind, kind) in self.settings.accepts

    # --- tools ---

    def tools(self, keys: dict[str, bytes], asked: Asked, items: Sequence[Given]) -> dict[str, Called]:
        """Change the keys that are about tools; what the converted functions' names stand for."""
        self._include(keys, asked)
        own = asked.value("tools")
        offered: list[Any] = [*own] if is_list(own) else []
        brought = [tool for given in items for tool in _brought(given.item)]
        converted = [tool for tool in (*offered, *brought) if not self._keeps_tool(tool)]
        if not converted and not brought:
            return {}
        self._tools = tool_set([tool for tool in (*offered, *brought) if not self._takes_tool(tool)])
        self.left_out.update(dict.fromkeys(self._tools.left_out))
        plain = [tool for tool in offered if self._keeps_tool(tool)]
        named = {tool.get("name") for tool in plain}
        functions = [f for f in map(_function, self._tools.functions) if f["name"] not in named]
        keys["tools"] = dump([*plain, *functions])
        self._choose(keys, asked)
        return {name: called for name, called in self._tools.called.items() if called != Called("function_call", name)}

    def _takes_tool(self, tool: Any) -> bool:
        return is_object(tool) and self.accepts(str(tool.get("type")))

    def _keeps_tool(self, tool: Any) -> bool:
        return self._takes_tool(tool) or (is_object(tool) and tool.get("type") == "function")

    def _choose(self, keys: dict[str, bytes], asked: Asked) -> None:
        """`tool_choice`, for a tool that is a function now."""
        choice = asked.value("tool_choice")
        if not is_object(choice) or choice.get("type") == "function" or self._takes_tool(choice):
            return
        wanted = {"custom": "custom_tool_call", "local_shell": "local_shell_call"}.get(str(choice.get("type")))
        name = choice.get("name") or choice.get("type")
        found = (flat for flat, called in self._tools.called.items() if (called.kind, called.name) == (wanted, name))
        flat = next(found, None)
        keys["tool_choice"] = dump({"type": "function", "name": flat} if flat else "auto")

    def _include(self, keys: dict[str, bytes], asked: Asked) -> None:
        wanted = asked.value("include")
        if is_list(wanted) and REASONING in wanted and not self.accepts("encrypted_reasoning"):
            rest = [one for one in wanted if one != REASONING]
            keys["include"] = dump(rest)
            if not rest:
                del keys["include"]

    # --- items ---

    def item(self, given: Given, number: int) -> Iterable[bytes]:
        """The item's bytes for the upstream; none where it is left out."""
        item = given.item
        kind = str(item.get("type"))
        said = item if self.accepts(kind) else self._said(item, kind, number)
        if said is None:
            return ()
        said = self._clean(said)
        return (given.raw,) if said is item and not _lacks_type(given) else (dump(said),)

    def _said(self, item: Item, kind: str, number: int) -> Item | None:
        match kind:
            case "message" | "function_call_output":
                return item
            case "function_call" if item.get("namespace"):
                return {**_without(item, "namespace"), "name": self._name_of(item)}
            case "function_call":
                return item
            case "reasoning":
                return self._reasoning(item)
            case "custom_tool_call" | "local_shell_call" | "tool_search_call":
                arguments = dump(arguments_of(item)).decode()
                call = {"type": "function_call", "call_id": item.get("call_id"), "name": self._name_of(item)}
                return {**call, "arguments": arguments, **_status(item)}
            case "custom_tool_call_output" | "local_shell_call_output" | "tool_search_output":
                output = item.get("tools") if kind == "tool_search_output" else item.get("output")
                text = output if isinstance(output, str) or (is_list(output) and kind[0] == "c") else as_text(output)
                return {"type": "function_call_output", "call_id": item.get("call_id"), "output": text}
            case "agent_message":
                return user_message(message_text({**item, "type": "message"}))
            case "additional_tools":
                return None  # they are among the tools
            case _:
                return self._unknown(item, kind, number)

    def _reasoning(self, item: Item) -> Item | None:
        """Reasoning without what only its own provider can read; nothing where nothing else is in it."""
        if not item.get("encrypted_content") or self.accepts("encrypted_reasoning"):
            return item
        if not item.get("content"):
            self.left_out[REASONING] = None
            return None
        return _without(item, "encrypted_content")

    def _unknown(self, item: Item, kind: str, number: int) -> Item | None:
        if self.settings.unknown_items == "pass":
            return item
        if self.settings.unknown_items == "refuse":
            raise _refused(kind, number)
        self.left_out[f"item {kind!r}"] = None
        return None

    def _name_of(self, call: Item) -> str:
        """The function that stands for what a call of the history called."""
        kind = str(call.get("type"))
        name = call.get("name") if isinstance(call.get("name"), str) else kind.removesuffix("_call")
        namespace = call.get("namespace")
        called = Called(kind, str(name), namespace if isinstance(namespace, str) else None)  # type: ignore[arg-type]
        return next((flat for flat, one in self._tools.called.items() if one == called), None) or flat_name(called)

    def _clean(self, item: Item) -> Item:
        """Without keys that only OpenAI takes, with a role that the upstream knows."""
        item = spelled(item, with_metadata=self.accepts("metadata"))
        if item.get("role") == "developer" and self.settings.developer_role != "developer":
            return {**item, "role": self.settings.developer_role}
        return item


def _refused(kind: str, number: int) -> RequestRefused:
    text = f"Invalid value for 'input[{number}].type': the upstream of this gateway takes no {kind!r}."
    return RequestRefused(text, code="invalid_value", param=f"input[{number}].type")


def _lacks_type(given: Given) -> bool:
    """Whether what the model said stands there in the short form, without its type, which llama.cpp refuses."""
    return given.item.get("role") == "assistant" and MESSAGE not in given.raw


def _in_role(given: Given, role: str) -> bytes:
    """An item of which nothing else is to be changed."""
    if role == "developer" or given.item.get("role") != "developer":
        return given.raw
    return dump({**given.item, "role": role})


def _brought(item: Item) -> list[Any]:
    """The tools that an item brings."""
    tools = item.get("tools") if item.get("type") in ("additional_tools", "tool_search_output") else None
    return tools if is_list(tools) else []


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]}


def _status(item: Item) -> Item:
    return {"status": item["status"]} if item.get("status") else {}


def _without(item: Item, key: str) -> Item:
    return {name: value for name, value in item.items() if name != key}
