"""Functions: `@tool` makes a tool of a typed Python function, sync or async.

The signature gives the JSON schema, the docstring its texts; arguments are checked before the function is called.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Generic, Optional, ParamSpec, TypeVar, Union, get_type_hints, overload

import msgspec

from refold.errors import ToolFailed
from refold.tools import ToolContext, ToolResult

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Schema = dict[str, Any]  # a JSON schema; the JSON border

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what providers accept as a tool's name
_ARGUMENTS_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*")
_ARGUMENT_LINE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_PLACE = re.compile(r"^(?P<problem>.*) - at `\$\.?(?P<place>.*)`$")
_REQUIRED = re.compile(r"^Object missing required field (`.*`)$")
_UNKNOWN = re.compile(r"^Object contains unknown field (`.*`)$")


# --- arguments -----------------------------------------------------------------------------------------


def convert_arguments(arguments: Mapping[str, Any], into: type[T], spec: Schema) -> T:
    """A call's decoded arguments as the struct `into`.

    Raises ToolFailed with the argument that is wrong, what was expected, and how the tool of this `spec` is called.
    """
    try:
        return msgspec.convert(arguments, into)
    except msgspec.ValidationError as error:
        problem = _problem(str(error))
        raise ToolFailed(f"failed to parse function arguments: {problem}\nExpected: {usage(spec)}") from error


def usage(spec: Schema) -> str:
    """A function tool's call on one line: `search(query: string, limit?: integer)`."""
    parameters: Schema = spec["parameters"]
    required = parameters.get("required", ())
    named = (
        f"{name}{'' if name in required else '?'}: {_type_text(schema, parameters.get('$defs', {}))}"
        for name, schema in parameters.get("properties", {}).items()
    )
    return f"{spec['name']}({', '.join(named)})"


def _problem(message: str) -> str:
    """A validation message of msgspec with the place first, and the real program's words for a missing field."""
    place, match = "", _PLACE.match(message)
    if match:
        message, place = match["problem"], match["place"]
    if missing := _REQUIRED.match(message):
        message = f"missing field {missing[1]}"
    elif unknown := _UNKNOWN.match(message):
        message = f"unknown field {unknown[1]}"
    elif place:
        message = message[0].lower() + message[1:]
    return f"`{place}`: {message}" if place else message


def _type_text(schema: Schema, definitions: Schema) -> str:
    match schema:
        case {"$ref": str(reference)}:
            return _type_text(definitions.get(reference.rpartition("/")[2], {}), {})
        case {"enum": list(values)}:
            return " | ".join(msgspec.json.encode(value).decode() for value in values)
        case {"anyOf": list(options)}:
            return " | ".join(_type_text(option, definitions) for option in options)
        case {"type": "array", "items": dict(inner)}:
            return f"array of {_type_text(inner, definitions)}"
        case {"type": str(kind)}:
            return kind
        case _:
            return "any"


# --- from a function to a schema --------------------------------------------------------------------------


def _split_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
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


def _parameters(function: Callable[..., Any], name: str) -> dict[str, Any]:
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


def _arguments_type(
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


def _parameters_schema(
    arguments: type[msgspec.Struct], function: Callable[..., Any], types: Mapping[str, Any]
) -> Schema:
    schema = msgspec.json.schema(arguments)
    definitions: Schema = schema["$defs"]
    top: Schema = definitions.pop(schema["$ref"].rpartition("/")[2])
    described = _split_docstring(function)[1]
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


# --- the tool ----------------------------------------------------------------------------------------------


class FunctionTool(Generic[P, R]):
    """A function as a tool; still callable like the function. Make it with `tool`.

    `name` and `spec` go to the model. `parallel` false means: never beside another call. `needs_approval` true means:
    where a person wants to be asked, asked before each call.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parallel: bool = True,
        needs_approval: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.parallel = parallel
        self.needs_approval = needs_approval
        if not _NAME.fullmatch(self.name):
            raise TypeError(f"a tool cannot be named {self.name!r}; give a name= of 1 to 64 letters, digits, _ or -")
        types = _parameters(function, self.name)
        self._context = frozenset(parameter for parameter, kind in types.items() if _is_context(kind))
        self._signature = inspect.signature(function)
        filled = {parameter: kind for parameter, kind in types.items() if parameter not in self._context}
        self._arguments = _arguments_type(self.name, filled, self._signature.parameters)
        self.spec: Schema = {
            "type": "function",
            "name": self.name,
            "description": _split_docstring(function)[0] if description is None else description,
            "strict": False,
            "parameters": _parameters_schema(self._arguments, function, filled),
        }

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {usage(self.spec)}>"

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call the function: a coroutine function here, any other in a thread, which a cancelled call leaves running.

        Raises ToolFailed for wrong arguments and, as `TypeName: message`, for what the function raises.
        """
        struct = convert_arguments(arguments, self._arguments, self.spec)
        # What the model left out is left out of the call, so that the function's own default counts.
        values: dict[str, Any] = {name: getattr(struct, name) for name in arguments}
        values.update(dict.fromkeys(self._context, context))
        bound = inspect.BoundArguments(self._signature, OrderedDict(values))
        bound.apply_defaults()
        call = functools.partial(_called, self.function, bound)
        try:
            value: Any = call() if inspect.iscoroutinefunction(self.function) else await asyncio.to_thread(call)
            return _result(await value if inspect.isawaitable(value) else value)
        except ToolFailed:
            raise
        except (Exception, SystemExit) as error:  # a tool that exits must not end the session's program
            raise _failure(error) from error


def _is_context(kind: Any) -> bool:
    return kind is ToolContext or kind == Optional[ToolContext]  # noqa: UP045


def _called(function: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    try:
        return function(*bound.args, **bound.kwargs)
    except StopIteration as error:  # the one exception that a future cannot carry out of a thread
        raise _failure(error) from error


def _failure(error: BaseException) -> ToolFailed:
    text = str(error)
    return ToolFailed(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _result(value: Any) -> ToolResult:
    """What a function returned, for the model: text as it is, nothing as nothing, all else as JSON."""
    match value:
        case ToolResult():
            return value
        case str():
            return ToolResult(output=value)
        case None:
            return ToolResult(output="")
        case _:
            return ToolResult(output=msgspec.json.encode(value, enc_hook=str).decode())


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, parallel: bool = True, needs_approval: bool = False
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool = True,
    needs_approval: bool = False,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool of a typed function; bare (`@tool`) or with options (`@tool(name="search", parallel=False)`).

    Without `name` and `description` the function's name and docstring count; the lines of the docstring's `Args:`
    section describe the arguments. A parameter annotated `ToolContext` is given the call's context and is not in the
    schema. Raises TypeError naming the parameter that cannot be expressed in JSON.
    """

    def make(function: Callable[P, R]) -> FunctionTool[P, R]:
        return FunctionTool(
            function, name=name, description=description, parallel=parallel, needs_approval=needs_approval
        )

    return make if function is None else make(function)
