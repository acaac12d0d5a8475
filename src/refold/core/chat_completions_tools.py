"""Tools of a Chat Completions request: every Responses tool that a client runs, as a function.

Rule 1: a call comes back as what it was asked for: the name that was sent tells kind, namespace and name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec

from refold.core.items import Item
from refold.core.jsonio import dump, is_list, is_object, load
from refold.core.templates import template

Tool: TypeAlias = dict[str, Any]  # one tool of either API
CallKind: TypeAlias = Literal["function_call", "custom_tool_call", "local_shell_call", "tool_search_call"]

LONGEST_NAME = 64  # characters of a function's name
LOCAL_SHELL, TOOL_SEARCH = "local_shell", "tool_search"  # tools that have a type instead of a name
_TEXT: Tool = {"type": "string"}
_COMMAND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": _TEXT},
        "working_directory": _TEXT,
        "timeout_ms": {"type": "integer"},
        "env": {"type": "object", "additionalProperties": _TEXT},
    },
    "required": ["command"],
}


class Called(msgspec.Struct, frozen=True):
    """What a call is in the Responses API."""

    kind: CallKind
    name: str
    namespace: str | None = None


class ToolSet(msgspec.Struct, frozen=True):
    """The functions to offer, what each name means, and what could not be offered, one line each."""

    functions: tuple[Tool, ...] = ()
    called: dict[str, Called] = {}
    left_out: tuple[str, ...] = ()

    def meaning(self, name: str) -> Called:
        """What a call of this name is; a name that was not offered is a function's."""
        return self.called.get(name) or Called("function_call", name)


# --- there -------------------------------------------------------------------------------------------------


def tool_set(tools: Iterable[Any]) -> ToolSet:
    """Responses tools as functions, each once; hosted ones, which a Chat Completions server does not run, left out."""
    functions: list[Tool] = []
    names: dict[str, Called] = {}
    left_out: dict[str, None] = {}
    for called, tool in _flat(tools):
        if called is None:
            left_out[f"tool {tool.get('type')!r}: only the Responses API has it"] = None
            continue
        if called in names.values():
            continue
        name = _free(flat_name(called), names)
        names[name] = called
        functions.append({"type": "function", "function": {"name": name, **_described(called, tool)}})
        if called.kind == "custom_tool_call" and is_object(tool.get("format")):
            left_out[f"grammar of tool {called.name!r}: only described to the model"] = None
    return ToolSet(tuple(functions), names, tuple(left_out))


