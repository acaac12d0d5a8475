"""Signature: what a function's parameters, annotations and docstring say, as the JSON schema of a tool's arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Optional, TypeAlias, Union, get_type_hints

import msgspec

Schema: TypeAlias = dict[str, Any]  # a JSON schema; the JSON border

_ARGUMENTS_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*")
_ARGUMENT_LINE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def split_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A docstring's text without its `Args:` section, and that section's text for each argument."""
    text: list[str] = []
    arguments: dict[str, list[str]] = {}
    inside, indent, current = False, 0, ""
    for line in (inspect.getdoc(function) or "").splitlines():
        depth = len(line) - len(line.lstrip())
        if depth == 0 and line:
            inside, indent = bool(_ARGUMENTS_SECTION.fullmatch(line)), 0
            if inside:
                continue
        if not inside:
            text.append(line)
            continue
        indent = indent or depth
        match = _ARGUMENT_LINE.fullmatch(line.strip()) if depth == indent else None
        if match:
            current = match[1]
            arguments[current] = [match[2]]
        elif line.strip() and current:
            arguments[current].append(line.strip())
    return "\n".join(text).strip(), {name: " ".join(lines).strip() for name, lines in arguments.items()}


def parameter_types(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Each parameter's type. Raises TypeError naming the first parameter whose type is not known."""
    types: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"tool {name}: parameter `{parameter.name}`"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{where} has no fixed names and types; spell the arguments out")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{where} has no type annotation")
        # One at a time, so that the parameter can be named; the return type may be known to type checkers only.
        holder = SimpleNamespace(__annotations__={"it": parameter.annotation}, __globals__=_globals_of(function))
        try:
            types[parameter.name] = get_type_hints(holder, include_extras=True)["it"]
        except NameError as error:
            raise TypeError(f"{where}: {error}; its type must be importable when the tool is made") from error
    return types


def _globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    target = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = target.func
    return getattr(target, "__globals__", None) or getattr(type(target).__call__, "__globals__", {})


def arguments_type(
    name: str, types: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> type[msgspec.Struct]:
    """A struct with a field for each parameter; a field that may be left out is then UNSET, not its default."""
    fields: list[Any] = []
    for parameter, kind in types.items():
        try:
            msgspec.json.schema(kind)
            msgspec.json.Decoder(kind)
        except (TypeError, ValueError, RuntimeError) as error:
            why = f"{kind!r} cannot be expressed in JSON ({str(error).splitlines()[-1]})"
            raise TypeError(f"tool {name}: parameter `{parameter}`: {why}") from error
        default = parameters[parameter].default
        if default is inspect.Parameter.empty:
            fields.append((parameter, kind))
            continue
        if default is None and not _takes_none(kind):
            kind = Optional[kind]  # noqa: UP045
        fields.append((parameter, Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _takes_none(kind: Any) -> bool:
    try:
        msgspec.convert(None, kind)
    except msgspec.ValidationError:
        return False
    return True


def parameters_schema(
    arguments: type[msgspec.Struct], function: Callable[..., Any], types: Mapping[str, Any]
) -> Schema:
    schema = msgspec.json.schema(arguments)
    definitions: Schema = schema["$defs"]
    top: Schema = definitions.pop(schema["$ref"].rpartition("/")[2])
    described = split_docstring(function)[1]
    properties: Schema = {}
    for name, found in top["properties"].items():
        texts = [note for note in getattr(types[name], "__metadata__", ()) if isinstance(note, str)]
        text = texts[0] if texts else described.get(name)
        default = _default_of(function, name)
        properties[name] = {**found, **({"description": text} if text else {}), **default}
    shape: Schema = {
        "type": "object",
        "properties": properties,
        "required": top["required"],
        "additionalProperties": False,
    }
    return {**shape, "$defs": definitions} if definitions else shape


def _default_of(function: Callable[..., Any], name: str) -> Schema:
    """`{"default": value}` when the parameter has one that says something and that JSON can say."""
    default = inspect.signature(function).parameters[name].default
    if default is inspect.Parameter.empty or default is None:
        return {}
    try:
        return {"default": msgspec.to_builtins(default)}
    except TypeError:
        return {}
