import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from channels.settings import Settings, schema
from worker.codecs.anthropic_messages import MAX_TOKENS
from worker.codecs.limits import StreamLimits
from worker.sections import AgentSettings, StreamLimitSettings

ROOT = Path(__file__).parents[2]
WITHOUT_AN_ID = {
    "top-level:redis-url": "each test of a process hands over a server's",
    "top-level:broker-url": "one that does not answer is told of in tests/console/test_console_deliveries.py",
    "top-level:data-dir": "the generated secret in it is read in tests/settings/test_settings_checks.py",
    "top-level:sentry-dsn": "reports arrive in tests/engine/test_reports.py",
    "providers:base-url": "each test of a process hands over a stand-in's",
    "endpoints:url": "each test of a delivery hands over a receiver's",
    "endpoints:secret": "each delivery in tests/process/test_worker_killed.py is verified with it",
    "delivery:secret": "secret_file, which is proved, stands for it once it is read",
}
"""Settings that no `tuning:` id names, each with the reason."""


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


def names(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every setting as the ids spell it: its section without the names that users give, then the field."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if inner:
            yield from names(inner[0], (*path, name))
        else:
            yield ":".join((*path, name) if path else ("top-level", name)).replace("_", "-")


@pytest.mark.requirement("settings:schema:proved")
def test_every_setting_has_a_test_that_it_reaches_what_it_sets() -> None:
    manifest = tomllib.loads((ROOT / "tests" / "requirements" / "tuning.toml").read_text(encoding="utf-8"))
    proved = [entry["id"].removeprefix("tuning:") for entry in manifest["requirement"]]
    assert sorted([*proved, *WITHOUT_AN_ID]) == sorted(names(Settings))


def test_the_limits_of_an_answer_are_those_of_the_decoders() -> None:
    """With the same defaults."""
    assert StreamLimits(**StreamLimitSettings().model_dump()) == StreamLimits()


def test_what_is_asked_for_without_max_tokens_is_told() -> None:
    assert f"wire anthropic: {MAX_TOKENS}" in str(AgentSettings.model_fields["max_tokens"].description)