def flat_name(called: Called) -> str:
    """Namespace and name as one name of at most LONGEST_NAME characters, always the same."""
    name = called.name
    if called.namespace:
        name = called.namespace + ("" if called.namespace.endswith("_") else "__") + name
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}_{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _free(name: str, taken: dict[str, Called]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name[: LONGEST_NAME - 4]}_{number}"
    return free


def _flat(tools: Iterable[Any], namespace: str | None = None) -> Iterator[tuple[Called | None, Tool]]:
    """Each tool with what a call of it is, those of namespaces after their heads; None: it is hosted, or unknown."""
    for tool in tools:
        if not is_object(tool):
            continue
        match tool:
            case {"type": "function", "name": str(name)}:
                yield Called("function_call", name, namespace), tool
            case {"type": "function", "function": {"name": str(name)}}:  # already as Chat Completions has it
                yield Called("function_call", name, namespace), tool["function"]
            case {"type": "custom", "name": str(name)}:
                yield Called("custom_tool_call", name, namespace), tool
            case {"type": "namespace", "name": str(name)} if is_list(tool.get("tools")):
                yield from _flat(tool["tools"], name)
            case {"type": "local_shell"}:
                yield Called("local_shell_call", LOCAL_SHELL), tool
            case {"type": "tool_search", "execution": "client"}:
                yield Called("tool_search_call", TOOL_SEARCH), tool
            case _:
                yield None, tool


def _described(called: Called, tool: Tool) -> dict[str, Any]:
    """Description and parameters of a function."""
    about = {"description": text} if isinstance(text := tool.get("description"), str) and text else {}
    match called.kind:
        case "custom_tool_call":
            return {**about, "parameters": _input_schema(tool.get("format"))}
        case "local_shell_call":
            return {"description": template("chat_local_shell").strip(), "parameters": _COMMAND}
        case _:
            parameters = tool.get("parameters")
            strict = {"strict": True} if tool.get("strict") is True else {}
            return {**about, "parameters": parameters if is_object(parameters) else _NOTHING, **strict}


_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def _input_schema(form: Any) -> dict[str, Any]:
    """One string; a grammar that would bind the model is told to it."""
    text = template("chat_custom_input").strip()
    match form:
        case {"type": "grammar", "definition": str(definition), **more}:
            grammar = template("chat_grammar").strip().replace("{syntax}", str(more.get("syntax", "text")))
            text = f"{text} {grammar.replace('{definition}', definition)}"
        case _:
            pass
    return {
        "type": "object",
        "properties": {"input": {"type": "string", "description": text}},
        "required": ["input"],
        "additionalProperties": False,
    }


def chosen(choice: Any, tools: ToolSet) -> tuple[ToolSet, Any]:
    """`tool_choice`, and the tools that it leaves; a choice of a tool that was left out becomes "auto"."""
    match choice:
        case str():
            return tools, choice
        case {"type": "allowed_tools", "tools": allowed, **more} if is_list(allowed):
            wanted = {called for called, _ in _flat(allowed) if called}
            kept = {name: called for name, called in tools.called.items() if called in wanted}
            functions = tuple(tool for tool in tools.functions if tool["function"]["name"] in kept)
            return msgspec.structs.replace(tools, functions=functions, called=kept), more.get("mode", "auto")
        case {"type": str()}:
            wanted = {called for called, _ in _flat([choice]) if called}
            name = next((name for name, called in tools.called.items() if called in wanted), None)
            return tools, {"type": "function", "function": {"name": name}} if name else "auto"
        case _:
            return tools, None


# --- and back ----------------------------------------------------------------------------------------------


def arguments_of(call: Item) -> Any:
    """What a call of the history asks for: a text for a function, an object for the others."""
    match call:
        case {"type": "custom_tool_call"}:
            return {"input": call.get("input", "")}
        case {"type": "local_shell_call", "action": action} if is_object(action):
            return {key: value for key, value in action.items() if key != "type" and value is not None}
        case {"type": "tool_search_call", "arguments": arguments} if is_object(arguments):
            return arguments
        case {"type": "function_call", "arguments": str(text)}:
            return text
        case _:
            return {}


def call_item(called: Called, item_id: str, call_id: str, arguments: str, status: str) -> Item:
    """A call as the Responses API tells it; `arguments` "" for one that has only begun."""
    head: Item = {"type": called.kind, "id": item_id, "call_id": call_id}
    if called.kind == "local_shell_call":
        return {**head, "action": _action(arguments), "status": status}
    if called.kind == "tool_search_call":
        return {**head, "execution": "client", "arguments": _object(arguments), "status": status}
    named = {"name": called.name, **({"namespace": called.namespace} if called.namespace else {})}
    if called.kind == "custom_tool_call":
        return {**head, **named, "input": input_text(arguments), "status": status}
    return {**head, **named, "arguments": arguments, "status": status}


def input_text(arguments: str) -> str:
    """A custom tool's input out of a function's arguments; what is no such object counts as the input itself."""
    value = _value(arguments)
    if not is_object(value):
        return value if isinstance(value, str) else arguments
    if isinstance(value.get("input"), str):
        return value["input"]
    return next(iter(value.values())) if [*map(type, value.values())] == [str] else arguments


def _action(arguments: str) -> dict[str, Any]:
    asked = _object(arguments)
    command, env = asked.get("command"), asked.get("env")
    words = ["bash", "-lc", command] if isinstance(command, str) else command
    words = [word if isinstance(word, str) else dump(word).decode() for word in words] if is_list(words) else []
    rest = {key: asked[key] for key in ("working_directory", "timeout_ms", "user") if asked.get(key) is not None}
    return {"type": "exec", "command": words, "env": env if is_object(env) else {}, **rest}


def _object(arguments: str) -> dict[str, Any]:
    value = _value(arguments)
    return value if is_object(value) else {}


def _value(arguments: str) -> Any:
    try:
        return load(arguments.encode("utf-8", "replace"))[0]
    except ValueError:
        return None
