"""`@tool` makes a tool of a typed function: schema, checks, injection, and every kind of function."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.support.tool_runs import CONTEXT, result_of
from worker.errors import ConfigurationError
from worker.tools.clock import clock
from worker.tools.decorator import FunctionTool, tool
from worker.tools.running import ToolResult
from worker.tools.tool import ToolContext, ToolRefusal, fault_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    size: Annotated[int, Field(ge=1)]
    note: str = ""


# Schemas.


def plain(count: int, name: str = "x", *, ratio: float | None = None) -> str:
    """Counts."""
    return f"{count} {name} {ratio}"


def described(when: Annotated[date, Field(description="The day.")], kind: Literal["a", "b"] = "a") -> str:
    """Describes."""
    return f"{when.isoformat()} {kind}"


def fields(count: int = Field(default=3, ge=1, description="How many."), tag: str = Field(description="A tag.")) -> str:
    """Has pydantic fields as defaults."""
    return f"{count} {tag}"


def nested(items: list[Item], colour: Colour, extra: dict[str, int]) -> str:
    """Nests."""
    return f"{items!r} {colour!r} {extra!r}"


def reserved(json: str, model_config: int, _private: bool, self: str = "me") -> str:
    """Has names that mean something to pydantic."""
    return f"{json} {model_config} {_private} {self}"


def nothing() -> str:
    """Takes nothing."""
    return "done"


def injected(context: ToolContext, count: int = 1) -> str:
    """Wants the context."""
    return f"{context.key} {count}"


ITEM = {
    "type": "object",
    "title": "Item",
    "properties": {"size": {"type": "integer", "minimum": 1}, "note": {"type": "string", "default": ""}},
    "required": ["size"],
}
SCHEMAS: list[tuple[Callable[..., Any], dict[str, Any], list[str]]] = [
    (
        plain,
        {
            "count": {"type": "integer"},
            "name": {"type": "string", "default": "x"},
            "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        },
        ["count"],
    ),
    (
        described,
        {
            "when": {"type": "string", "format": "date", "description": "The day."},
            "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
        },
        ["when"],
    ),
    (
        fields,
        {
            "count": {"type": "integer", "minimum": 1, "default": 3, "description": "How many."},
            "tag": {"type": "string", "description": "A tag."},
        },
        ["tag"],
    ),
    (
        nested,
        {
            "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
            "colour": {"$ref": "#/$defs/Colour"},
            "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        ["items", "colour", "extra"],
    ),
    (
        reserved,
        {
            "json": {"type": "string"},
            "model_config": {"type": "integer"},
            "_private": {"type": "boolean"},
            "self": {"type": "string", "default": "me"},
        },
        ["json", "model_config", "_private"],
    ),
    (nothing, {}, []),
    (injected, {"count": {"type": "integer", "default": 1}}, []),
]


@pytest.mark.requirement("tools:decorator:schema")
@pytest.mark.parametrize(
    ("function", "properties", "required"), SCHEMAS, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_schema_says_what_the_function_takes_and_allows_nothing_else(
    function: Callable[..., Any], properties: dict[str, Any], required: list[str]
) -> None:
    spec = tool(function).spec
    assert spec.name == function.__name__
    assert spec.description == function.__doc__
    schema = dict(spec.parameters)
    definitions = schema.pop("$defs", None)
    assert definitions is None or definitions == {
        "Item": ITEM,
        "Colour": {"type": "string", "title": "Colour", "enum": ["red", "blue"]},
    }
    assert schema.pop("required", []) == required
    assert schema == {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.requirement("tools:decorator:schema")
def test_what_the_decorator_says_outranks_the_function() -> None:
    made = tool(name="other-name", description="Something else.", retry_safe=True, approval="ask", timeout_s=7)(plain)
    assert (made.spec.name, made.spec.description) == ("other-name", "Something else.")
    assert (made.retry_safe, made.approval, made.timeout_s) == (True, "ask", 7)
    assert fault_of(made) is None
    quiet = tool(plain)
    assert (quiet.retry_safe, quiet.approval, quiet.timeout_s) == (False, "never", None)


@pytest.mark.requirement("tools:decorator:schema")
def test_a_decorated_function_can_still_be_called_as_one() -> None:
    assert tool(plain)(2, "y", ratio=0.5) == "2 y 0.5"


# What cannot be a tool.


def unannotated(count) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Says too little."""
    return str(count)


def variable(*counts: int) -> str:
    """Takes many."""
    return str(counts)


def keywords(**counts: int) -> str:
    """Takes any."""
    return str(counts)


def positional(count: int, /) -> str:
    """Wants a position."""
    return str(count)


def opaque(lock: threading.Lock) -> str:
    """Wants what no JSON is."""
    return str(lock)


def callback(call: Callable[[], None]) -> str:
    """Wants a function."""
    return str(call)


