"""What a tool is: how it is offered to a model, what it is given when it runs, and how it says no.

What belongs here: the contract between a tool and whoever runs it. What must not be known here: where tools come from,
how one is run, turns, wire formats.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from worker.codecs.messages import ToolSpec

Arguments = Mapping[str, object]
Approval = Literal["never", "ask"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""What every provider takes for the name of a tool, and the settings too."""


def _nothing() -> None:
    """What `alive` does where nobody measures a silence."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool may know of the turn that called it.

    `key`: turn:call:index, equal for every driver that runs this tool call: what a tool with side effects hands on as
    its idempotency key. `turn`, `session`: ids. `agent`: its name in the settings. `alive`: to be called, from any
    thread, by a tool that takes long, to say that it still works; its silence is measured from then on.
    """

    key: str
    turn: str
    session: str
    agent: str
    alive: Callable[[], None] = _nothing


class ToolRefusal(Exception):
    """A tool cannot do what it was asked; its words are told to the model. `failure`: the code that goes with them."""

    failure = "refused"


class BadArguments(ToolRefusal):
    """The arguments are not those of the tool, and it has not run. The words name field, value and fix."""

    failure = "bad_arguments"


class ToolFailed(ToolRefusal):
    """The tool did not do what it was asked, for a reason that the model may know."""

    failure = "failed"


class Tool(Protocol):
    """Something that a model may call. `worker.tools.decorator` makes one from a function."""

    @property
    def spec(self) -> ToolSpec:
        """How it is offered. The name matches `NAME`; `parameters` is the JSON Schema of an object."""
        ...

    @property
    def retry_safe(self) -> bool:
        """It may run again when a process vanished while it ran."""
        ...

    @property
    def approval(self) -> Approval:
        """ask: it runs only once a person has approved."""
        ...

    @property
    def timeout_s(self) -> float | None:
        """Longest silence, in seconds, while it runs. None: that of the installation."""
        ...

    async def run(self, arguments: Arguments, context: ToolContext) -> object:
        """Do it. A text is told to the model as it is, anything else as JSON.

        Raises `ToolRefusal` (and its kin) with words for the model; of every other exception the model hears only that
        the tool failed. It may be cancelled at any await.
        """
        ...


def fault_of(candidate: object) -> str | None:
    """Why an object is no `Tool`, in words with the fix; None: it is one."""
    return next(_faults(candidate), None)


def _faults(candidate: Any) -> Iterator[str]:
    """Each check may rely on those before it: only the first fault is asked for."""
    if isinstance(candidate, type) or not callable(getattr(candidate, "run", None)):
        yield f"{_shown(candidate)} is no Tool: decorate a function with @tool, or give it spec and run"
    spec = getattr(candidate, "spec", None)
    if not isinstance(spec, ToolSpec):
        yield f"the spec of {_shown(candidate)} is {_shown(spec)}: give a ToolSpec"
    spec = candidate.spec
    if not (isinstance(spec.name, str) and NAME.fullmatch(spec.name)):
        yield f"{spec.name!r} is no name of a tool: use a letter, then up to 63 letters, digits, '_' and '-'"
    if not (isinstance(spec.description, str) and spec.description.strip()):
        yield f"tool {spec.name} has no description: say what it does"
    if not (isinstance(spec.parameters, dict) and spec.parameters.get("type") == "object"):
        yield f'the parameters of tool {spec.name} are no JSON Schema of an object: give them "type": "object"'
    retry_safe = getattr(candidate, "retry_safe", None)
    if not isinstance(retry_safe, bool):
        yield f"retry_safe of tool {spec.name} is {retry_safe!r}: give True or False"
    approval = getattr(candidate, "approval", None)
    if approval not in ("never", "ask"):
        yield f"approval of tool {spec.name} is {approval!r}: give 'never' or 'ask'"
    timeout_s = getattr(candidate, "timeout_s", None)
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
        yield f"timeout_s of tool {spec.name} is {timeout_s!r}: give seconds above 0, or None"


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
