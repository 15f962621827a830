"""`lastword settings`: each value and where it came from, and the schema of the settings file.

What belongs here: the form of these answers. What must not be known here: any setting.
"""

import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.settings import load_explained, schema
from worker.sources import explain

_LONGEST_SHOWN = 60


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
    for name in ("setting", "value", "unit", "source"):
        table.add_column(name, overflow="fold")
    for row in rows:
        value = "not set" if row.value is None else str(row.value)
        if len(value) > _LONGEST_SHOWN:
            value = value[:_LONGEST_SHOWN] + "..."
        table.add_row(row.name, Text(value), row.unit, Text(row.source, "dim" if row.source == "default" else ""))
    Console(highlight=False).print(table)
    return exits.OK
