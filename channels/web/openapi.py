"""The OpenAPI document, made from the table of routes and the models of requests and answers.

What belongs here: its form. What must not be known here: how a request is answered.
"""

from importlib.metadata import version
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from channels.web.errors import STATUS, Code, ErrorBody
from channels.web.operation import Operation
from channels.web.operations import OPERATIONS
from channels.web.tokens import SCOPES
from worker.output.events import AnyOutput
from worker.output.snapshot import Snapshot

_ANY_JSON = "The event: JSON in UTF-8, whatever the Content-Type."
_REF = "#/components/schemas/{model}"
OUTPUTS: tuple[type[BaseModel], ...] = get_args(get_args(AnyOutput)[0])


def document() -> dict[str, Any]:
    """The document of this version, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lastword",
            "version": version("lastword"),
            "description": (
                "Agent turns that deliver only the text of calls that completed. A method that a path does not take is "
                "answered with 405 and Allow, a path that there is not with 404, and what is no HTTP/1.1 with 400, "
                "each with an ErrorBody."
            ),
        },
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _scopes()}},
        },
    }


def _scopes() -> str:
    told = "; ".join(f"{name}: {meaning}" for name, meaning in SCOPES.items())
    return f"A token of `lastword token create`. Scopes: {told}"


def _paths() -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return paths


def _operation(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            {
                "name": one.name,
                "in": one.where,
                "required": one.where == "path",
                "description": one.meaning,
                "schema": dict(one.schema),
            }
            for one in operation.parameters
        ],
        "responses": _responses(operation),
        "security": [] if operation.scope is None else [{"token": [operation.scope]}],
    }
    if operation.request is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(operation.request)}}}
    if operation.takes_json:
        told["requestBody"] = {"required": True, "content": {"*/*": {"schema": {}}}, "description": _ANY_JSON}
    return told


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    by_status: dict[int, list[Code]] = {}
    for code in operation.all_errors:
        by_status.setdefault(STATUS[code], []).append(code)
    for status, codes in sorted(by_status.items()):
        content = {"application/json": {"schema": _ref(ErrorBody)}}
        responses[str(status)] = {"description": f"Refused: {', '.join(codes)}.", "content": content}
    for status, answer in operation.answers.items():
        responses[str(status)] = _response(answer)
    return responses


def _response(answer: type[BaseModel] | str | None) -> dict[str, Any]:
    if answer is None:
        return {"description": "There is nothing more."}
    if isinstance(answer, str):
        schema = {"type": "object"} if answer == "application/json" else {"type": "string"}
        return {"description": answer, "content": {answer: {"schema": schema}}}
    summary = " ".join((answer.__doc__ or "").split("\n\n")[0].split())
    return {"description": summary, "content": {"application/json": {"schema": _ref(answer)}}}


def _schemas() -> dict[str, Any]:
    models: dict[type[BaseModel], Literal["serialization", "validation"]] = {}
    for operation in OPERATIONS:
        models |= {one: "serialization" for one in operation.answers.values() if isinstance(one, type)}
        models |= {one: "validation" for one in (operation.request,) if one is not None}
    models |= dict.fromkeys((ErrorBody, Snapshot, *OUTPUTS), "serialization")
    _, schemas = models_json_schema(list(models.items()), ref_template=_REF)
    found: dict[str, Any] = schemas["$defs"]
    return found


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
