"""The tools that this installation has: the built-in ones, and those of packages by the entry points `lastword.tools`.

What belongs here: finding and checking them. What must not be known here: which agent offers what, MCP, settings.

A package that is broken is told of where one of its tools is wanted, and nowhere else: it stops no other agent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from inspect import get_annotations, signature
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from worker.errors import ConfigurationError
from worker.sources import nearest
from worker.tools.clock import clock
from worker.tools.tool import Tool, fault_of

GROUP = "lastword.tools"
BUILT_IN: dict[str, Tool] = {"clock": clock}


@dataclass(frozen=True, slots=True)
class Found:
    """A tool and where it came from: Lastword, or a distribution with its entry point."""

    tool: Tool
    source: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """An entry point that gave no tools, or a thing of it that is none; `message` names both and the fix."""

    entry_point: str
    source: str
    message: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What was found."""

    found: tuple[Found, ...]
    unusable: tuple[Unusable, ...]

    def named(self, field: str, name: str) -> Found:
        """The one tool of that name. `field`: the setting that names it. Raises `ConfigurationError`."""
        matches = [each for each in self.found if each.tool.spec.name == name]
        if len(matches) > 1:
            places = " and ".join(each.source for each in matches)
            raise ConfigurationError(f"{field}: {name!r} is offered by {places}; uninstall one of them, or rename one")
        if matches:
            return matches[0]
        for broken in self.unusable:
            if broken.entry_point == name:
                raise ConfigurationError(f"{field}: {name!r} cannot be used: {broken.message}")
        known = sorted({each.tool.spec.name for each in self.found})
        message = f"{field}: there is no tool {name!r}; {nearest(name, known)}"
        raise ConfigurationError("; ".join((message, *(broken.message for broken in self.unusable))))


def discover() -> Catalogue:
    """Load every entry point. It imports foreign code, which may take long or block: to be called in a thread."""
    found = [Found(tool, "Lastword") for tool in BUILT_IN.values()]
    unusable: list[Unusable] = []
    for entry in entry_points(group=GROUP):
        source = f"{_distribution(entry)} (entry point {entry.name})"
        try:
            candidates = _given(entry.load())
        except BaseException as error:  # noqa: BLE001 - foreign code, which may even try to exit; no person's Ctrl-C
            unusable.append(Unusable(entry.name, source, _not_loaded(entry, source, error)))
            continue
        for candidate in candidates:
            fault = fault_of(candidate)
            if fault is not None:
                message = f"{source}: {entry.value} gives what is no tool: {fault}"
                unusable.append(Unusable(entry.name, source, message))
            elif not any(each.tool is candidate for each in found):
                found.append(Found(candidate, source))
    return Catalogue(tuple(found), tuple(unusable))


def _given(value: Any) -> Sequence[Any]:
    """The tools of an entry point's value: a tool, several, or what gives one or several when it is called.

    A function that does not say that it gives tools is not called: it may be a tool whose decorator was forgotten.
    """
    if fault_of(value) is None:
        return (value,)
    if isinstance(value, type):
        value = value()
    elif callable(value) and not hasattr(value, "spec"):
        if not _gives_tools(_annotated(value)):
            raise ConfigurationError(
                f"function {_name(value)} is no tool: decorate it with @tool; or, if it gives tools, annotate it so, "
                "as in '-> Iterable[Tool]'"
            )
        value = value()
    if fault_of(value) is None or not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return (value,)
    return tuple(value)


def _annotated(function: Callable[..., Any]) -> Any:
    """What a function says it returns; None where it has no signature."""
    try:
        return signature(function, eval_str=True).return_annotation
    except ValueError:  # a callable without a signature
        return None
    except Exception as error:  # noqa: BLE001 - an annotation is foreign code too
        why = str(error) if isinstance(error, NameError) else type(error).__name__
        raise ConfigurationError(
            f"function {_name(function)} is no tool: decorate it with @tool; or, if it gives tools, let what its "
            f"annotations name be there at run time ({why})"
        ) from None


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _gives_tools(annotation: Any) -> bool:
    """A return annotation is that of a tool or of several."""
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if kind is Annotated:
        return _gives_tools(parts[0])
    if kind in (Union, UnionType):
        return all(_gives_tools(part) for part in parts)
    if not isinstance(kind, type):
        return False
    if callable(getattr(kind, "run", None)):
        return any("spec" in vars(each) or "spec" in get_annotations(each) for each in kind.__mro__)
    return issubclass(kind, Iterable) and bool(parts) and _gives_tools(parts[0])


def _distribution(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else "a package without a name"


def _not_loaded(entry: EntryPoint, source: str, error: BaseException) -> str:
    kind = type(error).__name__
    words = str(error) if isinstance(error, ConfigurationError | ImportError | AttributeError | TypeError) else kind
    return (
        f"{source}: {entry.value} cannot be loaded ({words}); repair or uninstall the package, or let the entry point "
        "name a tool, several, or a function '-> Iterable[Tool]' without parameters"
    )
