"""`@tool`: from a typed function to a schema, checked arguments and a result for the model."""

from __future__ import annotations

import asyncio
import enum
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Optional, TypedDict

import msgspec
import pytest

from refold.errors import ToolFailed
from refold.tools import FunctionTool, Tool, ToolContext, ToolResult, image, tool

if TYPE_CHECKING:
    from decimal import Decimal as Unimported

CONTEXT = ToolContext(call_id="call_1", cwd="/w")


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


class Span(TypedDict):
    start: int
    end: NotRequired[int]


@dataclass
class Point:
    x: float
    y: float = 0.0


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


def run(called: Tool, **arguments: Any) -> ToolResult:
    return asyncio.run(called.run(arguments, CONTEXT))


def failure(called: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        run(called, **arguments)
    return str(caught.value)


def properties(called: FunctionTool[..., Any]) -> dict[str, Any]:
    return called.spec["parameters"]["properties"]


@tool
def search(query: str, limit: int = 5, *, tags: list[str] | None = None) -> list[str]:
    """Search the handbook.

    Matches whole words only.

    Args:
        query: What to look for,
            in plain words.
        limit (int): How many to return.

    Returns:
        The titles.
    """
    return [f"{query}{n}" for n in range(limit)] + (tags or [])


# --- the schema ---------------------------------------------------------------------------------------


def test_signature_and_docstring_make_the_spec() -> None:
    assert search.name == "search"
    assert (search.parallel, search.needs_approval) == (True, False)
    assert search.spec == {
        "type": "function",
        "name": "search",
        "description": "Search the handbook.\n\nMatches whole words only.\n\nReturns:\n    The titles.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for, in plain words."},
                "limit": {"type": "integer", "description": "How many to return.", "default": 5},
                "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }


def test_options_replace_what_the_function_says() -> None:
    @tool(name="look-up", description="Looks up.", parallel=False, needs_approval=True)
    def search(query: str) -> str:
        """Not this."""
        return query

    assert (search.name, search.spec["name"], search.spec["description"]) == ("look-up", "look-up", "Looks up.")
    assert (search.parallel, search.needs_approval) == (False, True)
    assert search("a") == "a"


def test_function_without_parameters_or_docstring_has_a_whole_spec() -> None:
    @tool
    def now() -> str:
        return "noon"

    assert now.spec["description"] == ""
    assert now.spec["parameters"] == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert run(now).output == "noon"


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Any, {}),
        (dict[str, Any], {"type": "object"}),
        (
            Annotated[int, msgspec.Meta(ge=1, description="From one.")],
            {"type": "integer", "minimum": 1, "description": "From one."},
        ),
        (Annotated[str, "The title."], {"type": "string", "description": "The title."}),
    ],
    ids=str,
)
def test_types_become_json_schema(annotation: Any, schema: dict[str, Any]) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    assert properties(tool(function)) == {"value": schema}


def test_a_described_type_keeps_its_text_when_it_may_be_left_out() -> None:
    @tool
    def show(a: Annotated[int | None, "First."] = None, b: Annotated[int, "Second."] = None) -> None: ...  # noqa: RUF013

    nullable = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert properties(show) == {"a": {**nullable, "description": "First."}, "b": {**nullable, "description": "Second."}}


def test_named_types_become_definitions() -> None:
    @tool
    def draw(mode: Mode, span: Span, point: Point, tree: Tree, points: list[Point]) -> None: ...

    parameters = draw.spec["parameters"]
    assert {name: schema.get("$ref") for name, schema in parameters["properties"].items()} == {
        "mode": "#/$defs/Mode",
        "span": "#/$defs/Span",
        "point": "#/$defs/Point",
        "tree": "#/$defs/Tree",
        "points": None,
    }
    assert parameters["$defs"]["Mode"]["enum"] == ["fast", "slow"]
    assert parameters["$defs"]["Span"]["required"] == ["start"]
    assert parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_a_type_named_like_the_tool_is_told_apart() -> None:
    @tool(name="Point")
    def point(at: Point) -> float:
        return at.x

    assert run(point, at={"x": 2}).output == "2.0"


