"""What receivers may rely on: the published schemas, and every body against its own."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from channels.endpoints.patterns import RESERVED, TYPES
from channels.events.content import CONTENTS
from channels.events.schema import schema_of
from tests.webhook.bodies import every_body

FOLDER = Path(__file__).parents[2] / "ops" / "schemas" / "webhooks"
BODIES = list(every_body())


def closed(schema: Any) -> Any:
    """The schema, with nothing let through that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(each) for name, each in schema.items()}
    return {**inner, "additionalProperties": False} if isinstance(inner.get("properties"), dict) else inner


def faults(schema: dict[str, Any], body: bytes) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(json.loads(body))]


@pytest.mark.requirement("events:schema:fresh")
def test_the_schemas_in_the_repository_are_those_of_every_type_of_event() -> None:
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")}
    made = {event_type: schema_of(event_type) for event_type in CONTENTS}
    assert kept == made, "run: .venv/bin/lastword webhook schema --folder ops/schemas/webhooks"


@pytest.mark.requirement("events:schema:fresh")
@pytest.mark.parametrize("event_type", CONTENTS)
def test_every_schema_is_one_of_draft_2020_12_and_says_what_each_field_of_an_event_means(event_type: str) -> None:
    schema = schema_of(event_type)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    fields = schema["properties"]["data"]["properties"]
    assert [name for name, field in fields.items() if "$ref" not in field and not field.get("description")] == []


@pytest.mark.requirement("events:schema:true")
@pytest.mark.parametrize(
    ("event_type", "body"), [each[::2] for each in BODIES], ids=[f"{kind}: {special}" for kind, special, _ in BODIES]
)
def test_every_body_is_as_its_schema_says_and_holds_nothing_else(event_type: str, body: bytes) -> None:
    assert faults(closed(schema_of(event_type)), body) == []


@pytest.mark.requirement("events:schema:true")
def test_there_is_a_body_of_every_type_to_be_checked() -> None:
    assert {event_type for event_type, _, _ in BODIES} == set(CONTENTS)


@pytest.mark.requirement("events:schema:fresh")
def test_every_type_that_can_be_subscribed_to_has_a_schema_but_those_that_are_reserved() -> None:
    assert {*TYPES} - {*RESERVED} == {file.stem for file in FOLDER.glob("*.json")}


@pytest.mark.requirement("events:schema:true")
@pytest.mark.parametrize(
    "wrong",
    [
        {"text": None},
        {"fetch_url": None, "truncated": True},
        {"outcome": "failed"},
        {"labels": {"a": 1}},
        {"usage": None},
    ],
)
def test_a_schema_refuses_what_is_no_such_body(wrong: dict[str, Any]) -> None:
    body = json.loads(next(body for kind, _, body in BODIES if kind == "turn.completed"))
    body["data"] |= wrong
    assert len(faults(schema_of("turn.completed"), json.dumps(body).encode())) == 1


@pytest.mark.requirement("events:schema:open")
def test_a_field_of_a_later_release_is_let_through() -> None:
    body = json.loads(next(body for kind, _, body in BODIES if kind == "turn.completed"))
    body["data"] |= {"of_tomorrow": 1}
    assert faults(schema_of("turn.completed"), json.dumps(body | {"more": 1}).encode()) == []