def unknown(thing: "NoSuchThing") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Names what is not there."""
    return str(thing)


def silent(count: int) -> str:
    return str(count)


@pytest.mark.requirement("tools:decorator:refused")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unannotated, r"tool unannotated: parameter count has no annotation: write one, as in `count: str`"),
        (variable, r"tool variable: parameter counts takes any number of arguments: use a list"),
        (keywords, r"tool keywords: parameter counts takes any names: use a dict"),
        (positional, r"tool positional: parameter count can only be given by its position: remove the '/'"),
        (opaque, r"tool opaque: parameter lock cannot be described to a model: use a simpler type"),
        (callback, r"tool callback: parameter call cannot be described to a model: use a simpler type"),
        (unknown, r"tool unknown: its signature cannot be read .*NoSuchThing"),
        (silent, r"tool silent has no description: write a docstring, or give description="),
        (lambda: "x", r"tool <lambda> has no description"),
    ],
)
def test_a_function_that_cannot_be_described_is_refused_where_it_is_defined(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tool(function)


@pytest.mark.requirement("tools:decorator:refused")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"name": "two words"}, "'two words' is no name of a tool: use a letter"),
        ({"name": "x" * 65}, "is no name of a tool"),
        ({"approval": "maybe"}, "approval of tool plain is 'maybe': give 'never' or 'ask'"),
        ({"timeout_s": 0}, "timeout_s of tool plain is 0: give seconds above 0"),
        ({"retry_safe": "yes"}, "retry_safe of tool plain is 'yes': give True or False"),
    ],
)
def test_what_cannot_be_said_of_a_tool_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tool(**said)(plain)


# Arguments.


@pytest.mark.requirement("tools:decorator:checked")
@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        (plain, {"count": 2}, "2 x None"),
        (plain, {"count": "2", "name": "y", "ratio": 1}, "2 y 1.0"),
        (described, {"when": "2026-01-02", "kind": "b"}, "2026-01-02 b"),
        (fields, {"tag": "t"}, "3 t"),
        (
            nested,
            {"items": [{"size": 1}], "colour": "red", "extra": {"a": 1}},
            "[Item(size=1, note='')] <Colour.RED: 'red'> {'a': 1}",
        ),
        (reserved, {"json": "j", "model_config": 1, "_private": True}, "j 1 True me"),
        (nothing, {}, "done"),
        (injected, {}, "turn_1:1:0 1"),
    ],
)
async def test_a_function_gets_its_arguments_as_it_has_them_annotated(
    function: Callable[..., Any], arguments: dict[str, Any], told: str
) -> None:
    assert await result_of(tool(function), arguments) == ToolResult(told)


HEAD = "Error: the arguments do not fit, so the tool did not run:\n"
TAIL = "\nCorrect them and call the tool again."


@pytest.mark.requirement("tools:decorator:checked")
@pytest.mark.parametrize(
    ("function", "arguments", "lines"),
    [
        (plain, {}, ["- count is missing: give it"]),
        (
            plain,
            {"count": "many"},
            ['- count = "many": Input should be a valid integer, unable to parse string as an integer'],
        ),
        (
            plain,
            {"count": 1.5},
            ["- count = 1.5: Input should be a valid integer, got a number with a fractional part"],
        ),
        (plain, {"count": 1, "nmae": "x"}, ["- nmae is no parameter; did you mean 'name'?"]),
        (nothing, {"a": 1}, ["- a is no parameter; none is known"]),
        (injected, {"context": "mine", "count": 1}, ["- context is no parameter; did you mean 'count'?"]),
        (described, {"when": "2026-01-02", "kind": "c"}, ["- kind = \"c\": Input should be 'a' or 'b'"]),
        (
            nested,
            {"items": [{"size": 0}], "colour": "green", "extra": {"a": "b"}},
            [
                "- items.0.size = 0: Input should be greater than or equal to 1",
                "- colour = \"green\": Input should be 'red' or 'blue'",
                '- extra.a = "b": Input should be a valid integer, unable to parse string as an integer',
            ],
        ),
    ],
)
async def test_arguments_that_do_not_fit_are_told_by_name_value_and_fix(
    function: Callable[..., Any], arguments: dict[str, Any], lines: list[str]
) -> None:
    assert await result_of(tool(function), arguments) == ToolResult(HEAD + "\n".join(lines) + TAIL, "bad_arguments")


@pytest.mark.requirement("tools:decorator:checked")
async def test_long_values_and_many_faults_are_told_shortly() -> None:
    @tool
    def many(counts: list[int]) -> str:
        """Takes many."""
        return str(counts)

    result = await result_of(many, {"counts": ["x" * 10_000] * 500})
    assert result.failure == "bad_arguments"
    assert "and 490 more" in result.text
    assert len(result.text) < 2500


@pytest.mark.requirement("tools:decorator:checked")
async def test_a_function_whose_arguments_do_not_fit_is_not_run() -> None:
    ran = []

    @tool
    def leaves_a_trace(count: int) -> str:
        """Leaves a trace."""
        ran.append(count)
        return "ran"

    assert (await result_of(leaves_a_trace, {"count": "x"})).failure == "bad_arguments"
    assert ran == []


@pytest.mark.requirement("tools:decorator:checked")
async def test_a_fault_of_pydantic_inside_the_function_is_a_fault_of_the_function() -> None:
    @tool
    def trips() -> str:
        """Makes a model of nonsense."""
        return str(Item.model_validate({"size": "x"}))

    assert await result_of(trips) == ToolResult("Error: the tool failed", "failed")


@pytest.mark.requirement("tools:decorator:checked")
async def test_a_default_of_the_function_is_its_own_object() -> None:
    its_own: list[int] = []

    @tool
    def keeps(value: list[int] = its_own) -> str:
        """Keeps its default."""
        return str(value is its_own)

    assert await result_of(keeps) == ToolResult("True")


# Every kind of function.


async def coroutine(count: int) -> str:
    """Awaits."""
    await asyncio.sleep(0)
    return f"awaited {count} in {threading.current_thread() is threading.main_thread()}"


def thread(count: int) -> str:
    """Blocks."""
    return f"blocked {count} in {threading.current_thread() is threading.main_thread()}"


async def stream(count: int) -> AsyncIterator[str]:
    """Streams."""
    for number in range(count):
        yield f"item {number}"
        await asyncio.sleep(0)


def generator(count: int) -> Iterator[str]:
    """Generates."""
    for number in range(count):
        yield f"item {number}"


def wrapped(count: int) -> Any:
    """Gives what is to be awaited."""
    return coroutine(count)


class Owner:
    async def method(self, count: int) -> str:
        """Belongs to an object."""
        return f"method {count}"


@pytest.mark.requirement("tools:decorator:functions")
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (tool(coroutine), "awaited 3 in True"),
        (tool(thread), "blocked 3 in False"),
        (tool(stream), "item 2"),
        (tool(generator), "item 2"),
        (tool(wrapped), "awaited 3 in True"),
        (tool(Owner().method), "method 3"),
        (tool(name="part", description="A part.")(functools.partial(plain, name="p")), "3 p None"),
    ],
)
async def test_every_kind_of_function_runs(made: FunctionTool[Any, Any], told: str) -> None:
    assert await result_of(made, {"count": 3}) == ToolResult(told)


@pytest.mark.requirement("tools:decorator:functions")
@pytest.mark.parametrize("function", [stream, generator])
async def test_each_item_of_a_generator_is_a_sign_of_life(function: Callable[..., Any]) -> None:
    beats: list[None] = []
    context = replace(CONTEXT, alive=lambda: beats.append(None))
    assert await tool(function).run({"count": 5}, context) == "item 4"
    assert len(beats) == 5
    assert await tool(function).run({"count": 0}, context) is None


@pytest.mark.requirement("tools:decorator:functions")
async def test_a_cancelled_stream_is_closed() -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    @tool
    async def endless() -> AsyncIterator[str]:
        """Never ends."""
        try:
            yield "first"
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    running = asyncio.ensure_future(endless.run({}, CONTEXT))
    await asyncio.wait_for(begun.wait(), 30)
    running.cancel()
    await asyncio.wait({running})
    assert closed.is_set()


@pytest.mark.requirement("tools:context:given")
@pytest.mark.parametrize("annotation", [ToolContext, Annotated[ToolContext, "whatever"], "ToolContext"], ids=str)
async def test_the_context_goes_to_whoever_asks_for_it_and_is_hidden_from_the_model(annotation: Any) -> None:
    async def asks(who: Any, count: int) -> str:
        return f"{who.turn} {count}"

    asks.__annotations__["who"] = annotation
    made = tool(description="Asks.")(asks)
    assert made.spec.parameters["properties"] == {"count": {"type": "integer"}}
    assert await result_of(made, {"count": 1}) == ToolResult("turn_1 1")


@pytest.mark.requirement("tools:result:error-form")
async def test_a_function_may_refuse_in_words() -> None:
    @tool
    def refuses() -> str:
        """Refuses."""
        raise ToolRefusal("not today")

    assert await result_of(refuses) == ToolResult("Error: not today", "refused")


@pytest.mark.requirement("tools:clock:tells")
async def test_the_clock_tells_the_time_of_a_zone_and_refuses_what_is_none() -> None:
    assert (await result_of(clock)).text.endswith("+00:00")
    assert (await result_of(clock, {"timezone": "Asia/Kathmandu"})).text.endswith("+05:45")
    for zone in ("Nowhere/Land", "../../etc/passwd", "Europe", "x\0y"):
        assert (await result_of(clock, {"timezone": zone})).failure == "refused"
    assert (await result_of(clock, {"timezone": 7})).failure == "bad_arguments"
    assert (clock.retry_safe, clock.approval) == (True, "never")
