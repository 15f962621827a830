import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from channels.settings import schema

ROOT = Path(__file__).parents[2]


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    whole = schema()
    sections = {"Settings": whole, **whole["$defs"]}
    for section, definition in sections.items():
        for name, field in definition["properties"].items():
            yield f"{section}.{name}", field


def number(field: dict[str, Any]) -> dict[str, Any] | None:
    kinds = [field, *field.get("anyOf", ())]
    return next((kind for kind in kinds if kind.get("type") in ("integer", "number")), None)


@pytest.mark.requirement("settings:schema:fresh")
def test_the_schema_in_the_repository_is_fresh() -> None:
    kept = json.loads((ROOT / "ops" / "lastword.schema.json").read_text(encoding="utf-8"))
    assert kept == schema(), "run: .venv/bin/lastword settings --schema > ops/lastword.schema.json"


@pytest.mark.requirement("settings:schema:described")
def test_every_field_is_described() -> None:
    silent = [name for name, field in fields() if len(field.get("description", "")) < 10]
    assert silent == []


@pytest.mark.requirement("settings:schema:described")
def test_every_number_has_unit_default_minimum_and_maximum() -> None:
    seen = 0
    for name, field in fields():
        amount = number(field)
        if amount is not None:
            seen += 1
            assert {"minimum", "maximum"} <= amount.keys(), name
            assert {"default", "unit"} <= field.keys(), name
            if field["default"] is not None:
                assert amount["minimum"] <= field["default"] <= amount["maximum"], name
            if field["unit"] == "seconds":
                assert name.endswith("_s"), name
    assert seen > 20


def test_every_section_refuses_unknown_keys() -> None:
    whole = schema()
    for name, definition in {"Settings": whole, **whole["$defs"]}.items():
        assert definition["additionalProperties"] is False, name
