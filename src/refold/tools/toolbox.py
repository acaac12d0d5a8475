"""Toolbox: the tools of a session by name, and the one place where a model's call meets its tool."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from refold.core.items import Item
from refold.errors import ConfigError, ToolFailed
from refold.tools import Tool, ToolContext, ToolResult

_BAD_ARGUMENTS = "failed to parse function arguments"  # the real program's words
_JSON_NAMES = {
    "list": "array",
    "str": "string",
    "int": "number",
    "float": "number",
    "bool": "boolean",
    "NoneType": "null",
}


class Toolbox(Mapping[str, Tool]):
    """Tools by name, in the order given; `specs` is the request's `tools` array. A tool's `companions`, without which
    it is half of one (write_stdin for exec_command), come after them, unless a tool of that name was given.

    Raises ConfigError when two tools have one name.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError("tools", f"two tools are named {tool.name!r}; leave one out or rename it")
            self._tools[tool.name] = tool
        for companion in [more for tool in self._tools.values() for more in getattr(tool, "companions", ())]:
            self._tools.setdefault(companion.name, companion)
        self.specs: tuple[dict[str, Any], ...] = tuple(tool.spec for tool in self._tools.values())

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    async def run(self, call: Item, context: ToolContext) -> ToolResult:
        """Answer one call item. Whatever goes wrong becomes the output; only a cancellation is raised."""
        try:
            tool, arguments = self._resolve(call)
            return await tool.run(arguments, context)
        except ToolFailed as failure:
            return ToolResult(output=str(failure), success=False)
        except (Exception, SystemExit) as error:
            text = f"tool {call.get('name')} failed: {type(error).__name__}: {error}"
            return ToolResult(output=text, success=False)

    def _resolve(self, call: Item) -> tuple[Tool, dict[str, Any]]:
        """The tool that a call means and the arguments for it. Raises ToolFailed for the model."""
        name, kind = call.get("name"), call.get("type")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if kind == "custom_tool_call":
            if tool is None or tool.spec.get("type") != "custom":
                raise ToolFailed(f"unsupported custom tool call: {name}")
            return tool, {"input": call.get("input", "")}
        if kind != "function_call" or tool is None or tool.spec.get("type") == "custom":
            raise ToolFailed(f"unsupported call: {name or kind}")
        return tool, _parsed(call.get("arguments"))


def _parsed(arguments: object) -> dict[str, Any]:
    """A call's arguments, JSON text by the protocol; an object, as some servers send it, is taken as it is."""
    if isinstance(arguments, dict):
        return arguments
    text = arguments if isinstance(arguments, str) else ""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        message = error.msg.removesuffix(" at")
        raise ToolFailed(f"{_BAD_ARGUMENTS}: {message} at line {error.lineno} column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise ToolFailed(f"{_BAD_ARGUMENTS}: {error} at line 1 column 1") from error
    if not isinstance(value, dict):
        found = _JSON_NAMES[type(value).__name__]
        raise ToolFailed(f"{_BAD_ARGUMENTS}: invalid type: {found}, expected an object at {_start_of(text)}")
    return value


def _start_of(text: str) -> str:
    """Where the JSON value of a text begins, for a reader."""
    before = text[: len(text) - len(text.lstrip())]
    return f"line {before.count(chr(10)) + 1} column {len(before) - before.rfind(chr(10))}"
