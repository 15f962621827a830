"""`lastword webhook schema`: what receivers may rely on.

What belongs here: the command, and the form of its answer. What must not be known here: what any event says.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

EventType = Annotated[str | None, typer.Argument(metavar="TYPE", help="As in turn.completed; none: all of them.")]
Folder = Annotated[Path | None, typer.Option(help="Write each schema to TYPE.json in this folder instead.")]


def schema(event_type: EventType = None, folder: Folder = None) -> None:
    """Print the JSON Schema of the bodies of a type of event; of all of them, one object with the types as keys."""
    from channels.console import exits  # noqa: PLC0415 - a command loads what it needs when it is called
    from channels.events.content import CONTENTS  # noqa: PLC0415 - the same
    from channels.events.schema import schema_of  # noqa: PLC0415 - the same
    from worker.errors import ConfigurationError  # noqa: PLC0415 - the same

    if event_type is not None and event_type not in CONTENTS:
        raise ConfigurationError(f"TYPE = {event_type[:80]!r} is no type of event; use one of {', '.join(CONTENTS)}")
    schemas = {each: schema_of(each) for each in ([event_type] if event_type else CONTENTS)}
    if folder is None:
        sys.stdout.write(json.dumps(schemas[event_type] if event_type else schemas, indent=2) + "\n")
        raise typer.Exit(exits.OK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, found in schemas.items():
            (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        fix = "name another or correct its rights"
        raise ConfigurationError(f"--folder {str(folder)!r} cannot be written to ({error.strerror}); {fix}") from None
    raise typer.Exit(exits.OK)