def test_defaults_are_told_where_json_can_tell_them() -> None:
    @tool
    def draw(mode: Mode = Mode.FAST, at: Point = Point(1.0), names: list[str] = ["a"], note: str = None) -> None: ...  # noqa: B006, B008, RUF013 # type: ignore[assignment]

    assert [schema.get("default") for schema in properties(draw).values()] == [
        "fast",
        {"x": 1.0, "y": 0.0},
        ["a"],
        None,
    ]
    assert properties(draw)["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert draw.spec["parameters"]["required"] == []


class Opaque: ...


def opaque(ok: int, thing: Opaque) -> None: ...
def unannotated(ok: int, thing) -> None: ...  # type: ignore[no-untyped-def]
def gathered(ok: int, *thing: int) -> None: ...
def keywords(ok: int, **thing: int) -> None: ...
def callback(ok: int, thing: Callable[[], None]) -> None: ...
def ambiguous(ok: int, thing: Point | Tree | dict[str, int]) -> None: ...
def unimported(ok: int, thing: list[Unimported]) -> None: ...


@pytest.mark.parametrize("function", [opaque, unannotated, gathered, keywords, callback, ambiguous, unimported])
def test_parameter_that_json_cannot_express_is_named_at_decoration(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"^tool {function.__name__}: parameter `thing`"):
        tool(function)


def test_return_type_may_be_known_to_type_checkers_only() -> None:
    @tool
    def fine(value: int) -> Unimported:
        return value  # type: ignore[return-value]

    assert run(fine, value=3).output == "3"


def test_name_that_providers_refuse_is_refused_at_decoration() -> None:
    with pytest.raises(TypeError, match="cannot be named '<lambda>'; give a name="):
        tool(lambda: None)
    with pytest.raises(TypeError, match="cannot be named 'my tool'"):
        tool(name="my tool")(opaque)


# --- arguments ----------------------------------------------------------------------------------------


def test_arguments_arrive_as_the_annotated_types() -> None:
    seen: list[Any] = []

    @tool
    def draw(mode: Mode, span: Span, point: Point, tree: Tree, scale: float) -> None:
        seen.extend([mode, span, point, tree, scale])

    tree = {"name": "a", "children": [{"name": "b"}]}
    run(draw, mode="slow", span={"start": 1}, point={"x": 1}, tree=tree, scale=2)
    assert seen == [Mode.SLOW, {"start": 1}, Point(1.0), Tree("a", [Tree("b")]), 2.0]
    assert isinstance(seen[4], float)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "missing field `query`"),
        ({"query": 5}, "`query`: expected `str`, got `int`"),
        ({"query": "a", "limit": "5"}, "`limit`: expected `int`, got `str`"),
        ({"query": "a", "limit": None}, "`limit`: expected `int`, got `null`"),
        ({"query": "a", "tags": ["b", 3]}, "`tags[1]`: expected `str`, got `int`"),
        ({"query": "a", "page": 2}, "unknown field `page`"),
    ],
)
def test_wrong_argument_is_named_with_what_was_expected(arguments: dict[str, Any], problem: str) -> None:
    assert failure(search, **arguments) == (
        f"failed to parse function arguments: {problem}\n"
        "Expected: search(query: string, limit?: integer, tags?: array of string | null)"
    )


def test_allowed_values_are_told() -> None:
    @tool
    def draw(mode: Mode, size: Literal[1, 2] = 1, point: Point | None = None, any: Any = None) -> None: ...

    usage = 'Expected: draw(mode: "fast" | "slow", size?: 1 | 2, point?: object | null, any?: any)'
    assert failure(draw, mode="odd") == f"failed to parse function arguments: `mode`: invalid enum value 'odd'\n{usage}"
    assert failure(draw, mode="fast", point={"y": 1}).startswith(
        "failed to parse function arguments: `point`: missing field `x`\n"
    )


def test_what_the_model_leaves_out_is_the_functions_own_default() -> None:
    marker: list[str] = []

    @tool
    def note(text: str, into: list[str] = marker) -> str:
        into.append(text)
        return str(into is marker)

    assert run(note, text="a").output == "True"
    assert run(note, text="a", into=[]).output == "False"
    assert marker == ["a"]


def test_positional_only_parameters_are_filled() -> None:
    @tool
    def join(first: str, second: str = "-", /, third: str = "!") -> str:
        return first + second + third

    assert run(join, first="a", third="c").output == "a-c"


def test_context_is_given_and_not_in_the_schema() -> None:
    @tool
    async def where(context: ToolContext, name: str) -> str:
        return f"{context.cwd}/{name}"

    assert list(properties(where)) == ["name"]
    assert run(where, name="a").output == "/w/a"
    assert failure(where, name="a", context={}).startswith(
        "failed to parse function arguments: unknown field `context`"
    )


# --- calling ------------------------------------------------------------------------------------------


def test_decorated_function_is_still_the_function() -> None:
    assert search("a", 2, tags=["b"]) == ["a0", "a1", "b"]
    assert (search.__name__, search.__doc__) == ("search", search.function.__doc__)
    assert repr(search) == "<tool search(query: string, limit?: integer, tags?: array of string | null)>"


def test_async_function_runs_in_the_loop_and_sync_one_in_a_thread() -> None:
    @tool
    async def inside() -> bool:
        return threading.current_thread() is threading.main_thread()

    @tool
    def outside() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (run(inside).output, run(outside).output) == ("true", "false")
    assert asyncio.run(inside())  # still a coroutine function


