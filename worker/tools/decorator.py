"""`@tool`: a tool from a typed Python function.

What belongs here: reading a function's signature, checking arguments against it, calling it. What must not be known
here: who runs a tool and within which limits.

    from typing import Annotated
    from pydantic import Field
    from worker.tools.decorator import tool
    from worker.tools.tool import ToolContext, ToolRefusal

    @tool(approval="ask")
    async def refund(
        order: Annotated[str, Field(description="Number of the order.")], cents: int, context: ToolContext
    ) -> str:
        \"\"\"Refunds a part of an order.\"\"\"
        ...

What the model gives is checked against the annotations by pydantic in its lax mode ("7" is taken for an int). What does
not fit is told to the model, and the function is not called.
"""

import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

from worker.codecs.messages import ToolSpec
from worker.errors import ConfigurationError
from worker.tools.parameters import Parameters, read, schema_of
from worker.tools.threads import in_thread
from worker.tools.tool import Approval, Arguments, ToolContext, fault_of

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool(Generic[P, R]):
    """A tool that calls `function`. It can still be called as the function that it was made from."""

    spec: ToolSpec
    function: Callable[P, R]
    retry_safe: bool = False
    approval: Approval = "never"
    timeout_s: float | None = None
    parameters: Parameters

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: nothing is checked or measured."""
        return self.function(*args, **kwargs)

    async def run(self, arguments: Arguments, context: ToolContext) -> object:
        """Check the arguments and call the function with them. Raises `BadArguments` where they do not fit."""
        given = self.parameters.checked(arguments)
        given.update(dict.fromkeys(self.parameters.contexts, context))
        call: Callable[[], Any] = functools.partial(self.function, **given)
        if inspect.isasyncgenfunction(self.function):
            return await _last_of(call(), context)
        if inspect.iscoroutinefunction(self.function):
            return await call()
        left = threading.Event()
        try:
            result: Any = await in_thread(self.spec.name, lambda: _called(call, context, left))
        finally:
            left.set()
        return await result if inspect.isawaitable(result) else result


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    retry_safe: bool = False,
    approval: Approval = "never",
    timeout_s: float | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(  # noqa: PLR0913 - what can be said of a tool
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    retry_safe: bool = False,
    approval: Approval = "never",
    timeout_s: float | None = None,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool of a function with annotated parameters; with or without arguments of its own.

    `name`, `description`: not given, the function's name and docstring. `retry_safe`: it may run again when a process
    vanished while it ran. `approval`: ask runs it only once a person has approved. `timeout_s`: longest silence in
    seconds; None: `turns.tool_timeout_s`. The settings of an installation outrank the last three.

    A parameter annotated `ToolContext` gets the context and is not shown to the model. A plain function runs in a
    thread of its own, so it may block; nothing can stop it, and after its time it is left behind. An `async def` runs
    on the event loop, and must not block it: while it does, every turn of the process stands still, and no timeout
    can end that. Of a generator, plain or async, each item says that the tool still works, and the last is the result;
    a plain one that was left behind is closed at its next item.

    Raises `ConfigurationError` for a function that no schema can be made of.
    """
    if function is None:
        return functools.partial(
            _made,
            name=name,
            description=description,
            retry_safe=retry_safe,
            approval=approval,
            timeout_s=timeout_s,
        )
    return _made(function, name, description, retry_safe, approval, timeout_s)


def _made(  # noqa: PLR0913, PLR0917 - what can be said of a tool
    function: Callable[P, R],
    name: str | None,
    description: str | None,
    retry_safe: bool,
    approval: Approval,
    timeout_s: float | None,
) -> FunctionTool[P, R]:
    name = getattr(function, "__name__", type(function).__name__) if name is None else name
    parameters = read(name, function)
    if description is None:
        description = inspect.getdoc(function) or ""
    if not description.strip():
        raise ConfigurationError(f"tool {name} has no description: write a docstring, or give description=...")
    made = FunctionTool(
        spec=ToolSpec(name, description.strip(), schema_of(parameters)),
        function=function,
        retry_safe=retry_safe,
        approval=approval,
        timeout_s=timeout_s,
        parameters=parameters,
    )
    if fault := fault_of(made):
        raise ConfigurationError(fault)
    return made


def _called(call: Callable[[], Any], context: ToolContext, left: threading.Event) -> Any:
    """What a plain function gives, in its thread; of a generator the last item.

    `left`: set once nobody waits any more. A generator is closed at its next item then.
    """
    result = call()
    if not inspect.isgenerator(result):
        return result
    last: Any = None
    with closing(result):
        for item in result:
            if left.is_set():
                break
            context.alive()
            last = item
    return last


async def _last_of(items: Any, context: ToolContext) -> Any:
    last: Any = None
    async for item in items:
        context.alive()
        last = item
    return last
