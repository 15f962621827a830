"""`lastword settings`: each value and where it came from, and the schema of the settings file.

What belongs here: the form of these answers, and what of a value may be shown. What must not be known here: any
setting.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.settings import Settings, load_explained, schema
from channels.webhook import address
from worker.sources import Loaded, extra, is_secret, limits

_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Explained:
    """One value as it may be shown: a secret is `set` or `not set`. Only a number has `limits`."""

    name: str
    value: object
    unit: str
    limits: str
    source: str


def run_schema() -> int:
    """Print the JSON Schema of `lastword.toml`."""
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
    return exits.OK


def run_settings(*, as_json: bool) -> int:
    """Print every value with its unit and its source."""
    rows = explain(load_explained())
    if as_json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")
        return exits.OK
    table = Table(box=None, pad_edge=False)
    for name in ("setting", "value", "limits", "source"):
        table.add_column(name, overflow="fold")
    for row in rows:
        value = "not set" if row.value in (None, {}, []) else str(row.value)
        if len(value) > _LONGEST_SHOWN:
            value = value[:_LONGEST_SHOWN] + "..."
        table.add_row(
            row.name, Text(value), row.limits or row.unit, Text(row.source, "dim" if row.source == "default" else "")
        )
    Console(highlight=False).print(table)
    return exits.OK


def explain(loaded: Loaded[Settings]) -> list[Explained]:
    """Every value with its source, in the order of the fields."""
    rows = []
    for path, field, value, siblings in _leaves(loaded.settings, ()):
        source = loaded.origins.of(path) or "default"
        held_in = siblings.get(f"{path[-1]}_file")
        if held_in is not None:
            source = f"secret file {held_in}" if is_secret(field) else f"file {held_in}"
        unit = str(extra(field).get("unit", ""))
        rows.append(Explained(".".join(path), _shown(field, value), unit, limits(field), source))
    return rows


def _leaves(
    settings: BaseModel, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], FieldInfo, object, dict[str, object]]]:
    siblings = {name: getattr(settings, name) for name in type(settings).model_fields}
    for name, field in type(settings).model_fields.items():
        value = siblings[name]
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, dict) and any(isinstance(each, BaseModel) for each in value.values()):
            for key, each in value.items():
                yield from _leaves(each, (*path, name, key))
        else:
            yield (*path, name), field, value, siblings


def _shown(field: FieldInfo, value: object) -> object:
    if isinstance(value, tuple) and extra(field).get("shown") == "host":
        return [address.shown(each) for each in value]
    if extra(field).get("shown") == "host" and value is not None:
        parts = urlsplit(str(value))
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/..."
    if is_secret(field):
        return "set" if value else "not set"
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
