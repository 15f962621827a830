"""The JSON Schema of each event: what a receiver may rely on.

What belongs here: from the values in `content` to schemas. What must not be known here: any single field.

A body may have fields that its schema does not name: a later release adds some.
"""

from typing import Any

from pydantic import TypeAdapter

from channels.events.content import CONTENTS, LONG

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_LEFT_OUT = {
    "fetch_url": {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "description": "Where to read what was left out, with a token of the HTTP API; null: nobody has said.",
    },
    "truncated": {
        "type": "boolean",
        "description": "True: it was left out because the body had been too long. False: the endpoint wants it so.",
    },
}


def schema_of(event_type: str) -> dict[str, Any]:
    """The schema of a whole body. Raises KeyError for an unknown type."""
    content = CONTENTS[event_type]
    data = TypeAdapter(content).json_schema(mode="serialization")
    definitions = data.pop("$defs", {})
    description = data.pop("description")
    del data["title"]
    for definition in [data, *definitions.values()]:
        for field in definition["properties"].values():
            field.pop("title", None)
    if content in LONG:
        data = _with_or_without(data, LONG[content])
    if event_type.startswith("turn."):
        data["properties"]["outcome"]["const"] = event_type.removeprefix("turn.")
    happened = {"type": "string", "format": "date-time", "description": "When it happened, in UTC."}
    return {
        "$schema": DRAFT,
        "title": event_type,
        "description": description,
        "type": "object",
        "properties": {"type": {"const": event_type}, "timestamp": happened, "data": data},
        "required": ["type", "timestamp", "data"],
        **({"$defs": definitions} if definitions else {}),
    }


def _with_or_without(data: dict[str, Any], long: str) -> dict[str, Any]:
    """The schema of data that holds the long field, or instead of it where to fetch it."""
    return {
        **data,
        "properties": {**data["properties"], **_LEFT_OUT},
        "required": [name for name in data["required"] if name != long],
        "oneOf": [{"required": [long]}, {"required": list(_LEFT_OUT)}],
    }