def test_methods_partials_and_callables_can_be_tools() -> None:
    class Shelf:
        def find(self, title: str) -> str:
            return f"found {title}"

        async def __call__(self, title: str) -> str:
            return f"called {title}"

    assert run(tool(Shelf().find), title="a").output == "found a"
    assert run(tool(name="shelf")(Shelf()), title="a").output == "called a"
    assert run(tool(name="three")(functools.partial(search.function, limit=1)), query="a").output == '["a0"]'


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        (None, ""),
        (5, "5"),
        (True, "true"),
        ([1, "é"], '[1,"é"]'),
        ({"a": Path("/x")}, '{"a":"/x"}'),
        (Point(1.0), '{"x":1.0,"y":0.0}'),
        (Tree("a"), '{"name":"a","children":[]}'),
    ],
    ids=str,
)
def test_return_value_becomes_text(value: Any, output: str) -> None:
    @tool
    def give() -> Any:
        return value

    assert run(give) == ToolResult(output=output)


def test_tool_result_is_returned_as_it_is() -> None:
    given = ToolResult(output=[{"type": "input_image", "image_url": "data:,"}], success=False, details={"a": 1})

    @tool
    def give() -> ToolResult:
        return given

    assert run(give) is given


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such row: 5"), "ValueError: no such row: 5"),
        (KeyError("id"), "KeyError: 'id'"),
        (TimeoutError(), "TimeoutError"),
        (ToolFailed("ask for less"), "ask for less"),
        (StopIteration("end"), "StopIteration: end"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=repr,
)
def test_exception_becomes_a_text_for_the_model(error: BaseException, text: str) -> None:
    @tool
    def fail() -> None:
        raise error

    assert failure(fail) == text


def test_exception_of_an_async_function_becomes_a_text_too() -> None:
    @tool
    async def fail() -> None:
        raise ValueError("late")

    @tool
    async def leave() -> None:
        raise SystemExit(2)

    assert failure(fail) == "ValueError: late"
    assert failure(leave) == "SystemExit: 2"


def test_cancellation_passes_through() -> None:
    @tool
    async def wait() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(wait.run({}, CONTEXT))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


# --- progress, images, time limits ----------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n and the rest"
PNG_PART = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgogYW5kIHRoZSByZXN0", "detail": "high"}


def test_progress_is_told_from_a_coroutine_and_from_a_thread_alike() -> None:
    @tool
    async def in_loop(context: ToolContext) -> str:
        context.progress("half")
        return "done"

    @tool
    def in_thread(context: ToolContext) -> str:
        context.progress("half")
        return "done"

    async def main(one: Any) -> tuple[list[str], list[int]]:
        told: list[str] = []
        threads: list[int] = []

        def tell(text: str) -> None:
            told.append(text)
            threads.append(threading.get_ident())

        await one.run({}, ToolContext(call_id="c", cwd="/w", progress=tell))
        await asyncio.sleep(0)
        return told, threads

    for one in (in_loop, in_thread):
        assert asyncio.run(main(one)) == (["half"], [threading.get_ident()])


def test_image_results_are_images_for_the_model(tmp_path: Path) -> None:
    (tmp_path / "plot.png").write_bytes(PNG)

    class Figure:
        def _repr_png_(self) -> bytes:
            return PNG

    returned: list[Any] = [
        image(PNG),
        image(tmp_path / "plot.png"),
        Figure(),
        ["before", image(PNG), {"n": 1}],
        image("https://host/a.png", detail="low"),
    ]

    @tool
    def draw(which: int) -> Any:
        return returned[which]

    outputs = [asyncio.run(draw.run({"which": which}, CONTEXT)).output for which in range(len(returned))]
    assert outputs[:3] == [[PNG_PART]] * 3
    assert outputs[3] == [{"type": "input_text", "text": "before"}, PNG_PART, {"type": "input_text", "text": '{"n":1}'}]
    assert outputs[4] == [{"type": "input_image", "image_url": "https://host/a.png", "detail": "low"}]


def test_what_is_no_image_is_not_sent_as_one() -> None:
    with pytest.raises(ValueError, match="is not a PNG, JPEG, GIF or WebP image"):
        image(b"words")


def test_model_of_another_library_is_told_as_json() -> None:
    class Like:
        def model_dump(self, *, mode: str) -> dict[str, str]:
            return {"mode": mode}

    @tool
    def give() -> Any:
        return [Like()]

    assert asyncio.run(give.run({}, CONTEXT)).output == '[{"mode":"json"}]'


def test_call_that_takes_too_long_fails() -> None:
    @tool(timeout=0.05)
    async def slow() -> str:
        await asyncio.sleep(60)
        return ""

    with pytest.raises(ToolFailed, match=r"slow did not end within 0\.05 seconds"):
        asyncio.run(slow.run({}, CONTEXT))

    @tool(timeout=5)
    async def fails() -> str:
        raise TimeoutError("its own")

    with pytest.raises(ToolFailed, match="TimeoutError: its own"):
        asyncio.run(fails.run({}, CONTEXT))
