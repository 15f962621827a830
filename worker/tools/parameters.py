"""The parameters of a function: their JSON Schema, the check of arguments, and the words about what does not fit.

What belongs here: signatures and pydantic. What must not be known here: what a tool does, how it runs.

The fields of the pydantic model are called p0, p1 and so on, and the parameters are their aliases: so a parameter may
have any name, also one that means something to pydantic.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from worker.errors import ConfigurationError
from worker.sources import nearest
from worker.tools.tool import Arguments, BadArguments, ToolContext

_SHOWN_ERRORS = 10
_SHOWN_CHARS = 80
_REFUSED_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "can only be given by its position: remove the '/'",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments: use a list instead",
    inspect.Parameter.VAR_KEYWORD: "takes any names: use a dict instead",
}


class _Untitled(GenerateJsonSchema):
    """A schema for a model to read: a title that repeats a name costs tokens and says nothing."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own form

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a function takes.

    `model`: what arguments are checked against. `contexts`: names of the parameters that get the `ToolContext`.
    `passed`: names of those that are always passed on, since the function itself has no default for them.
    """

    model: type[BaseModel]
    contexts: tuple[str, ...]
    passed: frozenset[str]

    def checked(self, arguments: Arguments) -> dict[str, Any]:
        """The arguments as the function takes them. Raises `BadArguments` that names parameter, value and fix."""
        try:
            values = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            raise BadArguments(self._told(error)) from None
        return {
            str(field.alias): getattr(values, name)
            for name, field in self.model.model_fields.items()
            if name in values.model_fields_set or field.alias in self.passed
        }

    def _told(self, error: ValidationError) -> str:
        known = [str(field.alias) for field in self.model.model_fields.values()]
        errors = error.errors(include_url=False, include_context=False)
        lines = [_line(each, known) for each in errors[:_SHOWN_ERRORS]]
        if len(errors) > _SHOWN_ERRORS:
            lines.append(f"and {len(errors) - _SHOWN_ERRORS} more")
        head, tail = "the arguments do not fit, so the tool did not run:", "Correct them and call the tool again."
        return "\n".join((head, *(f"- {line}" for line in lines), tail))


def read(tool: str, function: Callable[..., Any]) -> Parameters:
    """The parameters of a function. Raises `ConfigurationError` that names tool, parameter and fix."""
    try:
        found = inspect.signature(function, eval_str=True).parameters
    except (NameError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"tool {tool}: its signature cannot be read ({error}): let its annotations name only what is imported at "
            "the top of its module, not under TYPE_CHECKING"
        ) from None
    contexts = tuple(name for name, parameter in found.items() if _is_context(parameter.annotation))
    offered = {name: parameter for name, parameter in found.items() if name not in contexts}
    fields: dict[str, Any] = {
        f"p{number}": _field(f"tool {tool}: parameter {name}", parameter)
        for number, (name, parameter) in enumerate(offered.items())
    }
    passed = frozenset(name for name, parameter in offered.items() if not _has_default(parameter))
    return Parameters(create_model(tool, __config__=ConfigDict(extra="forbid"), **fields), contexts, passed)


def schema_of(parameters: Parameters) -> dict[str, object]:
    """The JSON Schema of an object that allows no other properties."""
    schema = parameters.model.model_json_schema(schema_generator=_Untitled)
    schema.pop("title", None)
    return schema


def _field(where: str, parameter: inspect.Parameter) -> Any:
    if parameter.kind in _REFUSED_KINDS:
        raise ConfigurationError(f"{where} {_REFUSED_KINDS[parameter.kind]}")
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        raise ConfigurationError(f"{where} has no annotation: write one, as in `{parameter.name}: str`")
    name = parameter.name
    parts: tuple[FieldInfo, ...] = (Field(alias=name, validation_alias=name, serialization_alias=name),)
    if isinstance(parameter.default, FieldInfo):
        parts = (parameter.default, *parts)
    described: Any = Annotated[(annotation, *parts)]
    field = (described, parameter.default) if _has_default(parameter) else described
    fields: dict[str, Any] = {"p": field}
    try:
        create_model("Parameter", **fields).model_json_schema(schema_generator=_Untitled)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(f"{where} cannot be described to a model: use a simpler type ({reason})") from None
    return field


def _has_default(parameter: inspect.Parameter) -> bool:
    """Whether the function itself has a default: one in a pydantic field it knows nothing of."""
    return parameter.default is not inspect.Parameter.empty and not isinstance(parameter.default, FieldInfo)


def _is_context(annotation: object) -> bool:
    return annotation is ToolContext or (get_origin(annotation) is Annotated and get_args(annotation)[0] is ToolContext)


def _line(error: ErrorDetails, known: list[str]) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        return f"{name} is no parameter; {nearest(name, known)}"
    if error["type"] == "missing":
        return f"{name} is missing: give it"
    value = json.dumps(error["input"], ensure_ascii=False, default=str)
    shown = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "..."
    return f"{name} = {shown}: {error['msg'].removeprefix('Value error, ')}"
