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
from pathlib import Path
from typing import Any, Generic, Optional, ParamSpec, TypeVar, overload

import msgspec

from refold.core.items import Part
from refold.errors import ToolFailed
from refold.tools import ToolContext, ToolResult
from refold.tools.media_files import data_url, is_url, read_medium
from refold.tools.signature import Schema, arguments_type, parameter_types, parameters_schema, split_docstring

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what providers accept as a tool's name
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


# --- the tool ----------------------------------------------------------------------------------------------


class FunctionTool(Generic[P, R]):
    """A function as a tool; still callable like the function. Make it with `tool`.

    `name` and `spec` go to the model. `parallel` false means: never beside another call. `needs_approval` true means:
    where a person wants to be asked, asked before each call. `timeout`: the longest that a call may take, in seconds.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parallel: bool = True,
        needs_approval: bool = False,
        timeout: float | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.parallel = parallel
        self.needs_approval = needs_approval
        self.timeout = timeout
        if not _NAME.fullmatch(self.name):
            raise TypeError(f"a tool cannot be named {self.name!r}; give a name= of 1 to 64 letters, digits, _ or -")
        types = parameter_types(function, self.name)
        self._context = frozenset(parameter for parameter, kind in types.items() if _is_context(kind))
        self._signature = inspect.signature(function)
        filled = {parameter: kind for parameter, kind in types.items() if parameter not in self._context}
        self._arguments = arguments_type(self.name, filled, self._signature.parameters)
        self.spec: Schema = {
            "type": "function",
            "name": self.name,
            "description": split_docstring(function)[0] if description is None else description,
            "strict": False,
            "parameters": parameters_schema(self._arguments, function, filled),
        }

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {usage(self.spec)}>"

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call the function: a coroutine function here, any other in a thread, which a cancelled call leaves running.

        Raises ToolFailed for wrong arguments, when the time is over and, as `TypeName: message`, for what it raises.
        """
        struct = convert_arguments(arguments, self._arguments, self.spec)
        threaded = not inspect.iscoroutinefunction(self.function)
        # What the model left out is left out of the call, so that the function's own default counts.
        values: dict[str, Any] = {name: getattr(struct, name) for name in arguments}
        values.update(dict.fromkeys(self._context, _for_thread(context) if threaded else context))
        bound = inspect.BoundArguments(self._signature, OrderedDict(values))
        bound.apply_defaults()
        call = functools.partial(_called, self.function, bound)
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                value: Any = await asyncio.to_thread(call) if threaded else call()
                return _result(await value if inspect.isawaitable(value) else value)
        except ToolFailed:
            raise
        except (Exception, SystemExit) as error:  # a tool that exits must not end the session's program
            if isinstance(error, TimeoutError) and limit.expired():
                raise ToolFailed(f"{self.name} did not end within {self.timeout:g} seconds") from error
            raise _failure(error) from error


def _for_thread(context: ToolContext) -> ToolContext:
    """The context for a function that runs in a thread: its progress is told in the session's own."""
    loop, tell = asyncio.get_running_loop(), context.progress
    return msgspec.structs.replace(context, progress=lambda text: loop.call_soon_threadsafe(tell, text))


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


def image(source: str | Path | bytes, *, detail: str = "high") -> Part:
    """An image for a tool to return, alone or in a list with texts: a file, an address (https: or data:) or its bytes.

    PNG, JPEG, GIF or WebP. Raises ValueError for anything else.
    """
    if isinstance(source, bytes):
        url = data_url("image", source, "this")
    else:
        url = source if isinstance(source, str) and is_url(source) else read_medium("image", Path(source))
    return {"type": "input_image", "image_url": url, "detail": detail}


def _result(value: Any) -> ToolResult:
    """What a function returned, for the model: text as it is, nothing as nothing, images as images, all else as JSON.

    An image is what `image` gives, or an object that draws itself for notebooks (`_repr_png_`: figures, PIL's images).
    """
    match value:
        case ToolResult():
            return value
        case str():
            return ToolResult(output=value)
        case None:
            return ToolResult(output="")
        case _ if (part := _as_image(value)) is not None:
            return ToolResult(output=[part])
        case list() | tuple() if any(_as_image(each) is not None for each in value):
            return ToolResult(output=[_as_image(each) or _as_text(each) for each in value])
        case _:
            return ToolResult(output=_json(value))


def _as_image(value: Any) -> Part | None:
    if isinstance(value, dict):
        return value if value.get("type") == "input_image" and "image_url" in value else None
    drawn = value._repr_png_() if hasattr(value, "_repr_png_") and not isinstance(value, type) else None
    return image(drawn) if isinstance(drawn, bytes) else None


def _as_text(value: Any) -> Part:
    return {"type": "input_text", "text": value if isinstance(value, str) else _json(value)}


def _json(value: Any) -> str:
    """Structs, dataclasses, pydantic's models and plain values as JSON; what JSON cannot say as its text."""
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool = True,
    needs_approval: bool = False,
    timeout: float | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool = True,
    needs_approval: bool = False,
    timeout: float | None = None,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool of a typed function; bare (`@tool`) or with options (`@tool(name="search", parallel=False)`).

    Without `name` and `description` the function's name and docstring count; the lines of the docstring's `Args:`
    section describe the arguments. A parameter annotated `ToolContext` is given the call's context and is not in the
    schema: `context.progress("half done")` tells whoever watches. A call that takes longer than `timeout` seconds
    fails (a function in a thread runs on). The result may be text, an `image`, a list with images, or JSON. Raises
    TypeError naming the parameter that cannot be expressed in JSON.
    """

    def make(function: Callable[P, R]) -> FunctionTool[P, R]:
        return FunctionTool(
            function,
            name=name,
            description=description,
            parallel=parallel,
            needs_approval=needs_approval,
            timeout=timeout,
        )

    return make if function is None else make(function)
